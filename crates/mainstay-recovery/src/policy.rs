//! The policy table: what a delivery, a message and an effect wait for, and what two policies guarantee together.
//!
//! | policy | messages in the journal | a delivery waits for | a message waits for | an effect waits for | survives | source |
//! |---|---|---|---|---|---|---|
//! | immediate | yes | its own record | its record (already met) | its record (already met) | any | Zhao 2014, 2.3.1 |
//! | deferred | yes | nothing | its record | its record | any | Zhao 2014, 2.3.1.2 |
//! | sender-based | no | nothing | inputs, and Recoverable | inputs, and Recoverable | 1 | Johnson and Zwaenepoel 1987 |
//! | hybrid | yes, in the background | nothing | inputs, and Recoverable | inputs, and Recoverable | 1 | Rao, Alvisi, Vin 2000 |
//! | causal:f | no | nothing | nothing | inputs, and Recoverable | f | Alvisi, Hoppe, Marzullo 1993 |
//! | optimistic | yes, in the background | nothing | nothing | inputs, and Recoverable | any, with rollback | Strom and Yemini 1985 |
//! | none | no | nothing | nothing | nothing | 0 | for measurement only |
//!
//! *Its record* is that of the last delivery it depends on, *inputs* the record of the last input from outside; a record is
//! waited for as the level says: at `Disk` until the journal is durable up to its end, at `Process` until it is in the ring,
//! at `Memory` not at all. *Survives* counts nodes that are down at the same time: from the crash until the next life has greeted every live peer,
//! because the copies that the node held for others are told to it then.

use mainstay_types::id::{DeliveryIndex, Lsn};
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
    /// The sender of a message keeps it, and the place that its receiver gave it, in memory; the receiver lets nothing out
    /// before its senders have confirmed that.
    SenderBased,
    /// As [`Self::SenderBased`], and the receiver journals what it delivers in the background: whichever is first counts.
    Hybrid,
    /// Determinants ride on messages until `f + 1` nodes hold them: no message waits.
    Causal {
        /// How many nodes may fail at the same time; at least 1.
        f: u8,
    },
    /// Messages leave at once and say what they depend on; a node that depends on a state that was lost rolls back.
    Optimistic,
    /// Nothing is logged of messages and nothing waits, also no answer: the yardstick of measurements. It survives nothing.
    Unlogged,
}

/// How many nodes may be down at the same time without anything that left being lost.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Failures {
    /// At most so many.
    AtMost(u8),
    /// Any number: every node finds what it needs in its own journal.
    Any,
}

/// How a message between two policies waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Departure {
    /// As the sender's row says for messages: the receiver takes part in the sender's protocol, or need not.
    AsMessage,
    /// As the sender's row says for effects: to this receiver the sender is a process that never loses what it said.
    AsEffect,
}

/// What a message from a process under one policy to one under another can count on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// How the message waits.
    pub departure: Departure,
    /// What the two survive together: the lesser of the two.
    pub survives: Failures,
}

/// Two policies that guarantee nothing together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a process under `{from}` and one under `{to}` guarantee nothing together: what the unlogged one forgets in a crash, the \
     other goes on depending on; give both a policy other than `none`, or both `none` to measure"
)]
pub struct NoGuarantee {
    /// The sender's.
    pub from: Policy,
    /// The receiver's.
    pub to: Policy,
}

impl Policy {
    /// What nodes of a cluster log by unless told otherwise: decided by measurement, see `docs/decisions/0011-hybrid-for-clusters.md`.
    pub const FOR_CLUSTERS: Self = Self::Hybrid;

    /// One of each, as a table or a campaign goes through them; causal with `f` of 1.
    pub const ALL: [Self; 7] = [
        Self::Immediate,
        Self::Deferred,
        Self::SenderBased,
        Self::Hybrid,
        Self::Causal { f: 1 },
        Self::Optimistic,
        Self::Unlogged,
    ];

