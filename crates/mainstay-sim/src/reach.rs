//! Reach counters: how often each rare branch was taken. A simulation that never went there proves nothing about it.

use crate::disk::Counts;
use std::collections::BTreeMap;

macro_rules! reach {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A rare branch.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Reach {
            $($(#[$doc])* $name,)*
        }

        impl Reach {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// Its name in reports.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

reach! {
    /// kill -9.
    Kill = "kill",
    /// The power went.
    PowerCut = "power_cut",
    /// The power went between two lives, after a kill.
    PowerCutBetweenLives = "power_cut_between_lives",
    /// A crash while the journal was opened.
    CrashInOpen = "crash_in_open",
    /// A crash while the process was recovered.
    CrashInRecovery = "crash_in_recovery",
    /// A crash while a checkpoint was written.
    CrashInCheckpointSave = "crash_in_checkpoint_save",
    /// A crash while a checkpoint was published.
    CrashInCheckpointPublish = "crash_in_checkpoint_publish",
    /// A crash while a segment was prepared.
    CrashInPrepare = "crash_in_prepare",
    /// A crash while the journal was trimmed.
    CrashInTrim = "crash_in_trim",
    /// A write was cut within by a crash.
    TornWrite = "torn_write",
    /// A sector was taken back by a power cut.
    SectorLost = "sector_lost",
    /// A name was taken back by a power cut.
    NameLost = "name_lost",
    /// An append found no free page.
    Stall = "stall",
    /// A flush was asked for while one was in flight.
    GroupCommitJoin = "group_commit_join",
    /// A flush took one write.
    FlushInOneWrite = "flush_in_one_write",
    /// A flush had to gather pages and sync.
    FlushBySync = "flush_by_sync",
    /// A segment file was used again.
    SegmentRecycled = "segment_recycled",
    /// Behind the end of the journal lay bytes of an earlier life.
    StaleBytesMet = "stale_bytes_met",
    /// Opening cut an unsynced tail.
    TailCut = "tail_cut",
    /// The ring was gone after a crash.
    RingMissing = "ring_missing",
    /// The journal was trimmed.
    Trim = "trim",
    /// A trim failed.
    TrimFailed = "trim_failed",
    /// A clean stop sealed the journal.
    Seal = "seal",
    /// A sealed journal was opened.
    OpenedSealed = "opened_sealed",
    /// A replay ended behind a sealed journal's last record.
    ReplayedAfterSeal = "replayed_after_seal",
    /// A superblock copy was damaged and rewritten.
    SuperblockRepaired = "superblock_repaired",
    /// The disk was full.
    DiskFull = "disk_full",
    /// A request was refused for want of space.
    RefusedDiskFull = "refused_disk_full",
    /// A life began while the disk was too full for its first record.
    StartedOnFullDisk = "started_on_full_disk",
    /// The journal went on after a full disk.
    DiskFullRecovered = "disk_full_recovered",
    /// A sync failed.
    FailedSync = "failed_sync",
    /// A journal was poisoned.
    Poisoned = "poisoned",
    /// Opening failed for a fault of the disk and was tried again.
    OpenFailed = "open_failed",
    /// A handler panicked and the process gave itself up.
    Abandoned = "abandoned",
    /// A handler panicked in recovery.
    PanicInRecovery = "panic_in_recovery",
    /// A delivery was quarantined.
    Quarantined = "quarantined",
    /// A duplicate got its answer in the same life.
    DuplicateLive = "duplicate_live",
    /// A duplicate got its answer in a later life.
    DuplicateAfterCrash = "duplicate_after_crash",
    /// 409.
    StillRunning = "still_running_409",
    /// 422.
    KeyReused = "key_reused_422",
    /// 410.
    Evicted = "evicted_410",
    /// The table of keys was full.
    BusyKeys = "busy_keys",
    /// The table of clients was full.
    BusyClients = "busy_clients",
    /// The table of outputs was full.
    BusyOutputs = "busy_outputs",
    /// The backlog was full.
    BusyBacklog = "busy_backlog",
    /// A key was used anew after it had expired.
    KeyExpired = "key_expired",
    /// A read was answered.
    Read = "read",
    /// A timer was delivered.
    Timer = "timer",
    /// An at-most-once output was announced by a record.
    Intended = "intended",
    /// An output was in doubt within a life.
    InDoubtLive = "in_doubt_live",
    /// An output was in doubt after a crash.
    InDoubtAfterCrash = "in_doubt_after_crash",
    /// An output in doubt was resolved.
    Resolved = "resolved",
    /// An output in doubt was sent again by a person.
    SentAgainByPerson = "sent_again_by_person",
    /// An output that had left was given up by a person.
    Withdrawn = "withdrawn",
    /// An output was sent again after a crash.
    OutputAgain = "output_again",
    /// A receiver dropped a key it had.
    DuplicateDropped = "duplicate_dropped",
    /// A receiver was asked and had it.
    AskedHas = "asked_has",
    /// A receiver was asked and did not have it.
    AskedHasNot = "asked_has_not",
    /// A receiver refused an output.
    OutputRefused = "output_refused",
    /// A checkpoint was published.
    Checkpoint = "checkpoint",
    /// A checkpoint failed.
    CheckpointFailed = "checkpoint_failed",
    /// Recovery began with a checkpoint.
    CheckpointUsed = "checkpoint_used",
    /// Recovery passed over a damaged checkpoint.
    CheckpointFallback = "checkpoint_fallback",
    /// The wall clock had gone back at a start.
    ClockJumpBack = "clock_jump_back",
    /// Messages were lost.
    MessageLost = "message_lost",
    /// Messages were doubled.
    MessageDoubled = "message_doubled",
    /// A connection between nodes broke.
    ConnectionBroken = "connection_broken",
    /// Frames were lost with their connection.
    FramesLost = "frames_lost",
    /// A node was cut off.
    Partition = "partition",
    /// A node was called again before it had noticed that the connection before was gone.
    ReconnectedUnnoticed = "reconnected_unnoticed",
    /// A crash while a node collected what others remember.
    CrashWhileCollecting = "crash_while_collecting",
    /// Two nodes were down at the same time.
    TwoDown = "two_down",
    /// All nodes were down at the same time.
    AllDown = "all_down",
    /// A node rolled back.
    NodeRolledBack = "node_rolled_back",
    /// A node had collected all that others remember.
    Collected = "collected",
    /// The nodes had different policies.
    MixedPolicies = "mixed_policies",
    /// A request was refused because another node pins too much.
    BusySenderLog = "busy_sender_log",
    /// Messages that another node pins were moved out of memory.
    Spilled = "spilled",
    /// There was no room for them.
    SpillFailed = "spill_failed",
    /// A snapshot was begun.
    SnapshotBegun = "snapshot_begun",
    /// A node could not begin a snapshot.
    SnapshotRefused = "snapshot_refused",
    /// A part was given up for a later snapshot.
    SnapshotSuperseded = "snapshot_superseded",
    /// A crash while a part was written or published.
    CrashInSnapshot = "crash_in_snapshot",
    /// A node's part became final.
    PartFinal = "part_final",
    /// All parts of a snapshot were final.
    LineFinished = "line_finished",
    /// Messages were on the way in a finished line.
    LineWithMessagesOnTheWay = "line_with_messages_on_the_way",
    /// A blocking snapshot failed, and all were let go on.
    BlockAborted = "block_aborted",
    /// A node had been blocked for as long as it may.
    BlockRanOut = "block_ran_out",
    /// Who took a blocking snapshot died.
    CoordinatorDied = "coordinator_died",
    /// More requests came to a blocked node than it holds.
    BusyBlocked = "busy_blocked",
    /// All parts of a blocking snapshot were final.
    LineWithEmptyChannels = "line_with_empty_channels",
    /// All nodes stopped at a line, and went on in another version.
    ClusterUpgraded = "cluster_upgraded",
    /// A node stopped at a line that not all reached, and went on in the old version.
    StoppedAndWentOn = "stopped_and_went_on",
    /// A new world began with a line.
    LineRestored = "line_restored",
    /// A node said that it may have lost deliveries.
    LossStated = "loss_stated",
    /// A node went back behind what another one lost, and said so.
    OrphanWentBack = "orphan_went_back",
    /// A node refused one that depends on what it lost.
    OrphanRefused = "orphan_refused",
    /// A node could not go back behind what another one lost, and said so.
    StaysStopped = "stays_stopped",
    /// A request whose answer was lost, and named, was executed anew.
    AnsweredAnew = "answered_anew",
    /// A member entered a view.
    ViewInstalled = "view_installed",
    /// A view was decided by another than who proposed it first.
    ProposalAdopted = "proposal_adopted",
    /// A process crashed while it sent INSTALL.
    CoordinatorFell = "coordinator_fell",
    /// A store crashed with a promise in its view.
    CrashWithPromise = "crash_with_promise",
    /// A store came back as another life.
    StoreReturned = "store_returned",
    /// A view began with stores that came back alone.
    BeganAnew = "began_anew",
    /// A store lost its promises, and joined as new.
    StoreLost = "store_lost",
    /// A member was out of the view that goes on, and was told.
    Expelled = "expelled",
    /// A process that asked to be let in was shown the view first.
    FilledFirst = "filled_first",
    /// Writes of a node's disk took beats.
    SlowDisk = "slow_disk",
    /// A copy of a region was told several things before it was drained.
    CameTogether = "came_together",
    /// A member of a region stopped hearing of views, and went on serving those who reach it.
    MemberDeaf = "member_deaf",
    /// A client died while it sent an operation to copies: some got it, and others did not.
    ClientDiedSending = "client_died_sending",
    /// A view changed the pattern of a region.
    PatternChanged = "pattern_changed",
    /// A pattern was asked for, and views came without it first.
    PatternAskedAgain = "pattern_asked_again",
    /// A node was left out of the view while it asked for a pattern.
    PatternUnknown = "pattern_unknown",
    /// A write was refused, since nobody in the view offered a role.
    WriteWithoutRole = "write_without_role",
    /// A read was.
    ReadWithoutRole = "read_without_role",
    /// A node saw a role go, left, and asked to be let in again.
    Reconnected = "reconnected",
    /// A member never entered the view that it was let into.
    JoinedAndDied = "joined_and_died",
    /// A member left in order.
    LeftInOrder = "left_in_order",
    /// Two groups met.
    TwoGroups = "two_groups",
    /// Several were let in by one view.
    SeveralJoined = "several_joined",
    /// A link was cut in one direction.
    OneWayCut = "one_way_cut",
    /// A serving member stood still for longer than its lease.
    PausedPastLease = "paused_past_lease",
    /// A member in a view did not serve because nobody answered it.
    LeaseRanOut = "lease_ran_out",
    /// The arbiter decided.
    Arbitrated = "arbitrated",
    /// The arbiter held another view than was offered.
    ArbiterHeldAnother = "arbiter_held_another",
    /// An address was used by another store.
    AddressReused = "address_reused",
    /// A message came from outside the view.
    OutsiderSpoke = "outsider_spoke",
    /// A write was acknowledged.
    FactAcknowledged = "fact_acknowledged",
    /// All came back after none was up.
    TotalRestart = "total_restart",
    /// A view that nobody began handed its cut on.
    CutCarriedOver = "cut_carried_over",
    /// The others came together without a process that heard nothing.
    WentOnWithoutDeaf = "went_on_without_deaf",
    /// A view was agreed and given up before it began.
    ViewGivenUp = "view_given_up",
    /// A copy that reported was left out of the next view.
    MemberLeftOut = "member_left_out",
    /// A copy stood still.
    MemberPaused = "member_paused",
    /// A copy was found again from its journal.
    StoreFoundAgain = "store_found_again",
    /// A copy became full by one that served the view already.
    FilledBehindTheCut = "filled_behind_the_cut",
    /// A copy of a region was found again from a checkpoint.
    FoundFromCheckpoint = "found_from_checkpoint",
    /// A cut was handed on from a view that nobody began.
    CutCarried = "cut_carried",
    /// A copy that was being filled was asked for a report.
    ReportedNothing = "reported_nothing",
    /// A member joined that had been filled.
    Joined = "joined",
    /// A repetition was answered with the first result.
    AnsweredFromTable = "answered_from_table",
    /// A server passed a repetition to the stamper.
    RetriedElsewhere = "retried_elsewhere",
    /// Client and server were in different views.
    ViewsDiffered = "views_differed",
    /// Values ended.
    ValuesEnded = "values_ended",
    /// Several operations were done as one.
    DoneAsOne = "done_as_one",
    /// A version became void.
    VersionVoid = "version_void",
    /// A member had the payload of a granted version.
    PayloadFoundForGrant = "payload_found_for_grant",
    /// A version came before its payload.
    VersionEarly = "version_early",
    /// Something came of a view that the copy had not begun.
    ViewEarly = "view_early",
    /// An entry came before an earlier one.
    HeldBack = "held_back",
    /// A stamper sent an entry again.
    SentAgain = "sent_again",
    /// A cut made something stable that was not.
    CutWithUnstable = "cut_with_unstable",
    /// Something accepted was in no cut.
    DroppedByCut = "dropped_by_cut",
    /// A call ended as unknown.
    EndedUnknown = "ended_unknown",
    /// A repetition was older than what is remembered.
    ToldObsolete = "told_obsolete",
    /// A client was not remembered any more.
    ToldEvicted = "told_evicted",
    /// A limit of a region was reached.
    BusyRegion = "busy_region",
    /// A stamper of a region had no more room for bytes that not all copies have.
    LogBytesFull = "log_bytes_full",
    /// A read at the stamper was answered.
    LinearizableRead = "linearizable_read",
    /// A read of any copy was answered.
    ReadOfAnyCopy = "read_of_any_copy",
    /// A read was refused for want of a lease.
    ReadRefusedWithoutLease = "read_refused_without_lease",
    /// A part of an image was sent to a copy that is filled.
    ImageSent = "image_sent",
    /// The first half of a page went to the disk before the page was full: of a journal alone, since a process has pages too small for that.
    HalfHandedOver = "half_handed_over",
}

impl Reach {
    /// Those of a process that stands alone.
    #[must_use]
    pub fn of_process() -> &'static [Self] {
        &Self::ALL[..Self::ConnectionBroken as usize]
    }
}

/// How often each branch was taken.
#[derive(Clone, Debug)]
pub(crate) struct Reached([u64; Reach::ALL.len()]);

impl Default for Reached {
    fn default() -> Self {
        Self([0; Reach::ALL.len()])
    }
}

impl Reached {
    /// Counts one more.
    pub(crate) fn hit(&mut self, reach: Reach) {
        self.add(reach, 1);
    }

    /// Counts `times` more.
    pub(crate) fn add(&mut self, reach: Reach, times: u64) {
        self.0[reach as usize] += times;
    }

    /// Notes what a disk did.
    pub(crate) fn add_disk(&mut self, counts: Counts) {
        self.add(Reach::TornWrite, counts.torn_writes);
        self.add(Reach::SectorLost, counts.sectors_lost);
        self.add(Reach::NameLost, counts.names_lost);
        self.add(Reach::FailedSync, counts.failed_syncs);
        self.add(Reach::DiskFull, counts.refused_full);
    }

    /// How often `reach` was taken.
    #[must_use]
    pub(crate) fn count(&self, reach: Reach) -> u64 {
        self.0[reach as usize]
    }

    /// Adds another run's.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// By name, the branches in `of` alone.
    #[must_use]
    pub(crate) fn named(&self, of: &[Reach]) -> BTreeMap<&'static str, u64> {
        of.iter().map(|&reach| (reach.name(), self.count(reach))).collect()
    }
}
