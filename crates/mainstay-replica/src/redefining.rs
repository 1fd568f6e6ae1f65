//! Another pattern for a region that is in use: asked of one node, in effect everywhere with a view.
//!
//! ```text
//!   Redefine(region, pattern) ──> Renew: this node proposes the next view ──> its cut names the pattern ──> Redefined(view)
//!                                          └── a view without it comes instead: propose again
//! ```
//!
//! What is under way when a view ends is delivered or void, so that no operation sees two patterns. The node that is asked proposes itself: the wish
//! is in no message and in no record before it is agreed on, and nothing has to be taken back if the node dies.

use crate::definition::{Definition, RegionId};
use crate::effect::Effect;
use crate::replica::Replica;
use mainstay_group::event::Event as GroupEvent;
use mainstay_region::patterns::Pattern;
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;
use mainstay_types::view::{MemberKind, ViewId};

/// A region whose pattern is not changed, or may not be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RedefineError {
    /// There is no such region here.
    #[error("this node has no region {region}; nothing was done")]
    NoRegion {
        /// Its number.
        region: RegionId,
    },
    /// To or from the pattern without versions.
    #[error(
        "copies without versions may differ, and none of them could go on alone; versions that were given must not end: begin a group with \
         another region; nothing was done"
    )]
    Versions,
    /// This node votes on no view.
    #[error("this node does not vote on views: ask a server of the group; nothing was done")]
    NoVote,
    /// This node does not serve.
    #[error("this node does not serve: ask one that does; nothing was done")]
    NotServing,
    /// Another pattern was asked for here before this one was agreed on.
    #[error(
        "another pattern was asked for since: this one may have been in effect before that one is, or may be for one view"
    )]
    Superseded,
    /// This node left the view before the next one was agreed on.
    #[error(
        "this node was left out of the group meanwhile: the pattern may change or stay; the status of another node says which"
    )]
    Unknown,
}

impl Replica {
    /// Somebody wants another pattern for a region.
    pub(crate) fn redefine(&mut self, now: Time, region: RegionId, pattern: Pattern, out: &mut Vec<Effect>) {
        let view = self.group().record().view_id();
        match self.may_redefine(now, region, pattern) {
            Err(error) => out.push(Effect::NotRedefined { region, pattern, error }),
            Ok(true) => out.push(Effect::Redefined { region, pattern, view }),
            Ok(false) => {
                let former = self.wished.insert(region, pattern).filter(|&former| former != pattern);
                out.extend(former.map(|pattern| {
                    let error = RedefineError::Superseded;
                    Effect::NotRedefined { region, pattern, error }
                }));
                if !self.config.rules.keep(Rule::PatternWithView) {
                    let hosted = self.regions.get_mut(&region).expect("it is one of this node's");
                    hosted.define(Definition { pattern, ..hosted.definition.clone() });
                }
                self.tell(GroupEvent::Renew);
            }
        }
    }

    /// Whether the region has the pattern already, with nothing else wished for. Who asks for what is wished for already waits with whoever asked first: a
    /// refusal would be taken for the answer to both.
    fn may_redefine(&self, now: Time, region: RegionId, pattern: Pattern) -> Result<bool, RedefineError> {
        let hosted = self.regions.get(&region).ok_or(RedefineError::NoRegion { region })?;
        if self.wished.get(&region) == Some(&pattern) {
            return Ok(false);
        }
        let offer = &self.config.offer;
        let unversioned = [pattern, hosted.definition.pattern].map(|of| of == Pattern::Unversioned);
        if unversioned[0] != unversioned[1] {
            Err(RedefineError::Versions)
        } else if offer.kind != MemberKind::Server || offer.weight == 0 {
            Err(RedefineError::NoVote)
        } else if !self.serves(now) {
            Err(RedefineError::NotServing)
        } else {
            Ok(hosted.definition.pattern == pattern && !self.wished.contains_key(&region))
        }
    }

    /// What this node would have the region be in the next view.
    pub(crate) fn next_definition(&self, region: RegionId) -> Definition {
        let definition = self.regions[&region].definition.clone();
        match self.wished.get(&region) {
            Some(&pattern) => Definition { pattern, ..definition },
            None => definition,
        }
    }

    /// A view begins at this node: it has what was wished for, or the next one shall.
    pub(crate) fn look_at_wishes(&mut self, view: ViewId, out: &mut Vec<Effect>) {
        let regions = &self.regions;
        self.wished.retain(|&region, &mut pattern| {
            let fulfilled = regions.get(&region).is_some_and(|hosted| hosted.definition.pattern == pattern);
            if fulfilled {
                out.push(Effect::Redefined { region, pattern, view });
            }
            !fulfilled
        });
        if !self.wished.is_empty() {
            self.tell(GroupEvent::Renew);
        }
    }

    /// This node is in no view any more.
    pub(crate) fn drop_wishes(&mut self, out: &mut Vec<Effect>) {
        let error = RedefineError::Unknown;
        for (region, pattern) in std::mem::take(&mut self.wished) {
            out.push(Effect::NotRedefined { region, pattern, error });
        }
    }
}
