//! After more failures than a policy survives: what nodes state as lost is exactly what is missing.
//!
//! A statement names a node, a life and a delivery: whatever that life, or one before, made of later deliveries is lost. So everything that the
//! world has seen is either in the history that all nodes agree on at the end, or named; and nothing is both.

use super::{Property, Violation};
use mainstay_process::loss::Loss;
use mainstay_types::id::NodeId;
use std::collections::BTreeMap;

pub(crate) const SOURCE: &str = "the maximum recoverable state: Johnson and Zwaenepoel 1990; what is lost is said, docs/message-logging.md";

/// Something that a node let out: the life that did, and the delivery that made it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Made {
    pub(crate) life: u64,
    pub(crate) delivery: u64,
}

/// What was stated.
#[derive(Debug, Default)]
pub(crate) struct Stated {
    /// By node: the life that ended, and the last delivery that is left of it.
    ends: BTreeMap<NodeId, Vec<(u64, u64)>>,
}

impl Stated {
    /// `node` states this.
    pub(crate) fn take(&mut self, node: NodeId, loss: &Loss) {
        match loss {
            Loss::Recovered { life, recovered: left, .. } | Loss::Undone { life, kept: left, .. } => {
                self.ends.entry(node).or_default().push((life.0, left.0));
            }
            Loss::Orphan { .. } | Loss::Ahead { .. } => {}
        }
    }

    /// Whether `node` says that it lost this.
    pub(crate) fn names(&self, node: NodeId, made: Made) -> bool {
        let ends = self.ends.get(&node).into_iter().flatten();
        ends.into_iter().any(|&(life, left)| made.life <= life && made.delivery > left)
    }

    /// Fails if what was seen is missing and not named, or named and not missing. `there` says whether a run without failures shows it.
    pub(crate) fn judge(
        &self,
        node: NodeId,
        made: Made,
        what: &str,
        there: Result<(), Violation>,
    ) -> Result<(), Violation> {
        match (self.names(node, made), there) {
            (false, there) => there,
            (true, Err(_)) => Ok(()),
            (true, Ok(())) => {
                let what = format!("{node} states that {what} of {made:?} is lost, and it is there");
                Err(Violation::new(Property::LossesStated, what))
            }
        }
    }
}
