//! How much a node keeps, and how much it takes in at once.

/// The limits of all links of a node. The windows of a link are the smaller ones of its two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most bytes of memory that one peer may pin before [`crate::channel::Channel::may_accept`] says no.
    pub log_bytes_max: u64,
    /// Above so many bytes of memory, the oldest bodies retained for a peer are moved out of it: [`crate::spill`].
    pub log_memory_bytes_max: u64,
    /// Most bytes of one peer's bodies that are kept outside of memory. Zero: none are.
    pub log_spill_bytes_max: u64,
    /// Most messages that may be on their way to a peer, or arrived there and not yet delivered.
    pub window_messages_max: u32,
    /// Most bytes of bodies among them. One message is always let through.
    pub window_bytes_max: u64,
    /// Longest body, in bytes. Must not be larger at one node than at another.
    pub message_bytes_max: u32,
    /// Longest stamp, longest attachment and longest control body, in bytes.
    pub control_bytes_max: u32,
}

impl Limits {
    /// Longest frame that a peer may send, in bytes: what a transport must be ready to take in.
    #[must_use]
    pub fn frame_bytes_max(&self) -> u64 {
        u64::from(self.message_bytes_max) + 2 * u64::from(self.control_bytes_max) + FRAME_FIXED_BYTES_MAX
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            log_bytes_max: 64 << 20,
            log_memory_bytes_max: 16 << 20,
            log_spill_bytes_max: 256 << 20,
            window_messages_max: 4096,
            window_bytes_max: 8 << 20,
            message_bytes_max: 1 << 20,
            control_bytes_max: 1 << 20,
        }
    }
}

/// What a frame holds besides body, stamp and attachment: at most a `Hello` with all its ends.
const FRAME_FIXED_BYTES_MAX: u64 = 8 << 10;
