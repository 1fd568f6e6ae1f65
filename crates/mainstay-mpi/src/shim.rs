//! Writes the shim's C from the prototypes of an installed `mpi.h` and the table `shim/calls.txt`.

mod header;
mod table;

use self::header::{Parameter, Prototype};
use self::table::{Call, Data, Way};
use std::fmt::Write as _;

pub use self::header::prototypes;

/// The table of calls.
const CALLS: &str = include_str!("../shim/calls.txt");
/// What is written by hand, in the order in which it is compiled, as one source.
const HAND: [&str; 6] = [
    include_str!("../shim/shim.c"),
    include_str!("../shim/requests.c"),
    include_str!("../shim/datatypes.c"),
    include_str!("../shim/lifetime.c"),
    include_str!("../shim/clocks.c"),
    include_str!("../shim/attributes.c"),
];
/// The same for calls that MPI has twice, with `int` and with large counts.
const COUNTS: &str = include_str!("../shim/counts.c");
/// The same for the core's functions.
const CORE: &str = include_str!("../shim/core.h");

/// Clocks of the C library that are recorded too: their names do not begin with `MPI_`.
const CLOCKS: [&str; 6] = ["clock_gettime", "gettimeofday", "getrusage", "time", "clock", "times"];

/// Kinds of objects: C type, name of the kind in C.
const KINDS: [(&str, &str); 10] = [
    ("MPI_Comm", "COMM"),
    ("MPI_Datatype", "DATATYPE"),
    ("MPI_Group", "GROUP"),
    ("MPI_Op", "OP"),
    ("MPI_Request", "REQUEST"),
    ("MPI_Errhandler", "ERRHANDLER"),
    ("MPI_Info", "INFO"),
    ("MPI_Win", "WIN"),
    ("MPI_File", "FILE_KIND"),
    ("MPI_Message", "MESSAGE_KIND"),
];

/// Names of predefined objects, by kind. Their order is part of the log's format: add at the end.
const PREDEFINED: [(&str, &str); 9] = [
    ("COMM", "MPI_COMM_NULL MPI_COMM_WORLD MPI_COMM_SELF"),
    ("GROUP", "MPI_GROUP_NULL MPI_GROUP_EMPTY"),
    ("REQUEST", "MPI_REQUEST_NULL"),
    ("MESSAGE_KIND", "MPI_MESSAGE_NULL MPI_MESSAGE_NO_PROC"),
    ("ERRHANDLER", "MPI_ERRHANDLER_NULL MPI_ERRORS_ARE_FATAL MPI_ERRORS_RETURN"),
    ("INFO", "MPI_INFO_NULL MPI_INFO_ENV"),
    ("WIN", "MPI_WIN_NULL"),
    (
        "OP",
        "MPI_OP_NULL MPI_MAX MPI_MIN MPI_SUM MPI_PROD MPI_LAND MPI_BAND MPI_LOR MPI_BOR MPI_LXOR MPI_BXOR MPI_MINLOC \
         MPI_MAXLOC MPI_REPLACE MPI_NO_OP",
    ),
    (
        "DATATYPE",
        "MPI_DATATYPE_NULL MPI_BYTE MPI_PACKED MPI_CHAR MPI_SHORT MPI_INT MPI_LONG MPI_FLOAT MPI_DOUBLE MPI_LONG_DOUBLE \
         MPI_UNSIGNED_CHAR MPI_SIGNED_CHAR MPI_UNSIGNED_SHORT MPI_UNSIGNED_LONG MPI_UNSIGNED MPI_FLOAT_INT \
         MPI_DOUBLE_INT MPI_LONG_DOUBLE_INT MPI_LONG_INT MPI_SHORT_INT MPI_2INT MPI_WCHAR \
         MPI_LONG_LONG_INT MPI_LONG_LONG MPI_UNSIGNED_LONG_LONG MPI_2COMPLEX MPI_2DOUBLE_COMPLEX MPI_CHARACTER \
         MPI_LOGICAL MPI_LOGICAL1 MPI_LOGICAL2 MPI_LOGICAL4 MPI_LOGICAL8 MPI_INTEGER MPI_INTEGER1 MPI_INTEGER2 \
         MPI_INTEGER4 MPI_INTEGER8 MPI_INTEGER16 MPI_REAL MPI_REAL2 MPI_REAL4 MPI_REAL8 MPI_REAL16 \
         MPI_DOUBLE_PRECISION MPI_COMPLEX MPI_COMPLEX4 MPI_COMPLEX8 MPI_COMPLEX16 MPI_COMPLEX32 MPI_DOUBLE_COMPLEX \
         MPI_2REAL MPI_2DOUBLE_PRECISION MPI_2INTEGER MPI_INT8_T MPI_UINT8_T MPI_INT16_T MPI_UINT16_T MPI_INT32_T \
         MPI_UINT32_T MPI_INT64_T MPI_UINT64_T MPI_AINT MPI_OFFSET MPI_C_BOOL MPI_C_COMPLEX MPI_C_FLOAT_COMPLEX \
         MPI_C_DOUBLE_COMPLEX MPI_C_LONG_DOUBLE_COMPLEX MPI_CXX_BOOL MPI_CXX_FLOAT_COMPLEX MPI_CXX_DOUBLE_COMPLEX \
         MPI_CXX_LONG_DOUBLE_COMPLEX MPI_COUNT",
    ),
];

