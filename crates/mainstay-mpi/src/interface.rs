//! What the shim calls: the core behind functions of C. Declared for C in `shim/core.h`.
//!
//! One core to a process, one call at a time to a thread. The lock is kept from the beginning of a call to the real call, and
//! from that one's return to the end, never across it.

pub mod definitions;
pub mod ending;
pub mod inputs;
mod lock;
mod numbers;
pub mod requests;

use crate::call::Call;
use crate::core::{Buffer, Core, Known, Side};
use crate::field::ObjectKind;
use crate::format::Kind;
use crate::objects::{HandleStyle, Slots};
use crate::reader::Reader;
use crate::recording::Recording;
use crate::replaying::{Halt, Replaying};
use crate::settings::{self, Settings};
use crate::typemap::Typemap;
use crate::verdict::Verdict;
use lock::{Guard, Keeps, Locked};
use numbers::{MODE_OFF, MODE_RECORD, MODE_REPLAY, kind_of};
use std::cell::{Cell, UnsafeCell};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicPtr, AtomicU16, Ordering};

/// Exit code of a program whose replay goes no further.
pub const HALTED: c_int = 86;

/// How long the end of the process waits for another thread's step.
const FINISH_WAIT_SECONDS_MAX: u64 = 10;

static STATE: Locked<State> = Locked::new(State::new());
static THREADS: AtomicU16 = AtomicU16::new(0);

/// What a thread has of its own. Nothing of it is dropped: the end of the process is recorded when threads have lost what they must
/// drop, and a thread that ends leaves some hundred bytes.
struct Thread {
    call: ManuallyDrop<UnsafeCell<Call>>,
    number: Cell<Option<u16>>,
    keeps: Keeps,
}

thread_local! {
    static THREAD: Thread = const { Thread::new() };
}

/// The thread that keeps the lock: what its steps find without a look into their thread's memory, which for a shared
/// library is a call each time. Valid only while that thread keeps the lock.
static CURRENT: AtomicPtr<Thread> = AtomicPtr::new(std::ptr::null_mut());

impl Thread {
    const fn new() -> Self {
        Self {
            call: ManuallyDrop::new(UnsafeCell::new(Call::new())),
            number: Cell::new(None),
            keeps: Keeps::new(false),
        }
    }

    /// Takes the lock and keeps it for the steps that follow.
    fn keep_state(&self) {
        STATE.keep(&self.keeps);
        CURRENT.store(std::ptr::from_ref(self).cast_mut(), Ordering::Relaxed);
    }
}

struct State {
    names: Vec<String>,
    predefined: Vec<(ObjectKind, u64, u64)>,
    core: Option<Core>,
    verdict: Option<Verdict>,
    until: Option<u64>,
    map: Typemap,
    unknown_piece: bool,
    fortran: Vec<(ObjectKind, u64, i32)>,
    stop: Option<extern "C" fn(*const c_char)>,
    /// Whether the log could not be begun, and why: said at the end.
    refused: Option<String>,
}

impl State {
    const fn new() -> Self {
        Self {
            names: Vec::new(),
            predefined: Vec::new(),
            core: None,
            verdict: None,
            until: None,
            map: Typemap { extent: 0, runs: Vec::new() },
            unknown_piece: false,
            fortran: Vec::new(),
            stop: None,
            refused: None,
        }
    }

    /// A replay goes no further: says so, lets a debugger look, and ends the process.
    fn halt(&mut self, halt: &Halt) -> ! {
        let text = format!("mainstay mpi replay: {halt}");
        self.note_calls();
        if let Some(verdict) = &mut self.verdict {
            verdict.put(halt.word(), &halt.to_string());
        }
        eprintln!("{text}");
        self.stop_at(&text);
        // SAFETY: what the program printed so far should be seen; no other thread of ours holds a stream.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(HALTED);
        }
    }

    /// Says how far a replay is.
    fn note_calls(&mut self) {
        if let (Some(verdict), Some(Core { side: Side::Replaying(replaying, _), .. })) =
            (&mut self.verdict, &self.core)
        {
            verdict.advance(replaying.calls(), replaying.differences());
        }
    }

    /// A replay is at this call: says so, and stops there if it is asked to. A clock that is read no more may have been passed over.
    fn has_come_to(&mut self, calls: u64, function: u16) {
        self.note_calls();
        if self.until.is_none_or(|until| calls < until) {
            return;
        }
        self.until = None;
        let name = self.names.get(usize::from(function)).cloned().unwrap_or_default();
        let text = format!("call {calls}, {name}: stopped there as asked");
        if let Some(verdict) = &mut self.verdict {
            verdict.put("until", &text);
        }
        eprintln!("mainstay mpi replay: {text}");
        self.stop_at(&text);
        if !settings::under_debugger() {
            // SAFETY: as in `halt`.
            unsafe {
                libc::fflush(std::ptr::null_mut());
                libc::_exit(HALTED);
            }
        }
    }

    fn stop_at(&self, text: &str) {
        if let Some(stop) = self.stop {
            let text: Vec<u8> = text.bytes().filter(|byte| *byte != 0).chain([0]).collect();
            stop(text.as_ptr().cast());
        }
    }
}

