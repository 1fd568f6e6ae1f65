//! Who waits for whom, from the last calls of all ranks: a job that hangs is told from one that is slow.
//!
//! A rank that waits for one of several can go on with any of them, one that waits for several needs them all (the AND-OR
//! model of Hilbrich et al., "MPI Runtime Error Detection with MUST", 2010). Ranks that cannot go on however the others behave
//! are stuck; a cycle among them is named.

use crate::history::{Communicators, Entered, History, Message, Outgoing, Pattern, WorldRank};
use crate::operation::Class;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Something that a rank needs to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// In words, with its call if it began in an earlier one.
    pub text: String,
    /// Ranks it can come from.
    pub from: Vec<WorldRank>,
    /// Whether any one of them is enough.
    pub any: bool,
    /// Whether it is on its way: sent and not taken yet, or entered by all.
    pub on_its_way: bool,
}

/// What a rank does at the end of its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Its process ended by itself.
    Ended,
    /// It is in code of its own, or the log does not say in what.
    Running,
    /// It is in a call that waits for others, or polls.
    Waiting {
        /// The call's name.
        name: String,
        /// Its number.
        call: u64,
        /// Whether it polls, and may do something else besides.
        polls: bool,
        /// What it needs.
        needs: Vec<Need>,
        /// Whether one of the needs is enough.
        any: bool,
    },
}

/// How a run stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Each rank's state.
    pub states: BTreeMap<WorldRank, State>,
    /// Ranks that cannot go on, whatever the others do.
    pub stuck: BTreeSet<WorldRank>,
    /// Ranks each of which waits for the next, and the last for the first.
    pub cycle: Vec<WorldRank>,
}

/// Looks at the ends of the histories of all ranks. `whole` are the messages that have both ends.
#[must_use]
pub fn standing(histories: &[History], whole: &[Message], communicators: &Communicators) -> Standing {
    let view = View::of(histories, whole, communicators);
    let states: BTreeMap<WorldRank, State> =
        histories.iter().map(|history| (i64::from(history.rank), view.state(history))).collect();
    let stuck = stuck(&states);
    let cycle = cycle(&states, &stuck);
    Standing { states, stuck, cycle }
}

/// A message by its sender, receiver, communicator and tag.
type Channel = (WorldRank, WorldRank, u32, i64);

struct View<'a> {
    histories: &'a [History],
    communicators: &'a Communicators,
    size: u32,
    /// Sends that no receive took yet, those that a rank is in included.
    pending: BTreeMap<Channel, u64>,
    /// Calls whose sends were taken.
    taken: BTreeSet<(WorldRank, u64)>,
    /// Collectives that each rank entered, by communicator.
    joined: HashMap<(WorldRank, u32), u64>,
}

impl<'a> View<'a> {
    fn of(histories: &'a [History], whole: &[Message], communicators: &'a Communicators) -> Self {
        let mut view = Self {
            histories,
            communicators,
            size: histories.iter().map(|history| history.size).max().unwrap_or(0),
            pending: BTreeMap::new(),
            taken: whole.iter().map(|message| (message.from, message.sent.call)).collect(),
            joined: HashMap::new(),
        };
        for history in histories {
            let here = i64::from(history.rank);
            let entered = history.entered.as_ref();
            for send in history.sends.iter().chain(entered.and_then(|entered| entered.sends.as_ref())) {
                *view.pending.entry((here, send.peer, send.comm, send.tag)).or_default() += 1;
            }
            for joined in history.joined.iter().chain(entered.and_then(|entered| entered.joins.as_ref())) {
                *view.joined.entry((here, joined.comm)).or_default() += 1;
            }
        }
        for history in histories {
            for receive in &history.receives {
                let channel = (receive.peer, i64::from(history.rank), receive.comm, receive.tag);
                if let Some(left) = view.pending.get_mut(&channel) {
                    *left = left.saturating_sub(1);
                }
            }
        }
        view
    }

    fn state(&self, history: &History) -> State {
        if history.ended {
            return State::Ended;
        }
        let Some(entered) = &history.entered else {
            return State::Running;
        };
        let name = history.names.get(usize::from(entered.function)).cloned().unwrap_or_default();
        let class = Class::of(&name);
        let needs = self.needs(history, entered, class);
        if needs.is_empty() {
            return State::Running;
        }
        let any = matches!(class, Class::WaitAny(_));
        State::Waiting { name, call: entered.call, polls: class.polls(), needs, any }
    }

