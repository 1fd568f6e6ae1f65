//! What objects are: types piece by piece, who is in a communicator, Fortran's numbers.

use super::numbers::kind_of;
use super::{State, state};
use crate::core::{Core, Side};
use crate::definition::Comm;
use crate::objects::HandleStyle;
use crate::typemap::Typemap;
use std::ffi::c_int;

/// A piece of the type that [`ms_type`] will name: `blocklength` elements of another, from `offset` on, in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn ms_piece(datatype: u64, blocklength: u64, offset: i64) {
    let mut state = state();
    let State { core: Some(core), map, unknown_piece, .. } = &mut *state else {
        return;
    };
    *unknown_piece |= !core.add_piece(map, datatype, blocklength, offset);
}

/// The extent of a type, 0 if it is not known.
#[unsafe(no_mangle)]
pub extern "C" fn ms_extent(datatype: u64) -> i64 {
    state().core.as_ref().map_or(0, |core| core.extent(datatype))
}

/// The pieces given so far are the type of this handle; or it is so many plain bytes, if `plain_bytes` is above 0.
#[unsafe(no_mangle)]
pub extern "C" fn ms_type(handle: u64, extent: i64, plain_bytes: c_int) {
    let mut state = state();
    let mut map = Typemap { extent, runs: std::mem::take(&mut state.map.runs) };
    map.push(0, u64::try_from(plain_bytes).unwrap_or(0));
    let unknown = std::mem::take(&mut state.unknown_piece);
    if let Some(core) = &mut state.core
        && !unknown
    {
        core.define_type(handle, map);
    }
}

/// Who is in a communicator: `peers` are ranks in the world, `locals` those of our group if it is an inter-communicator.
///
/// # Safety
/// `count` numbers are readable at `peers`, `local_count` at `locals`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_comm(
    handle: u64,
    rank: c_int,
    size: c_int,
    remote_size: c_int,
    peers: *const c_int,
    count: u64,
    locals: *const c_int,
    local_count: u64,
) {
    let unsigned = |number: c_int| u64::try_from(number).unwrap_or(0);
    let ranks = |from: *const c_int, count: u64| -> Vec<i64> {
        let places = 0..usize::try_from(count).unwrap_or(0);
        // SAFETY: the caller's promise.
        places.map(|at| i64::from(unsafe { *from.add(at) })).collect()
    };
    let (peers, locals) = (ranks(peers, count), ranks(locals, local_count));
    let (size, remote_size) = (unsigned(size), unsigned(remote_size));
    if let Some(core) = &mut state().core {
        core.define_comm(handle, Comm { id: 0, rank: i64::from(rank), size, remote_size, peers, locals });
    }
}

/// A property of a communicator: 0 our rank, 1 size of our group, 2 size of the other group; -1 where it is not known.
#[unsafe(no_mangle)]
pub extern "C" fn ms_comm_is(handle: u64, what: c_int) -> c_int {
    let state = state();
    let known = state.core.as_ref().and_then(|core| core.known.comm(handle)).map(|comm| match what {
        0 => comm.rank,
        1 => i64::try_from(comm.size).unwrap_or(-1),
        _ => i64::try_from(comm.remote_size).unwrap_or(-1),
    });
    known.and_then(|value| c_int::try_from(value).ok()).unwrap_or(-1)
}

/// Fortran's number of a predefined object, while recording.
#[unsafe(no_mangle)]
pub extern "C" fn ms_fortran(kind: c_int, handle: u64, fortran: c_int) {
    let mut state = state();
    let kind = kind_of(kind);
    let number = state.core.as_ref().and_then(|core| core.known.objects.number(kind, handle));
    if let Some(number) = number {
        state.fortran.push((kind, number, fortran));
    }
}

/// All of Fortran's numbers were given.
#[unsafe(no_mangle)]
pub extern "C" fn ms_fortran_end() {
    let mut state = state();
    let numbers = std::mem::take(&mut state.fortran);
    if let Some(Core { side: Side::Recording(recording), .. }) = &mut state.core {
        recording.write_fortran(&numbers);
    }
}

/// At replay: the handle behind Fortran's number, or `otherwise`.
#[unsafe(no_mangle)]
pub extern "C" fn ms_from_fortran(kind: c_int, fortran: c_int, otherwise: u64) -> u64 {
    let state = state();
    let core = state.core.as_ref().filter(|core| core.style() == HandleStyle::Pointer);
    let found = core.and_then(|core| core.known.objects.from_fortran(kind_of(kind), fortran));
    found.unwrap_or(otherwise)
}

/// At replay: Fortran's number for a handle, or `otherwise`.
#[unsafe(no_mangle)]
pub extern "C" fn ms_to_fortran(kind: c_int, handle: u64, otherwise: c_int) -> c_int {
    let state = state();
    let core = state.core.as_ref().filter(|core| core.style() == HandleStyle::Pointer);
    let found = core.and_then(|core| core.known.objects.to_fortran(kind_of(kind), handle));
    found.unwrap_or(otherwise)
}
