//! How patient a client is, and what it chooses.

use mainstay_region::patterns::Pattern;
use mainstay_tls::TlsClient;
use mainstay_types::id::ClusterId;
use std::time::Duration;

/// Deadlines and choices. All of them are the client's own; the servers are not told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a call, or connecting, may take with all its attempts.
    pub deadline: Duration,
    /// What is not answered for so long is asked again, at another server.
    pub retry_after: Duration,
    /// Operations under way at the same time, at most 64: what a region remembers of a client.
    pub window_operations_max: usize,
    /// How first attempts travel; `None`: as the region has it.
    pub pattern: Option<Pattern>,
    /// The group that is meant; `None`: the one that answers.
    pub cluster: Option<ClusterId>,
    /// What proves to the nodes who this is, and tells it who they are; `None`: plain text, which nodes without certificates speak, on loopback.
    pub tls: Option<TlsClient>,
    /// After so long without a write the next one is made under a new client number: the region may have forgotten the old one.
    pub number_idle_max: Duration,
    /// Holds back everything that is said for so long, as a longer way to the servers would: for measuring.
    pub link_delay: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(10),
            retry_after: Duration::from_millis(100),
            window_operations_max: 64,
            pattern: None,
            cluster: None,
            tls: None,
            number_idle_max: Duration::from_secs(60),
            link_delay: Duration::ZERO,
        }
    }
}
