//! The policy table: what a delivery and an effect wait for.
//!
//! | policy | a delivery waits for | what leaves waits for | source |
//! |---|---|---|---|
//! | immediate | its own record safe | nothing more (already met) | Zhao 2014, section 2.3.1 |
//! | deferred | nothing | the record of the delivery that made it safe | Zhao 2014, section 2.3.1.2 and figure 2.13 |
//!
//! *Safe* is the level's word: at `Disk` the journal is durable up to the record's end, at `Process` it is appended to
//! the ring, at `Memory` nothing is waited for.

use mainstay_types::id::Lsn;
use mainstay_types::level::Level;
use mainstay_types::mark::{After, Mark};
use std::fmt;
use std::str::FromStr;

/// How a process survives a crash, and what it pays for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// Log, make safe, then execute: one wait before every delivery.
    Immediate,
    /// Execute at once and log meanwhile; nothing leaves before its log is safe. Several deliveries share a sync.
    #[default]
    Deferred,
}

impl Policy {
    /// What the delivery of the record that ends at `end` waits for.
    #[must_use]
    pub fn delivery_after(self, level: Level, end: Lsn) -> After {
        match self {
            Self::Immediate => safe(level, end),
            Self::Deferred => After::NOTHING,
        }
    }

    /// What an effect waits for whose making depends on all deliveries up to the record that ends at `end`.
    ///
    /// Under [`Policy::Immediate`] the delivery has waited already, so that this is met when asked for; it is the same
    /// row all the same, because a duplicate's answer or a read may be asked for by someone who did not wait.
    #[must_use]
    pub fn effect_after(self, level: Level, end: Lsn) -> After {
        safe(level, end)
    }
}

fn safe(level: Level, end: Lsn) -> After {
    match level {
        Level::Memory => After::NOTHING,
        Level::Process => After::mark(Mark::Appended, end.0),
        Level::Disk => After::mark(Mark::Durable, end.0),
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Immediate => "immediate",
            Self::Deferred => "deferred",
        })
    }
}

/// Not the name of a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no logging policy; the policies are immediate and deferred")]
pub struct UnknownPolicy {
    /// What was given.
    pub given: String,
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(given: &str) -> Result<Self, UnknownPolicy> {
        match given {
            "immediate" => Ok(Self::Immediate),
            "deferred" => Ok(Self::Deferred),
            _ => Err(UnknownPolicy { given: given.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_immediate_waits_before_a_delivery_and_both_before_an_effect() {
        let end = Lsn(96);
        for level in [Level::Process, Level::Disk] {
            assert_eq!(Policy::Deferred.delivery_after(level, end), After::NOTHING);
            assert_ne!(Policy::Immediate.delivery_after(level, end), After::NOTHING);
            assert_ne!(Policy::Deferred.effect_after(level, end), After::NOTHING);
            assert_ne!(Policy::Immediate.effect_after(level, end), After::NOTHING);
        }
        assert_eq!(Policy::Immediate.delivery_after(Level::Memory, end), After::NOTHING);
    }

    #[test]
    fn names_read_back() {
        for policy in [Policy::Immediate, Policy::Deferred] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        assert!("eager".parse::<Policy>().is_err());
    }
}
