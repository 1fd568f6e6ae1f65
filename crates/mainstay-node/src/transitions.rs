//! What a node says in its log of its own standing: one line for each change, with the reason that the group knows.
//!
//! What passes within [`SETTLES`], as every change of the view does where nothing is wrong, is not said; what does not pass is said again, ever more
//! seldom.

use crate::address::of_socket;
use mainstay_group::ballot::Proposal;
use mainstay_group::explain::Explanation;
use mainstay_types::time::Time;
use mainstay_types::view::{Address, ViewId};
use std::collections::BTreeSet;
use std::time::Duration;

/// A node that does not serve for less is not worth a line.
const SETTLES: Duration = Duration::from_millis(200);

/// When a standing that is none to stay in is said again; then after twice as long, and so on.
const SAID_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Where a node stands, as far as a line is concerned: votes that are heard come and go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Serves(ViewId),
    Fetches(ViewId),
    Changing(ViewId),
    CutOff(ViewId),
    Outside,
    Left,
}

impl Kind {
    fn of(explanation: &Explanation, serves: bool) -> Self {
        match *explanation {
            Explanation::Serves { view } if serves => Self::Serves(view),
            Explanation::Serves { view } | Explanation::Fetches { view } => Self::Fetches(view),
            Explanation::Wedged { view } => Self::Changing(view),
            Explanation::CutOff { view, .. } => Self::CutOff(view),
            Explanation::Outside { .. } => Self::Outside,
            Explanation::Left => Self::Left,
        }
    }
}

/// A line of the log.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Line {
    /// As it should be.
    Info(String),
    /// A person may have to do something.
    Warn(String),
}

impl Line {
    pub(crate) fn log(&self) {
        match self {
            Self::Info(text) => tracing::info!("{text}"),
            Self::Warn(text) => tracing::warn!("{text}"),
        }
    }
}

/// What was said.
#[derive(Debug)]
pub(crate) struct Transitions {
    kind: Kind,
    since: Time,
    /// How long it will have lasted when it is said next.
    next_after: Duration,
    /// The last view that this node was said to serve, and who was in it.
    served: Option<(ViewId, BTreeSet<Address>)>,
    /// Something else was said since.
    interrupted: bool,
}

impl Transitions {
    pub(crate) fn new(now: Time) -> Self {
        Self { kind: Kind::Outside, since: now, next_after: SETTLES, served: None, interrupted: false }
    }

    /// The node stands so, and `installed` is the last view that its store knows; what there is to say of it.
    pub(crate) fn note(
        &mut self,
        now: Time,
        explanation: &Explanation,
        serves: bool,
        installed: Option<&Proposal>,
    ) -> Option<Line> {
        let kind = Kind::of(explanation, serves);
        if kind != self.kind {
            (self.kind, self.since, self.next_after) = (kind, now, SETTLES);
            if let Kind::Serves(view) = kind {
                return self.serves(view, installed);
            }
        }
        let lasts = now.since(self.since);
        if matches!(kind, Kind::Serves(_)) || lasts < self.next_after {
            return None;
        }
        let again = self.next_after >= SAID_AGAIN_AFTER;
        self.next_after = SAID_AGAIN_AFTER.max(2 * self.next_after);
        self.interrupted = true;
        let text = match again {
            true => format!("still, after {} s: {explanation}", lasts.as_secs()),
            false => format!("does not serve: {explanation}"),
        };
        Some(match (kind, &self.served) {
            // It comes in for the first time.
            (Kind::Outside | Kind::Fetches(_), None) if !again => Line::Info(text),
            (Kind::Left, _) => Line::Info(text),
            _ => Line::Warn(text),
        })
    }

