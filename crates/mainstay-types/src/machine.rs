//! The seam between a silent machine and whoever drives it.

use crate::time::Time;

/// A state machine without a world: events in, effects out, time as an argument.
///
/// The driver performs every effect at once, in order; their completions are later events. A machine never calls back,
/// never waits and never fails: what can go wrong outside arrives as an event.
pub trait Machine {
    /// Everything that can happen to it.
    type Event;
    /// Everything it can ask for.
    type Effect;

    /// Takes one event at `now` and appends what it wants done to `out`, which the caller reuses between steps.
    fn step(&mut self, now: Time, event: Self::Event, out: &mut Vec<Self::Effect>);
}
