//! What the sources of a silent crate may not name: clocks, files, sockets, threads, environment, randomness, `unsafe`.
//!
//! Reads tokens, not text: comments and strings do not count, imports are followed, also renamed and nested ones, and
//! tests beside the code are left out. What it cannot see (a type re-exported by a library) is clippy's part
//! (`xtask/silent-clippy.toml`) and the list of pure libraries'.

use crate::finding::Finding;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeMap;
use std::iter::Peekable;

/// Paths that a silent crate may not name, each with what to do instead.
pub const BANNED_PATHS: &[(&str, &str)] = &[
    ("std::time::Instant", "take the time as an argument: mainstay_types::time::Time"),
    ("std::time::SystemTime", "take the time as an argument: mainstay_types::time::Time"),
    ("std::fs", "ask for an effect, or read through mainstay_journal::storage::Storage"),
    ("std::net", "ask for an effect; the runtime owns sockets"),
    ("std::os", "ask for an effect; drivers know the operating system"),
    ("std::thread", "ask for an effect; drivers own threads"),
    ("std::process", "ask for an effect; drivers own processes"),
    ("std::env", "take it as an argument: drivers read the environment"),
    ("std::io::stdin", "ask for an effect"),
    ("std::io::stdout", "ask for an effect"),
    ("std::io::stderr", "ask for an effect"),
    ("std::collections::HashMap", "use BTreeMap or a Vec: the order of a hash map differs between runs"),
    ("std::collections::HashSet", "use BTreeSet or a Vec: the order of a hash set differs between runs"),
    ("std::collections::hash_map", "use BTreeMap or a Vec: the order of a hash map differs between runs"),
    ("std::collections::hash_set", "use BTreeSet or a Vec: the order of a hash set differs between runs"),
    ("std::hash::RandomState", "use a hash with a fixed seed (xxhash-rust)"),
    ("rand", "take the random number as an argument: drivers draw it and the journal records it"),
    ("getrandom", "take the random number as an argument: drivers draw it and the journal records it"),
    ("fastrand", "take the random number as an argument: drivers draw it and the journal records it"),
];

/// Macros that a silent crate may not call.
const BANNED_MACROS: &[&str] = &["print", "println", "eprint", "eprintln", "dbg", "thread_local"];

/// Checks one source file of a silent crate; `place` is its path as shown to people.
#[must_use]
pub fn check_source(place: &str, source: &str) -> Vec<Finding> {
    let tokens: TokenStream = match source.parse() {
        Ok(tokens) => tokens,
        Err(error) => {
            let start = error.span().start();
            return vec![Finding {
                rule: "silent-source",
                place: format!("{place}:{}", start.line),
                what: "this is not Rust".to_owned(),
                remedy: "make it compile first".to_owned(),
            }];
        }
    };
    let mut scan = Scan { place, findings: Vec::new(), named: Vec::new(), imports: BTreeMap::new() };
    scan.stream(tokens);
    scan.finish()
}

/// A path that the source names: its segments, and the line.
#[derive(Debug)]
struct Named {
    segments: Vec<String>,
    line: usize,
}

struct Scan<'a> {
    place: &'a str,
    findings: Vec<Finding>,
    named: Vec<Named>,
    /// What a name stands for in this file, by its imports.
    imports: BTreeMap<String, Vec<String>>,
}

type Tokens = Peekable<proc_macro2::token_stream::IntoIter>;

