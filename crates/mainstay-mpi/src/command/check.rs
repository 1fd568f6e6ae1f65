//! `mainstay mpi check`: whether the logs of a run are complete, what was sent and never received, and who waits for whom.

use crate::format::stop_reason;
use crate::history::{self, Communicators, History, Messages, Outgoing, Posted, WorldRank};
use crate::reader::ReadError;
use crate::reader::damage::Damage;
use crate::run::Run;
use crate::waiting::{self, Standing, State};
use std::collections::BTreeMap;

/// What was found.
#[derive(Debug)]
pub struct Checked {
    /// Ranks that the run should have.
    pub size: u32,
    /// Each rank's log.
    pub logs: BTreeMap<u32, Log>,
    /// Messages with both ends.
    pub messages: u64,
    /// Of them, those whose ends do not tell of the same bytes.
    pub disagreeing: Vec<(WorldRank, WorldRank, Outgoing)>,
    /// Messages that no receive took, with their sender.
    pub not_received: Vec<(WorldRank, Outgoing)>,
    /// Receives that nothing came for, with their receiver.
    pub not_matched: Vec<(WorldRank, Posted)>,
    /// Messages that came and stand in no sender's log; only where a sender's log is not complete is that no fault.
    pub not_sent: u64,
    /// Collectives that not all ranks entered, or not the same.
    pub collectives: Vec<Divided>,
    /// Who waits for whom.
    pub standing: Standing,
    communicators: Communicators,
}

/// How complete a rank's log is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Log {
    /// To the end of the process.
    Complete,
    /// There is none.
    Missing,
    /// It ends within the process, after so many calls; and the system's number of the error that ended it, if one did.
    Cut(u64, Option<i32>),
    /// It is damaged.
    Damaged(Damage),
    /// It is complete, and has calls that are only counted.
    Counted(BTreeMap<String, u64>),
}

/// A collective that divides the ranks of its communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divided {
    /// The communicator.
    pub comm: u32,
    /// The how-manieth collective over it, from 1.
    pub nth: u64,
    /// Ranks that entered one, by its name and root.
    pub entered: BTreeMap<String, Vec<WorldRank>>,
    /// Ranks that did not.
    pub missing: Vec<WorldRank>,
}

impl Checked {
    /// Whether nothing was found: every log complete, every message received, every collective entered by all.
    #[must_use]
    pub fn clean(&self) -> bool {
        let complete = self.logs.values().all(|log| *log == Log::Complete);
        let matched = self.not_received.is_empty() && self.not_matched.is_empty() && self.not_sent == 0;
        complete && matched && self.disagreeing.is_empty() && self.collectives.is_empty()
    }

    /// Whether a log is damaged: what else was found may come of that.
    #[must_use]
    pub fn damaged(&self) -> bool {
        self.logs.values().any(|log| matches!(log, Log::Damaged(_)))
    }

    /// How to call a communicator.
    #[must_use]
    pub fn comm_name(&self, number: u32) -> String {
        self.communicators.name(number, self.size)
    }
}

/// Reads a run and looks at it. Of a job that still runs it sees what the ranks have written so far.
///
/// # Errors
/// [`ReadError`] when a log cannot be read.
pub fn check(run: &Run) -> Result<Checked, ReadError> {
    let mut communicators = Communicators::default();
    let histories = run
        .ranks
        .iter()
        .map(|rank| history::read(run, *rank, &mut communicators, true))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(look(&histories, communicators))
}

