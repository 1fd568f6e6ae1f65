//! Kind 20: a client gets the next number. Prefix only; the number follows from the order.

use mainstay_journal::record::Kind;

/// This record's kind.
pub const KIND: Kind = Kind(20);
