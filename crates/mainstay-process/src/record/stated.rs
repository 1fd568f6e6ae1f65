//! Kind 29: a loss that this node states, in the postcard encoding of [`Loss`]. Every later life that finds the record states it again: the one
//! that wrote it may have ended before anybody heard.

use super::RecordError;
use crate::loss::Loss;
use mainstay_journal::record::Kind;

/// This record's kind.
pub const KIND: Kind = Kind(29);

pub(crate) fn encode(loss: &Loss) -> Vec<u8> {
    postcard::to_allocvec(loss).expect("memory takes all")
}

/// Reads the record.
///
/// # Errors
/// [`RecordError`] when the bytes are not such a record.
pub fn decode(payload: &[u8]) -> Result<Loss, RecordError> {
    match postcard::take_from_bytes(payload) {
        Ok((loss, [])) => Ok(loss),
        Ok(_) | Err(_) => Err(RecordError::Unreadable { field: "loss" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId};

    #[test]
    fn it_reads_back_and_no_truncation_is_accepted() {
        let loss = Loss::Undone {
            life: Incarnation(3),
            kept: DeliveryIndex(7),
            executed: DeliveryIndex(9),
            lost_by: NodeId(2),
            requests: 1,
            outputs: 300,
            named: vec!["key".to_owned()],
        };
        let bytes = encode(&loss);
        assert_eq!(decode(&bytes), Ok(loss));
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "cut at {length}");
        }
        assert!(decode(&[bytes.as_slice(), &[0]].concat()).is_err());
    }
}