    /// Whether a message's delivery is recorded in its receiver's journal. What comes from outside the cluster always is.
    #[must_use]
    #[inline]
    pub fn journals_messages(self) -> bool {
        match self {
            Self::Immediate | Self::Deferred | Self::Hybrid | Self::Optimistic => true,
            Self::SenderBased | Self::Causal { .. } | Self::Unlogged => false,
        }
    }

    /// Whether a restarted process needs its peers' copies before it may go on: what it delivered is not all in its journal.
    #[must_use]
    pub fn collects(self) -> bool {
        matches!(self, Self::SenderBased | Self::Hybrid | Self::Causal { .. })
    }

    /// Whether the loss of a node's tail can make a node that did not fail roll back.
    #[must_use]
    pub fn rolls_back(self) -> bool {
        self == Self::Optimistic
    }

    /// What the delivery of the record that ends at `end` waits for.
    #[must_use]
    #[inline]
    pub fn delivery_after(self, level: Level, end: Lsn) -> After {
        match self {
            Self::Immediate => record_safe(level, end),
            _ => After::NOTHING,
        }
    }

    /// What a message to a process under `to` waits for.
    ///
    /// `end` is what [`Self::effect_after`] says; `index` is what [`crate::logging::Logging::waits_for`] says at the message's
    /// emission. A pair without guarantee, which the configuration refuses, waits as long as any.
    #[must_use]
    #[inline]
    pub fn message_after(self, to: Self, level: Level, end: Lsn, index: DeliveryIndex) -> After {
        let as_message = matches!(self.pair(to), Ok(Pair { departure: Departure::AsMessage, .. }));
        match self {
            Self::Causal { .. } | Self::Optimistic if as_message => After::NOTHING,
            _ => self.effect_after(level, end, index),
        }
    }

    /// What an effect waits for whose making depends on all deliveries up to `index`.
    ///
    /// `end` is the end of a record: that of the last delivery up to `index` that is in the journal under immediate and
    /// deferred logging; under the others, where the mark [`Mark::Recoverable`] speaks for messages, that of the last one that
    /// came from outside.
    ///
    /// Under [`Policy::Immediate`] the delivery has waited already, so that this is met when asked for; it is the same
    /// row all the same, because a duplicate's answer or a read may be asked for by someone who did not wait.
    #[must_use]
    #[inline]
    pub fn effect_after(self, level: Level, end: Lsn, index: DeliveryIndex) -> After {
        match self {
            Self::Immediate | Self::Deferred => record_safe(level, end),
            Self::SenderBased | Self::Hybrid | Self::Causal { .. } | Self::Optimistic => {
                record_safe(level, end).and(Mark::Recoverable, index.0)
            }
            Self::Unlogged => After::NOTHING,
        }
    }

    /// How many nodes may be down at the same time.
    ///
    /// | policy | failures | because |
    /// |---|---|---|
    /// | immediate, deferred | any | all is in the node's own journal; content not yet safe there is still with its sender |
    /// | sender-based | 1 | a place is in two memories: its giver's and the sender's |
    /// | hybrid | 1 | as above until the record is safe; what is older survives any number |
    /// | causal:f | f | a determinant that anyone depends on is with all who depend on it, or with f + 1 nodes |
    /// | optimistic | any | outputs wait for journals; nodes that did not fail may roll back |
    /// | none | 0 | nothing is kept |
    #[must_use]
    pub fn survives(self) -> Failures {
        match self {
            Self::Immediate | Self::Deferred | Self::Optimistic => Failures::Any,
            Self::SenderBased | Self::Hybrid => Failures::AtMost(1),
            Self::Causal { f } => Failures::AtMost(f),
            Self::Unlogged => Failures::AtMost(0),
        }
    }

    /// How many nodes a cluster must have for [`Self::survives`] to hold: copies need somewhere to be.
    #[must_use]
    pub fn nodes_min(self) -> usize {
        match self {
            Self::Causal { f } => usize::from(f) + 1,
            _ => 1,
        }
    }

