//! What a region is: its name and settings. Agreed when the group begins, and carried in the cut of every view since, so that a node that
//! joins needs to be told nothing.

use mainstay_group::roles::Requirement;
use mainstay_region::limits::{Acknowledgement, Config, Limits, Times};
use mainstay_region::patterns::Pattern;
use mainstay_types::level::Level;
use mainstay_types::rules::Rules;
use mainstay_types::view::ROLES_MAX;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most regions of a group.
pub const REGIONS_MAX: usize = 64;

/// Longest name of a region, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Most shards of a region.
pub const SHARDS_MAX: u16 = 1024;

/// The number of a region in its group, from 1 in the order in which they were defined: what messages and records name. Never given twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RegionId(pub u16);

impl fmt::Display for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// A region. The same at every node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Definition {
    /// Its name: at most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    /// Shards; a key's shard follows from its hash. Never changed.
    pub shards: u16,
    /// Who must have a write before it counts: every member of the view, or more than half of its votes.
    pub acknowledged_by_all: bool,
    /// How clients send first attempts, unless they choose otherwise.
    pub pattern: Pattern,
    /// What a copy must have survived before it says that it has a write.
    pub level: Level,
    /// The roles that it requires members to offer, and what happens while one is missing.
    pub requirement: Requirement,
}

impl Definition {
    /// A region with the defaults: 16 shards, acknowledged by a majority, by one hop, on disk.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            shards: 16,
            acknowledged_by_all: false,
            pattern: Pattern::OneHop,
            level: Level::Disk,
            requirement: Requirement::default(),
        }
    }

    /// Who must have a write.
    #[must_use]
    pub fn acknowledgement(&self) -> Acknowledgement {
        if self.acknowledged_by_all { Acknowledgement::All } else { Acknowledgement::Majority }
    }

    /// What its copies are set up with.
    #[must_use]
    pub fn config(&self, limits: Limits, times: Times, rules: Rules) -> Config {
        Config {
            shards: self.shards,
            acknowledgement: self.acknowledgement(),
            payloads_from_clients: self.pattern.clients_send_payloads(),
            unversioned: self.pattern == Pattern::Unversioned,
            limits,
            times,
            rules,
        }
    }

    pub(crate) fn check(&self) -> Result<(), DefinitionError> {
        let name = || self.name.clone();
        if self.name.is_empty()
            || self.name.len() > NAME_BYTES_MAX
            || self.name.chars().any(|char| char.is_control() || char.is_whitespace())
        {
            return Err(DefinitionError::Name { name: name() });
        }
        if self.shards == 0 || self.shards > SHARDS_MAX {
            return Err(DefinitionError::Shards { name: name(), shards: self.shards });
        }
        if self.requirement.roles.len() > ROLES_MAX {
            return Err(DefinitionError::Roles { name: name(), roles: self.requirement.roles.len() });
        }
        Ok(())
    }
}

/// Regions that cannot be. Nothing was begun.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DefinitionError {
    /// A name is empty, too long, or has spaces or control characters in it.
    #[error("`{name}` is no name of a region: 1 to {NAME_BYTES_MAX} bytes, without spaces")]
    Name {
        /// The name.
        name: String,
    },
    /// No shard, or too many.
    #[error("region `{name}` has {shards} shards; 1 to {SHARDS_MAX} are possible")]
    Shards {
        /// The region's name.
        name: String,
        /// Shards.
        shards: u16,
    },
    /// Too many roles.
    #[error("region `{name}` requires {roles} roles; {ROLES_MAX} are possible")]
    Roles {
        /// The region's name.
        name: String,
        /// How many.
        roles: usize,
    },
    /// Two regions have one name.
    #[error("two regions are named `{name}`")]
    Twice {
        /// The name.
        name: String,
    },
    /// Too many.
    #[error("{regions} regions are defined; {REGIONS_MAX} are possible")]
    TooMany {
        /// How many.
        regions: usize,
    },
}

/// Numbers the regions of a new group.
///
/// # Errors
/// [`DefinitionError`].
pub(crate) fn numbered(definitions: &[Definition]) -> Result<Vec<(RegionId, Definition)>, DefinitionError> {
    if definitions.len() > REGIONS_MAX {
        return Err(DefinitionError::TooMany { regions: definitions.len() });
    }
    for (place, definition) in definitions.iter().enumerate() {
        definition.check()?;
        if definitions[..place].iter().any(|other| other.name == definition.name) {
            return Err(DefinitionError::Twice { name: definition.name.clone() });
        }
    }
    Ok((1..).map(RegionId).zip(definitions.iter().cloned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_numbered_from_one_and_those_that_cannot_be_are_refused() {
        let numbered_names = numbered(&[Definition::named("a"), Definition::named("b")]);
        let ids: Vec<RegionId> = numbered_names.expect("they can be").iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [RegionId(1), RegionId(2)]);
        let twice = [Definition::named("a"), Definition::named("a")];
        assert_eq!(numbered(&twice), Err(DefinitionError::Twice { name: "a".to_owned() }));
        let spaced = [Definition::named("a b")];
        assert_eq!(numbered(&spaced), Err(DefinitionError::Name { name: "a b".to_owned() }));
        let none = [Definition { shards: 0, ..Definition::named("a") }];
        assert_eq!(numbered(&none), Err(DefinitionError::Shards { name: "a".to_owned(), shards: 0 }));
    }
}
