//! The disk as a recording tells of it, entry by entry, and the images that a cut could leave.

use crate::disk::{Disk, SyncBegun, Unsynced};
use crate::random::Random;
use mainstay_disk::recording::Entry;
use mainstay_journal::format::RING_FILE;
use mainstay_journal::storage::Storage;
use std::collections::BTreeMap;

/// A change that was begun and is not complete.
enum UnderWay {
    Create { file: String, bytes: u64 },
    Write { file: String, offset: u64, durable: bool, bytes: Vec<u8> },
    Sync(Option<SyncBegun>),
    Rename { from: String, to: String },
    Remove { file: String },
    SyncDirectory(usize),
}

/// The disk as the recording tells of it.
pub(super) struct Replayed {
    disk: Disk,
    under_way: BTreeMap<u64, UnderWay>,
    lives: u64,
}

impl Replayed {
    pub(super) fn new(seed: u64) -> Self {
        Self { disk: Disk::new(Random::new(seed)), under_way: BTreeMap::new(), lives: 0 }
    }

    /// Takes the next entry; says whether it is a point to cut at.
    pub(super) fn take(&mut self, entry: Entry) -> bool {
        match entry {
            Entry::Life { files } => {
                self.lives += 1;
                let listed = |name: &str| files.iter().any(|file| file.name == name);
                for change in std::mem::take(&mut self.under_way).into_values() {
                    let happened = match &change {
                        UnderWay::Create { file, .. } => listed(file),
                        UnderWay::Rename { from, to } => listed(to) && !listed(from),
                        UnderWay::Remove { file } => !listed(file),
                        _ => false,
                    };
                    if happened {
                        self.happen(change);
                    }
                }
                for file in files.iter().filter(|_| self.lives == 1) {
                    let _ = self.disk.create(&file.name, file.bytes);
                }
                if self.lives == 1 {
                    let names = self.disk.begin_sync_directory();
                    self.disk.end_sync_directory(names);
                }
                false
            }
            Entry::WholeFile { file, bytes } => {
                // A file of another process: its content is synced, its name is not.
                let _ = self.disk.create(&file, 0);
                self.disk.replace(&file, bytes);
                false
            }
            Entry::Found { file, offset, bytes } => {
                self.disk.write_live(&file, offset, &bytes);
                false
            }
            Entry::Create { ticket, file, bytes } => self.begin(ticket, UnderWay::Create { file, bytes }),
            Entry::Write { ticket, file, offset, durable, bytes } => {
                self.begin(ticket, UnderWay::Write { file, offset, durable, bytes })
            }
            Entry::Sync { ticket, file } => {
                let sync = self.disk.begin_sync(&file);
                self.begin(ticket, UnderWay::Sync(sync))
            }
            Entry::Rename { ticket, from, to } => self.begin(ticket, UnderWay::Rename { from, to }),
            Entry::Remove { ticket, file } => self.begin(ticket, UnderWay::Remove { file }),
            Entry::SyncDirectory { ticket } => {
                let changes = self.disk.begin_sync_directory();
                self.begin(ticket, UnderWay::SyncDirectory(changes))
            }
            Entry::Done { ticket, done } => {
                let Some(change) = self.under_way.remove(&ticket) else { return false };
                match change {
                    UnderWay::Write { file, offset, bytes, .. } if !done => {
                        self.disk.write_live(&file, offset, &bytes);
                        false
                    }
                    _ if !done => false,
                    change => {
                        let point = matches!(
                            change,
                            UnderWay::Sync(_)
                                | UnderWay::SyncDirectory(_)
                                | UnderWay::Write { durable: true, .. }
                        );
                        self.happen(change);
                        point
                    }
                }
            }
            Entry::Acknowledged { .. } => true,
        }
    }

    fn begin(&mut self, ticket: u64, change: UnderWay) -> bool {
        self.under_way.insert(ticket, change);
        false
    }

    fn happen(&mut self, change: UnderWay) {
        // What cannot be done now was undone by a later change that completed first.
        match change {
            UnderWay::Create { file, bytes } => drop(self.disk.create(&file, bytes)),
            UnderWay::Write { file, offset, durable: true, bytes } => {
                self.disk.write_durable(&file, offset, &bytes);
            }
            UnderWay::Write { file, offset, durable: false, bytes } => {
                self.disk.write_live(&file, offset, &bytes);
            }
            UnderWay::Sync(Some(sync)) => self.disk.end_sync(&sync),
            UnderWay::Sync(None) => {}
            UnderWay::Rename { from, to } => drop(self.disk.rename(&from, &to)),
            UnderWay::Remove { file } => drop(self.disk.remove(&file)),
            UnderWay::SyncDirectory(changes) => self.disk.end_sync_directory(changes),
        }
    }

    /// What a cut could leave now.
    pub(super) fn image(&self, unsynced: Unsynced, random: &mut Random) -> Disk {
        let mut disk = self.disk.clone();
        disk.reseed(Random::new(random.draw()));
        let mut cut = Self { disk, under_way: BTreeMap::new(), lives: 0 };
        for change in self.under_way.values() {
            let happened = match unsynced {
                Unsynced::Lost => false,
                Unsynced::Kept => true,
                Unsynced::Mixed => random.coin(),
            };
            match change {
                _ if !happened => {}
                UnderWay::Create { file, bytes } => drop(cut.disk.create(file, *bytes)),
                UnderWay::Write { file, offset, bytes, .. } => cut.disk.write_live(file, *offset, bytes),
                UnderWay::Rename { from, to } => drop(cut.disk.rename(from, to)),
                UnderWay::Remove { file } => drop(cut.disk.remove(file)),
                UnderWay::Sync(_) | UnderWay::SyncDirectory(_) => {}
            }
        }
        cut.disk.cut_power_as(unsynced);
        let _ = cut.disk.remove(RING_FILE);
        cut.disk
    }
}
