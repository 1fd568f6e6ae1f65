//! Kind 19: the fate of an output is known. Prefix, output number (u64), outcome tag (u8), status (u16).

use super::RecordError;
use crate::handler::Outcome;
use mainstay_journal::record::Kind;
use mainstay_types::codec::Reader;
use mainstay_types::id::OutputId;

/// This record's kind.
pub const KIND: Kind = Kind(19);

const TAG_DELIVERED: u8 = 0;
const TAG_REFUSED: u8 = 1;
const TAG_ABANDONED: u8 = 2;

pub(crate) fn put(output: OutputId, outcome: &Outcome, out: &mut Vec<u8>) {
    let (tag, status) = match outcome {
        Outcome::Delivered { status } => (TAG_DELIVERED, *status),
        Outcome::Refused { status } => (TAG_REFUSED, *status),
        Outcome::Abandoned => (TAG_ABANDONED, 0),
    };
    out.extend_from_slice(&output.0.to_le_bytes());
    out.push(tag);
    out.extend_from_slice(&status.to_le_bytes());
}

pub(crate) fn take(from: &mut Reader<'_>) -> Result<(OutputId, Outcome), RecordError> {
    let output = OutputId(from.u64()?);
    let tag = from.u8()?;
    let status = from.u16()?;
    let outcome = match tag {
        TAG_DELIVERED => Outcome::Delivered { status },
        TAG_REFUSED => Outcome::Refused { status },
        TAG_ABANDONED => Outcome::Abandoned,
        _ => {
            return Err(RecordError::Unknown { field: "outcome", value: u64::from(tag) });
        }
    };
    Ok((output, outcome))
}
