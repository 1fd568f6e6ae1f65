//! What a region refuses its clients while nobody offers a role that it requires.
//!
//! It is refused where it comes in, by the view that this node is in. Members take nothing of each other from another view, so that what one
//! has let in is done in a view that offers the role, or not at all.

use mainstay_group::roles::Restriction;
use mainstay_region::message::{Body, Query, Refusal};
use mainstay_region::operation::Operation;

/// What a client is answered instead; `None`: it is not refused. A version may be asked for: nothing is written by it.
pub(crate) fn refusal(body: &Body, restriction: &Restriction, own_keys: Option<&[u8]>) -> Option<Body> {
    let own = |key: &[u8]| own_keys.is_some_and(|own_keys| key.starts_with(own_keys));
    match body {
        Body::Operate { id, operation, .. }
        | Body::Payload { id, operation, .. }
        | Body::Tagged { id, operation }
        | Body::Unversioned { id, operation } => {
            let counts = matches!(operation, Operation::CompareAndSet { key, .. } if own(key));
            (!counts).then_some(Body::Refused { id: *id, refusal: Refusal::RoleMissing })
        }
        Body::Read { request, query, .. } if restriction.refuses_reads() => {
            let counts = matches!(query, Query::Get { key } if own(key));
            (!counts).then_some(Body::Answer { request: *request, found: Err(Refusal::RoleMissing) })
        }
        _ => None,
    }
}
