//! What two nodes tell each other before the first frame, byte for byte as in `docs/transport.md`. Pure functions.
//!
//! ```text
//!   preamble, 40 bytes                                              verdict, 4 bytes and a text
//!   0 magic "MSPEER" | 6 version u16 | 8 cluster [16] | 24 from u32   0 code u16 | 2 length u16 | 4 text
//!   28 to u32 | 32 frame_bytes_max u32 | 36 heartbeat_ms u32
//! ```

use crate::peers::settings::ClusterId;
use mainstay_types::codec::{Reader, Truncated};
use mainstay_types::id::NodeId;

/// The version of this transport. 1: the first.
pub const TRANSPORT_VERSION: u16 = 1;

/// What a connection between nodes begins with.
pub const MAGIC: [u8; 6] = *b"MSPEER";

/// Bytes of magic and version, which stay where they are in every version.
pub const HEAD_BYTES: usize = 8;

/// Bytes of a preamble of this version.
pub const PREAMBLE_BYTES: usize = 40;

/// Longest text of a refusal, in bytes.
pub const REFUSAL_TEXT_BYTES_MAX: usize = 512;

/// Bytes of a verdict before its text; they and the text stay as they are in every version.
pub const VERDICT_HEAD_BYTES: usize = 4;

/// What a node says of itself and of whom it means to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preamble {
    /// The cluster that the sender belongs to.
    pub cluster: ClusterId,
    /// Who sends this.
    pub from: NodeId,
    /// Whom it takes the receiver for.
    pub to: NodeId,
    /// The longest frame that it takes, in bytes.
    pub frame_bytes_max: u32,
    /// How often it sends something at least, in milliseconds.
    pub heartbeat_ms: u32,
}

/// Bytes are no preamble that this node can read. Nothing follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreambleError {
    /// It ended early.
    #[error("a preamble broke off: {0}")]
    Truncated(#[from] Truncated),
    /// Whoever speaks is no node.
    #[error("no node speaks there: it begins with {begins_with:02x?}{}", hint(*begins_with))]
    Foreign {
        /// Its first bytes.
        begins_with: [u8; 6],
    },
    /// A node of another version.
    #[error(
        "that node speaks version {theirs} of the transport, this one {TRANSPORT_VERSION}: run the same release on both"
    )]
    Version {
        /// Its version.
        theirs: u16,
    },
}

impl Preamble {
    /// The bytes on the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        bytes[..6].copy_from_slice(&MAGIC);
        bytes[6..8].copy_from_slice(&TRANSPORT_VERSION.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.cluster.0);
        bytes[24..28].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.to.0.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.frame_bytes_max.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.heartbeat_ms.to_le_bytes());
        bytes
    }

    /// Checks the magic, the first bytes.
    ///
    /// # Errors
    /// [`PreambleError`].
    pub fn check_magic(bytes: &[u8]) -> Result<(), PreambleError> {
        let begins_with = Reader::new(bytes).take(MAGIC.len())?.try_into().expect("so many bytes were taken");
        if begins_with == MAGIC { Ok(()) } else { Err(PreambleError::Foreign { begins_with }) }
    }

    /// Checks magic and version, the first [`HEAD_BYTES`].
    ///
    /// # Errors
    /// [`PreambleError`].
    pub fn check_head(bytes: &[u8]) -> Result<(), PreambleError> {
        Self::check_magic(bytes)?;
        match Reader::new(&bytes[MAGIC.len()..]).u16()? {
            TRANSPORT_VERSION => Ok(()),
            theirs => Err(PreambleError::Version { theirs }),
        }
    }

    /// Reads the bytes on the wire.
    ///
    /// # Errors
    /// [`PreambleError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, PreambleError> {
        Self::check_head(bytes)?;
        let mut reader = Reader::new(bytes);
        reader.take(HEAD_BYTES)?;
        Ok(Self {
            cluster: ClusterId(reader.take(16)?.try_into().expect("sixteen bytes were taken")),
            from: NodeId(reader.u32()?),
            to: NodeId(reader.u32()?),
            frame_bytes_max: reader.u32()?,
            heartbeat_ms: reader.u32()?,
        })
    }
}

fn hint(begins_with: [u8; 6]) -> &'static str {
    match begins_with {
        // Record types of TLS: alert, handshake.
        [0x15 | 0x16, 3, ..] => ", which is TLS: give this node its certificate, or use plain text on both",
        _ => "",
    }
}

/// Why a node does not talk to another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The other speaks another version.
    #[error(
        "the other speaks version {theirs} of the transport, this node {TRANSPORT_VERSION}: run the same release on both"
    )]
    Version {
        /// Its version.
        theirs: u16,
    },
    /// It belongs to another cluster.
    #[error("the other belongs to cluster {theirs}, this node to {ours}: correct its cluster or the address")]
    Cluster {
        /// Its cluster.
        theirs: ClusterId,
        /// This node's.
        ours: ClusterId,
    },
    /// It is not in the list of nodes.
    #[error("{node} is not in this node's list: give both nodes the same list")]
    UnknownNode {
        /// Whom it says it is.
        node: NodeId,
    },
    /// It says that it is this very node.
    #[error("{node} reached itself, or two nodes run under its number: give each its own")]
    Itself {
        /// This node.
        node: NodeId,
    },
    /// It means somebody else.
    #[error("this is {ours}, {meant} was meant: correct the address")]
    OtherNode {
        /// Whom it means, or whom this node means.
        meant: NodeId,
        /// Who is there.
        ours: NodeId,
    },
    /// The lower number dials; this one is higher.
    #[error("{node} dialled a lower one: the lower of two numbers dials, so the lists of the two differ")]
    Direction {
        /// Who dialled.
        node: NodeId,
    },
    /// Its certificate is somebody else's.
    #[error("the certificate is not the one of `{name}`: make one with `mainstay cert node DIR {name}`")]
    Certificate {
        /// The name that the list has for it.
        name: String,
    },
    /// It sends too seldom to be told from a dead one.
    #[error(
        "heartbeats every {theirs_ms} ms, and after {silence_ms} ms of silence this node hangs up: use the same settings on both"
    )]
    Heartbeat {
        /// Its interval in milliseconds.
        theirs_ms: u32,
        /// This node's patience in milliseconds.
        silence_ms: u64,
    },
}

