//! Rules about the files of the tree: first lines, lengths, names, paths of somebody's machine, links, shown examples.

use crate::finding::Finding;
use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Lines that a source file, of Rust or C, may have without a reason.
pub const SOURCE_LINES_MAX: usize = 600;

/// Where longer files are listed, one a line: path, space, reason.
pub const LONG_FILES: &str = "xtask/long-files.txt";

/// Bytes up to which a file is read; what is larger is no source.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Folders that are not ours or not source.
const SKIPPED_FOLDERS: &[&str] = &[".git", "target", "corpus", "artifacts", "node_modules"];

/// File names that say nothing about what is inside.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "helper", "helpers", "manager", "misc"];

/// Beginnings of paths that exist on one machine only, in halves, so that this file does not name them itself.
const MACHINE_PATHS: &[(&str, &str)] =
    &[("/wor", "k/"), ("/roo", "t/"), ("/hom", "e/"), ("/tm", "p/"), ("/Use", "rs/"), ("/mn", "t/c/")];

/// The files of the tree, by path relative to its root, those that are no text without any.
#[derive(Debug, Default)]
pub struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads all files below `root`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn read(root: &Path) -> io::Result<Self> {
        let mut files = BTreeMap::new();
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(root.join(&folder))? {
                let entry = entry?;
                let path = folder.join(entry.file_name());
                let kind = entry.file_type()?;
                if kind.is_dir() {
                    let skipped =
                        entry.file_name().to_str().is_some_and(|name| SKIPPED_FOLDERS.contains(&name));
                    if !skipped {
                        folders.push(path);
                    }
                } else if kind.is_file() && entry.metadata()?.len() <= FILE_BYTES_MAX {
                    let Some(name) = path.to_str() else { continue };
                    // In a linked worktree it is a file, which names the repository's place.
                    if name == ".git" {
                        continue;
                    }
                    // A picture has no text, and pages link to it.
                    let text = String::from_utf8(std::fs::read(root.join(&path))?).unwrap_or_default();
                    files.insert(name.to_owned(), text);
                }
            }
        }
        Ok(Self { files })
    }

    /// The text of one file.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// All source files whose path begins with `prefix`.
    pub fn sources<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files
            .iter()
            .filter(move |(path, _)| path.starts_with(prefix) && path.ends_with(".rs"))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// All source files of C.
    fn c_sources(&self) -> impl Iterator<Item = (&str, &str)> {
        let of_c = self.files.iter().filter(|(path, _)| path.ends_with(".c") || path.ends_with(".h"));
        of_c.map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Checks all rules of this module.
    #[must_use]
    pub fn check(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (path, text) in self.sources("") {
            findings.extend(first_line(path, text, "//!"));
            findings.extend(empty_name(path));
        }
        for (path, text) in self.c_sources() {
            findings.extend(first_line(path, text, "//"));
            findings.extend(empty_name(path));
        }
        findings.extend(self.long_files());
        for (path, text) in &self.files {
            findings.extend(machine_paths(path, text));
            if path.ends_with(".md") {
                findings.extend(self.links(path, text));
                findings.extend(self.shown_files(path, text));
            }
        }
        if let Some(lock) = self.text("Cargo.lock") {
            findings.extend(foreign_registries(lock));
        }
        findings
    }

    fn long_files(&self) -> Vec<Finding> {
        let listed: BTreeMap<&str, &str> = self
            .text(LONG_FILES)
            .unwrap_or_default()
            .lines()
            .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
            .map(|line| line.split_once(' ').unwrap_or((line, "")))
            .collect();
        let mut findings = Vec::new();
        for (path, text) in self.sources("").chain(self.c_sources()) {
            let lines = text.lines().count();
            if lines > SOURCE_LINES_MAX && !listed.contains_key(path) {
                findings.push(Finding {
                    rule: "file-length",
                    place: path.to_owned(),
                    what: format!("{lines} lines; {SOURCE_LINES_MAX} need no reason"),
                    remedy: format!(
                        "move a duty out with its state, or its tests; or give a reason in {LONG_FILES}"
                    ),
                });
            }
        }
        for (path, reason) in listed {
            let lines = self.text(path).map_or(0, |text| text.lines().count());
            if reason.trim().is_empty() || lines <= SOURCE_LINES_MAX {
                findings.push(Finding {
                    rule: "file-length",
                    place: LONG_FILES.to_owned(),
                    what: format!("`{path}` has {lines} lines and the reason `{reason}`"),
                    remedy: "keep only files that are too long, each with its reason".to_owned(),
                });
            }
        }
        findings
    }

    /// Links within the tree must lead somewhere.
    fn links(&self, path: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (number, line) in outside_fences(text) {
            for after in line.split("](").skip(1) {
                let Some((target, _)) = after.split_once(')') else {
                    continue;
                };
                let target = target.split('#').next().unwrap_or_default();
                if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                    continue;
                }
                let folder = Path::new(path).parent().unwrap_or(Path::new(""));
                let wanted = plain(&folder.join(target));
                let inside = format!("{wanted}/");
                let there = self.files.keys().any(|file| *file == wanted || file.starts_with(&inside));
                if !there {
                    findings.push(Finding {
                        rule: "links",
                        place: format!("{path}:{number}"),
                        what: format!("a link to `{target}`, which is not there"),
                        remedy: "correct the link, or write the page".to_owned(),
                    });
                }
            }
        }
        findings
    }

    /// A block of code behind `<!-- shown: FILE -->` must stand in that file, word for word: so what a page shows compiles.
    fn shown_files(&self, path: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (place, part) in text.match_indices("\n<!-- shown: ") {
            let number = text[..place].lines().count() + 1;
            let Some((file, rest)) = text[place + part.len()..].split_once(" -->") else {
                continue;
            };
            let block = rest.trim_start().strip_prefix("```").and_then(|fenced| {
                let (_, body) = fenced.split_once('\n')?;
                body.split_once("```").map(|(block, _)| block)
            });
            let shown = block.zip(self.text(file)).is_some_and(|(block, source)| source.contains(block));
            if !shown {
                findings.push(Finding {
                    rule: "shown-files",
                    place: format!("{path}:{number}"),
                    what: format!("the block does not stand in `{file}`"),
                    remedy: format!("copy it from `{file}`, which the tests compile"),
                });
            }
        }
        findings
    }
}

