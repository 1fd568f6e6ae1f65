//! What a process has done in this life, for metrics and reports.

/// Counters since the start of this life, and present sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Deliveries executed after recovery.
    pub delivered: u64,
    /// Deliveries replayed by recovery.
    pub replayed: u64,
    /// Requests recognised as repetitions.
    pub duplicates: u64,
    /// Requests answered `Evicted`.
    pub evicted: u64,
    /// Requests answered 409 or 422.
    pub conflicts: u64,
    /// Requests refused at a limit.
    pub refused: u64,
    /// Requests that had to wait for a free page.
    pub stalled: u64,
    /// Outputs released, repetitions included.
    pub outputs_released: u64,
    /// Outputs whose fate is known, since the directory was made.
    pub outputs_settled: u64,
    /// Outputs whose fate is not known yet.
    pub outputs_pending: usize,
    /// Outputs in doubt.
    pub outputs_in_doubt: usize,
    /// Checkpoints published.
    pub checkpoints: u64,
    /// Checkpoints given up.
    pub checkpoints_failed: u64,
    /// Bytes of the last checkpoint.
    pub checkpoint_bytes: u64,
    /// Parts in snapshots that became final.
    pub snapshots: u64,
    /// Effects held at this moment.
    pub held: usize,
    /// Effects that left without waiting.
    pub passed: u64,
    /// Effects that left after waiting.
    pub released: u64,
    /// Unexpired or not yet swept idempotency keys.
    pub keys: usize,
    /// Registered clients.
    pub clients: usize,
    /// Requests waiting to be logged or delivered.
    pub backlog: usize,
    /// Deliveries skipped by verdict, since the directory was made.
    pub quarantined: u64,
    /// Messages dropped because they depended on a state that another node lost.
    pub orphans_dropped: u64,
    /// Nodes that depend on what this life could not get back: more failed at once than the policy survives.
    pub peers_orphaned: u64,
}