impl Refusal {
    /// Its code on the wire.
    #[must_use]
    pub fn code(&self) -> u16 {
        match self {
            Self::Version { .. } => 1,
            Self::Cluster { .. } => 2,
            Self::UnknownNode { .. } => 3,
            Self::Itself { .. } => 4,
            Self::OtherNode { .. } => 5,
            Self::Direction { .. } => 6,
            Self::Certificate { .. } => 7,
            Self::Heartbeat { .. } => 8,
        }
    }
}

/// What a node answers to a preamble.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Frames follow.
    Welcome,
    /// Nothing follows.
    Refused {
        /// [`Refusal::code`], perhaps one that this version does not know.
        code: u16,
        /// Why, in words, without control characters.
        text: String,
    },
}

impl Verdict {
    /// The bytes on the wire. A text is cut to [`REFUSAL_TEXT_BYTES_MAX`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (code, text) = match self {
            Self::Welcome => (0, ""),
            Self::Refused { code, text } => {
                (*code, &text[..text.floor_char_boundary(REFUSAL_TEXT_BYTES_MAX)])
            }
        };
        let length = u16::try_from(text.len()).expect("the text was cut");
        let mut bytes = Vec::with_capacity(VERDICT_HEAD_BYTES + text.len());
        bytes.extend_from_slice(&code.to_le_bytes());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(text.as_bytes());
        bytes
    }

    /// How many bytes of text follow after this head; `None` if it announces more than there can be.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn text_bytes(head: &[u8]) -> Result<Option<usize>, Truncated> {
        let mut reader = Reader::new(head);
        reader.u16()?;
        let length = usize::from(reader.u16()?);
        Ok((length <= REFUSAL_TEXT_BYTES_MAX).then_some(length))
    }

    /// Reads the bytes on the wire.
    ///
    /// # Errors
    /// [`Truncated`].
    pub fn decode(bytes: &[u8]) -> Result<Self, Truncated> {
        let mut reader = Reader::new(bytes);
        let code = reader.u16()?;
        let length = reader.u16()?;
        let text = String::from_utf8_lossy(reader.take(usize::from(length))?);
        Ok(match code {
            0 => Self::Welcome,
            code => Self::Refused { code, text: text.replace(char::is_control, " ") },
        })
    }
}

impl From<&Refusal> for Verdict {
    fn from(refusal: &Refusal) -> Self {
        Self::Refused { code: refusal.code(), text: refusal.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREAMBLE: Preamble = Preamble {
        cluster: ClusterId(*b"0123456789abcdef"),
        from: NodeId(1),
        to: NodeId(0x0203),
        frame_bytes_max: 0x0100_0000,
        heartbeat_ms: 1000,
    };

    #[test]
    fn the_bytes_are_those_of_the_document() {
        let bytes = PREAMBLE.encode();
        assert_eq!(&bytes[..8], b"MSPEER\x01\x00");
        assert_eq!(&bytes[8..24], b"0123456789abcdef");
        assert_eq!(bytes[24..], [1, 0, 0, 0, 3, 2, 0, 0, 0, 0, 0, 1, 0xe8, 3, 0, 0]);
        assert_eq!(Preamble::decode(&bytes), Ok(PREAMBLE));
        let refused = Verdict::Refused { code: 258, text: "no".to_owned() };
        assert_eq!(refused.encode(), b"\x02\x01\x02\x00no");
        assert_eq!(Verdict::decode(&refused.encode()), Ok(refused));
        assert_eq!(Verdict::Welcome.encode(), [0; 4]);
    }

    #[test]
    fn a_preamble_cut_anywhere_is_refused() {
        let bytes = PREAMBLE.encode();
        for end in 0..PREAMBLE_BYTES {
            assert!(matches!(Preamble::decode(&bytes[..end]), Err(PreambleError::Truncated(_))), "{end}");
        }
    }

    #[test]
    fn strangers_are_told_from_nodes_of_another_version() {
        let mut bytes = PREAMBLE.encode();
        bytes[6] = 9;
        assert_eq!(Preamble::decode(&bytes), Err(PreambleError::Version { theirs: 9 }));
        let stranger = Preamble::decode(b"GET / HTTP/1.1\r\n").expect_err("that is HTTP");
        assert_eq!(stranger, PreambleError::Foreign { begins_with: *b"GET / " });
        let tls = Preamble::decode(&[0x16, 3, 1, 2, 0, 1, 0, 1]).expect_err("that is TLS");
        assert!(tls.to_string().contains("which is TLS"), "{tls}");
    }

    #[test]
    fn a_refusal_says_nothing_to_a_terminal_and_is_never_too_long() {
        let text = "é\u{1b}[2J".repeat(REFUSAL_TEXT_BYTES_MAX);
        let bytes = Verdict::Refused { code: 3, text }.encode();
        assert!(Verdict::text_bytes(&bytes).is_ok_and(|length| length.is_some()));
        let Ok(Verdict::Refused { code: 3, text }) = Verdict::decode(&bytes) else {
            panic!("it was refused")
        };
        assert!(!text.contains('\u{1b}'));
        assert_eq!(Verdict::text_bytes(&[1, 0, 1, 2]), Ok(None), "513 bytes are announced");
    }
}
