//! The seven ways in which an operation, its version and its acknowledgements travel: one file each, behind one small trait.
//!
//! A pattern is the fast path alone. Whatever goes wrong, goes on in one way for all of them: the client asks again, at another server, with the same
//! identity; that server passes it to the stamper; the stamper answers from the table, drives again what it has, or stamps it, by one hop.

mod chain;
mod message_returns_version;
mod one_hop;
mod one_hop_client;
mod tagged;
mod unversioned;
mod version_request;

use crate::copies::Copies;
use crate::message::{Acknowledge, Body};
use crate::operation::Operation;
use mainstay_types::id::ClientId;
use mainstay_types::operation::OperationId;
use mainstay_types::view::MemberId;
use serde::{Deserialize, Serialize};

/// A pattern. The client chooses; every copy does all of them, but for the unversioned one, which needs a region of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Pattern {
    /// The client sends to all; there is no version. The floor for what a version costs, and no more.
    Unversioned,
    /// The client asks the stamper for a version, then sends to all.
    VersionRequest,
    /// The client sends to the stamper, which returns the version; the client sends to the others.
    MessageReturnsVersion,
    /// The stamper sends to the others, they acknowledge to it, it to the client.
    OneHop,
    /// The stamper sends to the others; all acknowledge to the client.
    OneHopClient,
    /// The client sends to all; the stamper tells the others the version.
    Tagged,
    /// From copy to copy; the last one acknowledges to the client.
    Chain,
}

/// What an operation costs when nothing fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Messages, acknowledgements included.
    pub messages: u64,
    /// Messages with the payload.
    pub payloads: u64,
    /// Messages one after another, until the client knows.
    pub hops: u64,
    /// Transfers of the payload among them.
    pub payload_hops: u64,
}

/// What the stamper does once it has given a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamped {
    /// Whom the stamper tells when it has accepted the entry itself.
    pub own: Acknowledge,
    /// It sends the entry to the others, who tell this one.
    pub to_others: Option<Acknowledge>,
    /// It sends the version alone to the others.
    pub version_alone: bool,
    /// It answers the client when the entry is stable.
    pub waits: bool,
}

/// A row of the table of patterns.
pub(crate) trait MessagePattern: Sync {
    /// The cost with so many copies.
    fn cost(&self, copies: u64) -> Cost;

    /// What the client sends first: the operation, whole, to the stamper, where a pattern does not say otherwise.
    fn begin(
        &self,
        pattern: Pattern,
        id: OperationId,
        operation: &Operation,
        _copies: &Copies,
        stamper: MemberId,
    ) -> Vec<(MemberId, Body)> {
        vec![(stamper, Body::Operate { id, retry: false, pattern, operation: operation.clone() })]
    }

    /// What the stamper does once it has given a version.
    fn stamped(&self, client: ClientId) -> Stamped;

    /// Whether the operation comes to the stamper as [`Body::Operate`].
    fn through_operate(&self) -> bool {
        true
    }

    /// What the client sends once it knows the version.
    fn versioned(
        &self,
        _id: OperationId,
        _counter: u64,
        _operation: &Operation,
        _copies: &Copies,
        _stamper: MemberId,
    ) -> Vec<(MemberId, Body)> {
        Vec::new()
    }
}

impl Pattern {
    /// Every one.
    pub const ALL: [Self; 7] = [
        Self::Unversioned,
        Self::VersionRequest,
        Self::MessageReturnsVersion,
        Self::OneHop,
        Self::OneHopClient,
        Self::Tagged,
        Self::Chain,
    ];

    /// Those that keep a version.
    pub const VERSIONED: [Self; 6] = [
        Self::VersionRequest,
        Self::MessageReturnsVersion,
        Self::OneHop,
        Self::OneHopClient,
        Self::Tagged,
        Self::Chain,
    ];

    /// What it costs with so many copies, when nothing fails.
    #[must_use]
    pub fn cost(self, copies: u64) -> Cost {
        self.row().cost(copies)
    }

    /// What it is called on command lines and in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Unversioned => "unversioned",
            Self::VersionRequest => "version-request",
            Self::MessageReturnsVersion => "message-returns-version",
            Self::OneHop => "one-hop",
            Self::OneHopClient => "one-hop-client",
            Self::Tagged => "tagged",
            Self::Chain => "chain",
        }
    }

    /// The one that is called so.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pattern| pattern.name() == name)
    }

    /// Whether clients send operations to copies that do not stamp them, beside a version that comes from the stamper.
    #[must_use]
    pub fn clients_send_payloads(self) -> bool {
        matches!(self, Self::VersionRequest | Self::MessageReturnsVersion | Self::Tagged)
    }

    pub(crate) fn row(self) -> &'static dyn MessagePattern {
        match self {
            Self::Unversioned => &unversioned::Unversioned,
            Self::VersionRequest => &version_request::VersionRequest,
            Self::MessageReturnsVersion => &message_returns_version::MessageReturnsVersion,
            Self::OneHop => &one_hop::OneHop,
            Self::OneHopClient => &one_hop_client::OneHopClient,
            Self::Tagged => &tagged::Tagged,
            Self::Chain => &chain::Chain,
        }
    }
}
