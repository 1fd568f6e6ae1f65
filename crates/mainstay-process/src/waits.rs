//! Whom a node waits for, and why: what an operator asks of one that recovers and does not come up.

use crate::collecting::Collecting;
use crate::handler::Handler;
use crate::lifecycle::Life;
use crate::process::Process;
use mainstay_journal::memory::PageMemory;
use mainstay_types::id::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Another node, and what this one waits for it to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The other.
    pub node: NodeId,
    /// What it is to do.
    #[serde(flatten)]
    pub why: Why,
}

/// What a node waits for another to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "why", rename_all = "kebab-case")]
pub enum Why {
    /// To be reached: there is no session with it.
    Apart {
        /// What it said when it refused the last one.
        refused: Option<String>,
    },
    /// To tell everything that it keeps for this node, which recovers. It may itself recover, or wait for others' journals: see what it waits for.
    Collected,
    /// To recover: its replay may bring what is missing here, until the replays of all that recover have come to their ends.
    Replay,
    /// To say which lives were up when it had recovered.
    Testimony,
    /// To say that it is in session with the same lives: then all go on from the line behind a loss.
    Agreement,
    /// To make its journal safe: what this node recovered depends on it, and others that recover are answered when that can no longer be lost.
    Journal,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, why } = self;
        match why {
            Why::Apart { refused: None } => {
                write!(f, "{node}: there is no connection; is it up, and reachable?")
            }
            Why::Apart { refused: Some(text) } => write!(f, "{node}: it refused the last connection: {text}"),
            Why::Collected => write!(f, "{node}: it has not told everything that it keeps for this node"),
            Why::Replay => {
                write!(f, "{node}: it recovers as well, and its replay may bring what is missing here")
            }
            Why::Testimony => write!(f, "{node}: it was asked who outlived its recovery"),
            Why::Agreement => {
                write!(f, "{node}: it has not named the same lives, with which all go on behind a loss")
            }
            Why::Journal => {
                write!(f, "{node}: its journal is not known to be safe as far as this node depends on it")
            }
        }
    }
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// Whom this node waits for: to recover, to go on behind a loss, or to answer [those who wait for it](Self::kept_waiting). Ascending.
    #[must_use]
    pub fn waits_for(&self) -> Vec<Wait> {
        let Some((links, sessions)) = self.history.links.as_ref().zip(self.sessions.as_ref()) else {
            return Vec::new();
        };
        let all = links.nodes.iter().copied();
        let waits = all.filter_map(|node| {
            let why = match (&sessions.collecting, self.life) {
                (Some(collecting), _) => self.awaits_in_recovery(collecting, node)?,
                (None, Life::Agreeing) if !self.line.agrees(node, &links.channel.lives()) => Why::Agreement,
                (None, _) if self.kept_waiting().is_empty() || !links.logging.waits_for_journal_of(node) => {
                    return None;
                }
                (None, _) => Why::Journal,
            };
            let apart = links.channel.session(node).is_none();
            let refused = || sessions.refused_by.get(&node).cloned();
            Some(Wait { node, why: if apart { Why::Apart { refused: refused() } } else { why } })
        });
        waits.collect()
    }

    fn awaits_in_recovery(&self, collecting: &Collecting, node: NodeId) -> Option<Why> {
        if collecting.waits_to_be_told_by(node) {
            return Some(Why::Collected);
        }
        if collecting.together.waits_for(node) {
            return Some(Why::Testimony);
        }
        collecting.recovering().contains(&node).then_some(Why::Replay)
    }

    /// Nodes that recover and have asked this one for what it keeps for them: they are answered when what this node recovered can no longer be lost.
    #[must_use]
    pub fn kept_waiting(&self) -> BTreeSet<NodeId> {
        self.sessions.as_ref().map(|sessions| sessions.unanswered.clone()).unwrap_or_default()
    }
}