fn state() -> Guard<State> {
    THREAD.with(|thread| STATE.lock(&thread.keeps))
}

/// The state, and the thread that keeps its lock.
///
/// # Safety
/// The shim's part: this is called between [`ms_open`] and [`ms_leave`], or between [`ms_result`] or [`ms_has_sent`] and [`ms_close`],
/// by the thread that called those. Nothing else from here is in use.
unsafe fn kept() -> (&'static mut State, &'static Thread) {
    // SAFETY: the caller's promise: the thread lives and keeps the lock.
    let (state, thread) = unsafe { (STATE.kept(), &*CURRENT.load(Ordering::Relaxed)) };
    debug_assert!(thread.keeps.get() && THREAD.with(|own| std::ptr::eq(own, thread)), "a step out of a call");
    (state, thread)
}

/// One step of the thread's current call. Nothing where there is no core.
#[inline]
fn step<T>(nothing: T, step: impl FnOnce(&mut Core, &mut Call, &str) -> Result<T, Halt>) -> T {
    // SAFETY: every step of the shim is within a call, see `core.h`.
    let (state, thread) = unsafe { kept() };
    let State { core: Some(core), names, .. } = state else {
        return nothing;
    };
    // SAFETY: this thread's, and no step is within another.
    let call = unsafe { &mut *thread.call.get() };
    let name = names.get(usize::from(call.function)).map_or("", |name| name);
    match step(core, call, name) {
        Ok(done) => done,
        Err(halt) => state.halt(&halt),
    }
}

/// The name of function `number`; numbers come in order from 0.
///
/// # Safety
/// `name` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_name(name: *const c_char) {
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    state().names.push(name.to_string_lossy().into_owned());
}

/// A predefined object at place `index` of the shim's list.
#[unsafe(no_mangle)]
pub extern "C" fn ms_predefined(kind: c_int, index: u64, handle: u64) {
    state().predefined.push((kind_of(kind), index, handle));
}

/// Begins what the environment asks for. Returns the mode.
#[unsafe(no_mangle)]
pub extern "C" fn ms_begin(pointer_handles: c_int, stop: extern "C" fn(*const c_char)) -> c_int {
    let mut state = state();
    state.stop = Some(stop);
    let style = if pointer_handles == 0 { HandleStyle::Integer } else { HandleStyle::Pointer };
    let mut known = Known::default();
    for (kind, index, handle) in &state.predefined {
        known.objects.predefine(*kind, *index, *handle);
    }
    match settings::from_environment() {
        Settings::Off => MODE_OFF,
        Settings::Record { directory, header, timed, writing, measure_copies, drop_when_behind } => {
            let name = format!("starting-{}", std::process::id());
            match Recording::create(&directory, &name, header, timed) {
                Ok(mut recording) => {
                    recording.set_writing(writing, measure_copies, drop_when_behind);
                    let start = settings::start_values();
                    recording.write_texts(Kind::Start, start.iter().map(String::as_str));
                    recording.write_texts(Kind::Names, state.names.iter().map(String::as_str));
                    ending::set_place_of_left(recording.place_of_left());
                    state.core = Some(Core::new(known, Side::Recording(recording), style));
                    MODE_RECORD
                }
                Err(error) => {
                    state.refused = Some(format!("{error}: {}", error.source));
                    MODE_OFF
                }
            }
        }
        Settings::Replay { log, ring, verdict, until, tolerate_send_diff } => {
            state.verdict = Verdict::open(&verdict).ok();
            state.until = until;
            let reader = match Reader::open(&log, &ring) {
                Ok(reader) => reader,
                Err(error) => {
                    state.halt(&Halt::Unsupported { call: 0, what: error.to_string() });
                }
            };
            if reader.gap().is_some() {
                let what = "the log keeps only its end (--keep-last)".to_owned();
                state.halt(&Halt::Unsupported { call: 0, what });
            }
            let Some(slots) = Slots::new(style) else {
                let what = "no address space for handles".to_owned();
                state.halt(&Halt::Unsupported { call: 0, what });
            };
            let replaying = Replaying::new(reader, tolerate_send_diff, &mut known);
            ending::set_place_of_left(state.verdict.as_ref().map(Verdict::place_of_left));
            state.core = Some(Core::new(known, Side::Replaying(replaying, slots), style));
            MODE_REPLAY
        }
    }
}

