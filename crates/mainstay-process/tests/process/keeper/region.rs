//! A region in memory that may be away, answer late or not at all, do what it was asked for much later, and lose what it had.

use crate::support::Drawn;
use mainstay_process::kept::{Change, Store, StoreError, Wrote};
use mainstay_types::operation::Version;
use mainstay_types::view::ViewId;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

pub(crate) type Entries = BTreeMap<Vec<u8>, (Vec<u8>, Version)>;

type Asked = (Vec<(Vec<u8>, Option<Version>)>, Vec<Change>);

pub(crate) struct Region {
    pub(crate) entries: Entries,
    counter: u64,
    /// Sent, and not arrived yet.
    late: Vec<Asked>,
    /// After each write that was done, if it is recorded.
    pub(crate) history: Option<Vec<Entries>>,
    /// What is late arrives only when it is told to.
    pub(crate) holds_late: bool,
    /// Broken on purpose: who is the owner is not looked at.
    pub(crate) fences: bool,
    pub(crate) random: Drawn,
}

impl Region {
    pub(crate) fn new(seed: u64) -> Rc<RefCell<Self>> {
        Self::with(BTreeMap::new(), seed)
    }

    pub(crate) fn with(entries: Entries, seed: u64) -> Rc<RefCell<Self>> {
        let counter = entries.values().map(|(_, version)| version.counter).max().unwrap_or(0);
        let (late, history) = (Vec::new(), None);
        Rc::new(RefCell::new(Self {
            entries,
            counter,
            late,
            history,
            holds_late: false,
            fences: true,
            random: Drawn(seed),
        }))
    }

    fn perform(&mut self, (watched, changes): Asked) -> Wrote {
        let is_owner = |key: &[u8]| key.ends_with(b"/owner");
        let differs = |(key, version): &(Vec<u8>, Option<Version>)| {
            self.entries.get(key).map(|(_, version)| *version) != *version && (self.fences || !is_owner(key))
        };
        if watched.iter().any(differs) {
            return Wrote::Differs;
        }
        self.counter += 1;
        let version = Version { view: ViewId(1), counter: self.counter };
        for change in changes {
            match change {
                Change::Put { key, value } => {
                    self.entries.insert(key, (value, version));
                }
                Change::Append { key, value } => {
                    let entry = self.entries.entry(key).or_insert((Vec::new(), version));
                    entry.0.extend(value);
                    entry.1 = version;
                }
                Change::Remove { key } => {
                    self.entries.remove(&key);
                }
            }
        }
        if let Some(history) = &mut self.history {
            history.push(self.entries.clone());
        }
        Wrote::Done(version)
    }

    /// Something that was asked for long ago arrives.
    pub(crate) fn arrive(&mut self) {
        if !self.late.is_empty() {
            let place = self.random.below(self.late.len() as u64) as usize;
            let asked = self.late.remove(place);
            self.perform(asked);
        }
    }
}

/// One process's way to it.
pub(crate) struct Link {
    pub(crate) region: Rc<RefCell<Region>>,
    /// Of a hundred writes or questions, so many go wrong.
    pub(crate) faults: u64,
    /// The next write arrives late.
    pub(crate) delays: bool,
    /// After so many the machine is lost: nothing is asked any more.
    pub(crate) left: Option<u64>,
    /// What somebody else does after so many.
    pub(crate) between: Option<(u64, Box<dyn FnOnce()>)>,
}

impl Link {
    pub(crate) fn to(region: &Rc<RefCell<Region>>) -> Self {
        Self { region: Rc::clone(region), faults: 0, delays: false, left: None, between: None }
    }

    fn begin(&mut self) -> Result<u64, StoreError> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1).ok_or_else(unanswered)?;
        }
        match self.between.take() {
            Some((0, act)) => act(),
            Some((after, act)) => self.between = Some((after - 1, act)),
            None => {}
        }
        let mut region = self.region.borrow_mut();
        if !region.holds_late && region.random.below(8) == 0 {
            region.arrive();
        }
        Ok(if region.random.below(100) < self.faults { 1 + region.random.below(3) } else { 0 })
    }
}

fn unanswered() -> StoreError {
    StoreError::Unanswered("nobody is there".to_owned())
}

impl Store for Link {
    fn get(&mut self, key: &[u8]) -> Result<Option<(Vec<u8>, Version)>, StoreError> {
        match self.begin()? {
            0 => Ok(self.region.borrow().entries.get(key).cloned()),
            _ => Err(unanswered()),
        }
    }

    fn write(
        &mut self,
        watched: Vec<(Vec<u8>, Option<Version>)>,
        changes: Vec<Change>,
    ) -> Result<Wrote, StoreError> {
        let fault = if std::mem::take(&mut self.delays) { 2 } else { self.begin()? };
        let mut region = self.region.borrow_mut();
        match fault {
            0 => return Ok(region.perform((watched, changes))),
            1 => drop(region.perform((watched, changes))),
            2 => region.late.push((watched, changes)),
            _ => {}
        }
        Err(unanswered())
    }
}
