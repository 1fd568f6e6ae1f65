//! The structure check: every rule of the house that a program can check, over one checkout.

use crate::dependencies::{Graph, GraphError, silent_crates};
use crate::finding::Finding;
use crate::silence::check_source;
use crate::tree::Tree;
use std::io;
use std::path::Path;

/// The clippy settings that every silent crate has a link to.
pub const SILENT_CLIPPY: &str = "xtask/silent-clippy.toml";

/// The checkout could not be read. Nothing was checked.
#[derive(Debug, thiserror::Error)]
pub enum StructureError {
    /// A file or folder could not be read.
    #[error("the checkout could not be read")]
    Tree(#[from] io::Error),
    /// Cargo's graph could not be read.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Checks the workspace at `root`. An empty list means that every rule is kept.
///
/// # Errors
/// [`StructureError`] when the checkout cannot be read.
pub fn check(root: &Path) -> Result<Vec<Finding>, StructureError> {
    let tree = Tree::read(root)?;
    let mut findings = tree.check();
    findings.extend(Graph::read(root)?.check());
    for name in silent_crates() {
        findings.extend(check_silent(root, &tree, name));
    }
    findings.sort();
    Ok(findings)
}

fn check_silent(root: &Path, tree: &Tree, name: &str) -> Vec<Finding> {
    let folder = format!("crates/{name}");
    let sources = format!("{folder}/src/");
    let library = format!("{sources}lib.rs");
    let Some(front) = tree.text(&library) else {
        return Vec::new();
    };

    let mut findings: Vec<Finding> =
        tree.sources(&sources).flat_map(|(path, text)| check_source(path, text)).collect();
    if !front.contains("#![forbid(unsafe_code)]") {
        findings.push(Finding {
            rule: "silent-source",
            place: library,
            what: "the crate does not forbid unsafe code".to_owned(),
            remedy: "add `#![forbid(unsafe_code)]` below the crate's page".to_owned(),
        });
    }
    if tree.text(&format!("{folder}/build.rs")).is_some() {
        findings.push(Finding {
            rule: "silent-source",
            place: format!("{folder}/build.rs"),
            what: "a silent crate has a build script, which may read anything".to_owned(),
            remedy: "generate the code once and commit it".to_owned(),
        });
    }
    let settings = format!("{folder}/clippy.toml");
    if std::fs::read(root.join(&settings)).ok() != std::fs::read(root.join(SILENT_CLIPPY)).ok() {
        findings.push(Finding {
            rule: "silent-clippy",
            place: settings.clone(),
            what: format!("it is not a link to {SILENT_CLIPPY}"),
            remedy: format!("ln -sf ../../{SILENT_CLIPPY} {settings}"),
        });
    }
    findings
}