/// The rank is known: the log gets its name.
///
/// # Safety
/// `library` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_rank(rank: c_int, size: c_int, library: *const c_char) {
    // SAFETY: the caller's promise.
    let library = unsafe { CStr::from_ptr(library) }.to_string_lossy().into_owned();
    if let Some(Core { side: Side::Recording(recording), .. }) = &mut state().core {
        recording.rename(&settings::rank_name(i64::from(rank)));
        let (rank, size) = (rank.to_string(), size.to_string());
        let values = ["rank", &rank, "size", &size, "library", &library];
        recording.write_texts(Kind::Start, values.into_iter());
        recording.write_moment();
    }
}

/// At replay: whether the next call in the log is this one.
#[unsafe(no_mangle)]
pub extern "C" fn ms_next_is(function: c_int) -> c_int {
    let state = state();
    let name = usize::try_from(function).ok().and_then(|at| state.names.get(at));
    let next = match &state.core {
        Some(Core { side: Side::Replaying(replaying, _), .. }) => replaying.next_name(),
        _ => None,
    };
    c_int::from(next.is_some() && next == name.map(String::as_str))
}

/// A call begins. Every function below up to [`ms_close`] belongs to it.
#[unsafe(no_mangle)]
pub extern "C" fn ms_open(function: c_int) {
    let function = u16::try_from(function).expect("functions are few");
    THREAD.with(|thread| {
        thread.keep_state();
        let number = thread.number.get().unwrap_or_else(|| {
            let number = THREADS.fetch_add(1, Ordering::Relaxed);
            thread.number.set(Some(number));
            number
        });
        // SAFETY: this thread's, and it is in no step.
        unsafe { &mut *thread.call.get() }.begin(function, number);
    });
    let calls = step(None, |core, call, name| {
        core.open(call, name)?;
        Ok(match &core.side {
            Side::Replaying(replaying, _) => Some(replaying.calls()),
            Side::Recording(_) => None,
        })
    });
    if let Some(calls) = calls {
        // SAFETY: the lock is kept since the first lines.
        unsafe { kept() }.0.has_come_to(calls, function);
    }
}

/// Message data goes in.
///
/// # Safety
/// The buffer is readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_in_data(address: *const c_void, count: i64, datatype: u64) {
    let buffer = buffer(address, count, datatype);
    // SAFETY: the caller's promise.
    step((), |core, call, name| unsafe { core.in_data(call, name, buffer) });
}

/// The message of a send goes in; the call may overwrite it if `overwritten` is not 0.
///
/// # Safety
/// The buffer is readable until [`ms_close`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_in_sent(address: *const c_void, count: i64, datatype: u64, overwritten: c_int) {
    let buffer = buffer(address, count, datatype);
    // SAFETY: the caller's promise.
    step((), |core, call, name| unsafe { core.in_sent(call, name, buffer, overwritten != 0) });
}

/// An array or text goes in; a null pointer is an empty one.
///
/// # Safety
/// `length` bytes are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_in_bytes(address: *const c_void, length: u64) {
    // SAFETY: the caller's promise.
    let bytes = unsafe { memory(address.cast_mut(), length) }.unwrap_or_default();
    step((), |core, call, name| core.in_bytes(call, name, bytes));
}

/// The real call begins: other threads may do theirs.
#[unsafe(no_mangle)]
pub extern "C" fn ms_leave() {
    // SAFETY: the call was opened, and this thread keeps the lock.
    let (_, thread) = unsafe { kept() };
    STATE.release(&thread.keeps);
}

/// The call failed, but what it was to send was sent.
#[unsafe(no_mangle)]
pub extern "C" fn ms_has_sent() {
    THREAD.with(Thread::keep_state);
    step((), |core, _, _| {
        core.has_sent();
        Ok(())
    });
}

/// The receive failed; a message may have been lost to it.
#[unsafe(no_mangle)]
pub extern "C" fn ms_may_have_received() {
    step((), |core, call, _| {
        core.may_have_received(call);
        Ok(())
    });
}

