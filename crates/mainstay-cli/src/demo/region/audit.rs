//! The audit: what the clients were told, against what the region holds when all is over.
//!
//! Each key has one writer, which makes one request at a time: it knows what must be there. A counter below what was acknowledged has lost
//! something, one above what was asked for has taken something twice, and one between must be a sum of what was asked for; a text must be the
//! last acknowledged one, at its version.

use super::client::{Account, Version};
use serde::Serialize;
use std::collections::BTreeMap;

/// How many findings are described one by one.
const DESCRIBED_MAX: usize = 10;

/// What the region holds: values with their versions, by key.
pub(crate) type Held = BTreeMap<Vec<u8>, (Option<Vec<u8>>, Version)>;

/// What was found about clients of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct OfKind {
    /// Requests made.
    pub(crate) requests: u64,
    /// Writes that were acknowledged.
    pub(crate) acknowledged: u64,
    /// Writes whose outcome the client does not know: those without identity only.
    pub(crate) unknown: u64,
    /// Attempts after the first.
    pub(crate) repetitions: u64,
    /// Keys from which something that was acknowledged is missing.
    pub(crate) lost: u64,
    /// Keys in which something took effect more often than it was asked for.
    pub(crate) doubled: u64,
    /// Answers that cannot be right, and keys with another version than the last acknowledged one.
    pub(crate) answers_wrong: u64,
}

/// What the audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Findings {
    /// Requests made.
    pub(crate) requests: u64,
    /// Keys from which something acknowledged is missing.
    pub(crate) lost: u64,
    /// Keys in which something took effect twice.
    pub(crate) doubled: u64,
    /// Answers that cannot be right.
    pub(crate) answers_wrong: u64,
    /// Clients that name their operations.
    pub(crate) with_identity: OfKind,
    /// Clients that do not.
    pub(crate) without_identity: OfKind,
    /// Answers given again instead of doing it again.
    pub(crate) duplicates_suppressed: u64,
    /// Operations acknowledged before all nodes were killed at once, and asked for again afterwards: first answers, first versions.
    pub(crate) asked_again_after_power_off: u64,
    /// Some findings in words.
    pub(crate) described: Vec<String>,
}

/// Compares.
#[must_use]
pub(crate) fn audit(accounts: &[Account], held: &Held) -> Findings {
    let mut findings = Findings::default();
    for account in accounts {
        findings.duplicates_suppressed += account.duplicates;
        findings.asked_again_after_power_off += account.asked_again_after_power_off;
        let mut described = account.wrong.clone();
        let of_kind = match account.named {
            true => &mut findings.with_identity,
            false => &mut findings.without_identity,
        };
        of_kind.requests += account.requests;
        of_kind.acknowledged += account.acknowledged_writes;
        of_kind.unknown += account.unknown;
        of_kind.repetitions += account.repetitions;
        of_kind.answers_wrong += account.wrong.len() as u64;
        for (key, counter) in &account.counters {
            let (value, version) = held.get(key).cloned().unwrap_or_default();
            let sum: i64 = match &value {
                None => 0,
                Some(value) => {
                    str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(i64::MIN)
                }
            };
            let name = String::from_utf8_lossy(key);
            let (least, most) = counter.possible.range();
            if sum < least {
                of_kind.lost += 1;
                described.push(format!("{name} is {sum}, and {least} was acknowledged"));
            } else if sum > most {
                of_kind.doubled += 1;
                described.push(format!("{name} is {sum}, and {most} was asked for"));
            } else if !counter.possible.clone().see(sum) {
                of_kind.answers_wrong += 1;
                described.push(format!("{name} is {sum}, which is no sum of what was asked for"));
            }
            if !at_version(version, counter.version, least < most) {
                of_kind.answers_wrong += 1;
                described
                    .push(format!("{name} stands at {version:?}, acknowledged is {:?}", counter.version));
            }
        }
        for (key, text) in &account.texts {
            let (value, version) = held.get(key).cloned().unwrap_or_default();
            let name = String::from_utf8_lossy(key);
            let is_known = value == text.known;
            if !is_known && !value.as_ref().is_some_and(|value| text.unknown.contains(value)) {
                of_kind.lost += 1;
                described.push(format!("{name} is {value:?}, known is {text:?}"));
            } else if !text.clone().see(value.as_deref(), version) {
                of_kind.answers_wrong += 1;
                described.push(format!("{name} is {value:?} at {version:?}, known is {text:?}"));
            }
        }
        let room = DESCRIBED_MAX.saturating_sub(findings.described.len());
        findings.described.extend(described.into_iter().take(room));
    }
    for of_kind in [&findings.with_identity, &findings.without_identity] {
        findings.requests += of_kind.requests;
        findings.lost += of_kind.lost;
        findings.doubled += of_kind.doubled;
        findings.answers_wrong += of_kind.answers_wrong;
    }
    findings
}

/// What is unknown may have come after the last that was acknowledged; else that is the last.
fn at_version(held: Version, acknowledged: Version, unknown: bool) -> bool {
    if unknown { held >= acknowledged } else { held == acknowledged }
}

impl Findings {
    /// Whether the promise was kept.
    #[must_use]
    pub(crate) fn kept(&self) -> bool {
        self.lost + self.doubled + self.answers_wrong == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::{Counter, Text};
    use super::*;

    fn account(named: bool) -> Account {
        let mut counter = Counter { version: (2, 7), ..Counter::default() };
        counter.possible.acknowledge(5);
        if !named {
            counter.possible.unknown(3);
        }
        let text = Text { known: Some(b"b".to_vec()), unknown: Vec::new(), version: (2, 8) };
        Account {
            named,
            requests: 9,
            counters: [(b"n".to_vec(), counter)].into(),
            texts: [(b"t".to_vec(), text)].into(),
            ..Account::default()
        }
    }

    fn found(named: bool, sum: &str, text: &str, version: Version) -> Findings {
        let held = Held::from([
            (b"n".to_vec(), (Some(sum.as_bytes().to_vec()), version)),
            (b"t".to_vec(), (Some(text.as_bytes().to_vec()), (2, 8))),
        ]);
        audit(&[account(named)], &held)
    }

    #[test]
    fn what_is_missing_doubled_or_at_another_version_is_found() {
        assert!(found(true, "5", "b", (2, 7)).kept());
        let lost = found(true, "4", "b", (2, 7));
        assert_eq!((lost.lost, lost.doubled, lost.with_identity.lost), (1, 0, 1));
        let doubled = found(true, "6", "b", (2, 7));
        assert_eq!((doubled.lost, doubled.doubled, doubled.with_identity.doubled), (0, 1, 1));
        assert_eq!(found(true, "5", "a", (2, 7)).lost, 1);
        assert_eq!(found(true, "5", "b", (2, 6)).answers_wrong, 1);
        assert_eq!(audit(&[account(true)], &Held::new()).lost, 2);
    }

    #[test]
    fn what_a_client_without_identity_does_not_know_may_or_may_not_be_there() {
        assert!(found(false, "5", "b", (2, 7)).kept());
        assert!(found(false, "8", "b", (3, 1)).kept());
        assert_eq!(found(false, "9", "b", (3, 1)).without_identity.doubled, 1);
        assert_eq!(found(false, "6", "b", (3, 1)).without_identity.answers_wrong, 1);
        assert_eq!(found(false, "4", "b", (2, 7)).without_identity.lost, 1);
    }
}
