//! Kind 21: a person decided about an output. Prefix, output number (u64), resolution (u8).

use super::RecordError;
use crate::event::Resolution;
use mainstay_journal::record::Kind;
use mainstay_types::codec::Reader;
use mainstay_types::id::OutputId;

/// This record's kind.
pub const KIND: Kind = Kind(21);

pub(crate) fn put(output: OutputId, resolution: Resolution, out: &mut Vec<u8>) {
    out.extend_from_slice(&output.0.to_le_bytes());
    out.push(match resolution {
        Resolution::Delivered => 0,
        Resolution::SendAgain => 1,
        Resolution::Abandon => 2,
    });
}

pub(crate) fn take(from: &mut Reader<'_>) -> Result<(OutputId, Resolution), RecordError> {
    let output = OutputId(from.u64()?);
    let resolution = match from.u8()? {
        0 => Resolution::Delivered,
        1 => Resolution::SendAgain,
        2 => Resolution::Abandon,
        value => {
            return Err(RecordError::Unknown { field: "resolution", value: u64::from(value) });
        }
    };
    Ok((output, resolution))
}