    /// What a message from a process under this policy to one under `to` can count on. Both directions are to be asked.
    ///
    /// The rule: *who does not take part in the sender's protocol is outside of it*, so that a message to it waits as an effect
    /// does, and its receiver may depend on it without more ado.
    ///
    /// * From pessimistic, sender-based and hybrid processes a message leaves only when all that it depends on is safe: the
    ///   same for every receiver.
    /// * A causal process lets messages go ahead of their determinants' copies, because the receiver keeps what rides along.
    ///   Only a causal receiver does: to any other the message waits for the copies.
    /// * An optimistic process lets messages go that it may take back, because the receiver rolls back with it. Only an
    ///   optimistic receiver can: to any other the message waits for the journals.
    /// * The receiver's own duty does not depend on the sender's policy. A sender-based receiver needs a sender that keeps
    ///   places, and every process under every policy does ([`crate::keeper::Keeper`]); a causal receiver's determinants go to
    ///   the causal nodes, of which there must be [`Self::nodes_min`]; content is retained by every sender's channel.
    /// * Unlogged processes go with their like only.
    ///
    /// # Errors
    /// [`NoGuarantee`].
    #[inline]
    pub fn pair(self, to: Self) -> Result<Pair, NoGuarantee> {
        let departure = match (self, to) {
            (Self::Unlogged, Self::Unlogged) => Departure::AsMessage,
            (Self::Unlogged, _) | (_, Self::Unlogged) => return Err(NoGuarantee { from: self, to }),
            (Self::Causal { .. }, Self::Causal { .. }) | (Self::Optimistic, Self::Optimistic) => {
                Departure::AsMessage
            }
            (Self::Causal { .. } | Self::Optimistic, _) => Departure::AsEffect,
            (Self::Immediate | Self::Deferred | Self::SenderBased | Self::Hybrid, _) => Departure::AsMessage,
        };
        Ok(Pair { departure, survives: self.survives().min(to.survives()) })
    }

    /// Two bytes for a peer: which policy, and `f` where it has one.
    #[must_use]
    pub fn code(self) -> [u8; 2] {
        match self {
            Self::Immediate => [1, 0],
            Self::Deferred => [2, 0],
            Self::SenderBased => [3, 0],
            Self::Hybrid => [4, 0],
            Self::Causal { f } => [5, f],
            Self::Optimistic => [6, 0],
            Self::Unlogged => [7, 0],
        }
    }

    /// The policy that [`Self::code`] wrote, if this version knows it.
    #[must_use]
    pub fn from_code(code: [u8; 2]) -> Option<Self> {
        Some(match code {
            [1, 0] => Self::Immediate,
            [2, 0] => Self::Deferred,
            [3, 0] => Self::SenderBased,
            [4, 0] => Self::Hybrid,
            [5, f] if f > 0 => Self::Causal { f },
            [6, 0] => Self::Optimistic,
            [7, 0] => Self::Unlogged,
            _ => return None,
        })
    }
}

/// What waits for the record that ends at `end` to be safe at `level`.
#[must_use]
#[inline]
pub fn record_safe(level: Level, end: Lsn) -> After {
    match level {
        Level::Memory => After::NOTHING,
        Level::Process => After::mark(Mark::Appended, end.0),
        Level::Disk => After::mark(Mark::Durable, end.0),
        Level::Peers => After::mark(Mark::Kept, end.0),
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Immediate => "immediate",
            Self::Deferred => "deferred",
            Self::SenderBased => "sender-based",
            Self::Hybrid => "hybrid",
            Self::Causal { f: 1 } => "causal",
            Self::Causal { f: failures } => return f.pad(&format!("causal:{failures}")),
            Self::Optimistic => "optimistic",
            Self::Unlogged => "none",
        })
    }
}

impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(count) => f.pad(&count.to_string()),
            Self::Any => f.pad("any"),
        }
    }
}

/// Not the name of a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{given}` is no logging policy; the policies are immediate, deferred, sender-based, hybrid, causal (or causal:F for F \
     failures at the same time, 1 to 255), optimistic, and none to measure without"
)]
pub struct UnknownPolicy {
    /// What was given.
    pub given: String,
}

impl FromStr for Policy {
    type Err = UnknownPolicy;