fn first_line(path: &str, text: &str, comment: &str) -> Option<Finding> {
    let says = text
        .lines()
        .next()
        .is_some_and(|line| line.strip_prefix(comment).is_some_and(|rest| rest.trim().len() > 3));
    (!says).then(|| Finding {
        rule: "first-line",
        place: format!("{path}:1"),
        what: "the file does not begin by saying what it is for".to_owned(),
        remedy: format!("begin it with a line `{comment} …`"),
    })
}

fn empty_name(path: &str) -> Option<Finding> {
    let empty = Path::new(path).with_extension("").components().any(
        |part| matches!(part, Component::Normal(name) if name.to_str().is_some_and(|name| EMPTY_NAMES.contains(&name))),
    );
    empty.then(|| Finding {
        rule: "file-names",
        place: path.to_owned(),
        what: "the name does not say what is inside".to_owned(),
        remedy: "name it after the thing it holds".to_owned(),
    })
}

fn machine_paths(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (place, line) in text.lines().enumerate() {
        for (half, rest) in MACHINE_PATHS {
            let prefix = format!("{half}{rest}");
            let absolute = line.match_indices(&prefix).any(|(at, _)| {
                // `https://example.org/home/` and `target/tmp/` are no paths from the root.
                !line[..at].ends_with(|before: char| before.is_alphanumeric() || "._-/})".contains(before))
            });
            if absolute {
                findings.push(Finding {
                    rule: "machine-paths",
                    place: format!("{path}:{}", place + 1),
                    what: format!("`{prefix}…`, a path of one machine"),
                    remedy: "use a relative path, `tempfile`, `env!(\"CARGO_MANIFEST_DIR\")` or $TMPDIR"
                        .to_owned(),
                });
            }
        }
    }
    findings
}

