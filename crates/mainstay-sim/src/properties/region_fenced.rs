//! A copy accepts nothing of a view that is not its own, and nothing in its view any more once it has reported for its end.

use super::{Property, Violation};
use mainstay_types::operation::Version;
use mainstay_types::view::ViewId;

pub(crate) const SOURCE: &str = "fencing by view, the wedge: Birman and Joseph 1987; GEODE-8901";

/// Fails if what was accepted as `version` was said in another view (unless it belongs to an image), or came behind the report.
pub(crate) fn check(
    copy: u8,
    version: Version,
    said_in: Option<(ViewId, bool)>,
    reported: Option<ViewId>,
) -> Result<(), Violation> {
    if let Some((view, false)) = said_in
        && view != version.view
    {
        let what = format!("n{copy} accepted {version} of a message of {view}");
        return Err(Violation::new(Property::RegionFenced, what));
    }
    if reported == Some(version.view) {
        let what = format!("n{copy} accepted {version} after it had reported for the end of that view");
        return Err(Violation::new(Property::RegionFenced, what));
    }
    Ok(())
}