    fn from_str(given: &str) -> Result<Self, UnknownPolicy> {
        let unknown = || UnknownPolicy { given: given.to_owned() };
        Ok(match given {
            "immediate" => Self::Immediate,
            "deferred" => Self::Deferred,
            "sender-based" => Self::SenderBased,
            "hybrid" => Self::Hybrid,
            "causal" => Self::Causal { f: 1 },
            "optimistic" => Self::Optimistic,
            "none" => Self::Unlogged,
            _ => {
                let failures = given.strip_prefix("causal:").ok_or_else(unknown)?;
                match failures.parse() {
                    Ok(f @ 1..) => Self::Causal { f },
                    Ok(0) | Err(_) => return Err(unknown()),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: Lsn = Lsn(96);
    const INDEX: DeliveryIndex = DeliveryIndex(7);

    #[test]
    fn only_immediate_waits_before_a_delivery_and_all_but_none_before_an_effect() {
        for level in [Level::Process, Level::Disk, Level::Peers] {
            for policy in Policy::ALL {
                let waits = policy.delivery_after(level, END) != After::NOTHING;
                assert_eq!(waits, policy == Policy::Immediate, "{policy}");
                let waits = policy.effect_after(level, END, INDEX) != After::NOTHING;
                assert_eq!(waits, policy != Policy::Unlogged, "{policy}");
            }
        }
        assert_eq!(Policy::Immediate.delivery_after(Level::Memory, END), After::NOTHING);
    }

    #[test]
    fn whoever_keeps_no_message_in_its_journal_waits_for_copies_elsewhere() {
        for policy in Policy::ALL {
            let waits_for_copies = policy
                .effect_after(Level::Disk, END, INDEX)
                .waits()
                .any(|wait| wait == (Mark::Recoverable, INDEX.0));
            let own_journal_suffices = matches!(policy, Policy::Immediate | Policy::Deferred);
            assert_eq!(waits_for_copies, !own_journal_suffices && policy != Policy::Unlogged, "{policy}");
        }
    }

    #[test]
    fn a_message_goes_ahead_only_to_a_receiver_that_takes_part() {
        let ahead =
            |from: Policy, to: Policy| from.message_after(to, Level::Disk, END, INDEX) == After::NOTHING;
        for from in Policy::ALL {
            for to in Policy::ALL {
                let alike = from == to
                    && matches!(from, Policy::Causal { .. } | Policy::Optimistic | Policy::Unlogged);
                assert_eq!(ahead(from, to), alike || from == Policy::Unlogged, "{from} to {to}");
            }
        }
        assert!(ahead(Policy::Causal { f: 1 }, Policy::Causal { f: 2 }));
    }

    #[test]
    fn two_policies_survive_what_the_weaker_one_does_and_none_goes_with_none() {
        let pair = |from: Policy, to: Policy| from.pair(to).map(|pair| pair.survives);
        assert_eq!(pair(Policy::Causal { f: 3 }, Policy::Causal { f: 2 }), Ok(Failures::AtMost(2)));
        assert_eq!(pair(Policy::Deferred, Policy::Optimistic), Ok(Failures::Any));
        assert_eq!(pair(Policy::Hybrid, Policy::Deferred), Ok(Failures::AtMost(1)));
        assert_eq!(pair(Policy::Unlogged, Policy::Unlogged), Ok(Failures::AtMost(0)));
        for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::Unlogged) {
            assert!(policy.pair(Policy::Unlogged).is_err() && Policy::Unlogged.pair(policy).is_err());
        }
    }

    #[test]
    fn names_and_codes_read_back() {
        for policy in Policy::ALL.into_iter().chain([Policy::Causal { f: 2 }, Policy::Causal { f: 255 }]) {
            assert_eq!(policy.to_string().parse(), Ok(policy));
            assert_eq!(Policy::from_code(policy.code()), Some(policy));
        }
        for no in ["eager", "causal:0", "causal:256", "causal:", "Deferred"] {
            assert!(no.parse::<Policy>().is_err(), "{no}");
        }
        assert_eq!(Policy::from_code([5, 0]), None);
        assert_eq!(Policy::from_code([0, 0]), None);
    }
}
