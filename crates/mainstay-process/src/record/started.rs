//! Kind 16: a life of the process began. Handler version (u32), its name, then, to the end of the record, what is known of states
//! that other nodes lost, in the encoding of the logging policy.

use super::RecordError;
use mainstay_journal::record::Kind;
use mainstay_types::codec::{Reader, put_bytes};

/// This record's kind.
pub const KIND: Kind = Kind(16);

/// Which handler makes the deliveries that follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// The handler's version.
    pub version: u32,
    /// The handler's name.
    pub name: String,
    /// What is known of states that other nodes lost; empty for a process that stands alone.
    pub losses: Vec<u8>,
}

impl Started {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.version.to_le_bytes().to_vec();
        put_bytes(&mut out, self.name.as_bytes());
        out.extend_from_slice(&self.losses);
        out
    }

    /// Reads the record.
    ///
    /// # Errors
    /// [`RecordError`] when the bytes are not such a record.
    pub fn decode(payload: &[u8]) -> Result<Self, RecordError> {
        let mut reader = Reader::new(payload);
        let version = reader.u32()?;
        let name =
            std::str::from_utf8(reader.bytes()?).map_err(|_| RecordError::NotText { field: "name" })?;
        Ok(Self { version, name: name.to_owned(), losses: reader.rest().to_vec() })
    }
}
