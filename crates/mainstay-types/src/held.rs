//! An effect on its way out: what it is, what it waits for, and which delivery made it.

use crate::id::{DeliveryIndex, Incarnation, InstanceId};
use crate::mark::After;

/// Which delivery of which life made an effect, so that a rollback can discard it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Origin {
    /// The instance whose handler ran.
    pub instance: InstanceId,
    /// The life of the process in which it ran.
    pub incarnation: Incarnation,
    /// The delivery that was being handled.
    pub delivery: DeliveryIndex,
}

/// Something that must not leave before what it depends on is safe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held<T> {
    /// What wants to leave.
    pub what: T,
    /// The marks that it waits for.
    pub after: After,
    /// The delivery that made it.
    pub origin: Origin,
}
