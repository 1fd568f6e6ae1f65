//! What several regions bring to a view change, as one: reports, and cuts with what the regions are. Opaque to the group.

use crate::definition::{Definition, RegionId};
use mainstay_types::id::StoreId;
use mainstay_types::view::{Member, MemberId, View};
use serde::{Deserialize, Serialize};

/// What one store's regions hold.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Reports {
    /// Each region's.
    pub regions: Vec<RegionReport>,
}

/// What one copy holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionReport {
    /// The region.
    pub region: RegionId,
    /// Whether it is a full copy of the view that ends, by which others can be filled.
    pub full: bool,
    /// The region's own report.
    pub bytes: Vec<u8>,
}

/// What a view begins with.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Cuts {
    /// Each region's.
    pub regions: Vec<RegionCut>,
    /// The stores whose copies of all regions were full when the view before ended.
    pub full: Vec<StoreId>,
}

impl Cuts {
    /// Who can fill the copies of `store` in the view: those who had all when the view before ended; where none of them is in it, whoever has it
    /// meanwhile.
    pub(crate) fn sources(&self, view: &View, store: StoreId) -> Vec<MemberId> {
        let others = || view.members.iter().filter(|member| member.joiner.store != store);
        let had_all = others().filter(|member| self.full.contains(&member.joiner.store));
        let sources: Vec<MemberId> = had_all.map(Member::id).collect();
        if sources.is_empty() { others().map(Member::id).collect() } else { sources }
    }
}

/// What one region begins the view with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegionCut {
    /// The region.
    pub region: RegionId,
    /// What it is.
    pub definition: Definition,
    /// The region's own cut.
    pub bytes: Vec<u8>,
}

/// Bytes that are no reports or no cuts of this version. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "what the regions of another node said cannot be read: run the same version of mainstay on all nodes"
)]
pub struct Unreadable;

macro_rules! packed {
    ($($name:ident),*) => {$(
        impl $name {
            /// Its bytes (postcard).
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                postcard::to_allocvec(self).expect("it can be written to memory")
            }

            /// Reads what [`Self::encode`] wrote.
            ///
            /// # Errors
            /// [`Unreadable`], also for bytes that go on behind the end.
            pub fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
                match postcard::take_from_bytes(bytes) {
                    Ok((read, [])) => Ok(read),
                    _ => Err(Unreadable),
                }
            }
        }
    )*};
}

packed!(Reports, Cuts);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_read_back_and_what_goes_on_behind_them_is_refused() {
        let region =
            RegionCut { region: RegionId(1), definition: Definition::named("orders"), bytes: vec![1, 2, 3] };
        let cuts = Cuts { regions: vec![region], full: vec![StoreId([7; 16])] };
        let mut bytes = cuts.encode();
        assert_eq!(Cuts::decode(&bytes), Ok(cuts));
        bytes.push(0);
        assert_eq!(Cuts::decode(&bytes), Err(Unreadable));
        assert_eq!(Reports::decode(&[9]), Err(Unreadable));
    }
}
