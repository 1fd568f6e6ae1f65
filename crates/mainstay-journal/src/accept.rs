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
    #[inline]
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

    /// How many of `bytes`, which lie in one page, are records of the life in force that belong where they are, one
    /// after another from `lsn` on. It may stop early: what comes next is for [`Acceptor::record`] to judge.
    ///
    /// Nothing but the checks is done here, record after record, so that the processor has the checksum of the next one
    /// in work before it is done with this one: a single one is a chain of instructions that wait for each other.
    pub(crate) fn run(&self, bytes: &[u8], lsn: Lsn) -> usize {
        let mut rest = bytes;
        if self.generation < self.last {
            let last_life_from = self.last_start.0.saturating_sub(lsn.0);
            rest =
                &bytes[..usize::try_from(last_life_from).map_or(bytes.len(), |from| from.min(bytes.len()))];
        }
        let mut at = lsn;
        while claims(rest, at)
            && let Some(header) = parse_record(rest, self.seed)
        {
            at = at.plus(header.bytes() as u64);
            rest = rest.get(header.bytes()..).unwrap_or_default();
        }
        (at.0 - lsn.0) as usize
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Forgiven, RECORD_HEADER_BYTES, close_record};
    use crate::geometry::Geometry;
    use crate::record::Kind;
    use mainstay_types::id::InstanceId;

    const STORE: StoreId = StoreId([4; 16]);
    const START: Lsn = Lsn(64);

    fn acceptor(generation: u64, last: u64, last_start: Lsn) -> Acceptor {
        let superblock = Superblock {
            store: STORE,
            serial: 1,
            generation: Generation(last),
            geometry: Geometry::default(),
            stripes: 1,
            first: Lsn::ZERO,
            first_generation: Generation(1),
            watermark: Lsn::ZERO,
            last_start,
            forgiven: Forgiven { generation: Generation(0), lsn: Lsn::ZERO },
        };
        Acceptor::new(&superblock, Rules::default(), Generation(generation))
    }

    /// Records of these payload lengths from [`START`] on, and where each starts, the end included.
    fn records(lengths: &[usize], generation: u64) -> (Vec<u8>, Vec<usize>) {
        let seed = Seed::new(STORE, Generation(generation));
        let mut bytes = Vec::new();
        let mut starts = vec![0];
        for (number, &length) in lengths.iter().enumerate() {
            let header = RecordHeader {
                payload_bytes: u32::try_from(length).unwrap(),
                lsn: START.plus(bytes.len() as u64),
                instance: InstanceId(number as u64),
                kind: Kind::FIRST_USER,
            };
            let from = bytes.len();
            bytes.resize(from + header.bytes(), 0);
            bytes[from + RECORD_HEADER_BYTES..][..length].fill(number as u8 + 1);
            header.put(&mut bytes[from..]);
            close_record(&mut bytes[from..], length, seed);
            starts.push(bytes.len());
        }
        (bytes, starts)
    }

    #[test]
    fn a_run_ends_before_the_first_record_that_is_not_whole_or_not_intact() {
        let lengths = [0, 1, 7, 8, 9, 128, 300];
        let (mut bytes, starts) = records(&lengths, 2);
        let acceptor = acceptor(2, 2, START);
        assert_eq!(acceptor.run(&bytes, START), bytes.len());
        assert_eq!(acceptor.run(&bytes, START.plus(8)), 0, "at another address");
        for (record, &length) in lengths.iter().enumerate() {
            for at in starts[record]..starts[record] + RECORD_HEADER_BYTES + length {
                assert_eq!(acceptor.run(&bytes[..at], START), starts[record], "cut at {at}");
                bytes[at] ^= 4;
                assert_eq!(acceptor.run(&bytes, START), starts[record], "byte {at} flipped");
                bytes[at] ^= 4;
            }
        }
    }

    #[test]
    fn a_run_ends_where_another_life_begins() {
        let (bytes, starts) = records(&[40, 40, 40], 2);
        assert_eq!(acceptor(1, 3, Lsn(1 << 20)).run(&bytes, START), 0, "a later life");
        assert_eq!(acceptor(3, 3, Lsn::ZERO).run(&bytes, START), 0, "an earlier life");
        let last_start = START.plus(starts[2] as u64);
        assert_eq!(acceptor(2, 3, last_start).run(&bytes, START), starts[2], "what was cut stays cut");
    }
}