/// The table, the header and the shim do not fit. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShimError {
    /// A line of the table cannot be read.
    #[error("calls.txt, line {line}: {text}")]
    Table {
        /// Its number.
        line: usize,
        /// What it says.
        text: String,
    },
    /// A call of the table has other parameters in this `mpi.h`.
    #[error("{name} has {found} parameters in this mpi.h, the table has {expected}")]
    Parameters {
        /// The call.
        name: String,
        /// Parameters in the header.
        found: usize,
        /// Parameters in the table.
        expected: usize,
    },
    /// No prototypes were found.
    #[error("no prototypes of MPI were found in the preprocessed mpi.h")]
    NoPrototypes,
}

/// The C source of the shim for a preprocessed `mpi.h`.
///
/// # Errors
/// [`ShimError`] when header and table do not fit.
pub fn source(preprocessed: &str) -> Result<String, ShimError> {
    let prototypes = prototypes(preprocessed);
    if prototypes.is_empty() {
        return Err(ShimError::NoPrototypes);
    }
    let table = table::read(CALLS)?;
    let mut out = String::from("#define _GNU_SOURCE\n#include <mpi.h>\n");
    out.push_str(CORE);
    put_names(&mut out, &prototypes);
    put_real(&mut out, &prototypes);
    put_predefined(&mut out);
    let hand = hand();
    out.push_str(&hand);
    for prototype in &prototypes {
        let name = prototype.name.as_str();
        // With large counts a call has the same parameters, of other types; where it has one more it is a call of its own.
        let same = |call: &&Call| match name.strip_suffix("_c") {
            Some(small) => call.name == small && call.parameters.len() == prototype.parameters.len(),
            None => call.name == name,
        };
        let made = if by_hand(&hand, name) {
            continue;
        } else if let Some(call) = table.iter().find(same) {
            wrapper(prototype, call)?
        } else if let Some(made) = conversion(prototype) {
            made
        } else {
            forwarder(prototype)
        };
        let _ = write!(out, "\n{made}");
    }
    out.push('\n');
    for Prototype { name, returns, parameters } in &prototypes {
        let list = header::list(parameters);
        let _ =
            writeln!(out, "EXPORTED {returns} PMPI_{name}({list}) __attribute__((alias(\"MPI_{name}\")));");
    }
    Ok(out)
}

