//! Checkpoints in the world: written by a forked child from the state of the fork, published in the background.

use crate::properties::Violation;
use crate::reach::Reach;
use crate::service::CheckpointWork;
use crate::subject::Subject;
use crate::world::{Happening, MILLISECOND, World};
use mainstay_journal::storage::{Failure, Storage, StorageError};
use mainstay_process::checkpoint::{publish, temporary_name};
use mainstay_process::event::{CheckpointEvent, Event};
use mainstay_types::id::Lsn;

impl<S: Subject> World<S> {
    pub(crate) fn save_checkpoint(&mut self, lsn: Lsn) {
        let lives = self.lives;
        let life = self.life.as_mut().expect("effects are performed for a living service");
        let mut bytes = Vec::new();
        let saved = life.process.save(&mut bytes).expect("a vector takes all");
        life.checkpoint = Some(CheckpointWork { lsn, bytes, state_hash: saved.state_hash });
        self.after_up_to(2 * MILLISECOND, Happening::Checkpoint { life: lives, publish: false });
    }

    pub(crate) fn checkpoint_done(&mut self, publishes: bool) -> Result<(), Violation> {
        let life = self.life.as_mut().expect("it lives");
        let Some(work) = &life.checkpoint else { return Ok(()) };
        let lsn = work.lsn;
        let event = if publishes {
            match publish(&mut self.disk, lsn) {
                Ok(oldest) => {
                    self.reached.hit(Reach::Checkpoint);
                    self.oracle.story.tell(|| "a checkpoint is published".to_owned());
                    CheckpointEvent::Published { lsn, oldest }
                }
                Err(_) => CheckpointEvent::Failed { lsn },
            }
        } else {
            let (state_hash, length) = (work.state_hash, work.bytes.len() as u64);
            match write_partial(&mut self.disk, lsn, &work.bytes) {
                Ok(()) => CheckpointEvent::Saved { lsn, state_hash, bytes: length },
                Err(_) => CheckpointEvent::Failed { lsn },
            }
        };
        if publishes || matches!(event, CheckpointEvent::Failed { .. }) {
            life.checkpoint = None;
        }
        if self.disk.crashed() {
            let during =
                if publishes { Reach::CrashInCheckpointPublish } else { Reach::CrashInCheckpointSave };
            self.reached.hit(during);
            self.crashed(during);
            return Ok(());
        }
        self.reached.add(Reach::CheckpointFailed, u64::from(matches!(event, CheckpointEvent::Failed { .. })));
        self.step(Event::Checkpoint(event))
    }
}

/// As the child does: a file of its own, in pieces; what a failure leaves is removed.
fn write_partial(storage: &mut impl Storage, lsn: Lsn, bytes: &[u8]) -> Result<(), StorageError> {
    const PIECE_BYTES: usize = 1024;
    let name = temporary_name(lsn);
    match storage.remove(&name) {
        Ok(()) | Err(StorageError { failure: Failure::NotFound, .. }) => {}
        Err(error) => return Err(error),
    }
    let written = storage.create(&name, 0).and_then(|()| {
        for (piece, bytes) in bytes.chunks(PIECE_BYTES).enumerate() {
            storage.write(&name, (piece * PIECE_BYTES) as u64, bytes)?;
        }
        storage.sync(&name)
    });
    if written.is_err() {
        // Recovery removes what this does not.
        let _ = storage.remove(&name);
    }
    written
}
