//! No two lives are ever the same member: not after a crash, not on a used address, not after a total restart.

use super::{Property, Violation};
use mainstay_types::view::{JoinerId, MemberId};

pub(crate) const SOURCE: &str =
    "Schuchardt 2010, JGroups address reuse; foca issues 25, 31 and 32, chitchat issue 94";

/// `first` was `member` once, and now `second` is.
pub(crate) fn check(member: MemberId, first: &JoinerId, second: &JoinerId) -> Result<(), Violation> {
    if first == second {
        return Ok(());
    }
    Err(Violation::new(Property::IdentityOnce, format!("{member} was {first} and is {second}")))
}