/// Names of calls that the table or the hand-written part serves.
///
/// # Errors
/// [`ShimError::Table`] when the table cannot be read.
pub fn served() -> Result<Vec<String>, ShimError> {
    let mut names: Vec<String> = table::read(CALLS)?.into_iter().map(|call| call.name).collect();
    names.extend(hand().lines().filter_map(hand_name).map(str::to_owned));
    names.sort();
    names.dedup();
    Ok(names)
}

/// The call that a line of the hand-written part defines, by itself or by a macro in capitals with the call's name.
fn hand_name(line: &str) -> Option<&str> {
    if let Some(defined) = line.strip_prefix("EXPORTED ") {
        return defined.split_once(" MPI_")?.1.split('(').next();
    }
    let (capitals, rest) = line.split_once('(')?;
    let is_macro = capitals.len() > 3 && capitals.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let name = rest.split([',', ')']).next()?;
    (is_macro && name.contains('_') && name.starts_with(|c: char| c.is_ascii_uppercase())).then_some(name)
}

fn by_hand(hand: &str, name: &str) -> bool {
    hand.lines().any(|line| hand_name(line) == Some(name))
}

/// All that is written by hand, with what MPI has twice written out for both.
fn hand() -> String {
    let with = |ending: &str, count: &str, address: &str, place: &str| {
        let counts = COUNTS.replace("@c", ending).replace("@int", count);
        counts.replace("@aint", address).replace("@displ", place)
    };
    let small = with("", "int", "MPI_Aint", "int");
    [HAND.concat(), small, with("_c", "MPI_Count", "MPI_Count", "MPI_Aint")].concat()
}

fn put_names(out: &mut String, prototypes: &[Prototype]) {
    out.push_str("enum {\n");
    for prototype in prototypes {
        let _ = writeln!(out, "    FN_{},", prototype.name);
    }
    for name in CLOCKS {
        let _ = writeln!(out, "    FN_{name},");
    }
    out.push_str("};\nstatic const char *const names[] = {\n");
    for prototype in prototypes {
        let _ = writeln!(out, "    \"MPI_{}\",", prototype.name);
    }
    for name in CLOCKS {
        let _ = writeln!(out, "    \"{name}\",");
    }
    out.push_str("};\n");
    for prototype in prototypes {
        let name = &prototype.name;
        // The header may have it as a macro besides.
        let _ = writeln!(out, "#define HAS_{name} 1\n#undef MPI_{name}\n#undef PMPI_{name}");
    }
}

fn put_real(out: &mut String, prototypes: &[Prototype]) {
    for Prototype { name, returns, parameters } in prototypes {
        let _ = writeln!(out, "static {returns} (*real_{name})({});", header::list(parameters));
    }
    out.push_str("static const struct { const char *name; void **real; } reals[] = {\n");
    for prototype in prototypes {
        let name = &prototype.name;
        let _ = writeln!(out, "    {{\"PMPI_{name}\", (void **)&real_{name}}},");
    }
    out.push_str("};\n");
}

fn put_predefined(out: &mut String) {
    out.push_str("#define HANDLE(handle) ((uint64_t)(uintptr_t)(handle))\n");
    out.push_str("#define EACH_PREDEFINED(DO) do { \\\n");
    for (kind, names) in PREDEFINED {
        for (index, name) in names.split_whitespace().enumerate() {
            let _ = writeln!(out, "    DO_{name}(DO, {kind}, {index}) \\");
        }
    }
    out.push_str("} while (0)\n");
    for (_, names) in PREDEFINED {
        for name in names.split_whitespace() {
            let _ = writeln!(
                out,
                "#ifdef {name}\n#define DO_{name}(DO, kind, index) DO(kind, index, {name});\n#else\n#define \
                 DO_{name}(DO, kind, index)\n#endif"
            );
        }
    }
}

fn kind_of(base: &str) -> Option<&'static str> {
    KINDS.iter().find(|(c_type, _)| *c_type == base).map(|(_, kind)| *kind)
}