    fn serves(&mut self, view: ViewId, installed: Option<&Proposal>) -> Option<Line> {
        let proposal = installed.filter(|proposal| proposal.view.id == view)?;
        let members: BTreeSet<Address> =
            proposal.view.members.iter().map(|member| member.joiner.address).collect();
        let interrupted = std::mem::take(&mut self.interrupted);
        let former = self.served.replace((view, members.clone()));
        if let Some((former, _)) = &former
            && *former == view
        {
            return interrupted.then(|| Line::Info(format!("serves view {view} again")));
        }
        let names = |addresses: &mut dyn Iterator<Item = &Address>| {
            addresses.map(|address| of_socket(*address).to_string()).collect::<Vec<_>>().join(", ")
        };
        let mut text = format!("serves view {view} of {}: {}", members.len(), names(&mut members.iter()));
        if let Some((_, former)) = former {
            let came = names(&mut members.difference(&former));
            if !came.is_empty() {
                text.push_str(&format!("; {came} came"));
            }
        }
        for departure in &proposal.departures {
            text.push_str(&format!("; {} is out, because {}", departure.member, departure.because));
        }
        Some(Line::Info(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_group::ballot::{Because, Departure};
    use mainstay_types::id::{Incarnation, StoreId};
    use mainstay_types::view::{JoinerId, Member, MemberId, Offer, View};

    fn address(port: u16) -> Address {
        Address::v4([127, 0, 0, 1], port)
    }

    fn proposal(id: u64, ports: &[u16], gone: &[u16]) -> Proposal {
        let members = ports.iter().map(|&port| Member {
            joiner: JoinerId { address: address(port), store: StoreId([1; 16]), life: Incarnation(1) },
            born: ViewId(1),
            offer: Offer::server(),
        });
        let departures = gone.iter().map(|&port| Departure {
            member: MemberId { address: address(port), born: ViewId(1) },
            store: StoreId([1; 16]),
            because: Because::Silent { votes: 2 },
            view: ViewId(id),
        });
        Proposal {
            view: View { id: ViewId(id), arbitrated: false, members: members.collect() },
            base: ViewId(id - 1),
            cut: Vec::new(),
            departures: departures.collect(),
        }
    }

    fn words(line: Option<Line>) -> String {
        match line {
            Some(Line::Info(text)) => format!("info {text}"),
            Some(Line::Warn(text)) => format!("warn {text}"),
            None => String::new(),
        }
    }

    #[test]
    fn a_view_is_said_once_with_who_came_and_who_is_out_and_why() {
        let mut log = Transitions::new(Time(0));
        let now = Time(0);
        let mut serves = |id, ports: &[u16], gone: &[u16]| {
            let view = Explanation::Serves { view: ViewId(id) };
            words(log.note(now, &view, true, Some(&proposal(id, ports, gone))))
        };
        assert_eq!(serves(2, &[1, 2], &[]), "info serves view v2 of 2: 127.0.0.1:1, 127.0.0.1:2");
        assert_eq!(serves(2, &[1, 2], &[]), "");
        let said = serves(3, &[1, 3], &[2]);
        assert!(
            said.contains("serves view v3 of 2") && said.contains("; 127.0.0.1:3 came; 127.0.0.1:2"),
            "{said}"
        );
        assert!(
            said.ends_with("is out, because members with 2 votes, a majority, heard nothing of it"),
            "{said}"
        );
    }

    #[test]
    fn a_lease_that_is_lost_for_a_moment_is_not_worth_a_line_and_one_that_stays_lost_is_said_again() {
        let mut log = Transitions::new(Time(0));
        let at = |ms: u64| Time(ms * 1_000_000);
        let installed = proposal(2, &[1, 2, 3], &[]);
        let serves = Explanation::Serves { view: ViewId(2) };
        let cut_off = |heard| Explanation::CutOff { view: ViewId(2), heard, votes: 3 };
        let mut note = |ms, explanation: &Explanation| {
            let does = matches!(explanation, Explanation::Serves { .. });
            words(log.note(at(ms), explanation, does, Some(&installed)))
        };
        assert!(note(0, &serves).starts_with("info serves view v2"));
        assert_eq!([note(10, &cut_off(1)), note(100, &serves)], ["", ""], "it has passed");
        assert_eq!([note(200, &cut_off(2)), note(350, &cut_off(1))], ["", ""]);
        let said = note(400, &cut_off(1));
        assert!(said.starts_with("warn does not serve: ") && said.contains("1 of the 3 votes"), "{said}");
        assert_eq!(note(9_000, &cut_off(1)), "");
        assert!(note(10_200, &cut_off(1)).starts_with("warn still, after 10 s: "));
        assert_eq!(note(20_000, &cut_off(1)), "");
        assert!(note(20_200, &cut_off(1)).starts_with("warn still, after 20 s: "));
        assert_eq!(note(20_300, &serves), "info serves view v2 again");
    }
}
