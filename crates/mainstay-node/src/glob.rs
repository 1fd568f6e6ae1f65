//! Patterns of keys as Redis has them: `*`, `?`, `[abc]`, `[^a]`, `[a-z]`, and `\` before what means itself. Of bytes, in time proportional to
//! key times pattern at worst.

/// A pattern.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Glob {
    parts: Vec<Part>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Part {
    Byte(u8),
    Any,
    Run,
    OneOf { not: bool, ranges: Vec<(u8, u8)> },
}

impl Glob {
    /// Reads a pattern; every sequence of bytes is one.
    pub(crate) fn new(pattern: &[u8]) -> Self {
        let mut rest = pattern;
        let mut parts = Vec::new();
        while let [first, behind @ ..] = rest {
            rest = behind;
            parts.push(match first {
                b'*' => Part::Run,
                b'?' => Part::Any,
                b'[' => one_of(&mut rest),
                _ => Part::Byte(literal(*first, &mut rest)),
            });
        }
        Self { parts }
    }

    /// How every key begins that it matches.
    pub(crate) fn prefix(&self) -> Vec<u8> {
        let bytes = self.parts.iter().map_while(|part| match part {
            Part::Byte(byte) => Some(*byte),
            _ => None,
        });
        bytes.collect()
    }

    /// Whether it matches one key alone.
    pub(crate) fn is_literal(&self) -> bool {
        self.parts.iter().all(|part| matches!(part, Part::Byte(_)))
    }

    /// Whether it matches all of a key.
    pub(crate) fn matches(&self, key: &[u8]) -> bool {
        let (mut at, mut part) = (0, 0);
        // Where to go on if this way fails: the last run takes one byte more.
        let mut retry: Option<(usize, usize)> = None;
        loop {
            match self.parts.get(part) {
                Some(Part::Run) => {
                    retry = Some((at, part));
                    part += 1;
                    continue;
                }
                Some(one) if key.get(at).is_some_and(|&byte| one.takes(byte)) => {
                    (at, part) = (at + 1, part + 1);
                    continue;
                }
                None if at == key.len() => return true,
                _ => {}
            }
            match retry {
                Some((taken, run)) if taken < key.len() => {
                    retry = Some((taken + 1, run));
                    (at, part) = (taken + 1, run + 1);
                }
                _ => return false,
            }
        }
    }
}

impl Part {
    fn takes(&self, byte: u8) -> bool {
        match self {
            Self::Byte(own) => *own == byte,
            Self::Any => true,
            Self::Run => false,
            Self::OneOf { not, ranges } => {
                ranges.iter().any(|&(from, to)| (from..=to).contains(&byte)) != *not
            }
        }
    }
}

/// A byte, or the one behind a `\`.
fn literal(first: u8, rest: &mut &[u8]) -> u8 {
    match (first, *rest) {
        (b'\\', [escaped, behind @ ..]) => {
            *rest = behind;
            *escaped
        }
        _ => first,
    }
}

/// What stands behind a `[`, up to its end or that of the pattern.
fn one_of(rest: &mut &[u8]) -> Part {
    let not = rest.first() == Some(&b'^');
    if not {
        *rest = &rest[1..];
    }
    let mut ranges = Vec::new();
    while let [first, behind @ ..] = *rest {
        *rest = behind;
        if *first == b']' {
            break;
        }
        let from = literal(*first, rest);
        let to = match *rest {
            [b'-', to, behind @ ..] if *to != b']' => {
                *rest = behind;
                literal(*to, rest)
            }
            _ => from,
        };
        ranges.push((from.min(to), from.max(to)));
    }
    Part::OneOf { not, ranges }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, key, matches) in [
            ("", "", true),
            ("*", "", true),
            ("h?llo", "hallo", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("*:7:*", "user:17:7:name", true),
            ("*:7:*", "user:17:name", false),
            ("h[ae]llo", "hello", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h[a-", "hb", false),
            ("h[a\\]]", "h]", true),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("a\\", "a\\", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
        ] {
            assert_eq!(Glob::new(pattern.as_bytes()).matches(key.as_bytes()), matches, "{pattern} {key}");
        }
        assert_eq!(Glob::new(b"user:\\*[ab]*").prefix(), b"user:*");
    }

    #[test]
    fn a_pattern_of_many_runs_ends() {
        let pattern = "a*".repeat(100) + "b";
        assert!(!Glob::new(pattern.as_bytes()).matches(&[b'a'; 1000]));
    }
}
