//! Which bytes count as the record that belongs at a place of the log: the one rule that walking, repair and reading share.

use crate::format::{Life, PageHeader, RecordHeader, Seed, Superblock, parse_life, parse_record};
use crate::survey::claims;
use mainstay_types::id::{Generation, Lsn, StoreId};
use mainstay_types::rules::{Rule, Rules};

/// How many lives back a broken rule still takes a record for a present one.
const BROKEN_LIVES: u64 = 64;

/// Follows the lives of a journal from record to record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acceptor {
    store: StoreId,
    rules: Rules,
    last: Generation,
    last_start: Lsn,
    generation: Generation,
    seed: Seed,
}

/// A record that was accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accepted {
    pub(crate) header: RecordHeader,
    /// The life that it begins, if it begins one.
    pub(crate) life: Option<Life>,
}

impl Acceptor {
    /// Starts in life `generation`. Everything from where the last life began belongs to it: what earlier lives have
    /// left there was cut, and stays cut even if the last life's own bytes never reached the disk.
    pub(crate) fn new(superblock: &Superblock, rules: Rules, generation: Generation) -> Self {
        Self {
            store: superblock.store,
            rules,
            last: superblock.generation,
            last_start: superblock.last_start,
            generation,
            seed: Seed::new(superblock.store, generation),
        }
    }

    /// The life in force.
    pub(crate) fn generation(&self) -> Generation {
        self.generation
    }

    fn keeps(&self) -> bool {
        self.rules.keep(Rule::StaleRecordRefused)
    }

    /// The earliest life that may have written what lies at `lsn`.
    fn earliest_at(&self, lsn: Lsn) -> Generation {
        if lsn >= self.last_start { self.last } else { self.generation }
    }

    /// Whether `bytes` begin with the header of page `page`, which starts at `start`: opened in the life in force, or in a later one that its
    /// first record then begins.
    pub(crate) fn page(&self, bytes: &[u8], page: u64, start: Lsn) -> bool {
        PageHeader::decode(self.store, bytes).is_some_and(|header| {
            let lives = self.earliest_at(start)..=self.last;
            header.page == page && lives.contains(&header.generation) || !self.keeps()
        })
    }

    /// The record at `lsn`, if `bytes`, which end with its page, begin with it. A record that begins a life changes the
    /// life in force.
    #[inline]
    pub(crate) fn record(&mut self, bytes: &[u8], lsn: Lsn) -> Option<Accepted> {
        if claims(bytes, lsn) {
            let earliest = self.earliest_at(lsn);
            if self.generation >= earliest
                && let Some(header) = parse_record(bytes, self.seed)
            {
                return Some(Accepted { header, life: None });
            }
            let lives = earliest.max(self.generation.next())..=self.last;
            if let Some((header, life)) = parse_life(bytes, self.store, lives) {
                self.generation = life.generation;
                self.seed = Seed::new(self.store, life.generation);
                return Some(Accepted { header, life: Some(life) });
            }
        }
        if self.keeps() { None } else { self.stale(bytes) }
    }

    /// What a reader without the rule would take: any record of this store, whatever its life and address.
    fn stale(&self, bytes: &[u8]) -> Option<Accepted> {
        let earliest = self.last.0.saturating_sub(BROKEN_LIVES);
        let header = (earliest..=self.last.0)
            .rev()
            .find_map(|generation| parse_record(bytes, Seed::new(self.store, Generation(generation))))?;
        Some(Accepted { header, life: None })
    }
}