fn look(histories: &[History], communicators: Communicators) -> Checked {
    let size = histories.iter().map(|history| history.size).max().unwrap_or(0);
    let mut logs: BTreeMap<u32, Log> = (0..size).map(|rank| (rank, Log::Missing)).collect();
    logs.extend(histories.iter().map(|history| (history.rank, log_of(history))));
    let Messages { whole, mut not_received, not_sent } = history::pair(histories);
    let standing = waiting::standing(histories, &whole, &communicators);
    let disagreeing = whole.iter().filter(|message| !message.agrees());
    let open = |history: &History| {
        let rank = i64::from(history.rank);
        history.open.values().cloned().map(move |posted| (rank, posted)).collect::<Vec<_>>()
    };
    not_received.sort_by_key(|(from, send)| (*from, send.call));
    Checked {
        size,
        logs,
        messages: whole.len() as u64,
        disagreeing: disagreeing.map(|message| (message.from, message.to, message.sent)).collect(),
        not_received,
        not_matched: histories.iter().flat_map(open).collect(),
        not_sent: not_sent.len() as u64,
        collectives: divided(histories, &communicators),
        standing,
        communicators,
    }
}

fn log_of(history: &History) -> Log {
    if let Some(damage) = &history.damage {
        Log::Damaged(damage.clone())
    } else if let Some((errno, calls)) = history.tail.stopped {
        Log::Cut(calls, Some(errno))
    } else if !history.ended {
        Log::Cut(history.calls, None)
    } else if !history.unhandled.is_empty() {
        Log::Counted(history.unhandled.clone())
    } else {
        Log::Complete
    }
}

/// The first collective of each communicator that its ranks do not agree on.
fn divided(histories: &[History], communicators: &Communicators) -> Vec<Divided> {
    let mut by_comm: BTreeMap<u32, BTreeMap<WorldRank, Vec<String>>> = BTreeMap::new();
    for history in histories {
        let entered = history.entered.as_ref().and_then(|entered| entered.joins.as_ref());
        for joined in history.joined.iter().chain(entered) {
            let name = history.names.get(usize::from(joined.function)).map_or("", |name| name);
            let root = joined.root.filter(|_| has_root(name));
            let name = root.map_or_else(|| name.to_owned(), |root| format!("{name} with root {root}"));
            by_comm.entry(joined.comm).or_default().entry(i64::from(history.rank)).or_default().push(name);
        }
    }
    let mut found = Vec::new();
    for (comm, by_rank) in by_comm {
        let members = communicators.members(comm);
        let longest = by_rank.values().map(Vec::len).max().unwrap_or(0);
        let at = |rank: &WorldRank, nth: usize| by_rank.get(rank).and_then(|names| names.get(nth));
        let differs = |nth: &usize| members.iter().any(|rank| at(rank, *nth) != at(&members[0], *nth));
        if let Some(nth) = (0..longest).find(differs) {
            let mut divided =
                Divided { comm, nth: nth as u64 + 1, entered: BTreeMap::new(), missing: Vec::new() };
            for rank in members {
                match at(rank, nth) {
                    Some(name) => divided.entered.entry(name.clone()).or_default().push(*rank),
                    None => divided.missing.push(*rank),
                }
            }
            found.push(divided);
        }
    }
    found
}

fn has_root(name: &str) -> bool {
    let name = name.strip_prefix("MPI_").unwrap_or(name);
    let name = name.strip_suffix("_c").unwrap_or(name).trim_start_matches('I').to_ascii_lowercase();
    matches!(name.as_str(), "bcast" | "gather" | "gatherv" | "scatter" | "scatterv" | "reduce")
}