/// A call that is forwarded, counted and named.
fn forwarder(prototype: &Prototype) -> String {
    let Prototype { name, returns, parameters } = prototype;
    let (list, arguments) = (header::list(parameters), header::arguments(parameters));
    if returns == "void" {
        return format!("EXPORTED void MPI_{name}({list})\n{{\n    start(); real_{name}({arguments});\n}}\n");
    }
    format!(
        "EXPORTED {returns} MPI_{name}({list})\n{{\n    if (forwarded())\n        return real_{name}({arguments});\n    \
         depth++;\n    ms_unhandled(FN_{name});\n    {returns} returned = real_{name}({arguments});\n    depth--;\n    \
         return returned;\n}}\n"
    )
}

/// Conversions between handles and Fortran's numbers: emulated at replay.
fn conversion(prototype: &Prototype) -> Option<String> {
    let Prototype { name, returns, parameters } = prototype;
    let [parameter] = &parameters[..] else {
        return None;
    };
    let (list, argument) = (header::list(parameters), &parameter.name);
    // MPI 5 has them under a second name that is not Fortran's.
    let served = if name.ends_with("_f2c") || name.ends_with("_fromint") {
        let kind = kind_of(returns)?;
        format!("({returns})(intptr_t)ms_from_fortran({kind}, {argument}, (uint64_t)(int64_t){argument})")
    } else if name.ends_with("_c2f") || name.ends_with("_toint") {
        let kind = kind_of(&parameter.base)?;
        format!("ms_to_fortran({kind}, HANDLE({argument}), (int)(intptr_t){argument})")
    } else {
        return None;
    };
    Some(format!(
        "EXPORTED {returns} MPI_{name}({list})\n{{\n    if (forwarded() || live())\n        return \
         real_{name}({argument});\n    return {served};\n}}\n"
    ))
}

