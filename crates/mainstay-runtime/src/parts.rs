//! Writes and publishes this node's part in a snapshot, beside its checkpoints.

use crate::core::{Core, NotSaved};
use crate::driver::Shared;
use mainstay_disk::file_storage::FileStorage;
use mainstay_process::checkpoint::Saved;
use mainstay_process::event::{Event, SnapshotEvent};
use mainstay_process::part::{final_name, publish, temporary_name};
use mainstay_types::snapshot::SnapshotId;
use std::path::PathBuf;
use std::sync::Arc;

impl Core {
    /// The file of a part that is final.
    pub(crate) fn part_file(&self, snapshot: SnapshotId) -> PathBuf {
        self.storage.path(&final_name(snapshot))
    }

    pub(crate) fn save_part(&mut self, shared: &Arc<Shared>, snapshot: SnapshotId) {
        let ended = move |saved| match saved {
            Ok(Saved { .. }) => Event::Snapshot(SnapshotEvent::Saved { snapshot }),
            Err(NotSaved { why }) => {
                tracing::warn!(%snapshot, why, "this node's part in a snapshot was given up");
                Event::Snapshot(SnapshotEvent::Failed { snapshot })
            }
        };
        let failed = Event::Snapshot(SnapshotEvent::Failed { snapshot });
        self.save_in_background(shared, "part-save", temporary_name(snapshot), failed, ended);
    }

    pub(crate) fn publish_part(&mut self, shared: &Arc<Shared>, snapshot: SnapshotId) {
        let publish = move |storage: &mut FileStorage, _: &Shared| match publish(storage, snapshot) {
            Ok(()) => Event::Snapshot(SnapshotEvent::Published { snapshot }),
            Err(error) => {
                tracing::warn!(%snapshot, %error, "this node's part in a snapshot could not be published");
                Event::Snapshot(SnapshotEvent::Failed { snapshot })
            }
        };
        let failed = Event::Snapshot(SnapshotEvent::Failed { snapshot });
        self.publish_in_background(shared, "part-publish", failed, publish);
    }

    pub(crate) fn discard_part(&self, snapshot: SnapshotId) {
        // Recovery removes what this does not.
        let _ = std::fs::remove_file(self.storage.path(&temporary_name(snapshot)));
    }
}