    fn needs(&self, history: &History, entered: &Entered, class: Class) -> Vec<Need> {
        let here = i64::from(history.rank);
        match class {
            Class::Send(_)
            | Class::Receive(_)
            | Class::SendReceive
            | Class::Probe(_)
            | Class::MatchedProbe(_) => {
                let sends = entered.sends.iter().map(|send| self.need_taker(here, send, ""));
                let takes = entered.pattern.iter().map(|pattern| self.need_message(here, pattern, ""));
                sends.chain(takes).collect()
            }
            Class::WaitAll(_) | Class::WaitAny(_) => {
                let ages = entered.inputs.requests.iter().map(|(age, _)| *age);
                ages.filter_map(|age| self.need_request(history, entered.call - age.min(entered.call)))
                    .collect()
            }
            Class::Collective(_) => entered
                .joins
                .iter()
                .map(|joined| self.need_others(history, joined, ""))
                .filter(|need| !need.from.is_empty())
                .collect(),
            Class::Finalize => {
                let late = self.histories.iter().filter(|other| !other.finalized && !in_finalize(other));
                let from: Vec<WorldRank> = late.map(|other| i64::from(other.rank)).collect();
                let text = format!("MPI_Finalize of {}", ranks(&from));
                let on_its_way = from.is_empty();
                vec![Need { text, from, any: false, on_its_way }]
            }
            _ => Vec::new(),
        }
    }

    fn need_message(&self, here: WorldRank, pattern: &Pattern, begun: &str) -> Need {
        let from: Vec<WorldRank> = pattern.from.iter().copied().filter(|peer| *peer != here).collect();
        let on_its_way = self.pending.iter().any(|((sender, receiver, comm, tag), left)| {
            *left > 0 && *receiver == here && pattern.takes(*sender, *comm, *tag)
        });
        let tag = pattern.tag.map_or_else(|| "any tag".to_owned(), |tag| format!("tag {tag}"));
        let whom = if pattern.any_source { "anybody".to_owned() } else { ranks(&from) };
        let comm = self.communicators.name(pattern.comm, self.size);
        // A message to itself that it never sent: it waits for itself.
        let from = if from.is_empty() { vec![here] } else { from };
        Need { text: format!("a message from {whom}, {tag}, {comm}{begun}"), from, any: true, on_its_way }
    }

    fn need_taker(&self, here: WorldRank, send: &Outgoing, begun: &str) -> Need {
        let takes = |other: &History| {
            let open = other.open.values().any(|posted| posted.pattern.takes(here, send.comm, send.tag));
            let entered = other.entered.as_ref().and_then(|entered| {
                // A probe takes nothing.
                let name = other.names.get(usize::from(entered.function))?;
                let receives = matches!(Class::of(name), Class::Receive(_) | Class::SendReceive);
                entered.pattern.as_ref().filter(|_| receives)
            });
            open || entered.is_some_and(|pattern| pattern.takes(here, send.comm, send.tag))
        };
        let receiver = self.histories.iter().find(|other| i64::from(other.rank) == send.peer);
        let taken = self.pending.get(&(here, send.peer, send.comm, send.tag)).is_none_or(|left| *left == 0);
        let comm = self.communicators.name(send.comm, self.size);
        Need {
            text: format!(
                "rank {} to receive {} bytes, tag {}, {comm}{begun}",
                send.peer, send.bytes, send.tag
            ),
            from: vec![send.peer],
            any: false,
            on_its_way: taken || receiver.is_some_and(takes),
        }
    }

    fn need_others(&self, history: &History, joined: &crate::history::Joined, begun: &str) -> Need {
        let here = i64::from(history.rank);
        let late =
            |member: &WorldRank| self.joined.get(&(*member, joined.comm)).copied().unwrap_or(0) <= joined.nth;
        let members = self.communicators.members(joined.comm);
        let mut from: Vec<WorldRank> =
            members.iter().copied().filter(|member| *member != here && late(member)).collect();
        let name = history.names.get(usize::from(joined.function)).map_or("a collective", |name| name);
        // What only the root gives is waited for from the root.
        let root_gives = ["cast", "catter", "catterv"].iter().any(|end| name.ends_with(end));
        if let Some(root) = joined.root.filter(|root| root_gives && from.contains(root)) {
            from = vec![root];
        }
        let comm = self.communicators.name(joined.comm, self.size);
        Need {
            text: format!(
                "{} to enter {name}, the {}. collective on {comm}{begun}",
                ranks(&from),
                joined.nth + 1
            ),
            on_its_way: from.is_empty(),
            from,
            any: false,
        }
    }

    /// What the request that a call made still needs; `None` if it is done or not known.
    fn need_request(&self, history: &History, made: u64) -> Option<Need> {
        let begun = format!(" (call {made})");
        let here = i64::from(history.rank);
        if let Some(posted) = history.open.get(&made) {
            return Some(self.need_message(here, &posted.pattern, &begun));
        }
        if let Ok(at) = history.joined.binary_search_by_key(&made, |joined| joined.call) {
            return Some(self.need_others(history, &history.joined[at], &begun))
                .filter(|need| !need.from.is_empty());
        }
        let at = history.sends.binary_search_by_key(&made, |send| send.call).ok()?;
        let send = &history.sends[at];
        (!self.taken.contains(&(here, send.call))).then(|| self.need_taker(here, send, &begun))
    }
}

fn in_finalize(history: &History) -> bool {
    let name = history.entered.as_ref().and_then(|entered| history.names.get(usize::from(entered.function)));
    name.is_some_and(|name| Class::of(name) == Class::Finalize)
}

