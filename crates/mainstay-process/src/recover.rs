//! From a directory to a running process: newest good checkpoint, replay, outputs to take up again.
//!
//! Plain sequential code: nothing else can happen to the process before it is done.

use crate::attempts::suspect;
use crate::checkpoint::{self, CheckpointError, Loaded};
use crate::collecting::Collecting;
use crate::config::Config;
use crate::disk_at_once::{DiskAtOnce, DiskAtOnceError};
use crate::effect::{Abandoned, Effect};
use crate::handler::{Handler, Random, RestoreError};
use crate::history::History;
use crate::keeping::Keeping;
use crate::lifecycle::Life;
use crate::line::Cut;
use crate::links::{Links, LinksError};
use crate::loss::RollBack;
use crate::newest::Newest;
use crate::process::{INSTANCE, Process, Scratch};
use crate::record::RecordError;
use crate::record::orphaned;
use crate::record::prefix::Prefix;
use crate::record::rolled_back::{self, RolledBack};
use crate::record::started::{self, Started};
use crate::replay::{Replay, Verdicts};
use crate::restore::{Restored, begin_with, behind_the_loss, newest_checkpoint};
use crate::schedule::Schedule;
use crate::sessions::Sessions;
use crate::snapshot::Snapshots;
use crate::stats::Stats;
use crate::summary::Summary;
use mainstay_gate::gate::Gate;
use mainstay_journal::catalog::Catalog;
use mainstay_journal::journal::{AppendError, Journal};
use mainstay_journal::memory::PageMemory;
use mainstay_journal::open::{OpenReport, UNRECORDED};
use mainstay_journal::reader::ReadError;
use mainstay_journal::storage::{Storage, StorageError};
use mainstay_recovery::policy::Policy;
use mainstay_recovery::protocol::Unsuited;
use mainstay_types::id::{DeliveryIndex, Incarnation, Lsn, NodeId};
use mainstay_types::time::Time;
use std::collections::{BTreeMap, VecDeque};

/// Bytes of a request's record that are not its body, at most: prefix, identity tag, the longest key and when it expires.
const REQUEST_OVERHEAD_BYTES: usize = Prefix::BYTES + 1 + 4 + 255 + 8;

impl From<DiskAtOnceError> for RecoverError {
    fn from(error: DiskAtOnceError) -> Self {
        match error {
            DiskAtOnceError::Append(error) => Self::Append(error),
            DiskAtOnceError::Storage(error) => Self::Storage(error),
        }
    }
}

/// What a process is made from.
pub struct Start<'a, H, M> {
    /// Its settings.
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
    /// The wall clock.
    pub now: Time,
    /// Take back what depends on a state that another node lost: [`crate::effect::Effect::RollBack`] of the life before.
    pub roll_back: Option<RollBack>,
    /// Told now and then how far the replay is.
    pub progress: Option<&'a mut dyn FnMut(Progress)>,
}

/// How far a replay is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Deliveries replayed.
    pub deliveries: u64,
    /// Where the replay is.
    pub lsn: Lsn,
    /// Where it ends.
    pub end: Lsn,
}

/// What a recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The checkpoint it began with, if there was one.
    pub checkpoint: Option<Lsn>,
    /// Deliveries replayed.
    pub replayed: u64,
    /// Bytes of log replayed.
    pub replayed_bytes: u64,
    /// Outputs sent again, because whether they arrived is not known.
    pub outputs_again: u64,
    /// Outputs in doubt.
    pub outputs_in_doubt: u64,
    /// A delivery that was given up now, after failing too often.
    pub quarantined: Option<Lsn>,
    /// Checkpoints that could not be used.
    pub passed_over: Vec<(Lsn, CheckpointError)>,
    /// The last recorded time: the process's clock goes on from the later of this and the wall clock.
    pub time: Time,
}

/// Why a replay diverges, and what to do.
const CULPRITS: &str = "The usual culprit is a hash map walked in its random order; others are clocks, randomness, files or settings \
     read by the handler, or a handler or first state that changed without a new version number: then start the one that made the deliveries. \
     The command `replay` shows what each did";