impl Checked {
    /// One line for each thing that was found, at most `lines_max` of a kind.
    #[must_use]
    pub fn lines(&self, lines_max: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for (rank, log) in &self.logs {
            match log {
                Log::Complete => {}
                Log::Missing => lines.push(format!("rank {rank}: has no log")),
                Log::Damaged(damage) => lines.push(format!("rank {rank}: {damage}")),
                Log::Cut(calls, Some(errno)) => lines.push(format!(
                    "rank {rank}: recording stopped after call {calls}: {}",
                    stop_reason(*errno)
                )),
                Log::Cut(calls, None) => {
                    lines.push(format!(
                        "rank {rank}: its log goes to call {calls}, and it did not end by itself"
                    ));
                }
                Log::Counted(names) => {
                    let names: Vec<String> =
                        names.iter().map(|(name, count)| format!("{count} {name}")).collect();
                    lines.push(format!("rank {rank}: counted and not recorded: {}", names.join(", ")));
                }
            }
        }
        self.put_messages(&mut lines, lines_max);
        for divided in &self.collectives {
            let entered: Vec<String> =
                divided.entered.iter().map(|(name, ranks)| format!("{ranks:?} entered {name}")).collect();
            let missing = match &divided.missing[..] {
                [] => String::new(),
                missing => format!(", {missing:?} did not come"),
            };
            let (nth, comm) = (divided.nth, self.comm_name(divided.comm));
            lines.push(format!("collective {nth} on {comm}: ranks {}{missing}", entered.join(", ranks ")));
        }
        self.put_standing(&mut lines);
        lines
    }

    fn put_messages(&self, lines: &mut Vec<String>, lines_max: usize) {
        let message = |from: &WorldRank, to: WorldRank, send: &Outgoing| {
            let comm = self.comm_name(send.comm);
            let Outgoing { call, tag, bytes, .. } = send;
            format!("rank {from}, call {call}, to rank {to}: {bytes} bytes, tag {tag}, {comm}")
        };
        let mut few = |what: &str, all: Vec<String>| {
            let left = all.len().saturating_sub(lines_max);
            lines.extend(all.into_iter().take(lines_max).map(|one| format!("{what}: {one}")));
            if left > 0 {
                lines.push(format!("{what}: {left} more"));
            }
        };
        let unreceived =
            self.not_received.iter().map(|(from, send)| message(from, send.peer, send)).collect();
        few("sent and not received", unreceived);
        let unmatched = self.not_matched.iter().map(|(rank, posted)| {
            let source = match &posted.pattern.from[..] {
                [one] if !posted.pattern.any_source => format!("rank {one}"),
                _ => "anybody".to_owned(),
            };
            let tag = posted.pattern.tag.map_or_else(|| "any tag".to_owned(), |tag| format!("tag {tag}"));
            format!(
                "rank {rank}, call {}: from {source}, {tag}, {}",
                posted.call,
                self.comm_name(posted.pattern.comm)
            )
        });
        few("receive without a message", unmatched.collect());
        let disagreeing = self.disagreeing.iter().map(|(from, to, send)| message(from, *to, send)).collect();
        few("received with other bytes than were sent", disagreeing);
        if self.not_sent > 0 {
            lines.push(format!("{} messages came that are in no sender's log", self.not_sent));
        }
    }

    fn put_standing(&self, lines: &mut Vec<String>) {
        for (rank, state) in &self.standing.states {
            let State::Waiting { name, call, polls, needs, any } = state else {
                continue;
            };
            let verb = if *polls { "polls with" } else { "waits in" };
            let join = if *any { ", or for " } else { ", and for " };
            let needs: Vec<String> = needs
                .iter()
                .map(|need| format!("{}{}", need.text, if need.on_its_way { " (on its way)" } else { "" }))
                .collect();
            lines.push(format!("rank {rank} {verb} {name}, call {call}, for {}", needs.join(join)));
        }
        if let [first, ..] = self.standing.cycle[..] {
            let mut cycle: Vec<String> = self.standing.cycle.iter().map(ToString::to_string).collect();
            cycle.push(first.to_string());
            lines.push(format!("deadlock: each of these ranks waits for the next: {}", cycle.join(" -> ")));
        }
        let others = self.standing.stuck.iter().filter(|rank| !self.standing.cycle.contains(rank));
        let others: Vec<String> = others.map(ToString::to_string).collect();
        if !others.is_empty() {
            let why = if self.standing.cycle.is_empty() {
                "wait for ranks that have ended"
            } else {
                "cannot go on either"
            };
            lines.push(format!("ranks that {why}: {}", others.join(", ")));
        }
    }
}
