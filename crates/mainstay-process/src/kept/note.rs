//! The file `keep` of a directory that a region keeps: where, as what, and the starts of this directory that may be the owner. Text, for people too.

use super::{KeptError, Start};
use mainstay_journal::storage::{Failure, Operation, Storage, StorageError};

/// Its name.
pub const NOTE_FILE: &str = "keep";

/// Starts besides the last one that may be the owner, at most.
const BEFORE_MAX: usize = 64;

const PARTIAL: &str = "keep.partial";

/// Its first line: what it is, and its format.
const MAGIC: &str = "mainstay keep 1";

/// That a directory is kept. It is there before the region hears of the directory, for good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// The region.
    pub region: String,
    /// Whose log it is there.
    pub name: String,
    /// The last start.
    pub last: Start,
    /// The one that was the owner when it began, and those between: the last one may not have become it, and one of these may have, late. Start 0, which
    /// nobody makes, until the region has been heard to know any of them.
    pub before: Vec<Start>,
}

impl Note {
    /// What the directory says; nothing if it was never kept.
    ///
    /// # Errors
    /// [`StorageError`]: it cannot be read, or is no such file ([`Failure::Short`]).
    pub fn read(storage: &mut dyn Storage) -> Result<Option<Self>, StorageError> {
        let Some(file) = storage.list()?.into_iter().find(|file| file.name == NOTE_FILE) else {
            return Ok(None);
        };
        let mut bytes = vec![0; usize::try_from(file.bytes).unwrap_or(0)];
        storage.read(NOTE_FILE, 0, &mut bytes)?;
        let note = std::str::from_utf8(&bytes).ok().and_then(Self::parse);
        note.map(Some).ok_or_else(|| StorageError {
            operation: Operation::Read,
            file: NOTE_FILE.to_owned(),
            failure: Failure::Short,
        })
    }

    /// Puts it in the place of the one before, past a sync.
    ///
    /// # Errors
    /// [`StorageError`]: the one before is there still, or this one.
    pub fn write(&self, storage: &mut dyn Storage) -> Result<(), StorageError> {
        match storage.remove(PARTIAL) {
            Ok(()) | Err(StorageError { failure: Failure::NotFound, .. }) => {}
            Err(error) => return Err(error),
        }
        storage.create(PARTIAL, 0)?;
        storage.write(PARTIAL, 0, self.to_text().as_bytes())?;
        storage.sync(PARTIAL)?;
        storage.rename(PARTIAL, NOTE_FILE)?;
        storage.sync_directory()
    }

    /// Removes it: the directory is not kept any more.
    ///
    /// # Errors
    /// [`StorageError`]: it may be there still.
    pub fn remove(storage: &mut dyn Storage) -> Result<(), StorageError> {
        match storage.remove(NOTE_FILE) {
            Ok(()) | Err(StorageError { failure: Failure::NotFound, .. }) => storage.sync_directory(),
            Err(error) => Err(error),
        }
    }

    /// Whether the owner may be one of this directory's starts.
    #[must_use]
    pub fn has(&self, start: Start) -> bool {
        start == self.last || self.before.contains(&start)
    }

    /// Whether there is one, and it is this directory's.
    pub(super) fn has_any(&self, start: Option<Start>) -> bool {
        start.is_some_and(|start| self.has(start))
    }

    /// Whether no start of this directory is known to have come to the region.
    pub(super) fn is_unheard(&self) -> bool {
        self.before.contains(&Start::default())
    }

    /// Its last start has become the owner.
    #[must_use]
    pub(super) fn heard(mut self) -> Self {
        self.before.retain(|start| *start != Start::default());
        self
    }

    /// What is noted for one more start, when `owner` is found to be it; of [`BEFORE_MAX`] that may be the owner those are forgotten that are the
    /// least likely.
    #[must_use]
    pub(super) fn next(self, owner: Option<Start>, drawn: u64) -> Self {
        let starts = self.before.into_iter().chain([self.last]);
        let highest = starts.clone().chain(owner).map(|start| start.number).max().unwrap_or(0);
        // What was asked for on behalf of an earlier one than the owner is not done any more.
        let mut before: Vec<_> =
            starts.filter(|start| owner.is_none_or(|owner| start.number > owner.number)).collect();
        before.drain(..before.len().saturating_sub(BEFORE_MAX - 1));
        before.extend(owner);
        Self { last: Start { number: highest + 1, drawn }, before, ..self }
    }

