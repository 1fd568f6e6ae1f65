//! `mainstay mpi diff`: where two runs of a program first went different ways, rank by rank: which receive took a message of
//! another sender.

use crate::field::{Field, Role};
use crate::format::Kind;
use crate::objects::FIRST_MADE;
use crate::operation::Wildcards;
use crate::reader::ReadError;
use crate::reader::damage::Damage;
use crate::run::Run;
use crate::walk::{Seen, Step, Walk};

/// What differs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A receive, probe or wait ended with another message: the order of messages, a race.
    Order,
    /// The program called something else.
    Call,
    /// It called the same with something else.
    Argument,
    /// The call returned something else.
    Result,
    /// One of the logs ends here.
    End,
}

impl What {
    /// In words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Order => "another message",
            Self::Call => "another call",
            Self::Argument => "another argument",
            Self::Result => "another result",
            Self::End => "one run ends",
        }
    }
}

/// The first difference of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What kind.
    pub what: What,
    /// Number and name of the call in each run.
    pub calls: [(u64, String); 2],
    /// What each run has there.
    pub values: [String; 2],
    /// Whether the call takes messages of any source or any tag, or waits for any of several requests.
    pub wildcard: bool,
    /// How often each run polled in vain just before.
    pub polls: [u64; 2],
}

/// Two runs cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum DiffError {
    /// A log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// They are of MPIs that call the same things by other numbers.
    #[error(
        "the runs are of two MPIs, {one} and {other}, which have other numbers for the same constants: only runs of MPIs with the same \
         binary interface can be compared; record the program twice under one of them"
    )]
    OtherMpi {
        /// What the MPI of the first run calls itself.
        one: String,
        /// And that of the other.
        other: String,
    },
}

/// How two runs of a rank differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankDiff {
    /// The rank.
    pub rank: u32,
    /// Calls that are the same, up to the first difference. Polls in vain and clocks do not count.
    pub same_calls: u64,
    /// The first difference in order.
    pub first: Option<Difference>,
    /// Sends before it whose bytes differ, and the number of the first one's call in the first run.
    pub sent_bytes: (u64, Option<u64>),
    /// Results before it whose bytes differ: receives and collectives.
    pub received_bytes: (u64, Option<u64>),
    /// What is wrong with the logs, as far as they were read.
    pub damage: [Option<Damage>; 2],
}

/// Compares a rank of two runs. Reads both logs once, up to the first difference.
///
/// # Errors
/// [`DiffError`].
pub fn diff_rank(runs: [&Run; 2], rank: u32) -> Result<RankDiff, DiffError> {
    let [one, other] = runs;
    let libraries = [one.start(rank)?.library, other.start(rank)?.library];
    // A log that was cut off in MPI_Init does not say it, and has no constant, either.
    let known = libraries.iter().all(|library| !library.is_empty());
    if known && Wildcards::of(&libraries[0]) != Wildcards::of(&libraries[1]) {
        let [one, other] = libraries.map(|library| library.lines().next().unwrap_or_default().to_owned());
        return Err(DiffError::OtherMpi { one, other });
    }
    let mut sides = [Side::over(one, rank)?, Side::over(other, rank)?];
    let mut diff = RankDiff { rank, ..RankDiff::default() };
    loop {
        let polls = [0, 1].map(|side: usize| sides[side].pass());
        let [one, other] = &sides;
        let first = match (&one.next, &other.next) {
            (None, None) => None,
            (Some(here), Some(there)) => {
                let names = [one.walk.name(here.function), other.walk.name(there.function)];
                diff.compare([here, there], names, one.wildcards(), polls)
            }
            _ => Some(Difference {
                what: What::End,
                calls: [one.at(), other.at()],
                values: [one.at_end(), other.at_end()],
                wildcard: false,
                polls,
            }),
        };
        if first.is_some() || sides[0].next.is_none() {
            diff.first = first;
            diff.damage = [0, 1].map(|side: usize| sides[side].walk.damage().cloned());
            return Ok(diff);
        }
        diff.same_calls += 1;
        for side in &mut sides {
            side.next = None;
        }
    }
}

/// One run's log.
struct Side {
    walk: Walk,
    next: Option<Seen>,
}

impl Side {
    fn over(run: &Run, rank: u32) -> Result<Self, ReadError> {
        Ok(Self { walk: Walk::over(run.whole_reader(rank)?), next: None })
    }

    fn wildcards(&self) -> Wildcards {
        Wildcards::of(&self.walk.library)
    }

