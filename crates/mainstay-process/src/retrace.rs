//! A replay for people: shows what every delivery of the past was and what it does now, and starts no life.
//!
//! It goes through the same functions as a recovery. What it appends and counts stays in the memory of a journal that is given
//! to it opened, so that a directory opened read-only is left as it is.

use crate::collecting::Collecting;
use crate::config::Config;
use crate::handler::{Answer, Handler, RequestId};
use crate::history::{Done, History};
use crate::line::Cut;
use crate::links::Links;
use crate::newest::Newest;
use crate::record::delivery::Delivery;
use crate::record::prefix::Prefix;
use crate::recover::{RecoverError, Recovery};
use crate::replay::{Replay, Verdicts};
use crate::restore::{Restored, restore};
use crate::summary::Summary;
use mainstay_journal::catalog::Catalog;
use mainstay_journal::journal::Journal;
use mainstay_journal::memory::PageMemory;
use mainstay_journal::open::{OpenReport, UNRECORDED};
use mainstay_journal::storage::Storage;
use mainstay_types::id::{Lsn, NodeId, OutputId, StoreId};
use mainstay_types::time::Time;
use std::ops::ControlFlow;

/// What a replay is made from.
pub struct Retrace<'a, H, M> {
    /// The settings that the process ran with; limits on what comes in are not asked.
    pub config: Config,
    /// A handler in its initial state.
    pub handler: H,
    /// The opened journal.
    pub journal: Journal<M>,
    /// What opening it found.
    pub report: &'a OpenReport,
    /// Its directory.
    pub storage: &'a mut dyn Storage,
    /// Its segments.
    pub catalog: &'a Catalog,
    /// Begin with the newest checkpoint at or below this LSN.
    pub from: Lsn,
    /// What this handler does otherwise than recorded, or what another version of it recorded, is shown and no reason to stop.
    /// A panic ends it all the same: there is no state to go on from.
    pub go_on: bool,
    /// Who is shown everything.
    pub watcher: &'a mut dyn Watcher,
}

/// Is shown a replay, and may stop it.
pub trait Watcher {
    /// Where it begins.
    fn begin(&mut self, beginning: &Beginning);
    /// A delivery is about to be executed. Break: it is not.
    fn before(&mut self, recorded: &Recorded<'_>) -> ControlFlow<()>;
    /// A delivery was executed. Break: it was the last.
    fn after(&mut self, recorded: &Recorded<'_>, executed: &Executed<'_>) -> ControlFlow<()>;
}

/// Where a replay begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beginning {
    /// The identity of the directory.
    pub store: StoreId,
    /// The checkpoint and the version of the handler that saved it; without one replay begins with the first delivery.
    pub checkpoint: Option<(Lsn, u32)>,
    /// Where the records end.
    pub end: Lsn,
}

/// What the journal says of a delivery.
#[derive(Clone, Copy, Debug)]
pub struct Recorded<'a> {
    /// Its record.
    pub lsn: Lsn,
    /// The end of its record.
    pub end: Lsn,
    /// The version of the handler that made it, if that is known.
    pub version: Option<u32>,
    /// Its place, time and randomness.
    pub prefix: &'a Prefix,
    /// What was delivered.
    pub delivery: &'a Delivery,
    /// What it did then, if a later record says so.
    pub summary: Option<Summary>,
}

/// What a delivery did when it was executed again.
#[derive(Clone, Debug)]
pub struct Executed<'a> {
    /// The answer to a request, unless that is given later.
    pub answer: Option<&'a Answer>,
    /// Outputs emitted: number, port and body.
    pub outputs: Vec<(OutputId, &'a str, &'a [u8])>,
    /// Timers set: when each is due, and its token.
    pub timers: &'a [(Time, u64)],
    /// Messages to other nodes.
    pub messages: Vec<(NodeId, &'a [u8])>,
    /// Answers to requests of earlier deliveries.
    pub late_answers: Vec<(RequestId, &'a Answer)>,
    /// Sums it up, to be compared with [`Recorded::summary`].
    pub summary: Summary,
    /// It was not executed: it had failed too often, and a recorded verdict stands in its place.
    pub given_up: bool,
    /// The handler panicked: nothing of what it did counts.
    pub panic: Option<&'a str>,
}

impl Executed<'_> {
    /// Whether it did what it did at first; `None` if nothing is recorded of that.
    #[must_use]
    pub fn is_as_recorded(&self, recorded: &Recorded<'_>) -> Option<bool> {
        recorded.summary.map(|then| self.panic.is_none() && then == self.summary)
    }
}

