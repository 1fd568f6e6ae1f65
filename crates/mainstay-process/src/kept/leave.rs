//! The way from level peers back to another one, with the directory that is the process.

use super::attach::{Directory, Verdict, Wish};
use super::note::Note;
use super::shelf::Shelf;
use super::{KeptError, Store};
use mainstay_journal::storage::Storage;

impl<S: Store> Shelf<S> {
    /// With a directory that holds no journal, and is locked: refuses to leave with it, unless nobody is kept and it never was.
    ///
    /// # Errors
    /// [`KeptError::LeavesEmpty`], or the directory cannot be read.
    pub fn refuse_leaving_empty(&self, storage: &mut dyn Storage) -> Result<(), KeptError> {
        if self.owner.is_none() && Note::read(storage)?.is_none() {
            return Ok(());
        }
        Err(KeptError::LeavesEmpty { name: self.name().to_owned() })
    }

    /// Leaves level peers with a directory that is the last one: the region forgets whose the log was, so that no other directory is filled from what it
    /// has, and the directory may serve at another level. Also when an attempt before was done and not heard, or did not come to its end.
    ///
    /// # Errors
    /// [`KeptError`]; the directory does not serve at another level.
    pub fn leave(&mut self, directory: &mut Directory<'_>, wish: Wish<'_>) -> Result<(), KeptError> {
        let name = self.name().to_owned();
        let Some(note) = Note::read(directory.storage)? else {
            return match self.owner.clone() {
                Some(by) => Err(KeptError::Elsewhere { name, by }),
                None => Ok(()),
            };
        };
        note.check(&name, wish.region)?;
        // Left already, or the region was never heard to know it: nothing was acknowledged by what it has.
        let mut is_done = self.owner.is_none() && (note.is_unheard() || note.has_any(self.left));
        while !is_done {
            match self.case(wish, Some(&note), Some(directory.report)).judge()? {
                Verdict::GoOn => self.compare_as_owner(directory)?,
                // It never came to the end of giving what it has.
                Verdict::Begin => {}
                Verdict::Fill => return Err(KeptError::LeavesEmpty { name }),
            }
            is_done = self.disown().map_err(|trouble| self.in_trouble(trouble))?;
        }
        Note::remove(directory.storage)?;
        Ok(())
    }
}
