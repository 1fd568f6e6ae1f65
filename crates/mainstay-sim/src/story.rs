//! A run told to people: what was delivered, where it crashed, how it went on.

/// The lines of a story, if anybody wants to hear it.
#[derive(Debug, Default)]
pub(crate) struct Story {
    lines: Option<Vec<String>>,
}

impl Story {
    /// One that is kept.
    pub(crate) fn kept() -> Self {
        Self { lines: Some(Vec::new()) }
    }

    /// Adds a line. Nothing is formatted when nobody wants it.
    pub(crate) fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(line());
        }
    }

    /// The lines so far.
    pub(crate) fn take(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }
}

/// Bytes for people: as text where they are text, cut where they are long.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    const CHARACTERS_MAX: usize = 200;
    let text = match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(char::is_control) => text.to_owned(),
        _ => format!("0x{}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    };
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], bytes.len()),
        None => text,
    }
}
