//! What is said outside a view changes no promise in it.

use super::{Property, Violation};
use mainstay_group::message::Message;
use mainstay_group::record::Record;

pub(crate) const SOURCE: &str = "virtual synchrony: Birman and Joseph 1987; GEODE-8901, JGRP-1452";

/// `message` came from outside the view that `before` names.
pub(crate) fn check(message: &Message, before: &Record, after: &Record) -> Result<(), Violation> {
    let same = before.view_id() == after.view_id()
        && before.promised == after.promised
        && before.accepted == after.accepted;
    if same {
        return Ok(());
    }
    let what = format!(
        "{} of {} in view {} changed the promises of {} in view {}",
        message.body.name(),
        message.from,
        message.view,
        before.store,
        before.view_id()
    );
    Err(Violation::new(Property::OutsidersUnheard, what))
}