fn foreign_registries(lock: &str) -> Vec<Finding> {
    lock.lines()
        .enumerate()
        .filter_map(|(place, line)| Some((place, line.strip_prefix("source = ")?)))
        .filter(|(_, source)| {
            source.trim_matches('"') != "registry+https://github.com/rust-lang/crates.io-index"
        })
        .map(|(place, source)| Finding {
            rule: "registries",
            place: format!("Cargo.lock:{}", place + 1),
            what: format!("a dependency from {source}"),
            remedy: "take it from crates.io".to_owned(),
        })
        .collect()
}

/// The path without `.` and `..`.
fn plain(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                parts.pop();
            }
            Component::Normal(name) => parts.extend(name.to_str()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    parts.join("/")
}

/// The lines that are not in a fenced block, numbered from 1.
fn outside_fences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(place, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then_some((place + 1, line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(files: &[(&str, &str)]) -> Vec<(&'static str, String)> {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Tree { files }.check().into_iter().map(|finding| (finding.rule, finding.place)).collect()
    }

    #[test]
    fn a_file_says_what_it_is_for_in_its_first_line() {
        assert_eq!(rules(&[("a.rs", "//! Reads pages.\n")]), []);
        assert_eq!(rules(&[("a.rs", "use std::fmt;\n")]), [("first-line", "a.rs:1".to_owned())]);
        assert_eq!(rules(&[("a.rs", "//!\n//! Late.\n")]), [("first-line", "a.rs:1".to_owned())]);
        assert_eq!(rules(&[("a.c", "// Reads pages.\n")]), []);
        assert_eq!(rules(&[("a.c", "#include <mpi.h>\n")]), [("first-line", "a.c:1".to_owned())]);
    }

    #[test]
    fn a_long_file_needs_a_reason_and_a_reason_needs_a_long_file() {
        let long = format!("//! Long.\n{}", "// line\n".repeat(SOURCE_LINES_MAX));
        assert_eq!(rules(&[("a.rs", &long)]), [("file-length", "a.rs".to_owned())]);
        assert_eq!(rules(&[("a.rs", &long), (LONG_FILES, "a.rs one table, better read whole\n")]), []);
        assert_eq!(rules(&[("a.c", &long)]), [("file-length", "a.c".to_owned())]);
        let stale = rules(&[("a.rs", "//! Short.\n"), (LONG_FILES, "a.rs one table\n")]);
        assert_eq!(stale, [("file-length", LONG_FILES.to_owned())]);
    }

    #[test]
    fn paths_of_a_machine_are_found_and_other_slashes_are_not() {
        let path = format!("see {}{}x", "/hom", "e/");
        assert_eq!(rules(&[("a.md", &path)]), [("machine-paths", "a.md:1".to_owned())]);
        assert_eq!(rules(&[("a.md", "target/tmp/x, https://example.org/home/x, $HOME/x")]), []);
    }

    #[test]
    fn links_lead_somewhere() {
        let page = "[a](../a.rs) [web](https://example.org) [here](#x)\n```\n[no](link)\n```\n[gone](b.md)\n";
        assert_eq!(
            rules(&[("a.rs", "//! Here.\n"), ("docs/p.md", page)]),
            [("links", "docs/p.md:5".to_owned())]
        );
    }

    #[test]
    fn a_shown_block_stands_in_its_file() {
        let source = "//! Counts.\nfn main() {}\n";
        let good = "\n<!-- shown: a.rs -->\n```rust\nfn main() {}\n```\n";
        let stale = "like `<!-- shown: FILE -->`:\n<!-- shown: a.rs -->\n```rust\nfn main() { old() }\n```\n";
        assert_eq!(rules(&[("a.rs", source), ("p.md", good)]), []);
        assert_eq!(rules(&[("a.rs", source), ("p.md", stale)]), [("shown-files", "p.md:2".to_owned())]);
    }

    #[test]
    fn names_say_something_and_dependencies_come_from_one_registry() {
        assert_eq!(rules(&[("tests/common/mod.rs", "//! Things.\n")]).len(), 1);
        let lock = "name = \"a\"\nsource = \"registry+https://mirror.example/index\"\n";
        assert_eq!(rules(&[("Cargo.lock", lock)]), [("registries", "Cargo.lock:2".to_owned())]);
    }
}
