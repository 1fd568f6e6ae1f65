//! A service at level peers: the region has what a life begins with before anybody hears of that life.

use super::{EndError, Life, Running, StartError, open};
use crate::core::copy_log;
use crate::driver::Shared;
use crate::keep::{self, Keep, KeepError, KeptStart, NotKept};
use crate::settings::Settings;
use mainstay_disk::disk::Disk;
use mainstay_disk::file_storage::FileStorage;
use mainstay_disk::mapped_pages::MappedPages;
use mainstay_disk::open::OpenDisk;
use mainstay_process::effect::Effect;
use mainstay_process::event::Event;
use mainstay_process::handler::AnyHandler;
use mainstay_process::kept::keeper::Acknowledged;
use mainstay_process::process::Process;
use mainstay_process::recover::Recovery;
use mainstay_types::id::Lsn;
use std::sync::Arc;
use std::time::Duration;

/// Finds the region, and fills an empty directory.
pub(super) fn prepare(settings: &mut Settings) -> Result<Option<keep::Prepared>, StartError> {
    settings.disk.kept = settings.keep.is_some();
    let prepared = keep::prepare(settings).map_err(Box::new)?;
    // Who had the place of a directory that was filled is cut off from its log.
    let filled = prepared.as_ref().is_some_and(keep::Prepared::has_filled);
    settings.places.iter_mut().for_each(|places| places.take |= filled);
    Ok(prepared)
}

/// Ends the thread that keeps the log if a start comes to nothing behind its beginning.
pub(super) struct Beginning(Option<Arc<Life>>);

impl Beginning {
    pub(super) fn of(life: &Arc<Life>) -> Self {
        Self(Some(Arc::clone(life)))
    }

    /// The start has come to its end.
    pub(super) fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        self.0.iter().filter_map(|life| life.keep.get()).for_each(Keep::stop);
    }
}

impl Running {
    /// A stop that waits in vain for the region says so.
    pub(super) fn says_why(&self, error: EndError) -> EndError {
        match error {
            EndError::StopTimedOut { limit } if self.keep.as_ref().is_some_and(|keep| !keep.has_all()) => {
                EndError::StopUnkept { limit }
            }
            error => error,
        }
    }
}

impl Life {
    /// Opens the directory for a recovery in place.
    pub(super) fn open_again(&self) -> Result<(OpenDisk, Duration), StartError> {
        let mut opened = open(&self.settings)?;
        self.keep_up(&mut opened.0)?;
        Ok(opened)
    }

    /// Has the region keep the log of a directory that has just been opened.
    pub(super) fn begin_keeping(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        prepared: keep::Prepared,
        opened: &mut OpenDisk,
    ) -> Result<Option<KeptStart>, KeepError> {
        let told = Arc::downgrade(shared);
        let acknowledged = move |said: Acknowledged| {
            if let Some(shared) = told.upgrade() {
                let Acknowledged { kept, confirmed, checkpoint, .. } = said;
                shared.push_event(Event::Kept { to: kept, confirmed, checkpoint });
            }
        };
        let (life, shared) = (Arc::clone(self), Arc::downgrade(shared));
        let ended = move |not_kept| {
            if let Some(shared) = shared.upgrade() {
                shared.end();
            }
            life.say_ended(Err(EndError::NotKept(not_kept)));
        };
        let begun = keep::begin(prepared, &self.settings, opened, acknowledged, ended)?;
        let Some((keep, started)) = begun else { return Ok(None) };
        assert!(self.keep.set(keep).is_ok(), "a service begins to keep once");
        Ok(Some(started))
    }

    /// Before a recovery in place: the region has all of the journal.
    fn keep_up(&self, opened: &mut OpenDisk) -> Result<(), StartError> {
        let Some(keep) = self.keep.get() else { return Ok(()) };
        let end = opened.report.end;
        let mut bytes = Vec::new();
        let from = keep.end();
        if from < end {
            copy_log((&opened.journal, &mut opened.storage, &opened.disk), (from, end), &mut bytes);
            keep.put(from, &mut bytes, &mut vec![end], 0);
        }
        self.wait_for_keep(opened.report.generation.0, Lsn::ZERO)
    }

    /// Behind a recovery: the region has the first records of this life before anybody hears of it.
    pub(super) fn keep_beginning(
        &self,
        (process, recovery): (&Process<AnyHandler, MappedPages>, &Recovery),
        effects: &mut Vec<Effect>,
        (storage, disk): (&mut FileStorage, &Disk),
    ) -> Result<(), StartError> {
        let Some(keep) = self.keep.get() else { return Ok(()) };
        let (mut bytes, mut ends, mut begins) = (Vec::new(), Vec::new(), None);
        effects.retain(|effect| match effect {
            Effect::Keep { from, to } => {
                begins.get_or_insert(*from);
                copy_log((process.journal(), storage, disk), (*from, *to), &mut bytes);
                ends.push(*to);
                false
            }
            _ => true,
        });
        keep.put(begins.unwrap_or_default(), &mut bytes, &mut ends, 0);
        self.wait_for_keep(process.incarnation().0, recovery.checkpoint.unwrap_or(Lsn::ZERO))
    }

    /// All of it: the log, and a checkpoint that an earlier life has published, unless it cannot be read and this life did not begin with it.
    fn wait_for_keep(&self, life: u64, checkpoint: Lsn) -> Result<(), StartError> {
        let (Some(keep), Some(settings)) = (self.keep.get(), &self.settings.keep) else { return Ok(()) };
        keep.wait(life, checkpoint).map_err(|trouble| NotKept { name: settings.name.clone(), trouble }.into())
    }
}