/// What the call returns; at replay, what it returned.
#[unsafe(no_mangle)]
pub extern "C" fn ms_result(value: i64) -> i64 {
    THREAD.with(Thread::keep_state);
    step(value, |core, call, name| core.result(call, name, value))
}

/// An output parameter; a null pointer for one that is not wanted.
///
/// # Safety
/// `length` bytes are readable and, at replay, writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_out(address: *mut c_void, length: u64) {
    // SAFETY: the caller's promise.
    let memory = unsafe { memory(address, length) };
    step((), |core, call, name| core.out(call, name, memory));
}

/// An object comes out: its handle, which is another one at replay.
#[unsafe(no_mangle)]
pub extern "C" fn ms_out_handle(kind: c_int, handle: u64) -> u64 {
    step(handle, |core, call, name| core.out_handle(call, name, kind_of(kind), handle))
}

/// Message data comes out.
///
/// # Safety
/// As for [`Core::out_data`], until [`ms_close`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_out_data(address: *mut c_void, count: i64, datatype: u64, limit: u64) {
    let buffer = buffer(address, count, datatype);
    // SAFETY: the caller's promise.
    step((), |core, call, name| unsafe { core.out_data(call, name, buffer, limit) });
}

/// The message of a receive that blocks comes out, behind its status.
///
/// # Safety
/// As for [`Core::out_data`], until [`ms_close`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_out_message(address: *mut c_void, count: i64, datatype: u64, limit: u64) {
    let buffer = buffer(address, count, datatype);
    // SAFETY: the caller's promise.
    step((), |core, call, name| unsafe { core.out_message(call, name, buffer, limit) });
}

/// The call is about to wait for other ranks: all that goes in was said.
#[unsafe(no_mangle)]
pub extern "C" fn ms_wait() {
    step((), |core, call, _| {
        core.wait(call);
        Ok(())
    });
}

/// A status comes out; returns the bytes of its message. The source of a cancelled request is
/// [`crate::envelopes::CANCELLED`].
///
/// # Safety
/// `length` bytes are readable and writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_status(raw: *mut c_void, length: u64, source: i64, tag: i64, bytes: u64) -> u64 {
    // SAFETY: the caller's promise.
    let raw = unsafe { memory(raw, length) }.unwrap_or_default();
    step(bytes, |core, call, name| core.status(call, name, raw, (source, tag, bytes)))
}

/// The call is a poll that found nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ms_miss() {
    step((), |_, call, _| {
        call.miss = true;
        Ok(())
    });
}

/// The call is over. Returns the mode for the next.
///
/// # Safety
/// As for [`Core::close`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ms_close() -> c_int {
    let mode = step(MODE_OFF, |core, call, _| {
        // SAFETY: the caller's promise.
        unsafe { core.close(call) };
        Ok(match &core.side {
            Side::Recording(recording) if recording.stopped() => MODE_OFF,
            Side::Recording(_) => MODE_RECORD,
            Side::Replaying(..) => MODE_REPLAY,
        })
    });
    // SAFETY: the call is still open.
    let (state, thread) = unsafe { kept() };
    if mode == MODE_REPLAY {
        state.note_calls();
    }
    STATE.release(&thread.keeps);
    mode
}

/// A call that is forwarded and not recorded.
#[unsafe(no_mangle)]
pub extern "C" fn ms_unhandled(function: c_int) {
    let function = u16::try_from(function).expect("functions are few");
    let mut state = state();
    let state = &mut *state;
    match &mut state.core {
        Some(Core { side: Side::Recording(recording), .. }) => {
            recording.write_unhandled(function, THREAD.with(|thread| thread.number.get()).unwrap_or(0));
        }
        Some(Core { side: Side::Replaying(replaying, _), .. }) => {
            let what = state.names.get(usize::from(function)).map_or("", |name| name);
            let what = format!("{what} is not replayed yet");
            let halt = Halt::Unsupported { call: replaying.calls() + 1, what };
            state.halt(&halt);
        }
        None => {}
    }
}

fn buffer(address: *const c_void, count: i64, datatype: u64) -> Buffer {
    Buffer { address: address as u64, count: u64::try_from(count).unwrap_or(0), datatype }
}

/// # Safety
/// `length` bytes are readable and writable at `address`, unless it is null.
unsafe fn memory<'a>(address: *mut c_void, length: u64) -> Option<&'a mut [u8]> {
    let length = usize::try_from(length).ok()?;
    // SAFETY: the caller's promise.
    (!address.is_null()).then(|| unsafe { std::slice::from_raw_parts_mut(address.cast(), length) })
}