impl Scan<'_> {
    fn stream(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    if let Some(TokenTree::Group(attribute)) =
                        tokens.next_if(|next| matches!(next, TokenTree::Group(_)))
                    {
                        let text = attribute.stream().to_string().replace(' ', "");
                        if text == "cfg(test)" {
                            skip_item(&mut tokens);
                        }
                    }
                }
                TokenTree::Ident(ident) if ident == "unsafe" => {
                    let line = ident.span().start().line;
                    self.find(
                        line,
                        "`unsafe`".to_owned(),
                        "a silent crate needs none; memory tricks belong to drivers",
                    );
                }
                // `use<'a>` in a return type captures lifetimes; it imports nothing.
                TokenTree::Ident(ident)
                    if ident == "use"
                        && !matches!(tokens.peek(), Some(TokenTree::Punct(punct)) if punct.as_char() == '<') =>
                {
                    self.tree(Vec::new(), &mut tokens, true);
                }
                TokenTree::Ident(ident) => {
                    let line = ident.span().start().line;
                    let name = ident.to_string();
                    let bang =
                        matches!(tokens.peek(), Some(TokenTree::Punct(punct)) if punct.as_char() == '!');
                    if bang && BANNED_MACROS.contains(&name.as_str()) {
                        self.find(
                            line,
                            format!("`{name}!`"),
                            "ask for an effect; drivers print and own threads",
                        );
                    }
                    self.path(vec![name], line, &mut tokens, false);
                }
                TokenTree::Group(group) => self.stream(group.stream()),
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// A list of paths below `prefix`, separated by commas: what stands behind `use` or in its braces.
    fn tree(&mut self, prefix: Vec<String>, tokens: &mut Tokens, importing: bool) {
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(ident) => {
                    let line = ident.span().start().line;
                    let mut segments = prefix.clone();
                    if ident != "self" || prefix.is_empty() {
                        segments.push(ident.to_string());
                    }
                    self.path(segments, line, tokens, importing);
                }
                TokenTree::Punct(punct) if punct.as_char() == '*' => {
                    self.glob(prefix.clone(), punct.span().start().line);
                }
                TokenTree::Punct(punct) if punct.as_char() == ';' => return,
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    self.tree(prefix.clone(), &mut group.stream().into_iter().peekable(), importing);
                }
                TokenTree::Punct(_) | TokenTree::Group(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// A path whose first segments have been read.
    fn path(&mut self, mut segments: Vec<String>, line: usize, tokens: &mut Tokens, importing: bool) {
        while next_is_separator(tokens) {
            match tokens.peek() {
                Some(TokenTree::Ident(ident)) => {
                    segments.push(ident.to_string());
                    tokens.next();
                }
                Some(TokenTree::Group(group)) if importing && group.delimiter() == Delimiter::Brace => {
                    let inner = group.stream();
                    tokens.next();
                    self.tree(segments, &mut inner.into_iter().peekable(), true);
                    return;
                }
                Some(TokenTree::Punct(punct)) if importing && punct.as_char() == '*' => {
                    tokens.next();
                    self.glob(segments, line);
                    return;
                }
                _ => break,
            }
        }
        if importing {
            let mut name = segments.last().cloned().unwrap_or_default();
            if let Some(TokenTree::Ident(ident)) = tokens.peek()
                && ident == "as"
            {
                tokens.next();
                if let Some(TokenTree::Ident(alias)) = tokens.next() {
                    name = alias.to_string();
                }
            }
            self.imports.insert(name, segments.clone());
        }
        self.named.push(Named { segments, line });
    }

    /// An import of everything in a module brings in whatever is banned there.
    fn glob(&mut self, module: Vec<String>, line: usize) {
        let module = module.join("::");
        let inside = format!("{module}::");
        for (path, _) in BANNED_PATHS.iter().filter(|(path, _)| path.starts_with(&inside)) {
            self.find(line, format!("`{module}::*`, which brings in `{path}`"), "name what is imported");
        }
    }

    fn finish(mut self) -> Vec<Finding> {
        for Named { segments, line } in std::mem::take(&mut self.named) {
            let full = match self.imports.get(&segments[0]) {
                Some(import) => import.iter().chain(&segments[1..]).cloned().collect(),
                None => segments.clone(),
            };
            // `core` and `alloc` are other front doors of `std`.
            let joined = full.join("::").replacen("core::", "std::", 1).replacen("alloc::", "std::", 1);
            let banned = BANNED_PATHS.iter().find(|(path, _)| {
                joined.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
                    // A local variable may be called `rand`; a path or an import may not.
                    && (path.contains("::") || full.len() > 1)
            });
            if let Some((path, remedy)) = banned {
                self.find(line, format!("`{path}`, named as `{}`", segments.join("::")), remedy);
            }
        }
        self.findings.sort();
        self.findings.dedup();
        self.findings
    }

    fn find(&mut self, line: usize, what: String, remedy: &str) {
        let place = format!("{}:{line}", self.place);
        self.findings.push(Finding { rule: "silent-source", place, what, remedy: remedy.to_owned() });
    }
}

/// Steps over `::` if it is next.
fn next_is_separator(tokens: &mut Tokens) -> bool {
    let mut ahead = tokens.clone();
    let colon =
        |token: Option<TokenTree>| matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
    if colon(ahead.next()) && colon(ahead.next()) {
        *tokens = ahead;
        return true;
    }
    false
}

/// Steps over the item that `#[cfg(test)]` stands before, its other attributes included.
fn skip_item(tokens: &mut Tokens) {
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '#' => {
                tokens.next_if(|next| matches!(next, TokenTree::Group(_)));
            }
            TokenTree::Punct(punct) if punct.as_char() == ';' => return,
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str) -> Vec<String> {
        check_source("src/a.rs", source).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn banned_names_are_found_however_they_are_imported() {
        for (source, path) in [
            ("fn f() { std::time::Instant::now(); }", "std::time::Instant"),
            ("use std::time::Instant;", "std::time::Instant"),
            ("use std::{fmt, time::{Duration, SystemTime as Clock}};", "std::time::SystemTime"),
            ("use std::time; fn f() { time::Instant::now(); }", "std::time::Instant"),
            ("use std::collections as c; struct A { b: c::HashMap<u8, u8> }", "std::collections::HashMap"),
            ("use std::fs::File;", "std::fs"),
            ("use ::std::{self as root}; fn f() { root::thread::spawn(|| 1); }", "std::thread"),
            ("fn f() { vec![core::time::Duration::ZERO, std::env::args()]; }", "std::env"),
            ("use std::net;", "std::net"),
            ("fn f() { rand::random::<u8>() }", "rand"),
            ("use std::hash::RandomState;", "std::hash::RandomState"),
        ] {
            let found = found(source);
            assert!(found.iter().any(|what| what.contains(&format!("`{path}`"))), "{source}: {found:?}");
        }
    }

    #[test]
    fn globs_macros_and_unsafe_are_found_with_their_line() {
        let findings =
            check_source("src/a.rs", "use std::fmt;\nuse std::collections::*;\nfn f() { println!() }\n");
        assert_eq!(findings.len(), 5, "{findings:?}");
        assert!(findings.iter().any(|finding| finding.place == "src/a.rs:2"));
        assert!(findings.iter().any(|finding| finding.place == "src/a.rs:3" && finding.what == "`println!`"));
        assert_eq!(found("fn f() { unsafe { g() } }"), ["`unsafe`"]);
    }

    #[test]
    fn comments_strings_tests_and_look_alikes_are_left_alone() {
        let source = r#"
            //! std::fs and std::time::Instant are banned here.
            use std::time::Duration;
            use std::collections::{BTreeMap, VecDeque};
            use mainstay_types::time::Time;
            fn f(rand: u64, env: &str) -> u64 { let fs = "std::fs"; rand + fs.len() as u64 }
            #[cfg(test)]
            mod tests { use std::fs; fn g() { std::thread::sleep(std::time::Duration::ZERO) } }
        "#;
        assert_eq!(found(source), [""; 0]);
    }
}