/// A call that is recorded and served.
fn wrapper(prototype: &Prototype, call: &Call) -> Result<String, ShimError> {
    let name = &prototype.name;
    if prototype.parameters.len() != call.parameters.len() {
        return Err(ShimError::Parameters {
            name: name.clone(),
            found: prototype.parameters.len(),
            expected: call.parameters.len(),
        });
    }
    let parameters: Vec<Parameter> = prototype
        .parameters
        .iter()
        .zip(&call.parameters)
        .map(|(parameter, spec)| parameter.renamed(&spec.name))
        .collect();
    let list = header::list(&parameters);
    let has =
        |wanted: &str| call.parameters.iter().any(|spec| spec.name == wanted && spec.way != Way::Ignored);
    let (asynchronous, persistent) = (has("request"), call.name.ends_with("_init"));

    let mut body = String::new();
    let mut put = |line: String| {
        let _ = writeln!(body, "    {line}");
    };
    put(format!("if (forwarded())\n        return real_{name}({});", header::arguments(&parameters)));
    // The real call takes the handle of a matched message away.
    let matched = call.parameters.iter().any(|spec| spec.name == "message" && spec.way == Way::Both);
    if matched {
        put("MPI_Message matched = *message;".to_owned());
    }
    let nobody = Nobody {
        to: has("dest").then_some("dest != MPI_PROC_NULL"),
        from: if matched {
            Some("matched != MPI_MESSAGE_NO_PROC")
        } else {
            has("source").then_some("source != MPI_PROC_NULL")
        },
    };
    put(format!("open_call(FN_{name});"));
    let status = parameters
        .iter()
        .zip(&call.parameters)
        .find(|(parameter, spec)| parameter.base == "MPI_Status" && spec.way == Way::Out)
        .map(|(parameter, _)| parameter.name.clone());
    if let Some(status) = &status {
        put(format!("MPI_Status own = {{0}}, *seen = {status} == MPI_STATUS_IGNORE ? &own : {status};"));
    }
    let lines = parameters.iter().zip(&call.parameters);
    let lines: Vec<String> =
        lines.flat_map(|(parameter, spec)| inputs(parameter, spec, persistent, &nobody)).collect();
    in_few_steps(&lines).into_iter().for_each(&mut put);
    let arguments: Vec<&str> = parameters
        .iter()
        .map(|parameter| if Some(&parameter.name) == status.as_ref() { "seen" } else { &parameter.name })
        .collect();
    put("int returned = MPI_SUCCESS;".to_owned());
    if waits(&parameters, call) && !asynchronous {
        put("if (live()) ms_wait();".to_owned());
    }
    put(format!(
        "if (live()) {{ ms_leave(); depth++; returned = real_{name}({}); depth--; }}",
        arguments.join(", ")
    ));
    if nobody.to.is_some() && nobody.from.is_some() {
        // Of the two halves the receive found more than it had room for.
        put("if (live() && returned != MPI_SUCCESS && is_truncated(returned)) ms_has_sent();".to_owned());
    }
    put("returned = (int)ms_result(returned);".to_owned());
    put("if (returned == MPI_SUCCESS) {".to_owned());
    if status.is_some() {
        put("    uint64_t length = 0; (void)length;".to_owned());
    }
    // Scalars first: lengths of arrays and conditions hang on them.
    let mut lines: Vec<(u8, String)> = Vec::new();
    for (parameter, spec) in parameters.iter().zip(&call.parameters) {
        lines.extend(outputs(parameter, spec, asynchronous, &nobody));
    }
    let whole =
        !call.parameters.iter().any(|spec| matches!(&spec.data, Some(Data::Plain { message: true, .. })));
    if asynchronous {
        let what = match (persistent, whole) {
            (true, _) => "PERSISTENT",
            (false, true) => "WHOLE",
            (false, false) => "ONCE",
        };
        let alone = if what == "WHOLE" { "SIZE == 1" } else { "0" };
        lines.push((9, format!("out_request(request, {what}, {alone});")));
    }
    lines.sort_by_key(|line| line.0);
    for (_, line) in lines {
        put(format!("    {line}"));
    }
    let receives = call.parameters.iter().any(|spec| {
        matches!(spec.way, Way::Out | Way::Both)
            && matches!(&spec.data, Some(Data::Plain { message: true, .. }))
    });
    match nobody.from {
        Some(somebody) if receives && !asynchronous => {
            put(format!("}} else if ({somebody}) {{\n        ms_may_have_received();\n    }}"));
        }
        _ => put("}".to_owned()),
    }
    put("close_call();".to_owned());
    for (parameter, spec) in parameters.iter().zip(&call.parameters) {
        if parameter.base == "MPI_Comm" && spec.way == Way::Out {
            put(format!("if (returned == MPI_SUCCESS) describe_comm(*{});", parameter.name));
        }
    }
    put("return returned;".to_owned());
    let returns = &prototype.returns;
    Ok(format!("EXPORTED {returns} MPI_{name}({list})\n{{\n{body}}}\n"))
}

/// Whether the call may wait for other ranks, or polls for what they send: one that moves message data, probes, or makes a
/// communicator.
fn waits(parameters: &[Parameter], call: &Call) -> bool {
    let among_ranks =
        parameters.iter().any(|parameter| matches!(parameter.name.as_str(), "comm" | "message"));
    let moves = parameters.iter().zip(&call.parameters).any(|(parameter, spec)| {
        let made = spec.way == Way::Out && parameter.base == "MPI_Comm";
        spec.data.is_some() || made || parameter.base == "MPI_Status"
    });
    let makes = call.name.starts_with("Comm_create") || call.name.starts_with("Intercomm_");
    (among_ranks && moves) || makes || call.name == "Barrier"
}

