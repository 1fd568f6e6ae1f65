//! Prototypes of MPI's functions in a preprocessed `mpi.h`.

/// One function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prototype {
    /// Its name without `MPI_`.
    pub name: String,
    /// What it returns, as C writes it.
    pub returns: String,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
}

/// One parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its type without `const`, pointers and brackets.
    pub base: String,
    before: String,
    after: String,
}

impl Parameter {
    fn parse(text: &str, place: usize) -> Self {
        let text = text.trim();
        let (declared, after) = match text.find('[') {
            Some(at) => (text[..at].trim(), &text[at..]),
            None => (text, ""),
        };
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let before = declared.trim_end_matches(is_word);
        let mut name = declared[before.len()..].to_owned();
        let mut before = before.to_owned();
        // A lone type has no name.
        if before.trim().is_empty() || matches!(name.as_str(), "int" | "void" | "char" | "") {
            before = format!("{declared} ");
            name = format!("parameter{place}");
        }
        let base =
            before.replace("const", " ").replace('*', " ").split_whitespace().collect::<Vec<_>>().join(" ");
        Self { name, base, before, after: after.to_owned() }
    }

    /// The same under another name.
    #[must_use]
    pub fn renamed(&self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self.clone() }
    }

    fn declaration(&self) -> String {
        format!("{}{}{}", self.before, self.name, self.after)
    }
}

/// All functions that have a prototype under `PMPI_`, without variadic ones and MPI's tool interface.
#[must_use]
pub fn prototypes(preprocessed: &str) -> Vec<Prototype> {
    let text: String =
        preprocessed.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join(" ");
    let mut found: Vec<Prototype> = Vec::new();
    for statement in text.split([';', '{', '}']) {
        let Some(prototype) = prototype(statement) else {
            continue;
        };
        if !prototype.name.starts_with("T_") && !found.iter().any(|known| known.name == prototype.name) {
            found.push(prototype);
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

fn prototype(statement: &str) -> Option<Prototype> {
    let statement = without_attributes(statement);
    let at = statement.find("PMPI_")?;
    if statement[..at].contains("typedef") || statement[..at].contains('(') {
        return None;
    }
    let (name, rest) = statement[at + "PMPI_".len()..].split_once('(')?;
    let list = rest.split_once(')')?.0;
    if list.contains("...") || !name.trim().chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return None;
    }
    let returns = statement[..at].replace("extern", " ");
    let returns = returns.split_whitespace().collect::<Vec<_>>().join(" ");
    let list = list.trim();
    let parameters = if list.is_empty() || list == "void" {
        Vec::new()
    } else {
        list.split(',').enumerate().map(|(place, text)| Parameter::parse(text, place)).collect()
    };
    Some(Prototype { name: name.trim().to_owned(), returns, parameters })
}

/// The statement without `__attribute__((…))`.
fn without_attributes(statement: &str) -> String {
    let mut out = String::new();
    let mut rest = statement;
    while let Some(at) = rest.find("__attribute__") {
        out.push_str(&rest[..at]);
        let mut depth = 0;
        let end = rest[at..].char_indices().find_map(|(place, c)| {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            (c == ')' && depth == 0).then_some(at + place + 1)
        });
        rest = end.map_or("", |end| &rest[end..]);
    }
    out.push_str(rest);
    out
}

/// The parameters as C declares them.
#[must_use]
pub(super) fn list(parameters: &[Parameter]) -> String {
    if parameters.is_empty() {
        return "void".to_owned();
    }
    parameters.iter().map(Parameter::declaration).collect::<Vec<_>>().join(", ")
}

/// The parameters as C hands them on.
#[must_use]
pub(super) fn arguments(parameters: &[Parameter]) -> String {
    parameters.iter().map(|parameter| parameter.name.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prototypes_are_read_with_arrays_attributes_and_without_variadic_ones() {
        let found = prototypes(
            "# 12 \"mpi.h\"\n__attribute__((visibility(\"default\"))) int PMPI_Group_range_incl(MPI_Group group, int n,\n\
             int ranges[][3], MPI_Group *newgroup) __attribute__((deprecated(\"no; really\")));\n\
             int PMPI_Pcontrol(const int level, ...);\ndouble PMPI_Wtime(void);\nint PMPI_T_finalize(void);\n\
             typedef int (PMPI_nothing)(int);",
        );
        let names: Vec<&str> = found.iter().map(|prototype| prototype.name.as_str()).collect();
        assert_eq!(names, ["Group_range_incl", "Wtime"]);
        assert_eq!(found[0].returns, "int");
        assert_eq!(
            list(&found[0].parameters),
            "MPI_Group group, int n, int ranges[][3], MPI_Group *newgroup"
        );
        assert_eq!(found[0].parameters[3].base, "MPI_Group");
        assert_eq!(list(&found[1].parameters), "void");
    }
}