/// The process cannot go on from this directory as it is. Nothing in it was changed, but for the verdict on a delivery
/// that failed too often.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The directory belongs to another service.
    #[error(
        "the directory belongs to service `{recorded}`, this is `{now}`; give `{now}` a directory of its own"
    )]
    NameChanged {
        /// The service that wrote it.
        recorded: String,
        /// This service.
        now: String,
    },
    /// There are deliveries that another version of the handler made.
    #[error(
        "delivery {delivery} at LSN {lsn} was made by version {recorded} of the handler, this is version {now}, and replay under \
         another version would diverge; nothing was changed. Start version {recorded} once more, stop it cleanly (it takes a \
         checkpoint), then start version {now}"
    )]
    VersionChanged {
        /// Where.
        lsn: Lsn,
        /// Which.
        delivery: DeliveryIndex,
        /// The version that made it.
        recorded: u32,
        /// This version.
        now: u32,
    },
    /// Another version of the handler was killed, and other nodes remember what it delivered.
    #[error(
        "version {recorded} of the handler was killed, and other nodes remember deliveries that it made: version {now} must not replay \
         them. Nothing was changed. Start version {recorded} once more, stop it cleanly (it takes a checkpoint), then start version {now}"
    )]
    VersionKilled {
        /// The version that made them.
        recorded: u32,
        /// This version.
        now: u32,
    },
    /// Replay did something else than the first run.
    #[error(
        "replay diverged at delivery {delivery} (noticed at LSN {lsn}):\n  recorded: {recorded}\n  now:      {now}\nNothing was changed. \
         {CULPRITS}"
    )]
    Diverged {
        /// The record that tells.
        lsn: Lsn,
        /// The delivery that differs.
        delivery: DeliveryIndex,
        /// What it did first.
        recorded: Summary,
        /// What it does now.
        now: Summary,
    },
    /// Replay did something else than the first run, at a delivery of which no record speaks.
    #[error(
        "replay diverged at a delivery from {first} on and before {delivery} (noticed at LSN {lsn}); of these only one digest is recorded, \
         of them all.\nNothing was changed. {CULPRITS}"
    )]
    DivergedBefore {
        /// The record up to which it was replayed.
        lsn: Lsn,
        /// The first delivery that may be the one.
        first: DeliveryIndex,
        /// The delivery behind the last that may be the one.
        delivery: DeliveryIndex,
    },
    /// Replay panicked on a delivery that was executed before.
    #[error(
        "replay diverged at delivery {delivery} (LSN {lsn}): it was executed before, now the handler panics: {message}. Nothing was changed. \
         Start the version of the handler that executed it, or one whose replay does the same"
    )]
    PanicsInReplay {
        /// Its record.
        lsn: Lsn,
        /// Which.
        delivery: DeliveryIndex,
        /// What the panic said.
        message: String,
    },
    /// The handler panicked on a delivery not executed before. Recover again: the attempts are counted, and the last one
    /// leads to a verdict.
    #[error("the handler panicked on the delivery at LSN {} (attempt {}): {}", .0.lsn, .0.attempts, .0.message)]
    HandlerPanicked(Abandoned),
    /// Deliveries are missing.
    #[error(
        "delivery {expected} should follow, but the record at LSN {lsn} is delivery {found}: the journal is not whole. \
         Nothing was changed. `mainstay journal verify` shows what is there; restore the directory from a backup"
    )]
    Gap {
        /// Where.
        lsn: Lsn,
        /// What should come.
        expected: DeliveryIndex,
        /// What comes.
        found: DeliveryIndex,
    },
    /// It depends on what another node lost, and nothing that it has reaches back far enough.
    #[error(
        "this node depends on deliveries that {lost} lost when more nodes failed at once than the logging policy survives, and what its \
         checkpoints and its journal hold does not reach back behind the first of its own that does. Nothing was changed. It stays \
         stopped: restore the whole cluster from a snapshot, or from copies of all directories made while it was stopped"
    )]
    CannotGoBack {
        /// The node that lost them.
        lost: NodeId,
    },
    /// The journal begins after the start of history and no checkpoint can be used.
    #[error(
        "no usable checkpoint, and the journal begins at LSN {first}: the history before is gone. Restore a checkpoint file from a backup"
    )]
    NoCheckpoint {
        /// Where the journal begins.
        first: Lsn,
        /// The checkpoints that were tried.
        passed_over: Vec<(Lsn, CheckpointError)>,
    },
    /// Another version of this program wrote a checkpoint: what it means by its bytes, and by those of the journal behind
    /// it, is not known here.
    #[error(
        "`{file}` has format version {}, this program reads {}. Nothing was changed. Start the version of this program that wrote it",
        found.escape_ascii(),
        expected.escape_ascii()
    )]
    CheckpointVersion {
        /// Its file.
        file: String,
        /// Its version, an ASCII digit.
        found: u8,
        /// The one version that is read here, an ASCII digit.
        expected: u8,
    },
    /// A checkpoint knows deliveries that the journal does not have any more.
    #[error(
        "`{file}` knows deliveries up to LSN {lsn}, but the journal ends at LSN {end}: a durable part of it is lost, or was cut by \
         agreement. Nothing was changed. To go on without what lies between, move `{file}` out of the directory; to keep it, \
         restore the journal's files from a backup"
    )]
    CheckpointAhead {
        /// Its position.
        lsn: Lsn,
        /// The end of the journal.
        end: Lsn,
        /// Its file.
        file: String,
    },
    /// A record is not one of this program's.
    #[error(
        "the record at LSN {lsn} cannot be read: {error}. Nothing was changed. Its checksum holds, so a newer version of this program, or \
         another one, wrote it: start that one"
    )]
    Record {
        /// Where.
        lsn: Lsn,
        /// Why.
        error: RecordError,
    },
    /// The handler does not take its own state back.
    #[error(
        "checkpoint {lsn}, saved by version {version}: {error}. Nothing was changed. The state must be able to read what its older \
         versions and itself saved: mend that, or start the version that saved it. If nothing else was changed, the usual culprits are serde's \
         `skip_serializing_if`, `tag` and `untagged`: what is saved has no names of fields"
    )]
    Restore {
        /// Which checkpoint.
        lsn: Lsn,
        /// The version that saved it.
        version: u32,
        /// Why.
        error: RestoreError,
    },
    /// What the directory holds of the links to other nodes does not fit.
    #[error(
        "the links to the other nodes cannot be taken up again: {0}. Nothing was changed. Start the node with the list of nodes, and the \
         version of this program, that it ran with last"
    )]
    Links(#[from] LinksError),
    /// The policies of the list of nodes do not go together.
    #[error(
        "the list of nodes cannot be used: {0}. Nothing was changed. Give all nodes a list whose policies go together"
    )]
    Unsuited(#[from] Unsuited),
    /// A policy that needs other nodes, without any.
    #[error(
        "policy `{policy}` keeps copies at other nodes, and this process stands alone: no answer would ever leave. Nothing was changed. \
         Log by `deferred` or `immediate`, or give it a list of nodes"
    )]
    StandsAlone {
        /// The policy.
        policy: Policy,
    },
    /// The limits do not fit the journal.
    #[error(
        "a body of {body_bytes_max} bytes does not fit a page, which takes {fits}; lower the limit or make the journal with larger pages"
    )]
    BodyLimit {
        /// The limit.
        body_bytes_max: usize,
        /// What fits.
        fits: usize,
    },
    /// The journal cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The directory cannot be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The first records of this life cannot be appended.
    #[error(transparent)]
    Append(#[from] AppendError),
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    /// Makes a process from its directory and appends its first effects to `out`.
    ///
    /// # Errors
    /// [`RecoverError`]; only [`RecoverError::HandlerPanicked`] may go away by trying again.
    pub fn recover(start: Start<'_, H, M>, out: &mut Vec<Effect>) -> Result<(Self, Recovery), RecoverError> {
        let Start {
            config,
            mut handler,
            mut journal,
            report,
            storage,
            catalog,
            now,
            roll_back,
            mut progress,
        } = start;
        let fits = journal.record_bytes_max().saturating_sub(REQUEST_OVERHEAD_BYTES);
        if config.limits.body_bytes_max > fits {
            return Err(RecoverError::BodyLimit { body_bytes_max: config.limits.body_bytes_max, fits });
        }
        if config.cluster.is_none() && !matches!(config.policy, Policy::Immediate | Policy::Deferred) {
            return Err(RecoverError::StandsAlone { policy: config.policy });
        }
        checkpoint::remove_partial(storage, checkpoint::PREFIX)?;
        let mut recovery = Recovery::default();
        let mut loaded = newest_checkpoint(storage, report, Lsn(u64::MAX), &mut recovery.passed_over)?;
        for (lsn, error) in &recovery.passed_over {
            if !matches!(error, CheckpointError::Storage(_)) {
                checkpoint::put_aside(storage, *lsn)?;
            }
        }
        let begin = |loaded: &Option<Loaded>| loaded.as_ref().map_or(report.first, |loaded| loaded.lsn);
        let mut verdicts = Verdicts::read(storage, catalog, begin(&loaded)..report.end, false)?;
        let orphaned = match &roll_back {
            Some(RollBack::Orphan(orphaned)) => Some(orphaned.clone()),
            _ => verdicts.unfinished.take(),
        };
        let newest = begin(&loaded);
        if let Some(orphaned) = &orphaned {
            loaded = behind_the_loss(loaded, orphaned, &config, report, storage, &mut recovery)?;
        }
        if begin(&loaded) != newest {
            verdicts = Verdicts::read(storage, catalog, begin(&loaded)..report.end, false)?;
        }
        let Restored { from, version, tables, saved_links } =
            begin_with(loaded, &mut handler, &config, report, &mut recovery)?;
        let checkpointed = tables.executed;
        let mut disk = Vec::new();
        if let Some(roll_back) = &roll_back {
            // Before anything is tried again: a crash from here on finds the same line.
            let (kind, record) = match roll_back {
                RollBack::To(rolled_back) => (rolled_back::KIND, rolled_back.encode()),
                RollBack::Orphan(orphaned) => (orphaned::KIND, orphaned.encode()),
            };
            let mut at_once = DiskAtOnce { storage, catalog, disk: &mut disk };
            let appended = at_once.append(&mut journal, kind, INSTANCE, &record)?;
            at_once.make_durable(&mut journal, appended.end)?;
        }
        if let Some(RollBack::To(RolledBack { keep, lost, .. })) = &roll_back {
            verdicts.rolled_back.push((report.end, *keep, *lost));
        }
        let cut = Cut::new(orphaned, &verdicts.orphaned);
        let mut links = config
            .cluster
            .as_ref()
            .map(|cluster| Links::recover(cluster, &config, report, &saved_links))
            .transpose()?;
        if let Some(links) = &mut links {
            links.channel.begin(version.is_some_and(|version| version != config.version));
        }
        let collecting = match &links {
            Some(links) if config.policy.collects() && !links.nodes.is_empty() => {
                Some(Collecting::from(&links.nodes))
            }
            _ => None,
        };
        let last_attempt = report.attempt.map(|attempt| (attempt.lsn, attempt.attempts));
        let recorded_attempt = last_attempt.filter(|(lsn, _)| *lsn < UNRECORDED);
        let replay = Replay {
            last_logged: tables.executed,
            history: History::new(handler, tables, links, report.store, &config),
            config: &config,
            journal,
            disk,
            collecting,
            version,
            // One at a message without a record says nothing of records.
            attempt: recorded_attempt,
            left: Newest::left_by(report, &config),
            verdicts,
            cut,
            watch: None,
        };
        if let Some(progress) = &mut progress {
            progress(Progress { deliveries: 0, lsn: from, end: report.end });
        }
        let Replay { mut history, mut journal, mut disk, mut collecting, verdicts, version, cut, .. } =
            replay.run(storage, catalog, from..report.end, &mut recovery, progress)?;
        let upgraded_from = version.filter(|&version| version != config.version);
        if let Some(recorded) = upgraded_from
            && collecting.is_some()
            && !report.sealed
        {
            return Err(RecoverError::VersionKilled { recorded, now: config.version });
        }
        let went_back = cut.at.is_some() || !verdicts.rolled_back.is_empty();
        if let Some(collecting) = &mut collecting {
            collecting.went_back = went_back;
            collecting.skipped = verdicts.skipped;
            collecting.attempt = last_attempt;
            collecting.cut(cut.at);
        } else {
            if went_back {
                history.tables.forget_unexecuted();
            }
            history.enter_life(report.generation);
        }
        let stated = verdicts.stated;
        let line = cut.into_line(history.links.as_mut());
        recovery.time = history.tables.now;
        recovery.replayed_bytes = report.end.0 - from.0;

        let took_part = history.links.as_ref().map(|links| links.channel.snapshot());
        let snapshots = Snapshots::recover(storage, took_part)?;
        if let Some(links) = &mut history.links {
            links.channel.take_part(snapshots.newest());
        }
        let now = now.max(history.tables.now);
        let incarnation = Incarnation(report.generation.0);
        let sessions = history.links.as_ref().map(|_| Sessions::new(collecting.take()));
        let collects = sessions.as_ref().is_some_and(|sessions| sessions.collecting.is_some());
        // Places in history, and in the journal, that the note of an earlier life speaks of may be given to other deliveries from here on.
        journal.note(history.note());
        let mut process = Self {
            seeds: Random(config.entropy ^ incarnation.0.rotate_left(32)),
            schedule: Schedule::new(from, checkpointed, now),
            last_logged: history.tables.executed,
            stats: Stats { replayed: recovery.replayed, ..Stats::default() },
            incarnation,
            history,
            journal,
            config,
            // Whoever starts it sees to that: an earlier life's records are safe, like those past a sync.
            keeping: Keeping::new(report.end, incarnation),
            gate: Gate::default(),
            backlog: VecDeque::new(),
            logged: VecDeque::new(),
            intents: VecDeque::new(),
            now,
            life: if collects { Life::Collecting } else { Life::Running },
            wake: None,
            scratch: Scratch::default(),
            suspect: suspect(report.attempt),
            verdicts: Vec::new(),
            waiting: BTreeMap::new(),
            waiting_end: Lsn::ZERO,
            stop_asked: false,
            losses: Vec::new(),
            began_whole: report.sealed || report.created,
            sessions,
            snapshots,
            blocked: None,
            line,
        };
        let mut losses = Vec::new();
        if let Some(links) = &process.history.links {
            links.logging.known_losses(&mut losses);
        }
        // Also that a new version begins here: were that lost, the old one could be started over deliveries of the new one.
        let durable = !losses.is_empty() || upgraded_from.is_some();
        let started = Started { version: process.config.version, name: process.config.name.clone(), losses };
        let mut at_once = DiskAtOnce { storage, catalog, disk: &mut disk };
        let started = started.encode();
        match at_once.append(&mut process.journal, started::KIND, INSTANCE, &started) {
            Ok(appended) if durable => at_once.make_durable(&mut process.journal, appended.end)?,
            Ok(_) => {}
            // Nothing new is taken before there is space, and this record stands before it. Until then what is there is read; but what
            // other nodes are told by a mere greeting is told by nobody who could forget it.
            Err(DiskAtOnceError::Append(AppendError::Full { .. }))
                if !durable || process.history.links.is_none() =>
            {
                process.journal.append_first_when_there_is_room(started::KIND, INSTANCE, &started)?;
            }
            Err(error) => return Err(error.into()),
        }
        if upgraded_from.is_some() {
            // Until there is one of this version, every recovery migrates the old one's state anew.
            process.schedule.force();
        }
        out.extend(disk.into_iter().map(Effect::Disk));
        for loss in stated {
            process.say_loss(loss, out);
        }
        if collects {
            if let Some(links) = &mut process.history.links {
                links.release_recovered();
            }
            process.after_step(true, out);
        } else {
            if !process.say_what_is_undone(out) {
                return Err(AppendError::Stalled.into());
            }
            (recovery.outputs_again, recovery.outputs_in_doubt) = process.begin_life(out);
            // The end of a recovery is the end of a step.
            process.after_step(true, out);
        }
        Ok((process, recovery))
    }
}