/// Numbers and handles that follow each other go in by one step: a step costs as much as what it does.
fn in_few_steps(lines: &[String]) -> Vec<String> {
    let scalar = |line: &String| -> Option<String> {
        if let Some(handle) = line.strip_prefix("ms_in_handle(") {
            let (kind, value) = handle.strip_suffix(");")?.split_once(", ")?;
            return Some(format!("{{HANDLES + {kind}, (int64_t){value}}}"));
        }
        let (role, value) = line.strip_prefix("ms_in(")?.strip_suffix(");")?.split_once(", ")?;
        Some(format!("{{{role}, {value}}}"))
    };
    let mut out = Vec::new();
    for group in lines.chunk_by(|one, other| scalar(one).is_some() && scalar(other).is_some()) {
        let scalars: Vec<String> = group.iter().filter_map(scalar).collect();
        if scalars.len() < 2 {
            out.extend(group.iter().cloned());
        } else {
            let count = scalars.len();
            out.push(format!("ms_inputs((const struct ms_input[]){{{}}}, {count});", scalars.join(", ")));
        }
    }
    out
}

/// What holds, as C, if a call sends to somebody and receives from somebody: a buffer for nobody is never touched, and may not be
/// there.
struct Nobody {
    to: Option<&'static str>,
    from: Option<&'static str>,
}

fn inputs(parameter: &Parameter, spec: &table::Parameter, persistent: bool, nobody: &Nobody) -> Vec<String> {
    let name = &parameter.name;
    let mut lines = Vec::new();
    if !matches!(spec.way, Way::In | Way::Both | Way::Text) {
        return lines;
    }
    let line = match (&spec.data, &spec.array, spec.way) {
        (Some(Data::Plain { count, datatype, .. }), ..) if persistent => {
            format!("ms_source({name}, {count}, HANDLE({datatype}));")
        }
        (Some(Data::Plain { count, datatype, message: true }), _, way) => {
            format!("in_sent({name}, {count}, {datatype}, {});", u8::from(way == Way::Both))
        }
        (Some(Data::Plain { count, datatype, .. }), ..) => format!("in_data({name}, {count}, {datatype});"),
        (Some(Data::Ranks { counts, displs, datatype, bytes }), ..) => {
            let each = if *bytes { "in_data_w" } else { "in_data_v" };
            format!("{each}({name}, {counts}, {displs}, {datatype}, SIZE);")
        }
        (None, _, Way::Text) => format!("ms_in_bytes({name}, strlen({name}));"),
        (None, Some(length), _) => match kind_of(&parameter.base) {
            Some(kind) => {
                format!("for (int i = 0; i < ({length}); i++) ms_in_handle({kind}, HANDLE({name}[i]));")
            }
            None => format!("ms_in_bytes({name}, sizeof *{name} * (uint64_t)({length}));"),
        },
        (None, None, way) => {
            let value = if way == Way::Both { format!("*{name}") } else { name.clone() };
            if parameter.base == "MPI_Status" {
                return lines;
            }
            match kind_of(&parameter.base) {
                Some(kind) => format!("ms_in_handle({kind}, HANDLE({value}));"),
                None => format!("ms_in({}, (int64_t){value});", role(name)),
            }
        }
    };
    let message = matches!(&spec.data, Some(Data::Plain { message: true, .. }));
    lines.push(match spec.condition.as_deref().or(nobody.to.filter(|_| message)) {
        Some(condition) => format!("if ({condition}) {line}"),
        None => line,
    });
    lines
}

