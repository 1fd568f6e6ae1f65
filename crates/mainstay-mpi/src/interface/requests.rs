//! Requests: what makes, starts, awaits, frees and ends them.

use super::numbers::request_kind_of;
use super::{buffer, step};
use std::ffi::{c_int, c_void};

/// Memory that the request which this call makes will fill.
#[unsafe(no_mangle)]
pub extern "C" fn ms_region(address: *mut c_void, count: i64, datatype: u64) {
    let buffer = buffer(address, count, datatype);
    step((), |core, _, _| {
        core.region(buffer);
        Ok(())
    });
}

/// What the persistent request which this call makes will send.
#[unsafe(no_mangle)]
pub extern "C" fn ms_source(address: *const c_void, count: i64, datatype: u64) {
    let buffer = buffer(address, count, datatype);
    step((), |core, _, _| {
        core.source(buffer);
        Ok(())
    });
}

/// The call makes a request; returns its handle, or sets `*null`. `what` is a [`RequestKind`](crate::requests::RequestKind).
///
/// # Safety
/// `null` is readable and writable. As for [`crate::core::Core::request`], until [`ms_close`](super::ms_close).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_request(handle: u64, null: *mut c_int, what: c_int) -> u64 {
    // SAFETY: the caller's promise.
    let null = unsafe { &mut *null };
    let given = (*null == 0).then_some(handle);
    let what = request_kind_of(what);
    // SAFETY: the caller's promise.
    let made = step(given, |core, call, name| unsafe { core.request(call, name, given, what) });
    *null = c_int::from(made.is_none());
    made.unwrap_or(handle)
}

/// The call will wait for this request.
#[unsafe(no_mangle)]
pub extern "C" fn ms_await(handle: u64) {
    step((), |core, call, _| {
        core.await_request(call, handle);
        Ok(())
    });
}

/// A request goes in.
#[unsafe(no_mangle)]
pub extern "C" fn ms_in_request(handle: u64) {
    step((), |core, call, name| core.in_request(call, name, handle));
}

/// A persistent request is started.
///
/// # Safety
/// The buffer of a send is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_start(handle: u64) {
    // SAFETY: the caller's promise.
    step((), |core, call, name| unsafe { core.start(call, name, handle) });
}

/// A request is freed.
#[unsafe(no_mangle)]
pub extern "C" fn ms_forget(handle: u64) {
    step((), |core, _, _| {
        core.forget(handle);
        Ok(())
    });
}

/// A request is done; whether its handle is null now.
///
/// # Safety
/// As for [`crate::core::Core::done`], until [`ms_close`](super::ms_close).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_done(index: u64, handle: u64, null: c_int, bytes: u64) -> c_int {
    let null = null != 0;
    // SAFETY: the caller's promise.
    let done = step(null, |core, call, name| unsafe { core.done(call, name, index, handle, null, bytes) });
    c_int::from(done)
}
