//! A start at level peers: who owns the log, an empty directory is filled, a directory is compared with the region and gives it what it lacks.

use super::manifest::{KeptCheckpoint, Sizes};
use super::note::Note;
use super::shelf::{Relies, Shelf};
use super::{KeptError, Owner, Start, Store, Trouble};
use crate::checkpoint::{final_name, load, parse_name, positions};
use mainstay_journal::catalog::Catalog;
use mainstay_journal::fill::{FillError, Filling, Origin, read_bytes};
use mainstay_journal::format::{RECORD_HEADER_BYTES, segment_file_slot};
use mainstay_journal::geometry::Geometry;
use mainstay_journal::open::OpenReport;
use mainstay_journal::reader::{ReadError, Reader};
use mainstay_journal::storage::{Failure, Operation, Storage, StorageError};
use mainstay_types::id::{Generation, Lsn, StoreId};

/// Bytes read at once, at most.
const READ_BYTES_MAX: usize = 512 << 10;

/// What a start was told.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The region's name, for the note.
    pub region: &'a str,
    /// Nobody has had this name: begin to keep it.
    pub new: bool,
    /// This directory is the last one, though the region has lost some or all of what it kept of it: keep it anew.
    pub anew: bool,
    /// The directory is to have further ones (stripes): one that is filled has none.
    pub striped: bool,
    /// Tells this start from others, also from one with the same number that a region has forgotten.
    pub drawn: u64,
}

/// An opened directory.
pub struct Directory<'a> {
    /// Its files.
    pub storage: &'a mut dyn Storage,
    /// Its segments.
    pub catalog: &'a Catalog,
    /// What opening it found.
    pub report: &'a OpenReport,
}

/// What a start does about the owner that it found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Give the region all that this directory has, in the place of what is there.
    Begin,
    /// Go on with this directory.
    GoOn,
    /// Fill this directory.
    Fill,
}

/// What is known when it is judged.
pub(super) struct Case<'a> {
    name: &'a str,
    wish: Wish<'a>,
    note: Option<&'a Note>,
    has_journal: bool,
    /// The identity of that journal.
    store: Option<StoreId>,
    /// The end of it.
    here: Lsn,
    owner: Option<&'a Owner>,
    /// Where there is no owner: the start that left.
    left: Option<Start>,
    /// Up to where the region has the log.
    kept: Lsn,
    /// Whether the region has all that a recovery needs.
    is_whole: bool,
}

impl Case<'_> {
    pub(super) fn judge(&self) -> Result<Verdict, KeptError> {
        let Self { wish, note, .. } = self;
        let name = || self.name.to_owned();
        let may_be_last = self.has_journal || note.is_none();
        if wish.anew && may_be_last && self.owner.is_none_or(|owner| self.may_replace(owner)) {
            // What was acknowledged and is in the region alone is not given up, whatever was asked for.
            return match self.owner.is_some() && self.is_whole && self.here < self.kept {
                true => Err(KeptError::Behind { name: name(), here: self.here, kept: self.kept }),
                false => Ok(Verdict::Begin),
            };
        }
        if let Some(note) = note {
            note.check(self.name, wish.region)?;
        }
        let Some(owner) = self.owner else {
            return match note {
                Some(note) if self.has_journal && !note.is_unheard() && !note.has_any(self.left) => {
                    Err(KeptError::RegionLost { name: name() })
                }
                _ if wish.new => Ok(Verdict::Begin),
                _ => Err(KeptError::Unknown { name: name(), region: wish.region.to_owned() }),
            };
        };
        let is_own = note.is_some_and(|note| note.has(owner.start));
        if wish.new && !is_own {
            return Err(KeptError::Known { name: name(), by: owner.clone() });
        }
        match (self.is_whole, self.has_journal, is_own) {
            (true, true, true) => Ok(Verdict::GoOn),
            // It had begun to give the region what it has.
            (false, true, true) => Ok(Verdict::Begin),
            (true, false, true) => Ok(Verdict::Fill),
            (true, false, false) if note.is_none() => Ok(Verdict::Fill),
            (false, ..) => Err(KeptError::Unbegun { name: name() }),
            (true, true, false) if note.is_some_and(|note| self.is_later(note, owner)) => {
                Err(KeptError::RegionLost { name: name() })
            }
            // Also what an attempt at filling it has left, if another has taken over since.
            (true, ..) => Err(KeptError::Elsewhere { name: name(), by: owner.clone() }),
        }
    }

    /// Whether keeping this directory anew takes nothing from a later owner, as far as anybody can tell.
    fn may_replace(&self, owner: &Owner) -> bool {
        let is_last = |note: &Note| note.has(owner.start) || note.last.number > owner.start.number;
        let noted = self.note.filter(|note| note.check(self.name, self.wish.region).is_ok());
        !self.is_whole || self.store == Some(owner.store) && noted.is_some_and(is_last)
    }

    /// Whether the region has gone back to an earlier start of this directory.
    fn is_later(&self, note: &Note, owner: &Owner) -> bool {
        self.store == Some(owner.store) && note.last.number > owner.start.number
    }
}

