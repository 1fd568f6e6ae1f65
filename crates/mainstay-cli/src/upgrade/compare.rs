//! Two replays side by side.

use super::replaying::{Next, Replaying};
use mainstay::replay::line::{Begin, Delivered, Did, Line, Replayed, Sum, Touch};
use serde::Serialize;
use std::fmt;

/// What came of comparing.
#[derive(Debug, Serialize)]
pub(super) struct Compared {
    old: Version,
    new: Version,
    /// The LSN of the checkpoint that both began with; none: with the first delivery.
    checkpoint: Option<u64>,
    /// Deliveries that came out the same.
    same: u64,
    /// The first that did not.
    difference: Option<Difference>,
    /// A version that could not replay on.
    failure: Option<Failure>,
    /// The first delivery that the old version itself does otherwise than is recorded: then it is not the version that
    /// recorded it, or not deterministic, and the comparison says less.
    old_not_as_recorded: Option<u64>,
}

/// One of the two.
#[derive(Debug, Serialize)]
struct Version {
    binary: String,
    service: Option<String>,
    version: Option<u32>,
}

/// A delivery that comes out otherwise.
#[derive(Debug, Serialize)]
struct Difference {
    lsn: u64,
    delivery: u64,
    time_ns: u64,
    delivered: Delivered,
    recorded: Option<Sum>,
    old: Did,
    new: Did,
    /// What reached the instance that is followed.
    old_touches: Vec<Touch>,
    new_touches: Vec<Touch>,
}

/// A version that could not replay.
#[derive(Debug, Serialize)]
struct Failure {
    binary: String,
    why: String,
}

impl Compared {
    /// Whether both could replay, and did the same. To have compared nothing is no answer.
    #[must_use]
    pub(super) fn is_same(&self) -> bool {
        self.difference.is_none() && self.failure.is_none() && self.same > 0
    }

    fn failed(mut self, replaying: &Replaying, why: String) -> Self {
        self.failure = Some(Failure { binary: replaying.binary.display().to_string(), why });
        self
    }
}

/// Reads two replays of the same deliveries until one does something else.
///
/// # Errors
/// When what a binary prints is no replay.
pub(super) fn compare(mut old: Replaying, mut new: Replaying) -> anyhow::Result<Compared> {
    let mut compared = Compared {
        old: Version::of(&old),
        new: Version::of(&new),
        checkpoint: None,
        same: 0,
        difference: None,
        failure: None,
        old_not_as_recorded: None,
    };
    match (old.begin()?, new.begin()?) {
        (Ok(ours), Ok(theirs)) => {
            compared.checkpoint = ours.checkpoint;
            compared.old.learn(ours);
            compared.new.learn(theirs);
        }
        (Err(why), _) => return Ok(compared.failed(&old, why)),
        (_, Err(why)) => return Ok(compared.failed(&new, why)),
    }
    loop {
        let (ours, theirs) = match (old.next()?, new.next()?) {
            (Next::Line(ours), Next::Line(theirs)) => (ours, theirs),
            (Next::Failed(why), _) => return Ok(compared.failed(&old, why)),
            (_, Next::Failed(why)) => return Ok(compared.failed(&new, why)),
        };
        match (ours, theirs) {
            (Line::Delivery(ours), Line::Delivery(theirs)) if ours.lsn == theirs.lsn => {
                if ours.as_recorded == Some(false) {
                    compared.old_not_as_recorded.get_or_insert(ours.lsn);
                }
                if (&ours.did, &ours.touches) != (&theirs.did, &theirs.touches) {
                    compared.difference = Some(Difference::of(*ours, Some(*theirs)));
                    return Ok(compared);
                }
                compared.same += 1;
            }
            (Line::End(_), Line::End(_)) => return Ok(compared),
            // One of the two lets it reach the instance that is followed.
            (Line::Delivery(ours), theirs) if !ours.touches.is_empty() && !is_before(&theirs, &ours) => {
                compared.difference = Some(Difference::of(*ours, None));
                return Ok(compared);
            }
            (_, Line::Delivery(theirs)) if !theirs.touches.is_empty() => {
                compared.difference = Some(Difference::of_new(*theirs));
                return Ok(compared);
            }
            (ours, theirs) => {
                anyhow::bail!("the two replays do not go in step: {ours:?} beside {theirs:?}")
            }
        }
    }
}

impl Version {
    fn of(replaying: &Replaying) -> Self {
        Self { binary: replaying.binary.display().to_string(), service: None, version: None }
    }

    fn learn(&mut self, begin: Begin) {
        (self.service, self.version) = (Some(begin.service), Some(begin.version));
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.service, self.version) {
            (Some(service), Some(version)) => write!(f, "{service} version {version} ({})", self.binary),
            _ => f.write_str(&self.binary),
        }
    }
}

/// Whether a line is a delivery before `delivery`.
fn is_before(line: &Line, delivery: &Replayed) -> bool {
    matches!(line, Line::Delivery(other) if other.lsn < delivery.lsn)
}

impl Difference {
    fn of(old: Replayed, new: Option<Replayed>) -> Self {
        let Replayed { lsn, delivery, time_ns, delivered, did, recorded, touches, .. } = old;
        let (new, new_touches) = new.map_or_else(Default::default, |new| (new.did, new.touches));
        Self { lsn, delivery, time_ns, delivered, recorded, old: did, new, old_touches: touches, new_touches }
    }

    /// One that only the new version has.
    fn of_new(new: Replayed) -> Self {
        let swapped = Self::of(new, None);
        Self {
            old: swapped.new,
            new: swapped.old,
            old_touches: swapped.new_touches,
            new_touches: swapped.old_touches,
            ..swapped
        }
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { old, new, same, .. } = self;
        writeln!(f, "old: {old}\nnew: {new}")?;
        match self.checkpoint {
            Some(lsn) => write!(f, "from the checkpoint at LSN {lsn}: ")?,
            None => f.write_str("from the first delivery: ")?,
        }
        if let Some(lsn) = self.old_not_as_recorded {
            write!(
                f,
                "the old version does something else than was recorded at LSN {lsn}: it is not the version that recorded it, or not \
                 deterministic; "
            )?;
        }
        if let Some(Failure { binary, why }) = &self.failure {
            return write!(f, "{same} deliveries the same, then {binary} could not go on: {why}");
        }
        let Some(difference) = &self.difference else {
            if *same == 0 {
                return f.write_str(
                    "NOTHING to compare: no delivery is behind it. Check while the old version serves, or another directory of it",
                );
            }
            return write!(f, "{same} deliveries, no difference");
        };
        let Difference { lsn, delivery, delivered, recorded, old, new, old_touches, new_touches, .. } =
            difference;
        let lines =
            |touches: &[Touch]| touches.iter().map(|touch| format!("\n    {touch}")).collect::<String>();
        writeln!(f, "{same} deliveries the same, then the FIRST DIFFERENCE")?;
        writeln!(f, "LSN {lsn}  delivery {delivery}  {delivered}")?;
        if let Some(recorded) = recorded {
            writeln!(f, "  recorded: {recorded}")?;
        }
        write!(f, "  old:\n{old}{}\n  new:\n{new}{}", lines(old_touches), lines(new_touches))?;
        if self.old.version == self.new.version {
            f.write_str(
                "\nBoth say the same version: a handler that does something else must have a new one (`Service::VERSION`)",
            )?;
        }
        Ok(())
    }
}
