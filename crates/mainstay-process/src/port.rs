//! Output ports: where outputs go, and what can be promised there.

use std::fmt;

/// What the receiver behind a port is able to do, hence what is guaranteed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guarantee {
    /// The receiver drops a key it has seen: sent again after a crash, takes effect once.
    Deduplicated,
    /// The receiver can be asked whether it has a key: asked before sending again, takes effect once.
    Asked,
    /// The receiver can do neither, and doing it twice is the lesser evil: sent again after a crash.
    AtLeastOnce,
    /// The receiver can do neither, and not doing it is the lesser evil: never sent again; after a crash it is listed in
    /// doubt until a person resolves it.
    AtMostOnce,
}

impl fmt::Display for Guarantee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deduplicated => "deduplicated",
            Self::Asked => "asked",
            Self::AtLeastOnce => "at-least-once",
            Self::AtMostOnce => "at-most-once",
        })
    }
}

/// A declared port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The name that the handler sends to; stable across versions.
    pub name: String,
    /// What is guaranteed there.
    pub guarantee: Guarantee,
    /// Whether each output there is one line, to which the port adds the line break: none may contain one. Lines are written in order, and none is
    /// withdrawn ([`crate::effect::Effect::Withdraw`]).
    pub lines: bool,
}

/// The place of a port among the declared ones, in this life of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortIndex(pub usize);

/// How far an output is.
///
/// ```text
///             the delivery is stable        (at most once: intention durable)      the receiver answered
///   Prepared ───────────────────────> Stable ───────────────────> Released ───────────────────────> (acknowledged, forgotten)
///                                                                    │ crash, at-most-once port
///                                                                    └──────> InDoubt ── a person resolves it ──> …
/// ```
///
/// A person may also give up a released one that does not get through, or say that it has arrived, but for lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OutputState {
    /// Its delivery is not stable yet.
    Prepared,
    /// Its delivery is stable; it waits for its intention to be durable (at-most-once ports only).
    Stable,
    /// It has left, or may have.
    Released,
    /// It may or may not have taken effect, and must not be sent again by itself.
    InDoubt,
}
