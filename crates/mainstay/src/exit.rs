//! Exit codes of a service's process.

/// It stopped cleanly.
pub const OK: u8 = 0;
/// It ended otherwise, or found the journal damaged or diverged: nothing acknowledged is lost.
pub const FAILED: u8 = 1;
/// Wrong flags or values.
pub const USAGE: u8 = 2;
/// The surroundings do not allow it to run: directory, address, disk, ports.
pub const ENVIRONMENT: u8 = 3;