impl<S: Store> Shelf<S> {
    pub(super) fn in_trouble(&self, trouble: Trouble) -> KeptError {
        KeptError::Trouble { name: self.name().to_owned(), trouble }
    }

    /// `report`: of a directory with a journal.
    pub(super) fn case<'a>(
        &'a self,
        wish: Wish<'a>,
        note: Option<&'a Note>,
        report: Option<&OpenReport>,
    ) -> Case<'a> {
        let report = report.filter(|report| !report.created);
        let (has_journal, store) = (report.is_some(), report.map(|report| report.store));
        let (owner, is_whole) = (self.owner.as_ref(), self.is_whole());
        let (here, kept, left) = (report.map_or(Lsn::ZERO, |report| report.end), self.end(), self.left);
        Case { name: self.name(), wish, note, has_journal, store, here, owner, left, kept, is_whole }
    }

    /// Becomes the owner by a new start, noted first, in the place of the one that was judged. `false`: that one has changed since, or what this relies
    /// on besides, and is to be judged anew; everything was read again.
    fn take(
        &mut self,
        storage: &mut dyn Storage,
        owner: Owner,
        (wish, relies): (Wish<'_>, Relies),
    ) -> Result<bool, KeptError> {
        let (region, name) = (wish.region.to_owned(), self.name().to_owned());
        let none = Note { region, name: name.clone(), last: Start::default(), before: Vec::new() };
        let before = Note::read(storage)?.filter(|note| note.check(&name, wish.region).is_ok());
        let found = self.owner.as_ref().map(|owner| owner.start);
        let mut note = before.unwrap_or(none).next(found, wish.drawn);
        // It has ended its part: a region that goes back to it has lost this one.
        note.before.retain(|before| Some(*before) != self.left);
        note.write(storage)?;
        let taken = self.own(Owner { start: note.last, ..owner }, relies).and_then(|taken| {
            if !taken {
                self.read_owner()?;
            }
            self.read_rest().map(|()| taken)
        });
        match taken.map_err(|trouble| self.in_trouble(trouble))? {
            true if note.is_unheard() => note.heard().write(storage)?,
            true => {}
            false => match &self.owner {
                Some(by) if !note.has(by.start) => return Err(self.elsewhere()),
                // The same start, which has done something; or an earlier attempt of this directory, whose answer was not heard.
                _ => return Ok(false),
            },
        }
        Ok(true)
    }

    /// With a directory that holds no journal, and is locked: fills it, if there is something to fill it from. Until that is done it holds none.
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn fill_empty(
        &mut self,
        storage: &mut dyn Storage,
        wish: Wish<'_>,
    ) -> Result<Option<Lsn>, KeptError> {
        let note = Note::read(storage)?;
        while self.case(wish, note.as_ref(), None).judge()? == Verdict::Fill {
            if note.is_none()
                && let Some(part) = storage.list()?.into_iter().find(|file| is_part(&file.name))
            {
                return Err(KeptError::Leftover { name: self.name().to_owned(), file: part.name });
            }
            if wish.striped {
                return Err(KeptError::Striped { name: self.name().to_owned() });
            }
            let before = self.owner.clone().expect("there is something to fill it from");
            // Before anything is read: nothing is added to it any more.
            if self.take(storage, before, (wish, Relies::Owner))? {
                return self.fill(storage).map(Some);
            }
        }
        Ok(None)
    }

    fn fill(&mut self, storage: &mut dyn Storage) -> Result<Lsn, KeptError> {
        let name = self.name().to_owned();
        let in_fill = |source| KeptError::Fill { name: name.clone(), source };
        let owner = self.owner.clone().expect("it has just been taken");
        let Owner { store, life, page_bytes, pages, segment_pages, .. } = owner;
        let geometry = Geometry { page_bytes, pages, segment_pages };
        if !geometry.is_valid() {
            return Err(self.in_trouble(Trouble::Foreign { key: format!("keep/{{{name}}}/owner") }));
        }
        for file in storage.list()? {
            if parse_name(&file.name).is_some() {
                storage.remove(&file.name)?;
            }
        }
        let checkpoint = self.manifest.whole.as_ref().and_then(|whole| whole.checkpoint);
        if let Some(of) = checkpoint {
            self.fill_checkpoint(storage, of)?;
        }
        let log_from = self.manifest.whole.as_ref().map_or(Lsn::ZERO, |whole| whole.log_from);
        let first = checkpoint.map_or(log_from, |of| owner.page_start(of.lsn));
        let end = self.end();
        let origin = Origin { store, geometry, generation: Generation(life), first };
        let mut filling = Filling::begin(storage, origin).map_err(in_fill)?;
        let mut there = 0;
        let whole = self.read_log((first, end), |bytes| {
            there += bytes.len() as u64;
            filling.put(bytes).map_err(Stopped::Fill)
        });
        match whole {
            Ok(true) => filling.finish().map_err(in_fill),
            Ok(false) => {
                let (bytes, expected) = (there, end.0 - first.0);
                Err(KeptError::NotWhole { name, what: format!("the log from LSN {first}"), bytes, expected })
            }
            Err(Stopped::Fill(source)) => Err(in_fill(source)),
            Err(Stopped::Trouble(trouble)) => Err(self.in_trouble(trouble)),
        }
    }

    fn fill_checkpoint(&mut self, storage: &mut dyn Storage, of: KeptCheckpoint) -> Result<(), KeptError> {
        let file = final_name(of.lsn);
        storage.create(&file, 0)?;
        let mut bytes = 0;
        for chunk in 0..of.chunks(self.sizes) {
            let part = self.chunk(of, chunk).map_err(|trouble| self.in_trouble(trouble))?;
            storage.write(&file, bytes, &part)?;
            bytes += part.len() as u64;
            if bytes < of.bytes.min((chunk + 1) * self.sizes.chunk_bytes) {
                let (name, what) = (self.name().to_owned(), format!("the checkpoint at LSN {}", of.lsn));
                return Err(KeptError::NotWhole { name, what, bytes, expected: of.bytes });
            }
        }
        storage.sync(&file)?;
        storage.sync_directory()?;
        Ok(())
    }

    /// With the directory open and locked: becomes the owner in this life, compares, and gives the region what it lacks: all of the log, and the newest
    /// checkpoint. Nothing has been answered, and no other node has heard of this life.
    ///
    /// # Errors
    /// [`KeptError`].
    pub fn attach(&mut self, directory: &mut Directory<'_>, wish: Wish<'_>) -> Result<(), KeptError> {
        let report = directory.report;
        let note = Note::read(directory.storage)?;
        let verdict = loop {
            let verdict = self.case(wish, note.as_ref(), Some(report)).judge()?;
            match verdict {
                Verdict::GoOn => self.compare_as_owner(directory)?,
                Verdict::Begin => {}
                Verdict::Fill => return Err(self.elsewhere()),
            }
            let Geometry { page_bytes, pages, segment_pages } = report.geometry;
            let life = report.generation.0.max(self.owner.as_ref().map_or(0, |owner| owner.life));
            let start = Start::default();
            let owner = Owner { store: report.store, life, start, page_bytes, pages, segment_pages };
            let relies = match verdict {
                // What is there is given up: nothing may have come to it that was not judged.
                Verdict::Begin => Relies::Both,
                _ => Relies::Owner,
            };
            if self.take(directory.storage, owner, (wish, relies))? {
                break verdict;
            }
        };
        if verdict == Verdict::Begin {
            return self.give_all(directory);
        }
        // Again: what was read before may have changed until it was taken.
        self.compare(directory)?;
        let (checkpoint, from) = self.newest(directory)?;
        if self.is_full() && self.has_no_more_than(checkpoint, from) {
            return self.give_all(directory);
        }
        self.go_on().map_err(|trouble| self.in_trouble(trouble))?;
        self.give_rest(directory)?;
        let has = self.manifest.whole.as_ref().and_then(|whole| whole.checkpoint).map(|has| has.lsn);
        if let Some(of) = checkpoint.filter(|of| has.is_none_or(|has| has < of.lsn)) {
            self.begin_checkpoint(of).map_err(|trouble| self.in_trouble(trouble))?;
            self.give_checkpoint(directory.storage, of)?;
            self.finish_checkpoint(of).map_err(|trouble| self.in_trouble(trouble))?;
        }
        Ok(())
    }

    /// Whether the directory is the owner's, and compares as that.
    pub(super) fn compare_as_owner(&mut self, directory: &mut Directory<'_>) -> Result<(), KeptError> {
        match self.owner.as_ref().filter(|owner| owner.store != directory.report.store) {
            Some(_) => Err(self.elsewhere()),
            None => self.compare(directory),
        }
    }

    fn elsewhere(&self) -> KeptError {
        let by = self.owner.clone().expect("somebody has it");
        KeptError::Elsewhere { name: self.name().to_owned(), by }
    }

    /// Whether the directory has all that the region has, and the same in the place where that ends.
    fn compare(&mut self, directory: &mut Directory<'_>) -> Result<(), KeptError> {
        let Directory { storage, catalog, report } = directory;
        let (kept, name) = (self.end(), || self.name().to_owned());
        if report.end < kept {
            return Err(KeptError::Behind { name: name(), here: report.end, kept });
        }
        if kept < report.first {
            return Err(KeptError::Gap { name: name(), kept, first: report.first });
        }
        let differs = KeptError::Differs { name: name(), kept };
        if kept == report.first {
            return Ok(());
        }
        // What stands behind the last record of a page, and in its header, is not the same everywhere.
        let geometry = report.geometry;
        let page = geometry.page_of(Lsn(kept.0 - 1));
        let mut reader =
            Reader::new(&mut **storage, catalog, geometry.page_start(page).max(report.first), kept).all();
        let mut last = None;
        while let Some(record) = reader.next()? {
            last = Some((record.lsn, record.end, record.kind.is_pad()));
        }
        let Some((lsn, end, is_pad)) = last else {
            return Ok(());
        };
        if end > kept || end < kept && geometry.page_of(kept) == geometry.page_of(lsn) {
            return Err(differs);
        }
        let until = if is_pad { Lsn(end.0.min(lsn.0 + RECORD_HEADER_BYTES as u64)) } else { end };
        let (here, mut there) = (bytes_of(&mut **storage, catalog, (lsn, until))?, Vec::new());
        let read = self.read_log((lsn, until), |bytes| {
            there.extend_from_slice(bytes);
            Ok::<(), Trouble>(())
        });
        match read {
            Err(trouble) => Err(self.in_trouble(trouble)),
            Ok(true) if here == there => Ok(()),
            Ok(_) => Err(differs),
        }
    }

    /// Gives the region the log behind what it has, as one record: nobody was told anything that depends on a part of it alone.
    fn give_rest(&mut self, directory: &mut Directory<'_>) -> Result<(), KeptError> {
        let end = directory.report.end;
        while self.end() < end {
            let stretch = (self.written(), end.min(self.written().plus(self.sizes.write_bytes_max)));
            let whole = stretch.1 == end;
            let part = bytes_of(directory.storage, directory.catalog, stretch)?;
            self.add(&part, whole).map_err(|trouble| self.in_trouble(trouble))?;
        }
        Ok(())
    }

    /// Gives the region all that a recovery needs, before anything there says so.
    fn give_all(&mut self, directory: &mut Directory<'_>) -> Result<(), KeptError> {
        let (checkpoint, from) = self.newest(directory)?;
        let stretch = (from, directory.report.end);
        self.begin_giving(checkpoint, stretch).map_err(|trouble| self.in_trouble(trouble))?;
        if let Some(of) = checkpoint {
            self.give_checkpoint(directory.storage, of)?;
        }
        let (mut at, end) = stretch;
        while at < end {
            let next = (at.0 + self.sizes.write_bytes_max) / self.sizes.piece_bytes * self.sizes.piece_bytes;
            let until = Lsn(next).min(end);
            let part = bytes_of(directory.storage, directory.catalog, (at, until))?;
            self.give(at, from, &part).map_err(|trouble| self.in_trouble(trouble))?;
            at = until;
        }
        self.finish_giving(checkpoint, stretch).map_err(|trouble| self.in_trouble(trouble))
    }

    fn give_checkpoint(&mut self, storage: &mut dyn Storage, of: KeptCheckpoint) -> Result<(), KeptError> {
        let file = final_name(of.lsn);
        for chunk in 0..of.chunks(self.sizes) {
            let bytes = read_chunk(storage, &file, of, (chunk, self.sizes))?;
            while !self.put_chunk(of, chunk, &bytes).map_err(|trouble| self.in_trouble(trouble))? {}
        }
        Ok(())
    }

    /// The newest checkpoint of the directory that a recovery would take, and from where on that needs the log.
    fn newest(&self, directory: &mut Directory<'_>) -> Result<(Option<KeptCheckpoint>, Lsn), KeptError> {
        let Directory { storage, report, .. } = directory;
        for lsn in positions(&mut **storage)?.into_iter().rev().filter(|lsn| *lsn <= report.end) {
            if load(&mut **storage, lsn, report.store).is_ok() {
                let bytes = file_bytes(&mut **storage, &final_name(lsn))?;
                let page = report.geometry.page_start(report.geometry.page_of(lsn));
                return Ok((Some(KeptCheckpoint { start: self.start(), lsn, bytes }), page));
            }
        }
        Ok((None, report.first))
    }
}

