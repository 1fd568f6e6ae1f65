//! Writes and publishes this node's part in a snapshot, beside its checkpoints.

use crate::checkpoint_writer::CheckpointWriter;
use crate::core::Core;
use crate::driver::Shared;
use mainstay_process::event::{Event, SnapshotEvent};
use mainstay_process::handler::Handler;
use mainstay_process::part::{final_name, publish, temporary_name};
use mainstay_types::snapshot::SnapshotId;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

impl<H: Handler + Send + 'static> Core<H> {
    /// The file of a part that is final.
    pub(crate) fn part_file(&self, snapshot: SnapshotId) -> PathBuf {
        self.storage.path(&final_name(snapshot))
    }

    pub(crate) fn save_part(&mut self, shared: &Arc<Shared<H>>, snapshot: SnapshotId) {
        let started = Instant::now();
        let name = temporary_name(snapshot);
        let forked = CheckpointWriter::fork(&self.storage.path(&name), |into| self.process.save(into));
        shared.watch.checkpoint_pause.record(started.elapsed());
        let shared_by_thread = Arc::clone(shared);
        let mut storage = self.storage.clone();
        let wait = move || {
            let shared = shared_by_thread;
            let saved = forked.and_then(|writer| writer.wait(shared.checkpoint_timeout));
            let why = match saved {
                Ok(_) => storage.wrote_file(&name).err().map(|error| error.to_string()),
                Err(error) => Some(error.to_string()),
            };
            let event = match why {
                None => SnapshotEvent::Saved { snapshot },
                Some(why) => {
                    tracing::warn!(%snapshot, why, "this node's part in a snapshot was given up");
                    let _ = std::fs::remove_file(storage.path(&name));
                    SnapshotEvent::Failed { snapshot }
                }
            };
            shared.push_event(Event::Snapshot(event));
        };
        let failed = Event::Snapshot(SnapshotEvent::Failed { snapshot });
        self.background.extend(shared.in_background("part-save", failed, wait));
    }

    pub(crate) fn publish_part(&mut self, shared: &Arc<Shared<H>>, snapshot: SnapshotId) {
        let shared_by_thread = Arc::clone(shared);
        let mut storage = self.storage.clone();
        // The lock on the directory lives as long as the disk.
        let disk = Arc::clone(&self.disk);
        let publish = move || {
            let event = match publish(&mut storage, snapshot) {
                Ok(()) => SnapshotEvent::Published { snapshot },
                Err(error) => {
                    tracing::warn!(%snapshot, %error, "this node's part in a snapshot could not be published");
                    SnapshotEvent::Failed { snapshot }
                }
            };
            drop(disk);
            shared_by_thread.push_event(Event::Snapshot(event));
        };
        let failed = Event::Snapshot(SnapshotEvent::Failed { snapshot });
        self.background.extend(shared.in_background("part-publish", failed, publish));
    }

    pub(crate) fn discard_part(&self, snapshot: SnapshotId) {
        // Recovery removes what this does not.
        let _ = std::fs::remove_file(self.storage.path(&temporary_name(snapshot)));
    }
}
