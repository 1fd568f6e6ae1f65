//! Direction of dependencies, and what silent crates may depend on, from `cargo metadata`.

use crate::finding::Finding;
use crate::layers::{LAYERS, PURE_LIBRARIES, layer};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The dependency graph could not be read. Nothing was checked.
#[derive(Debug, thiserror::Error)]
pub enum GraphError {
    /// `cargo` could not be started.
    #[error("`cargo metadata` could not be started")]
    Start(#[from] std::io::Error),
    /// `cargo metadata` ended with an error.
    #[error("`cargo metadata` failed: {stderr}")]
    Failed {
        /// What it printed.
        stderr: String,
    },
    /// Its output is not the JSON of format version 1.
    #[error("`cargo metadata` printed no JSON of format version 1")]
    Json(#[from] serde_json::Error),
}

/// Who depends on whom.
#[derive(Debug, Default)]
pub struct Graph {
    packages: BTreeMap<String, Package>,
}

#[derive(Debug)]
struct Package {
    name: String,
    member: bool,
    normal: Vec<String>,
    tests: Vec<String>,
}

impl Graph {
    /// Asks cargo for the graph of the workspace at `root`.
    ///
    /// # Errors
    /// [`GraphError`] when cargo cannot answer.
    pub fn read(root: &Path) -> Result<Self, GraphError> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["metadata", "--format-version", "1"])
            .arg("--manifest-path")
            .arg(root.join("Cargo.toml"))
            .output()?;
        if !output.status.success() {
            return Err(GraphError::Failed { stderr: String::from_utf8_lossy(&output.stderr).into_owned() });
        }
        Ok(Self::from_metadata(&serde_json::from_slice(&output.stdout)?))
    }

    fn from_metadata(metadata: &Value) -> Self {
        let members: BTreeSet<&str> = texts(&metadata["workspace_members"]).collect();
        let mut packages = BTreeMap::new();
        for package in list(&metadata["packages"]) {
            let (Some(id), Some(name)) = (package["id"].as_str(), package["name"].as_str()) else {
                continue;
            };
            let member = members.contains(id);
            packages.insert(
                id.to_owned(),
                Package { name: name.to_owned(), member, normal: Vec::new(), tests: Vec::new() },
            );
        }
        for node in list(&metadata["resolve"]["nodes"]) {
            let Some(package) = node["id"].as_str().and_then(|id| packages.get_mut(id)) else {
                continue;
            };
            for dependency in list(&node["deps"]) {
                let Some(id) = dependency["pkg"].as_str() else {
                    continue;
                };
                for kind in list(&dependency["dep_kinds"]) {
                    match kind["kind"].as_str() {
                        None => package.normal.push(id.to_owned()),
                        Some("dev") => package.tests.push(id.to_owned()),
                        // What a build script uses is not in the product; a silent crate has no build script.
                        Some(_) => {}
                    }
                }
            }
        }
        Self { packages }
    }

    /// Checks every crate of the workspace against the table.
    #[must_use]
    pub fn check(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (id, package) in self.packages.iter().filter(|(_, package)| package.member) {
            let Some(layer) = layer(&package.name) else {
                findings.push(Finding {
                    rule: "known-crates",
                    place: manifest(&package.name),
                    what: format!("`{}` is not in the table of crates", package.name),
                    remedy: "give it a line in xtask/src/layers.rs and a place in ARCHITECTURE.md".to_owned(),
                });
                continue;
            };
            for used in self.members(&package.normal) {
                if !layer.uses.contains(&used) {
                    findings.push(refused_arrow(&package.name, used, "depends on", layer.uses));
                }
            }
            for used in self.members(&package.tests) {
                if !layer.uses.contains(&used) && !layer.tests_use.contains(&used) {
                    findings.push(refused_arrow(&package.name, used, "has tests that depend on", layer.uses));
                }
            }
            if layer.silent {
                findings.extend(self.check_purity(id, package));
            }
        }
        findings
    }

    fn check_purity(&self, id: &str, package: &Package) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut seen = BTreeSet::from([id]);
        let mut paths: Vec<Vec<&str>> = vec![vec![id]];
        while let Some(path) = paths.pop() {
            let last = path.last().expect("a path starts with the crate itself");
            for next in &self.packages[*last].normal {
                if !seen.insert(next) {
                    continue;
                }
                let used = &self.packages[next];
                let mut longer = path.clone();
                longer.push(next);
                let pure = PURE_LIBRARIES.iter().any(|(name, _)| *name == used.name);
                if !used.member && !pure {
                    let names: Vec<&str> = longer.iter().map(|id| self.packages[*id].name.as_str()).collect();
                    findings.push(Finding {
                        rule: "pure-libraries",
                        place: manifest(&package.name),
                        what: format!("the silent crate depends on `{}` ({})", used.name, names.join(" -> ")),
                        remedy: "move what needs it into a driver (mainstay-disk, mainstay-runtime); if it sees no clock, \
                                 file, socket, thread or randomness, list it with its reason in xtask/src/layers.rs"
                            .to_owned(),
                    });
                    continue;
                }
                paths.push(longer);
            }
        }
        findings
    }

    fn members<'a>(&'a self, ids: &'a [String]) -> impl Iterator<Item = &'a str> {
        ids.iter().map(|id| &self.packages[id]).filter(|used| used.member).map(|used| used.name.as_str())
    }
}

/// Names of the silent crates, whether they exist yet or not.
pub fn silent_crates() -> impl Iterator<Item = &'static str> {
    LAYERS.iter().filter(|layer| layer.silent).map(|layer| layer.name)
}

fn refused_arrow(name: &str, used: &str, verb: &str, allowed: &[&str]) -> Finding {
    let allowed = if allowed.is_empty() { "none of our crates".to_owned() } else { allowed.join(", ") };
    Finding {
        rule: "direction",
        place: manifest(name),
        what: format!("`{name}` {verb} `{used}`"),
        remedy: format!(
            "`{name}` may use {allowed}; join the two in mainstay-process or a driver, or change the table in \
             xtask/src/layers.rs together with ARCHITECTURE.md"
        ),
    }
}

fn manifest(name: &str) -> String {
    if name == "xtask" { "xtask/Cargo.toml".to_owned() } else { format!("crates/{name}/Cargo.toml") }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    list(value).iter().filter_map(Value::as_str)
}