fn ranks(ranks: &[WorldRank]) -> String {
    match ranks {
        [] => "nobody".to_owned(),
        [one] => format!("rank {one}"),
        [some @ .., last] if some.len() < 8 => {
            let some: Vec<String> = some.iter().map(ToString::to_string).collect();
            format!("ranks {} and {last}", some.join(", "))
        }
        many => format!("{} ranks, the first {}", many.len(), many[0]),
    }
}

/// Ranks that no order of events lets go on: those left when all that can are taken away, again and again.
fn stuck(states: &BTreeMap<WorldRank, State>) -> BTreeSet<WorldRank> {
    let mut free: BTreeSet<WorldRank> = BTreeSet::new();
    loop {
        let more: Vec<WorldRank> = states
            .iter()
            .filter(|(rank, state)| !free.contains(rank) && can_go_on(state, &free))
            .map(|(rank, _)| *rank)
            .collect();
        if more.is_empty() {
            break;
        }
        free.extend(more);
    }
    let waits = |(rank, state): (&WorldRank, &State)| {
        (matches!(state, State::Waiting { .. }) && !free.contains(rank)).then_some(*rank)
    };
    states.iter().filter_map(waits).collect()
}

fn can_go_on(state: &State, free: &BTreeSet<WorldRank>) -> bool {
    match state {
        State::Ended => false,
        State::Running => true,
        State::Waiting { needs, any, .. } => {
            let possible = |need: &Need| {
                need.on_its_way
                    || if need.any {
                        need.from.iter().any(|peer| free.contains(peer))
                    } else {
                        need.from.iter().all(|peer| free.contains(peer))
                    }
            };
            if *any { needs.iter().any(possible) } else { needs.iter().all(possible) }
        }
    }
}

/// A cycle among stuck ranks, from the first one on; empty if each way ends at a rank that ended.
fn cycle(states: &BTreeMap<WorldRank, State>, stuck: &BTreeSet<WorldRank>) -> Vec<WorldRank> {
    let next = |rank: WorldRank| {
        let Some(State::Waiting { needs, .. }) = states.get(&rank) else {
            return None;
        };
        let open = needs.iter().filter(|need| !need.on_its_way);
        open.flat_map(|need| &need.from).copied().find(|peer| stuck.contains(peer))
    };
    for first in stuck {
        let (mut path, mut at) = (Vec::new(), *first);
        loop {
            if let Some(place) = path.iter().position(|seen| *seen == at) {
                return path.split_off(place);
            }
            path.push(at);
            match next(at) {
                Some(peer) => at = peer,
                None => break,
            }
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(any: bool, needs: &[(&[WorldRank], bool, bool)]) -> State {
        let needs = needs
            .iter()
            .map(|(from, any, on_its_way)| Need {
                text: String::new(),
                from: from.to_vec(),
                any: *any,
                on_its_way: *on_its_way,
            })
            .collect();
        State::Waiting { name: String::new(), call: 1, polls: false, needs, any }
    }

    fn found(states: impl IntoIterator<Item = State>) -> (Vec<WorldRank>, Vec<WorldRank>) {
        let states: BTreeMap<WorldRank, State> = (0..).zip(states).collect();
        let stuck = stuck(&states);
        let cycle = cycle(&states, &stuck);
        (stuck.into_iter().collect(), cycle)
    }

    #[test]
    fn two_that_wait_for_each_other_and_a_third_for_them_are_stuck() {
        let states = [
            waiting(false, &[(&[1], false, false)]),
            waiting(false, &[(&[0], false, false)]),
            waiting(false, &[(&[0], false, false)]),
        ];
        assert_eq!(found(states), (vec![0, 1, 2], vec![0, 1]));
    }

    #[test]
    fn who_waits_for_anybody_goes_on_with_the_one_who_runs() {
        let states = [
            waiting(false, &[(&[1, 2], true, false)]),
            waiting(false, &[(&[0], false, false)]),
            State::Running,
        ];
        assert_eq!(found(states), (vec![], vec![]));
    }

    #[test]
    fn who_waits_for_all_is_stuck_with_one_of_them() {
        let states = [
            waiting(false, &[(&[2], false, false), (&[1], false, false)]),
            waiting(false, &[(&[0], false, false)]),
            State::Running,
        ];
        assert_eq!(found(states), (vec![0, 1], vec![0, 1]));
        let one_is_enough = [
            waiting(true, &[(&[2], false, false), (&[1], false, false)]),
            waiting(false, &[(&[0], false, false)]),
            State::Running,
        ];
        assert_eq!(found(one_is_enough), (vec![], vec![]));
    }

    #[test]
    fn what_is_on_its_way_is_no_reason_to_wait_and_who_ended_never_comes() {
        let states = [
            waiting(false, &[(&[1], false, true)]),
            waiting(false, &[(&[0], false, false)]),
            waiting(false, &[(&[3], false, false)]),
            State::Ended,
        ];
        assert_eq!(found(states), (vec![2], vec![]));
    }
}