    /// Refuses a directory that is kept elsewhere or as something else.
    pub(super) fn check(&self, name: &str, region: &str) -> Result<(), KeptError> {
        if self.name == name && self.region == region {
            return Ok(());
        }
        Err(KeptError::Noted {
            noted: Box::new(self.clone()),
            name: name.to_owned(),
            region: region.to_owned(),
        })
    }

    fn to_text(&self) -> String {
        let Self { region, name, last, before } = self;
        let line = |word: &str, start: &Start| format!("{word} {} {:016x}\n", start.number, start.drawn);
        let before: String = before.iter().map(|start| line("before", start)).collect();
        format!("{MAGIC}\nregion {region}\nname {name}\n{}{before}", line("last", last))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut line = |word: &str| lines.next()?.strip_prefix(word);
        line(MAGIC)?;
        let (region, name) = (line("region ")?.to_owned(), line("name ")?.to_owned());
        let start = |text: &str| {
            let (number, drawn) = text.split_once(' ')?;
            Some(Start { number: number.parse().ok()?, drawn: u64::from_str_radix(drawn, 16).ok()? })
        };
        let last = start(line("last ")?)?;
        let before = lines.map(|line| start(line.strip_prefix("before ")?)).collect::<Option<_>>()?;
        text.ends_with('\n').then_some(Self { region, name, last, before })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_journal::memory_storage::MemoryStorage;

    #[test]
    fn each_start_that_may_still_become_the_owner_is_known() {
        let start = |number| Start { number, drawn: number };
        let (region, name) = ("data".to_owned(), "shop".to_owned());
        let mut note =
            Note { region, name, last: start(5), before: vec![start(3), start(4)] }.next(Some(start(4)), 6);
        assert_eq!((note.last, &note.before), (start(6), &vec![start(5), start(4)]));
        note = note.next(Some(start(5)), 7);
        assert_eq!((note.last, &note.before), (start(7), &vec![start(6), start(5)]));
        for drawn in 8..200 {
            note = note.next(Some(start(5)), drawn);
        }
        assert_eq!((note.before.len(), note.has(start(5)), note.has(start(198))), (BEFORE_MAX, true, true));
    }

    #[test]
    fn a_directory_knows_whether_the_region_has_ever_heard_of_it() {
        let (region, name) = ("data".to_owned(), "shop".to_owned());
        let none = Note { region, name, last: Start::default(), before: Vec::new() };
        let (first, second) = (none.clone().next(None, 7), none.next(None, 7).next(None, 8));
        assert!(first.is_unheard() && second.is_unheard());
        let heard = second.clone().heard();
        assert!(!heard.is_unheard() && heard.has(first.last) && heard.has(second.last));
        assert!(!heard.next(None, 9).is_unheard(), "whatever becomes of the region");
        assert!(!second.next(Some(first.last), 9).is_unheard(), "it had done what was not heard");
    }

    #[test]
    fn after_a_power_cut_at_any_change_one_of_the_two_is_there_whole() {
        let start = |number| Start { number, drawn: number * 77 };
        let note = |number: u64| Note {
            region: "data".to_owned(),
            name: "shop with a space/1".to_owned(),
            last: start(number),
            before: vec![start(number - 1)],
        };
        let mut storage = MemoryStorage::new();
        assert_eq!(Note::read(&mut storage), Ok(None));
        note(1).write(&mut storage).expect("memory is large");
        let changes = storage.operations();
        for cut in 0..changes + 2 {
            let mut torn = storage.clone();
            torn.crash_after(cut);
            let written = note(2).write(&mut torn);
            let mut after = torn.crash_image(&mut |_| 0);
            let read = Note::read(&mut after).expect("it is whole").expect("it was there");
            assert!(read == note(2) || written.is_err() && read == note(1), "{cut}: {read:?}");
            note(3).write(&mut after).expect("what was left is in nobody's way");
            assert_eq!(Note::read(&mut after), Ok(Some(note(3))));
        }
        let none = Note { before: Vec::new(), ..note(1) };
        assert_eq!(Note::parse(&none.to_text()), Some(none));
        storage.damage(NOTE_FILE, |bytes| bytes.truncate(40));
        assert!(Note::read(&mut storage).is_err(), "half a note is not none");
    }
}
