//! The table of calls, `shim/calls.txt`, whose first lines say how it is written.

use super::ShimError;

/// One call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// Its name without `MPI_`.
    pub(super) name: String,
    /// Its parameters in order.
    pub(super) parameters: Vec<Parameter>,
}

/// Which way a parameter goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// In.
    In,
    /// Out.
    Out,
    /// In and out.
    Both,
    /// Text that goes in.
    Text,
    /// Neither.
    Ignored,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    /// Its name, which expressions use.
    pub(super) name: String,
    /// Which way it goes.
    pub(super) way: Way,
    /// A flag without which the call is a poll that missed.
    pub(super) flag: bool,
    /// How many elements, as C; `None` if it is no array.
    pub(super) array: Option<String>,
    /// Message data.
    pub(super) data: Option<Data>,
    /// Only if this holds, as C.
    pub(super) condition: Option<String>,
}

/// Message data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Data {
    /// So many elements of one type.
    Plain {
        /// How many.
        count: String,
        /// Of which type.
        datatype: String,
        /// A message between two ranks; what comes out is at most as long as the status says.
        message: bool,
    },
    /// A piece for each rank.
    Ranks {
        /// How many elements of each.
        counts: String,
        /// Where each begins.
        displs: String,
        /// The type, or an array of types.
        datatype: String,
        /// Displacements are in bytes, and each piece has a type of its own.
        bytes: bool,
    },
}

/// Reads the table.
///
/// # Errors
/// [`ShimError::Table`] for a line that is not understood.
pub(super) fn read(text: &str) -> Result<Vec<Call>, ShimError> {
    let lines =
        text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|(number, line)| {
            call(line).ok_or_else(|| ShimError::Table { line: number + 1, text: line.to_owned() })
        })
        .collect()
}

fn call(line: &str) -> Option<Call> {
    // Spaces within braces do not part parameters.
    let mut within = false;
    let line: String = line
        .chars()
        .map(|c| {
            within = c == '{' || (within && c != '}');
            if within && c == ' ' { '\u{1}' } else { c }
        })
        .collect();
    let mut words = line.split_whitespace();
    let name = words.next()?.to_owned();
    let parameters = words.map(parameter).collect::<Option<_>>()?;
    Some(Call { name, parameters })
}

fn parameter(word: &str) -> Option<Parameter> {
    let (word, condition) = match word.split_once('?') {
        Some((word, condition)) => (word, Some(condition.to_owned())),
        None => (word, None),
    };
    let (way, word) = if let Some(word) = word.strip_prefix("<>") {
        (Way::Both, word)
    } else if let Some(word) = word.strip_prefix('>') {
        (Way::Out, word)
    } else if let Some(word) = word.strip_prefix('~') {
        (Way::Ignored, word)
    } else if let Some(word) = word.strip_prefix('$') {
        (Way::Text, word)
    } else {
        (Way::In, word)
    };
    let (word, flag) = match word.strip_suffix('!') {
        Some(word) => (word, true),
        None => (word, false),
    };
    let end = word.find(['[', '{']).unwrap_or(word.len());
    let (name, rest) = word.split_at(end);
    let mut parameter = Parameter { name: name.to_owned(), way, flag, array: None, data: None, condition };
    if let Some(data) = rest.strip_prefix('{') {
        parameter.data = Some(self::data(data.strip_suffix('}')?)?);
    } else if let Some(length) = rest.strip_prefix('[') {
        parameter.array = Some(length.strip_suffix(']')?.to_owned());
    }
    (!name.is_empty()).then_some(parameter)
}

fn data(text: &str) -> Option<Data> {
    let words: Vec<&str> = text.split('\u{1}').collect();
    if let [kind @ ("V" | "W"), counts, displs, datatype] = words[..] {
        return Some(Data::Ranks {
            counts: counts.to_owned(),
            displs: displs.to_owned(),
            datatype: datatype.to_owned(),
            bytes: kind == "W",
        });
    }
    let (text, message) = match text.strip_suffix(",MESSAGE") {
        Some(text) => (text, true),
        None => (text, false),
    };
    // The count may be an expression with commas; the type is a name.
    let (count, datatype) = text.rsplit_once(',')?;
    Some(Data::Plain { count: count.to_owned(), datatype: datatype.to_owned(), message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_with_all_its_signs() {
        let call =
            call("Iprobe  source >flag! >status?*flag <>x{sum(a,SIZE),t,MESSAGE}?ROOT >y{V c d t} $s a[n]")
                .expect("a call");
        let way: Vec<Way> = call.parameters.iter().map(|parameter| parameter.way).collect();
        assert_eq!(way, [Way::In, Way::Out, Way::Out, Way::Both, Way::Out, Way::Text, Way::In]);
        assert!(call.parameters[1].flag);
        assert_eq!(call.parameters[2].condition.as_deref(), Some("*flag"));
        let Some(Data::Plain { count, datatype, message: true }) = &call.parameters[3].data else {
            panic!("data")
        };
        assert_eq!((count.as_str(), datatype.as_str()), ("sum(a,SIZE)", "t"));
        assert!(matches!(&call.parameters[4].data, Some(Data::Ranks { bytes: false, .. })));
        assert_eq!(call.parameters[6].array.as_deref(), Some("n"));
    }

    #[test]
    fn a_line_that_is_not_understood_is_named() {
        let text = "# comment\n\nSend buf{count";
        assert_eq!(read(text), Err(ShimError::Table { line: 3, text: "Send buf{count".to_owned() }));
    }
}