/// A stretch of the directory's log, as it is there.
fn bytes_of(storage: &mut dyn Storage, catalog: &Catalog, stretch: (Lsn, Lsn)) -> Result<Vec<u8>, ReadError> {
    let mut found = Vec::new();
    read_bytes::<ReadError>(storage, catalog, stretch, READ_BYTES_MAX, |bytes| {
        found.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(found)
}

/// Whether a file is part of a journal, or a checkpoint.
fn is_part(file: &str) -> bool {
    segment_file_slot(file).is_some() || parse_name(file).is_some()
}

pub(super) fn file_bytes(storage: &mut dyn Storage, file: &str) -> Result<u64, StorageError> {
    let listed = storage.list()?.into_iter().find(|entry| entry.name == file);
    let missing =
        || StorageError { operation: Operation::Read, file: file.to_owned(), failure: Failure::NotFound };
    listed.map(|entry| entry.bytes).ok_or_else(missing)
}

/// A chunk of a checkpoint's file.
pub(super) fn read_chunk(
    storage: &mut dyn Storage,
    file: &str,
    of: KeptCheckpoint,
    (chunk, sizes): (u64, Sizes),
) -> Result<Vec<u8>, StorageError> {
    let from = chunk * sizes.chunk_bytes;
    let mut bytes =
        vec![0; usize::try_from(sizes.chunk_bytes.min(of.bytes - from)).expect("a chunk is small")];
    storage.read(file, from, &mut bytes)?;
    Ok(bytes)
}

/// Why filling stopped.
enum Stopped {
    Fill(FillError),
    Trouble(Trouble),
}

impl From<Trouble> for Stopped {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(number: u64) -> Start {
        Start { number, drawn: number }
    }

    fn owner(number: u64) -> Owner {
        let store = StoreId([1; 16]);
        Owner { store, life: 5, start: start(number), page_bytes: 4096, pages: 3, segment_pages: 4 }
    }

    fn note(last: u64) -> Note {
        let (region, name) = ("data".to_owned(), "shop".to_owned());
        Note { region, name, last: start(last), before: vec![start(last - 1)] }
    }

    /// `told`: n for new, a for anew, j for a journal in the directory, w for a region that has all, b for a journal that ends
    /// before the region's log, l for a region that start 3 has left.
    fn judged(owner: Option<&Owner>, note: Option<&Note>, told: &str) -> Result<Verdict, KeptError> {
        let is = |letter| told.contains(letter);
        let wish = Wish { region: "data", new: is('n'), anew: is('a'), striped: false, drawn: 0 };
        let store = is('j').then_some(StoreId([1; 16]));
        let (has_journal, is_whole) = (is('j'), is('w'));
        let (here, kept, left) =
            (Lsn(9), if is('b') { Lsn(10) } else { Lsn(9) }, is('l').then_some(start(3)));
        Case { name: "shop", wish, note, has_journal, store, here, owner, left, kept, is_whole }.judge()
    }

    #[test]
    fn a_name_that_the_region_does_not_know_begins_only_if_that_was_asked_for() {
        for journal in ["", "j"] {
            assert!(matches!(judged(None, None, journal), Err(KeptError::Unknown { .. })));
            assert_eq!(judged(None, None, &format!("n{journal}")), Ok(Verdict::Begin));
        }
        assert!(matches!(judged(None, Some(&note(3)), "nj"), Err(KeptError::RegionLost { .. })));
        assert_eq!(judged(None, Some(&note(3)), "aj"), Ok(Verdict::Begin));
        for journal in ["", "j"] {
            let told = format!("n{journal}");
            assert_eq!(judged(None, Some(&note(1)), &told), Ok(Verdict::Begin), "it never came to be");
            assert!(matches!(judged(None, Some(&note(1)), journal), Err(KeptError::Unknown { .. })));
        }
        assert_eq!(judged(None, Some(&note(3)), "nlj"), Ok(Verdict::Begin), "it has left");
        assert!(matches!(judged(None, Some(&note(3)), "lj"), Err(KeptError::Unknown { .. })));
        assert!(matches!(judged(None, Some(&note(9)), "nlj"), Err(KeptError::RegionLost { .. })));
        for (note, told) in [(None, "nw"), (None, "njw"), (Some(note(9)), "njw")] {
            let refused = judged(Some(&owner(5)), note.as_ref(), told);
            assert!(matches!(refused, Err(KeptError::Known { .. })), "{told}");
        }
        assert_eq!(judged(Some(&owner(5)), Some(&note(5)), "njw"), Ok(Verdict::GoOn), "its own");
    }

    #[test]
    fn only_the_last_start_goes_on_and_only_an_empty_directory_is_filled() {
        for last in [5, 6] {
            assert_eq!(judged(Some(&owner(5)), Some(&note(last)), "jw"), Ok(Verdict::GoOn));
        }
        for (note, told) in
            [(Some(note(4)), "jw"), (Some(note(4)), "ajw"), (None, "jw"), (None, "ajw"), (Some(note(4)), "w")]
        {
            let refused = judged(Some(&owner(5)), note.as_ref(), told);
            assert!(
                matches!(refused, Err(KeptError::Elsewhere { .. })),
                "{told}: a later owner is never replaced"
            );
        }
        assert_eq!(judged(Some(&owner(5)), None, "w"), Ok(Verdict::Fill));
        assert_eq!(
            judged(Some(&owner(5)), None, "aw"),
            Ok(Verdict::Fill),
            "there is nothing here to be kept"
        );
        assert_eq!(judged(Some(&owner(5)), Some(&note(5)), "w"), Ok(Verdict::Fill), "half filled");
        let back = judged(Some(&owner(5)), Some(&note(9)), "jw");
        assert!(matches!(back, Err(KeptError::RegionLost { .. })), "the region has gone back: {back:?}");
        assert_eq!(judged(Some(&owner(5)), Some(&note(9)), "ajw"), Ok(Verdict::Begin));
        for last in [5, 9] {
            let refused = judged(Some(&owner(5)), Some(&note(last)), "ajwb");
            assert!(matches!(refused, Err(KeptError::Behind { .. })), "only the region has it: {refused:?}");
        }
        // Numbers of another directory, or under another name, say nothing.
        let other = Owner { store: StoreId([2; 16]), ..owner(5) };
        for told in ["jw", "ajw"] {
            let refused = judged(Some(&other), Some(&note(9)), told);
            assert!(matches!(refused, Err(KeptError::Elsewhere { .. })), "{told}");
            let elsewhere = Note { name: "bank".to_owned(), ..note(9) };
            let refused = judged(Some(&owner(5)), Some(&elsewhere), told);
            assert!(matches!(refused, Err(KeptError::Noted { .. })), "{told}");
        }
    }

    #[test]
    fn what_never_was_whole_fills_nothing() {
        assert!(matches!(judged(Some(&owner(5)), None, ""), Err(KeptError::Unbegun { .. })));
        assert_eq!(judged(Some(&owner(5)), None, "a"), Ok(Verdict::Begin));
        assert_eq!(judged(Some(&owner(5)), Some(&note(5)), "j"), Ok(Verdict::Begin), "it goes on giving");
        assert!(matches!(judged(Some(&owner(5)), Some(&note(9)), "j"), Err(KeptError::Unbegun { .. })));
    }

    #[test]
    fn a_directory_that_is_kept_as_something_else_is_refused() {
        let other = Note { name: "bank".to_owned(), ..note(5) };
        for told in ["jw", "njw", "w", "j"] {
            let refused = judged(Some(&owner(5)), Some(&other), told);
            assert!(matches!(refused, Err(KeptError::Noted { .. })), "{told}");
        }
        assert!(matches!(judged(None, Some(&other), "nj"), Err(KeptError::Noted { .. })));
    }
}