/// How a replay ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retraced {
    /// What it began with, and how much was replayed.
    pub recovery: Recovery,
    /// Whether its watcher, or a panic that was to be shown, stopped it before the end of the records.
    pub stopped: bool,
    /// Deliveries of this journal that wait for what only other nodes remember, and were not replayed.
    pub waiting_for_nodes: u64,
}

/// Replays what a directory recorded, before the eyes of a watcher.
///
/// # Errors
/// [`RecoverError`], as a recovery would have it; nothing outside of what was given is changed.
pub fn retrace<H: Handler, M: PageMemory>(start: Retrace<'_, H, M>) -> Result<Retraced, RecoverError> {
    let Retrace { config, mut handler, journal, report, storage, catalog, from, go_on, watcher } = start;
    let mut recovery = Recovery::default();
    let Restored { from, version, tables, saved_links } =
        restore(&mut handler, &config, report, storage, from, &mut recovery)?;
    let checkpoint = recovery.checkpoint.zip(version);
    watcher.begin(&Beginning { store: report.store, checkpoint, end: report.end });
    let mut verdicts = Verdicts::read(storage, catalog, from..report.end, true)?;
    let left = Newest::left_by(report, &config);
    if let Some(left) = &left {
        verdicts.summaries.insert(left.last, left.summary);
    }
    let links = config
        .cluster
        .as_ref()
        .map(|cluster| Links::recover(cluster, &config, report, &saved_links))
        .transpose()?;
    let collecting = links
        .as_ref()
        .filter(|links| config.policy.collects() && !links.nodes.is_empty())
        .map(|links| Collecting::from(&links.nodes));
    let replay = Replay {
        last_logged: tables.executed,
        history: History::new(handler, tables, links, report.store, &config),
        config: &config,
        journal,
        disk: Vec::new(),
        collecting,
        version,
        // One at a message without a record says nothing of records.
        attempt: report
            .attempt
            .filter(|attempt| attempt.lsn < UNRECORDED)
            .map(|attempt| (attempt.lsn, attempt.attempts)),
        left,
        verdicts,
        cut: Cut::default(),
        watch: Some(Watch { watcher, go_on, stopped: false }),
    };
    let Replay { collecting, watch, .. } =
        replay.run(storage, catalog, from..report.end, &mut recovery, None)?;
    recovery.replayed_bytes = report.end.0 - from.0;
    Ok(Retraced {
        recovery,
        stopped: watch.is_some_and(|watch| watch.stopped),
        waiting_for_nodes: collecting.map_or(0, |collecting| collecting.journaled.len() as u64),
    })
}

/// A watcher at work.
pub(crate) struct Watch<'a> {
    watcher: &'a mut dyn Watcher,
    pub(crate) go_on: bool,
    pub(crate) stopped: bool,
}

/// How a delivery ended, as the replay has it.
pub(crate) enum Shown<'a> {
    Done(&'a Done),
    GivenUp(&'a Done),
    Panicked(&'a str),
}

impl Watch<'_> {
    pub(crate) fn before(&mut self, recorded: &Recorded<'_>) -> bool {
        self.stopped = self.watcher.before(recorded).is_break();
        self.stopped
    }

    pub(crate) fn show<H>(&mut self, history: &History<H>, recorded: &Recorded<'_>, shown: &Shown<'_>) {
        let nothing = Done::default();
        let (done, given_up, panic) = match *shown {
            Shown::Done(done) => (done, false, None),
            Shown::GivenUp(done) => (done, true, None),
            Shown::Panicked(message) => (&nothing, false, Some(message)),
        };
        let output = |&id| history.tables.outbox.find(id).map(|pending| (id, &*pending.port, &*pending.body));
        let message = |emitted: &crate::links::Emitted| {
            let links = history.links.as_ref()?;
            links.channel.body(emitted.to, emitted.ssn).map(|body| (emitted.to, body))
        };
        let executed = Executed {
            answer: done.answer.as_deref(),
            outputs: done.outputs.iter().filter_map(output).collect(),
            timers: &done.timers,
            messages: done.messages.iter().filter_map(message).collect(),
            late_answers: done.late.iter().map(|late| (late.request, &*late.answer)).collect(),
            summary: if panic.is_some() { Summary::default() } else { history.tables.summary },
            given_up,
            panic,
        };
        let asked = self.watcher.after(recorded, &executed);
        self.stopped |= asked.is_break() || panic.is_some() && self.go_on;
    }
}