fn outputs(
    parameter: &Parameter,
    spec: &table::Parameter,
    asynchronous: bool,
    nobody: &Nobody,
) -> Vec<(u8, String)> {
    let name = &parameter.name;
    if !matches!(spec.way, Way::Out | Way::Both) || name == "request" {
        return Vec::new();
    }
    let both = spec.way == Way::Both;
    let (order, line) = match (&spec.data, &spec.array) {
        (Some(Data::Plain { count, datatype, message }), _) => {
            let line = if asynchronous {
                format!("region({name}, {count}, {datatype});")
            } else {
                let (out, limit) =
                    if *message { ("out_message", "length") } else { ("out_data", "UINT64_MAX") };
                format!("{out}({name}, {count}, {datatype}, {limit});")
            };
            (6, line)
        }
        (Some(Data::Ranks { counts, displs, datatype, bytes }), _) => {
            let suffix = if *bytes { "w" } else { "v" };
            let kind = if asynchronous { "region" } else { "out_data" };
            (6, format!("{kind}_{suffix}({name}, {counts}, {displs}, {datatype}, SIZE);"))
        }
        (None, Some(length)) => (5, format!("ms_out({name}, sizeof *{name} * (uint64_t)({length}));")),
        (None, None) if parameter.base == "MPI_Status" && both => (4, format!("(void)out_status({name});")),
        (None, None) if parameter.base == "MPI_Status" => {
            (4, "length = out_message_status(seen);".to_owned())
        }
        (None, None) => match kind_of(&parameter.base) {
            Some(kind) => {
                let c_type = &parameter.base;
                (3, format!("*{name} = ({c_type})(intptr_t)ms_out_handle({kind}, HANDLE(*{name}));"))
            }
            None if spec.flag => {
                (1, format!("ms_out({name}, sizeof *{name});\n        if (!*{name}) ms_miss();"))
            }
            None => (1, format!("ms_out({name}, sizeof *{name});")),
        },
    };
    // What a broadcast's root sends in, the others get out.
    let condition = match &spec.condition {
        Some(condition) if both => Some(format!("!({condition})")),
        Some(condition) => Some(condition.clone()),
        None => {
            let message = matches!(&spec.data, Some(Data::Plain { message: true, .. }));
            nobody.from.filter(|_| message).map(str::to_owned)
        }
    };
    vec![(
        order,
        condition.map_or_else(|| line.clone(), |condition| format!("if ({condition}) {{ {line} }}")),
    )]
}

fn role(name: &str) -> &'static str {
    match name {
        "dest" | "source" => "PEER",
        "tag" | "sendtag" | "recvtag" => "TAG",
        "count" | "sendcount" | "recvcount" => "COUNT",
        _ => "NUMBER",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = r#"
        extern int MPI_Send(const void *buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm);
        __attribute__((visibility("default"))) int PMPI_Send(const void *buf, int count, MPI_Datatype type, int dest,
            int tag, MPI_Comm comm) __attribute__((nonnull));
        int PMPI_Win_fence(int assert, MPI_Win win);
        MPI_Comm PMPI_Comm_f2c(MPI_Fint comm);
        int PMPI_Waitall(int count, MPI_Request requests[], MPI_Status *statuses);
    "#;

    #[test]
    fn a_call_of_the_table_is_wrapped_and_another_forwarded() {
        let source = source(HEADER).expect("a shim");
        assert!(source.contains(" in_sent(buf, count, datatype, 0);"), "the table's names, not the header's");
        assert!(source.contains("if (dest != MPI_PROC_NULL) in_sent("), "nobody's buffer is not read");
        assert!(source.contains(
            "{COUNT, (int64_t)count}, {HANDLES + DATATYPE, (int64_t)HANDLE(datatype)}, {PEER, (int64_t)dest}"
        ));
        assert!(source.contains("ms_wait();"), "a send may wait");
        assert!(source.contains("ms_unhandled(FN_Win_fence);"));
        assert!(source.contains("ms_from_fortran(COMM"));
        assert!(source.contains("PMPI_Send(const void *buf"), "both names are ours");
        assert_eq!(source.matches("EXPORTED int MPI_Waitall(").count(), 1, "the one written by hand");
    }

    #[test]
    fn another_number_of_parameters_is_refused() {
        let other = "int PMPI_Send(const void *buf, int count);";
        assert!(matches!(source(other), Err(ShimError::Parameters { found: 2, expected: 6, .. })));
        assert_eq!(source("int main(void);"), Err(ShimError::NoPrototypes));
    }

    #[test]
    fn every_call_of_the_table_stands_in_it_once() {
        let table = table::read(CALLS).expect("the table");
        for call in &table {
            assert_eq!(table.iter().filter(|other| other.name == call.name).count(), 1, "{}", call.name);
            assert!(!by_hand(&hand(), &call.name), "{} is written by hand too", call.name);
        }
    }
}
