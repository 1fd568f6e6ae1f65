//! A service at level peers: the region has what a life begins with before anybody hears of that life.

use super::{EndError, Life, StartError};
use crate::core::copy_log;
use crate::driver::Shared;
use crate::keep::{self, KeepError, KeptStart, NotKept};
use mainstay_disk::disk::Disk;
use mainstay_disk::file_storage::FileStorage;
use mainstay_disk::mapped_pages::MappedPages;
use mainstay_disk::open::OpenDisk;
use mainstay_process::effect::Effect;
use mainstay_process::event::Event;
use mainstay_process::handler::AnyHandler;
use mainstay_process::process::Process;
use mainstay_types::id::Lsn;
use std::sync::Arc;

impl Life {
    /// Has the region keep the log of a directory that has just been opened.
    pub(super) fn begin_keeping(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        prepared: keep::Prepared,
        opened: &mut OpenDisk,
    ) -> Result<KeptStart, KeepError> {
        let told = Arc::downgrade(shared);
        let acknowledged = move |to, confirmed| {
            if let Some(shared) = told.upgrade() {
                shared.push_event(Event::Kept { to, confirmed });
            }
        };
        let (life, shared) = (Arc::clone(self), Arc::downgrade(shared));
        let ended = move |not_kept| {
            if let Some(shared) = shared.upgrade() {
                shared.end();
            }
            life.say_ended(Err(EndError::NotKept(not_kept)));
        };
        let (keep, started) = keep::begin(prepared, &self.settings, opened, acknowledged, ended)?;
        assert!(self.keep.set(keep).is_ok(), "a service begins to keep once");
        Ok(started)
    }

    /// Before a recovery in place: the region has all of the journal.
    pub(super) fn keep_up(&self, opened: &mut OpenDisk) -> Result<(), StartError> {
        let Some(keep) = self.keep.get() else { return Ok(()) };
        let end = opened.report.end;
        let mut bytes = Vec::new();
        if keep.end() < end {
            copy_log((&opened.journal, &mut opened.storage, &opened.disk), (keep.end(), end), &mut bytes);
            keep.put(&mut bytes, 0);
        }
        self.wait_for_keep(opened.report.generation.0, end)
    }

    /// Behind a recovery: the region has the first records of this life before anybody hears of it.
    pub(super) fn keep_beginning(
        &self,
        process: &Process<AnyHandler, MappedPages>,
        effects: &mut Vec<Effect>,
        (storage, disk): (&mut FileStorage, &Disk),
    ) -> Result<(), StartError> {
        let Some(keep) = self.keep.get() else { return Ok(()) };
        let mut bytes = Vec::new();
        effects.retain(|effect| match effect {
            Effect::Keep { from, to } => {
                copy_log((process.journal(), storage, disk), (*from, *to), &mut bytes);
                false
            }
            _ => true,
        });
        keep.put(&mut bytes, 0);
        self.wait_for_keep(process.incarnation().0, keep.end())
    }

    fn wait_for_keep(&self, life: u64, end: Lsn) -> Result<(), StartError> {
        let (Some(keep), Some(settings)) = (self.keep.get(), &self.settings.keep) else { return Ok(()) };
        keep.wait(life, end).map_err(|trouble| NotKept { name: settings.name.clone(), trouble }.into())
    }
}
