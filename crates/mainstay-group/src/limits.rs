//! How much and how long: every queue and every wait of a group, by name and unit.

use std::time::Duration;

/// What bounds a group's memory. The same on all members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most members of a view; at most [`mainstay_types::view::MEMBERS_MAX`].
    pub members_max: usize,
    /// Most processes that wait to be let in; more are told so.
    pub joiners_max: usize,
    /// Most addresses that a process outside asks, locators included.
    pub addresses_max: usize,
    /// Most messages that wait for a record to be durable; above it the oldest is dropped, as a network may.
    pub waiting_messages_max: usize,
    /// Most departures that are remembered, to be explained to those who departed.
    pub departures_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            members_max: mainstay_types::view::MEMBERS_MAX,
            joiners_max: 64,
            addresses_max: 256,
            waiting_messages_max: 1024,
            departures_max: 64,
        }
    }
}

/// How long everything takes. The same on all members: leases of one are waited out by the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Between two beats, and between two looks at the clock.
    pub beat: Duration,
    /// How long a member serves after a beat that a majority has answered, by its own clock.
    pub lease: Duration,
    /// How long nothing is heard of a member before it is suspected. Longer than the lease, so that a view change after a crash seldom
    /// waits for leases.
    pub silence: Duration,
    /// How long the others are asked whether they hear a suspected member.
    pub verification: Duration,
    /// How long promises of all are waited for before a majority is enough.
    pub preparation: Duration,
    /// How long a member stays wedged before it takes the change into its own hands, and once more for each before it among those who could; also how
    /// long nothing may come of a ballot. Twice as long with each further ballot of a view, up to four times.
    pub change: Duration,
    /// Between two requests to be let in.
    pub joining: Duration,
    /// How long requests to be let in are gathered before the view changes for all of them.
    pub gathering: Duration,
    /// How much faster or slower than true a clock may run, in millionths.
    pub clock_drift_ppm_max: u32,
}

impl Timing {
    /// All in proportion to one beat.
    #[must_use]
    pub fn of_beat(beat: Duration) -> Self {
        Self {
            beat,
            lease: beat * 5,
            silence: beat * 8,
            verification: beat * 2,
            preparation: beat * 3,
            change: beat * 12,
            joining: beat * 3,
            gathering: beat,
            clock_drift_ppm_max: 1000,
        }
    }

    /// The time by one clock in which `span` by any other is over for certain.
    ///
    /// Of two clocks within the drift one runs at most 1 + 2 d + … times as fast as the other; three times the drift is above that.
    #[must_use]
    pub fn outlasting(&self, span: Duration) -> Duration {
        let drift = span.as_nanos() * u128::from(self.clock_drift_ppm_max) * 3 / 1_000_000;
        span + Duration::from_nanos(u64::try_from(drift).unwrap_or(u64::MAX)) + Duration::from_micros(1)
    }
}

impl Default for Timing {
    /// A crash is noticed within half a second.
    fn default() -> Self {
        Self::of_beat(Duration::from_millis(50))
    }
}
