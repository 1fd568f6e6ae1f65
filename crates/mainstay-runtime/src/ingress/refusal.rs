//! Everything that the ingress says instead of the handler's answer: status, code, and what is safe to do. The codes are
//! part of the contract (`docs/http.md`).

use crate::driver::NotTaken;
use crate::ingress::{JSON, MAINSTAY_ERROR, MAINSTAY_NODE, retry_after};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode};
use mainstay_process::blocking::NotBlocked;
use mainstay_process::effect::{Limit, Reply, Unavailable};
use mainstay_types::id::NodeId;
use mainstay_types::snapshot::SnapshotId;

/// Why a request got no answer of the handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Headers { problem: &'static str },
    Utf8 { valid_bytes: usize },
    Json { message: String },
    Unfit { message: String },
    BrokenBody,
    BodyTimeout,
    BodyTooLarge { limit: usize },
    NoSuchPath { addressed: bool },
    Address { problem: &'static str },
    NoSuchType { hosted: Vec<&'static str> },
    OtherNode { node: NodeId },
    NoSuchOutput,
    NoSuchPart,
    NotBlocked { why: NotBlocked },
    NotBlockedFor { snapshot: SnapshotId },
    StandsAlone,
    MethodNotAllowed { allowed: Method },
    StillRunning,
    KeyReused,
    Evicted,
    Connections,
    InFlight,
    Busy { limit: Limit },
    DiskFull,
    Poisoned,
    Stopping,
    Recovering,
    OutcomeUnknown,
}

impl Refusal {
    /// What a reply that is no answer comes to.
    pub(crate) fn of(reply: &Reply) -> Self {
        match reply {
            Reply::StillRunning => Self::StillRunning,
            Reply::KeyReused => Self::KeyReused,
            Reply::Evicted => Self::Evicted,
            Reply::NoSuchOutput => Self::NoSuchOutput,
            Reply::Busy { limit } => Self::Busy { limit: *limit },
            Reply::Unavailable { reason: Unavailable::DiskFull } => Self::DiskFull,
            Reply::Unavailable { reason: Unavailable::Poisoned } => Self::Poisoned,
            Reply::Unavailable { reason: Unavailable::Stopping } => Self::Stopping,
            Reply::Answer { .. } | Reply::Read { .. } | Reply::Registered { .. } | Reply::Resolved => {
                unreachable!("each kind of request has one kind of answer, dealt with before")
            }
        }
    }

    pub(crate) fn of_json(error: &serde_json::Error) -> Self {
        let message = error.to_string();
        if error.is_data() { Self::Unfit { message } } else { Self::Json { message } }
    }

    pub(crate) fn code(&self) -> &'static str {
        self.said().1
    }

    pub(crate) fn body(&self) -> String {
        let (_, code, message) = self.said();
        serde_json::json!({ "error": code, "message": message }).to_string()
    }

    pub(crate) fn response(&self) -> Response<Full<Bytes>> {
        let (status, code, _) = self.said();
        let mut response = Response::new(Full::new(Bytes::from(self.body())));
        *response.status_mut() = StatusCode::from_u16(status).expect("the table has valid statuses");
        response.headers_mut().insert(CONTENT_TYPE, JSON);
        response.headers_mut().insert(MAINSTAY_ERROR, HeaderValue::from_static(code));
        if let Some(seconds) = self.retry_after_seconds() {
            retry_after(&mut response, seconds);
        }
        if let Self::OtherNode { node } = self {
            response.headers_mut().insert(MAINSTAY_NODE, HeaderValue::from(node.0));
        }
        if let Self::MethodNotAllowed { allowed } = self {
            let allowed = HeaderValue::from_str(allowed.as_str()).expect("a method is a token");
            response.headers_mut().insert(ALLOW, allowed);
        }
        response
    }

    fn retry_after_seconds(&self) -> Option<u64> {
        match self {
            Self::StillRunning
            | Self::Connections
            | Self::InFlight
            | Self::Recovering
            | Self::Stopping
            | Self::OutcomeUnknown
            | Self::Busy { limit: Limit::Backlog | Limit::Blocked | Limit::Unkept } => Some(1),
            Self::DiskFull | Self::Busy { limit: Limit::Outputs } => Some(5),
            Self::Busy { limit: Limit::Keys | Limit::Clients } | Self::Poisoned => Some(30),
            _ => None,
        }
    }

    /// Status, code, and a message: what happened, what is safe, what to do.
    fn said(&self) -> (u16, &'static str, String) {
        const NOTHING_DONE: &str = "Nothing was done";
        let fixed = |status, code, message: &str| (status, code, message.to_owned());
        match self {
            Self::Headers { problem } => (
                400,
                "malformed-headers",
                format!("{problem}. {NOTHING_DONE}; correct the headers and send again."),
            ),
            Self::Utf8 { valid_bytes } => (
                400,
                "malformed-utf8",
                format!(
                    "The body is no UTF-8 from byte {valid_bytes} on. {NOTHING_DONE}; correct the body and send again."
                ),
            ),
            Self::Json { message } => (
                400,
                "malformed-json",
                format!("The body is no JSON: {message}. {NOTHING_DONE}; correct the body and send again."),
            ),
            Self::Unfit { message } => (
                400,
                "unfit-body",
                format!(
                    "The body is JSON, but not what this service takes: {message}. {NOTHING_DONE}; correct it and send again."
                ),
            ),
            Self::BrokenBody => {
                (400, "broken-body", format!("The body ended early. {NOTHING_DONE}; send again."))
            }
            Self::BodyTimeout => {
                (408, "body-timeout", format!("The body took too long. {NOTHING_DONE}; send again."))
            }
            Self::BodyTooLarge { limit } => (
                413,
                "body-too-large",
                format!("The body is longer than {limit} bytes. {NOTHING_DONE}; send less at once."),
            ),
            Self::NoSuchPath { addressed } => {
                let instance = if *addressed { "/TYPE/KEY" } else { "" };
                let paths = format!(
                    "/call{instance}, /query{instance}, /clients, /outputs, /health, /status, /losses, /metrics, /checkpoint, /snapshots"
                );
                (404, "no-such-path", format!("There are {paths}. {NOTHING_DONE}."))
            }
            Self::Address { problem } => (
                400,
                "malformed-address",
                format!("{problem}. {NOTHING_DONE}; correct the path and send again."),
            ),
            Self::NoSuchType { hosted } => (
                404,
                "no-such-type",
                format!("There is no such type of instances; there are {hosted:?}. {NOTHING_DONE}."),
            ),
            Self::OtherNode { node } => (
                421,
                "other-node",
                format!(
                    "This instance lives on {node}. {NOTHING_DONE}; send it there: with the same key, or with \
                     a client number that was given there."
                ),
            ),
            Self::NoSuchOutput => (
                404,
                "no-such-output",
                format!(
                    "No such output is in doubt; nor, for `delivered` and `abandon`, released over HTTP. {NOTHING_DONE}; \
                     GET /outputs lists them."
                ),
            ),
            Self::NoSuchPart => (
                404,
                "no-such-part",
                format!("There is no finished part in this snapshot. {NOTHING_DONE}; ask how far it is."),
            ),
            Self::NotBlocked { why } => (
                409,
                "not-blocked",
                format!(
                    "This node does not block for that snapshot now: {why}. {NOTHING_DONE}; begin another one."
                ),
            ),
            Self::NotBlockedFor { snapshot } => (
                409,
                "not-blocked",
                format!(
                    "This node is not blocked for snapshot {snapshot} any more, or its part is not as far yet. {NOTHING_DONE}; look at it."
                ),
            ),
            Self::StandsAlone => (
                404,
                "stands-alone",
                format!(
                    "This service is no node of a cluster: there is nothing to take a snapshot of. {NOTHING_DONE}."
                ),
            ),
            Self::MethodNotAllowed { allowed } => {
                (405, "method-not-allowed", format!("This path takes {allowed} only. {NOTHING_DONE}."))
            }
            Self::StillRunning => fixed(
                409,
                "still-running",
                "The first request with this identity is still being worked on. Send again later: you will get its answer.",
            ),
            Self::KeyReused => fixed(
                422,
                "key-reused",
                "This key was used before with another body. This request was not applied; use a new key for a new request.",
            ),
            Self::Evicted => fixed(
                410,
                "evicted",
                "This identity is older than what the service remembers. The request was not applied now; whether it was \
                 before can no longer be told. Read the state, or register a new client.",
            ),
            Self::Connections => busy("busy-connections", "connections"),
            Self::InFlight => busy("busy-requests", "requests in flight"),
            Self::Busy { limit: Limit::Backlog } => busy("busy-backlog", "requests waiting to be logged"),
            Self::Busy { limit: Limit::Blocked } => {
                busy("busy-blocked", "requests that wait until a blocking snapshot is taken")
            }
            Self::Busy { limit: Limit::Keys } => busy("busy-keys", "unexpired idempotency keys"),
            Self::Busy { limit: Limit::Clients } => busy("busy-clients", "clients or threads of one client"),
            Self::Busy { limit: Limit::Outputs } => {
                busy("busy-outputs", "outputs not acknowledged by their receivers")
            }
            Self::Busy { limit: Limit::OpenRequests } => {
                busy("busy-open-requests", "requests that a later delivery is to answer")
            }
            Self::Busy { limit: Limit::SenderLog } => {
                busy("busy-sender-log", "bytes of messages that another node has not covered")
            }
            Self::Busy { limit: Limit::Unkept } => {
                busy("busy-unkept", "bytes of the log that wait for the region which keeps it")
            }
            Self::DiskFull => fixed(
                503,
                "unavailable-disk-full",
                "The disk is full. Nothing was done, reads go on; make space, and the service goes on by itself.",
            ),
            Self::Poisoned => fixed(
                503,
                "poisoned",
                "A sync of the journal failed, so that what the disk holds is unknown. Whether this request will take effect is \
                 known after a restart of the service; then send it again with the same identity. A snapshot was not begun.",
            ),
            Self::Stopping => fixed(
                503,
                "unavailable-stopping",
                "The service is stopping. Nothing was done; send again when it is back.",
            ),
            Self::Recovering => fixed(
                503,
                "unavailable-recovering",
                "The service is starting, or recovering. Nothing was done; send again.",
            ),
            Self::OutcomeUnknown => fixed(
                503,
                "outcome-unknown",
                "The service gave up its process before it could answer. Send again with the same identity: the request takes \
                 effect once.",
            ),
        }
    }
}

fn busy(code: &'static str, of_what: &str) -> (u16, &'static str, String) {
    (503, code, format!("The limit of {of_what} is reached. Nothing was done; send again later."))
}

impl From<NotTaken> for Refusal {
    fn from(not_taken: NotTaken) -> Self {
        match not_taken {
            NotTaken::Recovering => Self::Recovering,
            NotTaken::Ended => Self::Stopping,
            NotTaken::InFlight => Self::InFlight,
        }
    }
}
