//! An effect is released once per life, unless a person asks for it.

use super::{Property, Violation};
use mainstay_process::event::ReplyToken;
use mainstay_types::id::OutputId;
use std::collections::BTreeSet;

pub(crate) const SOURCE: &str =
    "output commit: Elnozahy et al. 2002, section 2.6: the outside world cannot be rolled back";

/// What this life has released.
#[derive(Debug, Default)]
pub(crate) struct ReleasedOnce {
    outputs: BTreeSet<OutputId>,
    replies: BTreeSet<ReplyToken>,
}

impl ReleasedOnce {
    pub(crate) fn output(&mut self, output: OutputId) -> Result<(), Violation> {
        if self.outputs.insert(output) {
            return Ok(());
        }
        let what = format!("output {output} was released twice in one life");
        Err(Violation::new(Property::ReleasedOnce, what))
    }

    pub(crate) fn reply(&mut self, token: ReplyToken) -> Result<(), Violation> {
        if self.replies.insert(token) {
            return Ok(());
        }
        let what = format!("message {} was replied to twice in one life", token.0);
        Err(Violation::new(Property::ReleasedOnce, what))
    }

    /// A person asked for it to be sent again.
    pub(crate) fn allow_again(&mut self, output: OutputId) {
        self.outputs.remove(&output);
    }

    pub(crate) fn new_life(&mut self) {
        *self = Self::default();
    }
}
