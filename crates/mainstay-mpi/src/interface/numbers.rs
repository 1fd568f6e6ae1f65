//! The numbers by which the shim and the core understand each other: those of `shim/core.h`, which a test holds equal.

use crate::field::{ObjectKind, Role};
use crate::requests::RequestKind;
use std::ffi::c_int;

/// Calls are forwarded and nothing else.
pub(super) const MODE_OFF: c_int = 0;
/// Calls are forwarded and recorded.
pub(super) const MODE_RECORD: c_int = 1;
/// Calls are served.
pub(super) const MODE_REPLAY: c_int = 2;

/// Added to the kind of a handle that goes in among numbers.
pub(super) const HANDLES: c_int = 16;

/// The kind of an object.
pub(super) fn kind_of(kind: c_int) -> ObjectKind {
    u8::try_from(kind).ok().and_then(ObjectKind::from_byte).expect("the shim knows the kinds")
}

/// What a number that goes in means.
pub(super) fn role_of(role: c_int) -> Role {
    match role {
        2 => Role::Peer,
        3 => Role::Tag,
        4 => Role::Count,
        _ => Role::Number,
    }
}

/// What a request is.
pub(super) fn request_kind_of(kind: c_int) -> RequestKind {
    match kind {
        1 => RequestKind::Persistent,
        2 => RequestKind::Whole,
        3 => RequestKind::Over,
        _ => RequestKind::Once,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::Cause;
    use std::collections::BTreeMap;

    /// The constants of the header, by name.
    fn of_header() -> BTreeMap<&'static str, c_int> {
        let header = include_str!("../../shim/core.h");
        let lists = header.split("enum {").skip(1).filter_map(|rest| rest.split('}').next());
        lists
            .flat_map(|list| list.split(','))
            .map(|one| {
                let (name, number) = one.split_once('=').expect("each constant has its number");
                (name.trim(), number.trim().parse().expect("a number"))
            })
            .collect()
    }

    #[test]
    fn the_header_of_the_shim_has_the_numbers_of_the_core() {
        let header = of_header();
        let own = [
            ("MODE_OFF", MODE_OFF),
            ("MODE_RECORD", MODE_RECORD),
            ("MODE_REPLAY", MODE_REPLAY),
            ("HANDLES", HANDLES),
        ];
        for (name, number) in own {
            assert_eq!(header[name], number, "{name}");
        }
        let roles =
            [("NUMBER", Role::Number), ("PEER", Role::Peer), ("TAG", Role::Tag), ("COUNT", Role::Count)];
        for (name, role) in roles {
            assert_eq!((role_of(header[name]), header[name]), (role, role as c_int), "{name}");
        }
        let kinds = [
            ("COMM", ObjectKind::Comm),
            ("DATATYPE", ObjectKind::Datatype),
            ("GROUP", ObjectKind::Group),
            ("OP", ObjectKind::Op),
            ("REQUEST", ObjectKind::Request),
            ("ERRHANDLER", ObjectKind::Errhandler),
            ("INFO", ObjectKind::Info),
            ("WIN", ObjectKind::Win),
            ("FILE_KIND", ObjectKind::File),
            ("MESSAGE_KIND", ObjectKind::Message),
        ];
        for (name, kind) in kinds {
            assert_eq!(kind_of(header[name]), kind, "{name}");
        }
        let requests = [
            ("ONCE", RequestKind::Once),
            ("PERSISTENT", RequestKind::Persistent),
            ("WHOLE", RequestKind::Whole),
            ("OVER", RequestKind::Over),
        ];
        for (name, kind) in requests {
            assert_eq!(request_kind_of(header[name]), kind, "{name}");
        }
        let endings = [
            ("ENDED_UNKNOWN", Cause::Unknown),
            ("ENDED_FINALIZED", Cause::Finalized),
            ("ENDED_EXIT", Cause::Exit),
            ("ENDED_ABORT", Cause::Abort),
        ];
        for (name, cause) in endings {
            assert_eq!(Cause::from_number(u64::try_from(header[name]).expect("small")), cause, "{name}");
        }
        // One more is the shim's own: it has not begun.
        let all = own.len() + roles.len() + kinds.len() + requests.len() + endings.len() + 1;
        assert_eq!(header.len(), all, "a constant that is not compared: {header:?}");
    }
}
