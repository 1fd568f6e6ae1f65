//! A range of numbers on the command line: A..B is from A up to, but not, B.

use crate::verdict::UsageError;
use std::ops::Range;
use std::str::FromStr;

/// Numbers, in order; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interval(pub(crate) Range<u64>);

impl FromStr for Interval {
    type Err = UsageError;

    fn from_str(given: &str) -> Result<Self, UsageError> {
        let wrong =
            || UsageError { explanation: format!("`{given}` is no range of numbers such as 0..1000") };
        let (from, to) = given.split_once("..").ok_or_else(wrong)?;
        let (from, to) = (from.parse().map_err(|_| wrong())?, to.parse().map_err(|_| wrong())?);
        if from < to { Ok(Self(from..to)) } else { Err(wrong()) }
    }
}
