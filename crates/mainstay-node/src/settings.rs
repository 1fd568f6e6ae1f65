//! What a node is told when it starts.

use crate::gateway::GatewayTimes;
use mainstay_group::limits::Timing;
use mainstay_region::limits::Acknowledgement;
use mainstay_region::patterns::Pattern;
use mainstay_replica::definition::Definition;
use mainstay_tls::TlsFiles;
use mainstay_types::level::Level;
use mainstay_types::view::ROLE_BYTES_MAX;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How a node comes into its group.
#[derive(Clone, Debug)]
pub enum Entry {
    /// It begins a new group with these regions: said once, by a person.
    Begin(Vec<Definition>),
    /// It asks at these addresses, and at those of the last view that its store knows.
    Join(Vec<SocketAddr>),
}

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its directory.
    pub directory: PathBuf,
    /// Where other nodes reach it; port 0 lets the operating system choose.
    pub listen: SocketAddr,
    /// Where clients reach it, by the Redis protocol.
    pub resp: SocketAddr,
    /// How it comes into its group.
    pub entry: Entry,
    /// How long everything in the group takes: the same on all nodes.
    pub timing: Timing,
    /// How long things are waited for on behalf of clients.
    pub gateway: GatewayTimes,
    /// The roles that it offers to regions that require them.
    pub roles: Vec<String>,
    /// Who decides about views, if the group is to have an arbiter or has one.
    pub arbiter: Option<Arbiter>,
    /// Connections of clients at the same time; more are refused.
    pub clients_max: usize,
    /// Holds back everything that is said to other nodes and to native clients for so long, as a longer way would: for measuring.
    pub link_delay: Duration,
    /// Go on with what is left of regions at level process after the machine lost its power: what was acknowledged may be lost.
    pub accept_loss: bool,
    /// The certificate of this node, and its name; without, everything is plain text, on loopback only.
    pub certified: Option<(TlsFiles, String)>,
    /// Whether a client may cut this node off from others, for demonstrations of what happens then.
    pub allow_cuts: bool,
}

/// The arbiter of a group: one etcd, the same for all nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arbiter {
    /// Its endpoints, tried in order: `http://` on loopback, or `https://`.
    pub endpoints: Vec<String>,
}

/// The arbiter cannot be used. Nothing was begun.
#[derive(Debug, thiserror::Error)]
pub enum ArbiterError {
    /// Not how an etcd is named.
    #[error(
        "`{given}` is no endpoint of an arbiter: http://127.0.0.1:2379, or https:// with --tls where it is on another machine"
    )]
    Endpoint {
        /// What was given.
        given: String,
    },
    /// It was not told of the new group, which has not begun.
    #[error("the arbiter takes no new group: {error}; start etcd, or name it rightly, and begin again")]
    Begin {
        /// Why.
        error: String,
    },
    /// A file of the certificates.
    #[error("a certificate for the arbiter cannot be read: {0}")]
    File(std::io::Error),
    /// The same.
    #[error("a certificate for the arbiter cannot be used: {0}")]
    Pem(Box<ureq::Error>),
    /// The operating system gives no thread.
    #[error("no thread for the arbiter: {0}")]
    Thread(std::io::Error),
}

impl Arbiter {
    /// The etcd at these endpoints. Plain text does not leave the machine, and `https://` needs certificates (`secure`).
    ///
    /// # Errors
    /// [`ArbiterError::Endpoint`].
    pub fn at(endpoints: &[String], secure: bool) -> Result<Self, ArbiterError> {
        let good = |endpoint: &&String| {
            let authority =
                |scheme| endpoint.strip_prefix(scheme).map(|rest: &str| rest.trim_end_matches('/'));
            let loopback = |at: &str| {
                let named = at.strip_prefix("localhost:").is_some_and(|port| port.parse::<u16>().is_ok());
                named || at.parse::<SocketAddr>().is_ok_and(|at| at.ip().is_loopback())
            };
            authority("http://").is_some_and(loopback)
                || (secure && authority("https://").is_some_and(|at| !at.is_empty() && !at.contains('/')))
        };
        if let Some(given) = endpoints.iter().find(|endpoint| !good(endpoint)) {
            return Err(ArbiterError::Endpoint { given: given.clone() });
        }
        Ok(Self { endpoints: endpoints.iter().map(|at| at.trim_end_matches('/').to_owned()).collect() })
    }
}

/// Not the definition of a region. Nothing was begun.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegionArgumentError {
    /// A setting that there is not.
    #[error("`{given}` is no setting of a region; the settings are pattern=, shards=, ack= and level=")]
    Setting {
        /// What was given.
        given: String,
    },
    /// A value that the setting does not take.
    #[error("`{value}` is no value of {setting}=: {possible}")]
    Value {
        /// The setting.
        setting: &'static str,
        /// What was given.
        value: String,
        /// What it takes.
        possible: String,
    },
}

/// Not the name of a role.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{given}` is no name of a role: 1 to {ROLE_BYTES_MAX} bytes, without spaces or control characters")]
pub struct RoleError {
    /// What was given.
    pub given: String,
}

