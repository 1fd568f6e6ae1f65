//! What a region is set up with: its limits, each with a name and a unit, its times, and who must have a write before it counts.

use mainstay_types::rules::Rules;
use std::time::Duration;

/// Who must have accepted a write before it is stable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acknowledgement {
    /// Every member of the view: any one survivor has everything; one dead member stalls writes until the view is changed.
    All,
    /// More than half of the members of the view: a dead minority stalls nothing.
    Majority,
}

impl Acknowledgement {
    /// How many of `members` copies are enough.
    #[must_use]
    pub fn quorum(self, members: usize) -> usize {
        match self {
            Self::All => members,
            Self::Majority => members / 2 + 1,
        }
    }
}

/// What must not be exceeded. At a limit the answer is `Busy`, or a message is dropped that the stamper will send again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Length of a key, in bytes.
    pub key_bytes_max: usize,
    /// Length of a value, in bytes.
    pub value_bytes_max: usize,
    /// Versions of a shard that not all members are known to have, in entries.
    pub log_entries_max: u64,
    /// Keys and values of such versions of all shards, in bytes, and [`crate::log::ENTRY_BYTES`] for each, from where on writes wait. Each
    /// stamper has an equal share; one entry alone may be above that. With what was granted before, a stamper's log comes to two shares, and a copy's,
    /// with what it has not dropped yet, to four: that is what it reports at most at the end of a view.
    pub log_bytes_max: usize,
    /// Entries of a shard that wait for an earlier version.
    pub hold_back_entries_max: usize,
    /// The same in bytes.
    pub hold_back_bytes_max: usize,
    /// Messages of a view that come before a copy has begun it; beyond, clients are refused, and what members say is dropped, and said again later.
    pub early_messages_max: usize,
    /// Keys and values in them, in bytes, and [`crate::log::ENTRY_BYTES`] for each entry.
    pub early_bytes_max: usize,
    /// Payloads of a shard that wait for their version, in entries.
    pub held_payloads_max: usize,
    /// The same of one client, in entries.
    pub held_payloads_per_client_max: usize,
    /// The same of all, in bytes; one more may go beyond.
    pub held_payload_bytes_max: usize,
    /// Versions of a shard whose payload has not come, in entries.
    pub early_versions_max: usize,
    /// Versions granted and not used yet, in entries for each shard.
    pub grants_max: usize,
    /// Answers and reads of a shard that wait for something to become stable, in entries.
    pub waiting_max: usize,
    /// Threads of clients that a shard's duplicate table remembers.
    pub duplicate_threads_max: usize,
    /// Results remembered for each of them; a client pipelines at most as many operations.
    pub duplicate_results_max: usize,
    /// Values in the results remembered for each of them, in bytes; one result alone may not have more either.
    pub duplicate_result_bytes_max: usize,
    /// Keys and values of operations that are done as one, in bytes, and 64 for each; also of what they change.
    pub batch_bytes_max: usize,
    /// Keys whose values end with one version.
    pub expire_keys_max: usize,
    /// Stable changes of a shard that a subscriber can go back to, in entries.
    pub history_entries_max: usize,
    /// Keys, values and outcomes of these, in bytes; one change may go beyond. What is older is seldom asked for, and fetching it from memory again to
    /// drop it would be most of what a write of 1 KB costs.
    pub history_bytes_max: usize,
    /// Subscribers of one shard at one server.
    pub subscribers_max: usize,
    /// Members that one server fills at the same time.
    pub learners_max: usize,
    /// Keys and values in one message of an image, in bytes; one more entry may go beyond.
    pub image_chunk_bytes_max: usize,
    /// Entries that leave in one message, or are kept in one record, in bytes: keys, values and [`crate::log::ENTRY_BYTES`] each; one more entry may go
    /// beyond. Acknowledgements of one client, too, with the values in their outcomes.
    pub together_bytes_max: usize,
    /// Parts of an image that a member which is filled has taken and not safe yet, when it asks for no more.
    pub image_unsafe_parts_max: usize,
    /// Records of a checkpoint that are written with one tick, in bytes; one more may go beyond. At level `Process` nothing else sets the pace.
    pub checkpoint_tick_bytes_max: usize,
    /// Entries of one answer to a scan.
    pub scan_entries_max: usize,
    /// Entries that are sent again to one member at a time.
    pub repair_entries_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            key_bytes_max: 1 << 10,
            value_bytes_max: 1 << 20,
            log_entries_max: 4096,
            log_bytes_max: 32 << 20,
            hold_back_entries_max: 1024,
            hold_back_bytes_max: 8 << 20,
            early_messages_max: 1024,
            early_bytes_max: 8 << 20,
            held_payloads_max: 1024,
            held_payloads_per_client_max: 64,
            held_payload_bytes_max: 8 << 20,
            early_versions_max: 1024,
            grants_max: 256,
            waiting_max: 4096,
            duplicate_threads_max: 4096,
            duplicate_results_max: 64,
            duplicate_result_bytes_max: 64 << 10,
            batch_bytes_max: 4 << 20,
            expire_keys_max: 1024,
            history_entries_max: 1024,
            history_bytes_max: 128 << 10,
            subscribers_max: 256,
            learners_max: 2,
            image_chunk_bytes_max: 64 << 10,
            together_bytes_max: 64 << 10,
            image_unsafe_parts_max: 16,
            checkpoint_tick_bytes_max: 256 << 10,
            scan_entries_max: 256,
            repair_entries_max: 64,
        }
    }
}

/// How much faster or slower than true a clock may run, in millionths: what the group counts on for its leases, too.
pub const CLOCK_DRIFT_PPM_MAX: u64 = 1000;

/// How long things are waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// A member that did not get further for so long is sent again what it lacks.
    pub repair_after: Duration,
    /// A granted version whose payload has not come for so long is asked for, and made void if nobody has it.
    pub grant_max: Duration,
    /// A payload whose version has not come for so long is dropped.
    pub held_max: Duration,
    /// An image that did not go on for so long is begun anew, elsewhere if that can be.
    pub image_patience: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            repair_after: Duration::from_millis(50),
            grant_max: Duration::from_millis(200),
            held_max: Duration::from_secs(2),
            image_patience: Duration::from_secs(1),
        }
    }
}

/// What a region is set up with. The same at every member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Shards; a key's shard follows from its hash. Never changed.
    pub shards: u16,
    /// Who must have a write.
    pub acknowledgement: Acknowledgement,
    /// Clients may send operations to copies that do not stamp them ([`crate::patterns::Pattern::clients_send_payloads`]). What a version
    /// contains is then up to the client: one that gives an operation two contents makes copies differ.
    pub payloads_from_clients: bool,
    /// No versions: operations are done as they come, and copies may differ. To measure what a version costs.
    pub unversioned: bool,
    /// What must not be exceeded.
    pub limits: Limits,
    /// How long things are waited for.
    pub times: Times,
    /// Which safety rules are kept: all, outside the simulator.
    pub rules: Rules,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            shards: 16,
            acknowledgement: Acknowledgement::All,
            payloads_from_clients: true,
            unversioned: false,
            limits: Limits::default(),
            times: Times::default(),
            rules: Rules::KEPT,
        }
    }
}
