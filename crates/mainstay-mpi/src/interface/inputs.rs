//! Numbers and handles that go into a call: one by one, or several in one step.

use super::numbers::{HANDLES, kind_of, role_of};
use super::step;
use crate::call::Call;
use crate::core::Core;
use crate::field::HANDLE_FIELD;
use crate::objects::Objects;
use crate::replaying::Halt;
use crate::varint::{one_byte, zigzag};
use std::ffi::c_int;

/// A number or a handle, as C hands it over.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Input {
    /// A role; a handle of a kind has `HANDLES` and the kind.
    what: c_int,
    value: i64,
}

impl Input {
    /// The field as one word and its length in bytes, if it is a short one: a small number, or a handle seen lately.
    #[inline]
    fn word(self, objects: &Objects) -> Option<(u64, usize)> {
        if self.what > HANDLES {
            let kind = kind_of(self.what - HANDLES);
            let id = objects.recent_number(kind, self.value.cast_unsigned())?;
            return Some((
                u64::from(HANDLE_FIELD) | u64::from(kind as u8) << 8 | u64::from(one_byte(id)?) << 16,
                3,
            ));
        }
        let role = u64::try_from(self.what).ok()?;
        Some((role | u64::from(one_byte(zigzag(self.value))?) << 8, 2))
    }

    fn put(self, core: &mut Core, call: &mut Call, name: &str) -> Result<(), Halt> {
        if self.what > HANDLES {
            return core.in_handle(call, name, kind_of(self.what - HANDLES), self.value.cast_unsigned());
        }
        core.in_number(call, name, role_of(self.what), self.value)
    }
}

/// A number goes in, of this role.
#[unsafe(no_mangle)]
pub extern "C" fn ms_in(role: c_int, value: i64) {
    step((), |core, call, name| Input { what: role, value }.put(core, call, name));
}

/// A handle goes in.
#[unsafe(no_mangle)]
pub extern "C" fn ms_in_handle(kind: c_int, handle: u64) {
    step((), |core, call, name| core.in_handle(call, name, kind_of(kind), handle));
}

/// Numbers and handles go in, in order.
///
/// # Safety
/// `count` of them are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_inputs(inputs: *const Input, count: c_int) {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the caller's promise.
    let inputs = unsafe { std::slice::from_raw_parts(inputs, count) };
    step((), |core, call, name| {
        let plain = core.records_plainly();
        inputs.iter().try_for_each(|input| match input.word(&core.known.objects).filter(|_| plain) {
            Some((word, length)) => {
                call.put_word(word, length);
                Ok(())
            }
            None => input.put(core, call, name),
        })
    });
}
