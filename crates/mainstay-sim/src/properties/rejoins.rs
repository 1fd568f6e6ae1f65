//! Once the network is whole, whoever was cut off, expelled or down is in the view again, by itself.

use super::{Property, Violation};

pub(crate) const SOURCE: &str = "liveness under fairness: Alpern and Schneider 1985; foca issue 15";

/// After so many seconds these are not in the view that is served.
pub(crate) fn violated(seconds: u64, outside: &[String]) -> Violation {
    let what =
        format!("{seconds} s after all faults ended these do not serve in one view: {}", outside.join("; "));
    Violation::new(Property::Rejoins, what)
}
