//! Words of a command, read as numbers, versions, addresses and names.

use super::CommandError;
use crate::gateway::resume::position;
use bytes::Bytes;
use mainstay_types::operation::Version;
use std::net::SocketAddr;

/// Longest name of a connection, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 256;

/// Longest channel or pattern, in bytes: that of the longest key, and more.
pub(super) const CHANNEL_BYTES_MAX: usize = 2 << 10;

pub(super) fn number<T: std::str::FromStr>(word: &Bytes) -> Result<T, CommandError> {
    str::from_utf8(word).ok().and_then(|text| text.parse().ok()).ok_or(CommandError::NoInteger)
}

pub(super) fn integer(word: &Bytes) -> Result<i64, CommandError> {
    number(word)
}

/// Versions of shards: each a word, or several in one with blanks or commas between them, as they are told.
pub(super) fn positions(words: &[Bytes]) -> Result<Vec<(u16, Version)>, CommandError> {
    let mut read = Vec::new();
    for word in words {
        let text = String::from_utf8_lossy(word);
        for given in text.split([' ', ',']).filter(|given| !given.is_empty()) {
            let none = || CommandError::NoPosition { given: given.to_owned() };
            read.push(position(given).ok_or_else(none)?);
        }
    }
    if read.is_empty() { Err(CommandError::Syntax) } else { Ok(read) }
}

pub(super) fn address(word: &Bytes) -> Result<SocketAddr, CommandError> {
    let text = String::from_utf8_lossy(word);
    text.parse().map_err(|_| CommandError::NoAddress { given: text.into_owned() })
}

/// A copy: what it came in is not kept with it.
pub(super) fn connection_name(word: &Bytes) -> Result<Bytes, CommandError> {
    let fits = word.len() <= NAME_BYTES_MAX && word.iter().all(u8::is_ascii_graphic);
    if fits { Ok(Bytes::copy_from_slice(word)) } else { Err(CommandError::Name) }
}

/// Likewise.
pub(super) fn channel(word: &Bytes) -> Result<Bytes, CommandError> {
    let fits = word.len() <= CHANNEL_BYTES_MAX;
    if fits { Ok(Bytes::copy_from_slice(word)) } else { Err(CommandError::Channel) }
}

pub(super) fn channels(words: &[Bytes]) -> Result<Vec<Bytes>, CommandError> {
    words.iter().map(channel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They were kept whatever their length, and with them what they came in.
    #[test]
    fn names_and_channels_are_bounded() {
        let long = |length| Bytes::from(vec![b'n'; length]);
        assert_eq!(connection_name(&long(NAME_BYTES_MAX)), Ok(long(NAME_BYTES_MAX)));
        for refused in [long(NAME_BYTES_MAX + 1), Bytes::from_static(b"a b"), Bytes::from_static(b"a\n")] {
            assert_eq!(connection_name(&refused), Err(CommandError::Name));
        }
        assert_eq!(channels(&[long(CHANNEL_BYTES_MAX)]), Ok(vec![long(CHANNEL_BYTES_MAX)]));
        assert_eq!(channels(&[long(1), long(CHANNEL_BYTES_MAX + 1)]), Err(CommandError::Channel));
    }
}
