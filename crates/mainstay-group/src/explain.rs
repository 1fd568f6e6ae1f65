//! Which side goes on, and why: a structured answer for people and programs (`mainstay group explain`, later).

use crate::ballot::{Because, Departure};
use crate::group::{Group, Standing};
use mainstay_types::time::Time;
use mainstay_types::view::ViewId;
use std::fmt;

/// Where this process stands, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Explanation {
    /// It serves.
    Serves {
        /// The view.
        view: ViewId,
    },
    /// It is in the view and still fetches what happened before it.
    Fetches {
        /// The view.
        view: ViewId,
    },
    /// It has promised to serve the view no more; the next one is being agreed on.
    Wedged {
        /// The view.
        view: ViewId,
    },
    /// It is in the view, and has heard of no majority for as long as its lease lasts.
    CutOff {
        /// The view.
        view: ViewId,
        /// The votes that it still hears, its own among them.
        heard: u64,
        /// All votes of the view. Strictly more than half of them go on.
        votes: u64,
    },
    /// It is in no view; another side went on.
    Outside {
        /// The last view that it was in, or that its store knows.
        last: ViewId,
        /// The newest that it has heard of.
        newest: ViewId,
        /// Why it is out, if anybody still knows.
        departure: Option<Departure>,
    },
    /// It has left in order.
    Left,
}

impl Group {
    /// Where this process stands, and why.
    #[must_use]
    pub fn explain(&self, now: Time) -> Explanation {
        let view_id = self.record.view_id();
        match self.standing {
            Standing::Gone => Explanation::Left,
            Standing::Outside => Explanation::Outside {
                last: view_id,
                newest: self.newest.max(view_id),
                departure: self.departures.iter().rev().find(|gone| gone.store == self.me.store).copied(),
            },
            Standing::Member { .. } if self.wedged.is_some() => Explanation::Wedged { view: view_id },
            Standing::Member { .. } if self.serves(now) => Explanation::Serves { view: view_id },
            Standing::Member { .. } if !self.record.is_ready() => Explanation::Fetches { view: view_id },
            Standing::Member { .. } => {
                let view = self.record.view().expect("a member has a view");
                let lately = self.config.timing.lease;
                let heard = view.members.iter().filter(|member| {
                    let store = member.joiner.store;
                    store == self.me.store || self.suspicion.unheard(store, now).is_some_and(|u| u <= lately)
                });
                let heard = heard.map(|member| u64::from(member.offer.weight)).sum();
                Explanation::CutOff { view: view_id, heard, votes: view.weight() }
            }
        }
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Left => f.write_str("it asked to leave"),
            Self::Silent { votes } => {
                write!(f, "members with {votes} votes, a majority, heard nothing of it")
            }
            Self::Replaced => {
                f.write_str("its store, or another one at its address, came back as another life")
            }
            Self::Absent => {
                f.write_str("the group began anew with the stores that were back, and it was not there")
            }
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serves { view } => write!(f, "this member serves view {view}"),
            Self::Fetches { view } => {
                write!(f, "this member is in view {view} and fetches what happened before it")
            }
            Self::Wedged { view } => write!(f, "view {view} has ended here; the next one is being agreed on"),
            Self::CutOff { view, heard, votes } => {
                write!(f, "this member hears members with {heard} of the {votes} votes of view {view}; ")?;
                let others = votes - heard;
                if others * 2 > *votes {
                    write!(
                        f,
                        "the others have {others}, which is more than half: if they run and hear each other, they go on without it; it comes back \
                         when it hears more than half"
                    )
                } else if heard * 2 > *votes {
                    f.write_str(
                        "that is more than half, and it serves as soon as they have granted it a lease",
                    )
                } else {
                    f.write_str("neither side has more than half: nobody goes on until they hear each other")
                }
            }
            Self::Outside { last, newest, departure: Some(Departure { member, because, view, .. }) } => {
                write!(
                    f,
                    "the group went on with view {view} without {member}, because {because}; this process was last in view {last}, the newest is \
                 {newest}, and it asks to be let in again by itself"
                )
            }
            Self::Outside { last, newest, departure: None } => write!(
                f,
                "this process is in no view (the last one known to its store is {last}, the newest heard of {newest}); it asks to be let in"
            ),
            Self::Left => f.write_str("this process has left the group"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_is_cut_off_says_which_side_goes_on_and_why() {
        for (heard, votes, words) in [
            (1, 3, "the others have 2, which is more than half"),
            (2, 4, "neither side has more than half"),
            (2, 3, "as soon as they have granted it a lease"),
        ] {
            let said = Explanation::CutOff { view: ViewId(7), heard, votes }.to_string();
            assert!(
                said.contains(words) && said.contains(&format!("{heard} of the {votes} votes")),
                "{said}"
            );
        }
    }
}
