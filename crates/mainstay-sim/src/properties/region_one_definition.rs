//! A region is the same at all members of a view, and becomes what somebody asked for, with a view, or stays what it was.

use super::{Property, Violation};
use mainstay_region::patterns::Pattern;
use mainstay_replica::definition::{Definition, RegionId};
use mainstay_types::view::ViewId;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) const SOURCE: &str = "a configuration changes at a point that all agree on: Lamport, Malkhi and Zhou 2009; docs/replica.md, another pattern";

/// What regions are, by what their views began with.
pub(crate) struct Definitions {
    views: BTreeMap<(RegionId, ViewId), Definition>,
    /// Patterns that were asked for.
    asked: BTreeSet<(RegionId, Pattern)>,
}

impl Definitions {
    /// Of a new group.
    pub(crate) fn of(regions: &[Definition]) -> Self {
        let first = (1..).map(|number| (RegionId(number), ViewId::NONE.next()));
        Self { views: first.zip(regions.iter().cloned()).collect(), asked: BTreeSet::new() }
    }

    /// Somebody asks for another pattern.
    pub(crate) fn asks(&mut self, region: RegionId, pattern: Pattern) {
        self.asked.insert((region, pattern));
    }

    /// A view was decided. Returns whether it changes the pattern.
    pub(crate) fn decided(
        &mut self,
        region: RegionId,
        view: ViewId,
        definition: Definition,
    ) -> Result<bool, Violation> {
        let before = self.views.range(..(region, view)).next_back().filter(|((of, _), _)| *of == region);
        let before = before.map_or_else(|| definition.clone(), |(_, before)| before.clone());
        let changed = before.pattern != definition.pattern;
        let wanted = !changed || self.asked.contains(&(region, definition.pattern));
        let alike = Definition { pattern: before.pattern, ..definition.clone() } == before;
        if !wanted || !alike {
            let what =
                format!("{region} is {definition:?} in view {view}, was {before:?}, and nobody asked for it");
            return Err(Violation::new(Property::RegionOneDefinition, what));
        }
        self.views.insert((region, view), definition);
        Ok(changed)
    }

    /// A copy serves a view as this.
    pub(crate) fn served(
        &self,
        region: RegionId,
        view: ViewId,
        definition: &Definition,
    ) -> Result<(), Violation> {
        match self.views.get(&(region, view)) {
            Some(agreed) if agreed != definition => {
                let what =
                    format!("{region} is {agreed:?} in view {view}, and a copy serves it as {definition:?}");
                Err(Violation::new(Property::RegionOneDefinition, what))
            }
            _ => Ok(()),
        }
    }

    /// Who asked is told that a view has it.
    pub(crate) fn told(&self, region: RegionId, view: ViewId, pattern: Pattern) -> Result<(), Violation> {
        match self.views.get(&(region, view)) {
            Some(agreed) if agreed.pattern != pattern => {
                let what =
                    format!("{region} is said to be {} in view {view}, and is {agreed:?}", pattern.name());
                Err(Violation::new(Property::RegionOneDefinition, what))
            }
            // Who is alone tells nobody of its view.
            _ => Ok(()),
        }
    }
}
