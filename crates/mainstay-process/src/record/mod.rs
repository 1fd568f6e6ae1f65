//! What a process writes into the journal: one file per kind of record; the listing is the schema.
//!
//! | kind | record | a delivery? |
//! |---|---|---|
//! | 16 | [`started`] | no |
//! | 17 | [`request`] | yes |
//! | 18 | [`timer`] | yes |
//! | 19 | [`settled`] | yes |
//! | 20 | [`registered`] | yes |
//! | 21 | [`resolved`] | yes |
//! | 22 | [`intended`] | no |
//! | 23 | [`quarantined`] | no |
//! | 24 | [`message`] | yes |
//! | 25 | [`rolled_back`] | no |
//! | 26 | [`recalled`] | yes |
//! | 27 | [`marked`] | no |
//! | 28 | [`orphaned`] | no |
//! | 29 | [`stated`] | no |
//!
//! A delivery begins with a [`prefix::Prefix`]. All numbers are little-endian.

pub mod delivery;
pub mod intended;
pub mod marked;
pub mod message;
pub mod orphaned;
pub mod prefix;
pub mod quarantined;
pub mod recalled;
pub mod registered;
pub mod request;
pub mod resolved;
pub mod rolled_back;
pub mod settled;
pub mod started;
pub mod stated;
pub mod timer;

use mainstay_types::codec::Truncated;

/// A record's bytes are not what its kind says. The journal's checksum held, so another program (or a newer version of
/// this one) wrote it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// It ends too early.
    #[error("the record is too short: {0}")]
    Truncated(#[from] Truncated),
    /// A field has a value that this version does not know.
    #[error("field `{field}` has the unknown value {value}")]
    Unknown {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A text field is not UTF-8.
    #[error("field `{field}` is not UTF-8")]
    NotText {
        /// The field.
        field: &'static str,
    },
    /// A field is not in its encoding.
    #[error("field `{field}` cannot be read")]
    Unreadable {
        /// The field.
        field: &'static str,
    },
    /// The kind is not one of this process's.
    #[error("records of kind {kind} are not known to this version")]
    UnknownKind {
        /// The kind.
        kind: u16,
    },
}
