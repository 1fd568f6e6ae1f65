//! How a rank's process ended, as its log says.

use crate::varint::{Bytes, put_signed, put_unsigned};

/// By what a process ended that had the time to say so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// The log does not say: it is of an older version.
    #[default]
    Unknown,
    /// By `exit`, or by the end of `main`, after `MPI_Finalize`.
    Finalized,
    /// By `exit`, or by the end of `main`, without `MPI_Finalize`.
    Exit,
    /// By `MPI_Abort`.
    Abort,
}

impl Cause {
    /// As it stands in a log, and as the shim says it.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Finalized,
            2 => Self::Exit,
            3 => Self::Abort,
            _ => Self::Unknown,
        }
    }
}

/// How a process ended, of the record END.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// By what.
    pub cause: Cause,
    /// The exit status, or the code of `MPI_Abort`, as it was handed over.
    pub status: i32,
    /// The function that it was in, if it was in a call of MPI: MPI itself, or a signal's handler, ended it then.
    pub within: Option<u16>,
}

impl Ending {
    /// What the process's parent gets to see of the status.
    #[must_use]
    pub fn code(&self) -> u8 {
        self.status.to_le_bytes()[0]
    }

    /// Whether another ending is the same to all who look at it. One that is not known is the same as any.
    #[must_use]
    pub fn agrees_with(&self, other: &Self) -> bool {
        let known = self.cause != Cause::Unknown && other.cause != Cause::Unknown;
        !known || (self.cause, self.code()) == (other.cause, other.code())
    }

    /// Whether it ended as a rank should: finalized, with status 0, or in a way that is not known.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        match self.cause {
            Cause::Unknown => true,
            Cause::Finalized => self.code() == 0,
            Cause::Exit | Cause::Abort => false,
        }
    }

    /// In words, without the call that it was in.
    #[must_use]
    pub fn text(&self) -> String {
        match self.cause {
            Cause::Unknown => "ended".to_owned(),
            Cause::Finalized => format!("exit status {}", self.code()),
            Cause::Exit => format!("exit status {} without MPI_Finalize", self.code()),
            Cause::Abort => format!("MPI_Abort with code {}", self.status),
        }
    }

    /// Appends it to the body of a record END.
    pub fn encode(&self, body: &mut Vec<u8>) {
        put_unsigned(body, self.cause as u64);
        put_signed(body, i64::from(self.status));
        put_unsigned(body, self.within.map_or(0, |function| u64::from(function) + 1));
    }

    /// Of the bytes behind the figures of a record END. A log of an older version has none: not known.
    #[must_use]
    pub fn decode(bytes: &mut Bytes<'_>) -> Self {
        let (Some(cause), Some(status), Some(within)) = (bytes.unsigned(), bytes.signed(), bytes.unsigned())
        else {
            return Self::default();
        };
        Self {
            cause: Cause::from_number(cause),
            status: i32::try_from(status).unwrap_or(0),
            within: within.checked_sub(1).and_then(|function| u16::try_from(function).ok()),
        }
    }

    /// Of the body of a record END.
    #[must_use]
    pub fn of_record(body: &[u8]) -> Self {
        let mut bytes = Bytes::new(body);
        // Pages filled, times that no page was free, nanoseconds waited.
        let figures = (0..3).all(|_| bytes.unsigned().is_some());
        if figures { Self::decode(&mut bytes) } else { Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_is_read_as_it_was_written_and_an_older_record_says_nothing() {
        let ending = Ending { cause: Cause::Exit, status: -1, within: Some(0) };
        let mut body = vec![1, 2, 3];
        assert_eq!(Ending::of_record(&body), Ending::default());
        ending.encode(&mut body);
        assert_eq!(Ending::of_record(&body), ending);
        assert_eq!(body, [1, 2, 3, 2, 1, 1]);
        assert_eq!(ending.code(), 255);
    }

    #[test]
    fn endings_agree_by_what_a_parent_sees_of_them() {
        let exit = |status| Ending { cause: Cause::Exit, status, within: None };
        assert!(exit(3).agrees_with(&exit(259)));
        assert!(!exit(3).agrees_with(&exit(0)));
        assert!(!exit(0).agrees_with(&Ending { cause: Cause::Finalized, ..exit(0) }));
        assert!(exit(3).agrees_with(&Ending::default()));
    }
}
