//! The workspace keeps its own rules, and a planted violation of each is found.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use xtask::structure::check;

/// A small workspace with the crates of the ground floor, every rule kept.
struct Planted {
    folder: tempfile::TempDir,
}

impl Planted {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let planted = Self { folder };
        planted.write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\n");
        planted.write("xtask/silent-clippy.toml", "allow-unwrap-in-tests = true\n");
        planted.member("mainstay-types", &[]);
        planted.member("mainstay-gate", &["mainstay-types"]);
        planted.member("mainstay-journal", &["mainstay-types"]);
        planted
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().expect("a file has a folder")).expect("the folder can be made");
        fs::write(path, text).expect("the file can be written");
    }

    fn member(&self, name: &str, uses: &[&str]) {
        let lines: Vec<String> =
            uses.iter().map(|used| format!("{used} = {{ path = \"../{used}\" }}\n")).collect();
        self.manifest(name, &format!("[dependencies]\n{}", lines.concat()));
        self.write(&format!("crates/{name}/src/lib.rs"), "//! A planted crate.\n\n#![forbid(unsafe_code)]\n");
        let link = self.root().join(format!("crates/{name}/clippy.toml"));
        symlink("../../xtask/silent-clippy.toml", link).expect("a link can be made");
    }

    fn manifest(&self, name: &str, dependencies: &str) {
        let package = format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n");
        self.write(&format!("crates/{name}/Cargo.toml"), &format!("{package}{dependencies}"));
    }

    fn rules(&self) -> Vec<&'static str> {
        let findings = check(self.root()).expect("the planted workspace can be read");
        for finding in &findings {
            assert!(!finding.place.is_empty() && !finding.remedy.is_empty(), "{finding:?}");
        }
        findings.into_iter().map(|finding| finding.rule).collect()
    }
}

#[test]
fn the_workspace_keeps_its_own_rules() {
    // Asked at run time: two checkouts may share a target folder.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo tells a test where its crate is");
    let root = PathBuf::from(folder).join("..");
    let findings = check(&root).expect("the workspace can be read");
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{} findings\n{}", findings.len(), lines.join("\n"));
}

#[test]
fn a_clean_workspace_has_no_findings() {
    assert_eq!(Planted::new().rules(), [""; 0]);
}

#[test]
fn two_silent_crates_must_not_know_each_other() {
    let planted = Planted::new();
    planted.manifest("mainstay-journal", "[dependencies]\nmainstay-gate = { path = \"../mainstay-gate\" }\n");
    assert_eq!(planted.rules(), ["direction"]);
    planted.manifest(
        "mainstay-journal",
        "[dev-dependencies]\nmainstay-gate = { path = \"../mainstay-gate\" }\n",
    );
    assert_eq!(planted.rules(), ["direction"]);
}

#[test]
fn a_silent_crate_depends_on_pure_libraries_only_also_through_others() {
    let planted = Planted::new();
    planted.write(
        "Cargo.toml",
        "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\"]\nexclude = [\"vendor\"]\n",
    );
    for (name, uses) in [("serde", "[dependencies]\nclock = { path = \"../clock\" }\n"), ("clock", "")] {
        let package =
            format!("[package]\nname = \"{name}\"\nversion = \"1.0.0\"\nedition = \"2024\"\n{uses}");
        planted.write(&format!("vendor/{name}/Cargo.toml"), &package);
        planted.write(&format!("vendor/{name}/src/lib.rs"), "//! A planted library.\n");
    }
    planted.manifest("mainstay-gate", "[dependencies]\nserde = { path = \"../../vendor/serde\" }\n");
    assert_eq!(planted.rules(), ["pure-libraries"], "serde is pure, the clock behind it is not");
}

#[test]
fn an_unknown_crate_is_refused() {
    let planted = Planted::new();
    planted.member("mainstay-surprise", &[]);
    assert_eq!(planted.rules(), ["known-crates"]);
}

#[test]
fn a_silent_source_must_not_name_the_world_nor_allow_unsafe_code() {
    let planted = Planted::new();
    let source = "//! A planted crate.\n\nuse std::time::Instant;\n";
    planted.write("crates/mainstay-gate/src/lib.rs", source);
    assert_eq!(planted.rules(), ["silent-source", "silent-source"]);
}

#[test]
fn a_silent_crate_has_the_shared_clippy_settings_and_no_build_script() {
    let planted = Planted::new();
    fs::remove_file(planted.root().join("crates/mainstay-gate/clippy.toml")).expect("the link is there");
    planted.write("crates/mainstay-gate/build.rs", "//! Builds nothing.\nfn main() {}\n");
    assert_eq!(planted.rules(), ["silent-clippy", "silent-source"]);
}
