//! What a campaign must find where a fault is planted.

use mainstay::testing::{CampaignFailure, CampaignReport};

/// The failure that a campaign must find.
pub(crate) fn found(report: &CampaignReport) -> CampaignFailure {
    report.failure.clone().unwrap_or_else(|| panic!("nothing is found: {report}"))
}

/// The same, of one property and in a history that a person reads in a minute.
pub(crate) fn found_in_short(report: &CampaignReport, property: &str, crashes_max: u64) -> CampaignFailure {
    let failure = found(report);
    assert_eq!(failure.property, property, "{failure}");
    let (requests, crashes) = failure.shortest;
    assert!(requests <= 6 && crashes <= crashes_max, "{failure}");
    assert!(failure.history.len() <= 30, "{failure}");
    failure
}