/// Reads the name of a role.
///
/// # Errors
/// [`RoleError`].
pub fn role(given: &str) -> Result<String, RoleError> {
    let bad = |char: char| char.is_control() || char.is_whitespace();
    match (1..=ROLE_BYTES_MAX).contains(&given.len()) && !given.chars().any(bad) {
        true => Ok(given.to_owned()),
        false => Err(RoleError { given: given.to_owned() }),
    }
}

/// Reads `NAME[:SETTING=VALUE[,…]]`.
///
/// # Errors
/// [`RegionArgumentError`].
pub fn region(argument: &str) -> Result<Definition, RegionArgumentError> {
    let (name, settings) = argument.split_once(':').unwrap_or((argument, ""));
    let mut definition = Definition::named(name);
    for given in settings.split(',').filter(|given| !given.is_empty()) {
        let unknown = || RegionArgumentError::Setting { given: given.to_owned() };
        let (setting, value) = given.split_once('=').ok_or_else(unknown)?;
        let refused = |setting, possible: String| RegionArgumentError::Value {
            setting,
            value: value.to_owned(),
            possible,
        };
        match setting {
            "pattern" => {
                definition.pattern = Pattern::of_name(value).ok_or_else(|| refused("pattern", patterns()))?;
            }
            "shards" => {
                let possible = || format!("1 to {}", mainstay_replica::definition::SHARDS_MAX);
                definition.shards = value.parse().map_err(|_| refused("shards", possible()))?;
            }
            "ack" => {
                definition.acknowledged_by_all = match value {
                    "all" => true,
                    "majority" => false,
                    _ => return Err(refused("ack", "all, majority".to_owned())),
                };
            }
            "level" => {
                definition.level = match value.parse() {
                    Ok(level @ (Level::Process | Level::Disk)) => level,
                    _ => return Err(refused("level", "process, disk".to_owned())),
                };
            }
            _ => return Err(unknown()),
        }
    }
    Ok(definition)
}

/// The name of a pattern that a region in use can be given.
///
/// # Errors
/// [`RegionArgumentError::Value`].
pub fn versioned_pattern(name: &str) -> Result<&'static str, RegionArgumentError> {
    let found = Pattern::VERSIONED.into_iter().find(|pattern| pattern.name() == name);
    found.map(Pattern::name).ok_or_else(|| RegionArgumentError::Value {
        setting: "pattern",
        value: name.to_owned(),
        possible: Pattern::VERSIONED.map(Pattern::name).join(", "),
    })
}

fn patterns() -> String {
    Pattern::ALL.map(Pattern::name).join(", ")
}

/// The name of who must have a write, on the command line and in JSON.
#[must_use]
pub fn acknowledgement_name(acknowledgement: Acknowledgement) -> &'static str {
    match acknowledgement {
        Acknowledgement::All => "all",
        Acknowledgement::Majority => "majority",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arbiter_is_on_loopback_or_behind_certificates() {
        let at = |endpoint: &str, secure| Arbiter::at(&[endpoint.to_owned()], secure);
        assert_eq!(
            at("http://127.0.0.1:2379/", false).expect("it is good").endpoints,
            ["http://127.0.0.1:2379"]
        );
        assert!(at("https://etcd.example:2379", true).is_ok() && at("http://localhost:2379", false).is_ok());
        for (endpoint, secure) in [
            ("https://10.0.0.9:2379", false),
            ("http://10.0.0.9:2379", true),
            ("10.0.0.9:2379", true),
            ("https://", true),
            ("https://10.0.0.9:2379/v3", true),
        ] {
            assert!(matches!(at(endpoint, secure), Err(ArbiterError::Endpoint { .. })), "{endpoint}");
        }
    }

    #[test]
    fn a_role_is_a_short_word() {
        assert_eq!(role("stock"), Ok("stock".to_owned()));
        for given in ["", "two words", "line\nbreak", &"a".repeat(ROLE_BYTES_MAX + 1)] {
            assert_eq!(role(given), Err(RoleError { given: given.to_owned() }));
        }
    }

    #[test]
    fn a_region_is_named_with_its_settings_or_the_error_says_what_is_possible() {
        let given = region("orders:pattern=tagged,shards=4,ack=all,level=process").expect("it is a region");
        let expected = Definition {
            shards: 4,
            acknowledged_by_all: true,
            pattern: Pattern::Tagged,
            level: Level::Process,
            ..Definition::named("orders")
        };
        assert_eq!(given, expected);
        assert_eq!(region("data"), Ok(Definition::named("data")));
        for (given, word) in [
            ("a:pattern=two-hops", "one-hop-client"),
            ("a:shards=many", "1 to 1024"),
            ("a:ack=none", "majority"),
            ("a:level=memory", "disk"),
            ("a:colour=red", "pattern="),
            ("a:colour", "pattern="),
        ] {
            let error = region(given).expect_err("it is none").to_string();
            assert!(error.contains(word), "{given}: {error}");
        }
    }
}