    /// Goes to the next call that counts; how many polls in vain were passed.
    fn pass(&mut self) -> u64 {
        let mut polls = 0;
        while let Some(step) = self.walk.next_step() {
            let Step::Call(seen) = step else {
                continue;
            };
            let name = self.walk.name(seen.function);
            let is_clock = !name.starts_with("MPI_") || name == "MPI_Wtime" || name == "MPI_Wtick";
            match seen.kind {
                Kind::Misses => polls += seen.count,
                _ if is_clock => {}
                _ => {
                    self.next = Some(seen);
                    break;
                }
            }
        }
        polls
    }

    fn at(&self) -> (u64, String) {
        let next = self.next.as_ref();
        next.map_or((self.walk.calls + 1, String::new()), |seen| {
            (seen.number, self.walk.name(seen.function).to_owned())
        })
    }

    fn at_end(&self) -> String {
        match &self.next {
            Some(seen) => self.walk.name(seen.function).to_owned(),
            None if self.walk.ended => "the process ended".to_owned(),
            None if self.walk.damage().is_some() => "its log is damaged".to_owned(),
            None => match self.walk.entered() {
                Some((function, call, _)) if call == self.walk.calls + 1 => {
                    format!("cut off in {}", self.walk.name(function))
                }
                _ => "cut off".to_owned(),
            },
        }
    }
}

impl RankDiff {
    fn compare(
        &mut self,
        seen: [&Seen; 2],
        names: [&str; 2],
        wildcards: Wildcards,
        polls: [u64; 2],
    ) -> Option<Difference> {
        let difference = |what, values, wildcard| {
            let calls = [(seen[0].number, names[0].to_owned()), (seen[1].number, names[1].to_owned())];
            Some(Difference { what, calls, values, wildcard, polls })
        };
        if names[0] != names[1] || seen[0].kind != seen[1].kind {
            return difference(What::Call, names.map(str::to_owned), false);
        }
        let mut wildcard = ["any", "some"].iter().any(|end| names[0].ends_with(end));
        let (mut one, mut other) = (seen[0].fields().filter(counts), seen[1].fields().filter(counts));
        loop {
            let pair = (one.next(), other.next());
            wildcard |=
                matches!(pair.0, Some(Field::Input(Role::Peer, peer)) if peer == wildcards.any_source);
            wildcard |= matches!(pair.0, Some(Field::Input(Role::Tag, tag)) if tag == wildcards.any_tag);
            let what = match pair {
                (None, None) => return None,
                (Some(Field::Data(here, crc)), Some(Field::Data(there, other))) if here == there => {
                    if crc != other {
                        note(&mut self.sent_bytes, seen[0].number);
                    }
                    continue;
                }
                (Some(Field::Received(here)), Some(Field::Received(there))) if here.len() == there.len() => {
                    if here != there {
                        note(&mut self.received_bytes, seen[0].number);
                    }
                    continue;
                }
                (Some(Field::Promised(_, _, here, crc)), Some(Field::Promised(_, _, there, other)))
                    if here == there =>
                {
                    if crc != other {
                        note(&mut self.received_bytes, seen[0].number);
                    }
                    continue;
                }
                (Some(here), Some(there)) if same(&here, &there) => continue,
                (Some(Field::Status(..) | Field::Done(..) | Field::Received(_)), _)
                | (_, Some(Field::Status(..) | Field::Done(..) | Field::Received(_))) => What::Order,
                (Some(Field::Result(_) | Field::Request(_)), _) => What::Result,
                _ => What::Argument,
            };
            let text = |field: Option<Field<'_>>| {
                field.map_or_else(|| "nothing".to_owned(), |field| field.to_string())
            };
            return difference(what, [text(pair.0), text(pair.1)], wildcard);
        }
    }
}

fn note(count: &mut (u64, Option<u64>), call: u64) {
    count.0 += 1;
    count.1.get_or_insert(call);
}

/// Whether a field is compared at all. What comes out besides messages follows from what went in, or is a clock.
fn counts(field: &Field<'_>) -> bool {
    !matches!(
        field,
        Field::Time(..)
            | Field::Output(_)
            | Field::Object(..)
            | Field::Made(_)
            | Field::To(_)
            | Field::Posted(..)
            | Field::Retracted(_)
            | Field::Withdrawn(_)
            | Field::Sent(_)
    )
}

fn same(here: &Field<'_>, there: &Field<'_>) -> bool {
    match (here, there) {
        // The bytes of a status hold more than the program may look at.
        (Field::Status(source, tag, bytes, _), Field::Status(other_source, other_tag, other_bytes, _)) => {
            (source, tag, bytes) == (other_source, other_tag, other_bytes)
        }
        (Field::Done(place, ..), Field::Done(other, ..)) => place == other,
        // Numbers of made objects hang on which handles MPI used again.
        (Field::Handle(kind, id), Field::Handle(other_kind, other)) => {
            kind == other_kind && (id == other || (*id >= FIRST_MADE && *other >= FIRST_MADE))
        }
        (here, there) => here == there,
    }
}
