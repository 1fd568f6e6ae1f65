//! MPI's handles by numbers that are the same at replay, where no MPI is there to make handles.
//!
//! A number stands for one *value* of a handle and is never taken back: when MPI uses a value again, it is the same number. So
//! shared and freed objects need no care, and what a number means follows from the order of the log.

use crate::field::ObjectKind;
use rustc_hash::FxHashMap;

/// Numbers of objects that the program made begin here; below are the predefined ones.
pub const FIRST_MADE: u64 = 1 << 16;
/// Number of a handle that replay never served.
pub const UNKNOWN: u64 = u64::MAX;

/// What a handle looks like in this MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandleStyle {
    /// An `int`, which is Fortran's number as well: MPICH and its family.
    Integer,
    /// A pointer to something: Open MPI.
    Pointer,
}

/// Handles and their numbers.
#[derive(Debug, Default)]
pub struct Objects {
    recent: Recent,
    numbers: FxHashMap<(ObjectKind, u64), u64>,
    handles: FxHashMap<(ObjectKind, u64), u64>,
    fortran: FxHashMap<(ObjectKind, i32), u64>,
    fortran_of: FxHashMap<(ObjectKind, u64), i32>,
    made: u64,
}

/// Numbers that were looked up lately, each in the one place for its handle: a program uses few handles, and often.
#[derive(Debug)]
struct Recent([(ObjectKind, u64, u64); RECENT_PLACES]);

/// Places for them.
const RECENT_PLACES: usize = 64;

impl Default for Recent {
    fn default() -> Self {
        Self([(ObjectKind::Comm, 0, UNKNOWN); RECENT_PLACES])
    }
}

impl Recent {
    fn place(kind: ObjectKind, handle: u64) -> usize {
        // The highest bits of a product hang on all bits of the handle.
        let mixed = (handle ^ u64::from(kind as u8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::try_from(mixed >> 58).expect("six bits")
    }

    fn number(&self, kind: ObjectKind, handle: u64) -> Option<u64> {
        let (of, key, number) = self.0[Self::place(kind, handle)];
        (of == kind && key == handle && number != UNKNOWN).then_some(number)
    }

    fn put(&mut self, kind: ObjectKind, handle: u64, number: u64) {
        self.0[Self::place(kind, handle)] = (kind, handle, number);
    }
}

impl Objects {
    /// Takes note of a predefined object. `index` is its place in the shim's list.
    pub fn predefine(&mut self, kind: ObjectKind, index: u64, handle: u64) {
        assert!(index < FIRST_MADE, "more predefined objects than numbers for them");
        // Of two names for one value the first counts.
        self.numbers.entry((kind, handle)).or_insert(index);
        self.handles.insert((kind, index), handle);
    }

    /// Handles of all predefined objects of a kind, with their numbers.
    pub fn predefined(&self, kind: ObjectKind) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.handles
            .iter()
            .filter(move |((of, number), _)| *of == kind && *number < FIRST_MADE)
            .map(|((_, number), handle)| (*number, *handle))
    }

    /// The number of a handle, if it has one.
    #[must_use]
    pub fn number(&self, kind: ObjectKind, handle: u64) -> Option<u64> {
        self.recent.number(kind, handle).or_else(|| self.numbers.get(&(kind, handle)).copied())
    }

    /// The number of a handle if it was looked up lately.
    #[inline]
    #[must_use]
    pub fn recent_number(&self, kind: ObjectKind, handle: u64) -> Option<u64> {
        self.recent.number(kind, handle)
    }

    /// The number of a handle that MPI gave out: a new one if it has none.
    pub fn number_or_new(&mut self, kind: ObjectKind, handle: u64) -> u64 {
        if let Some(number) = self.recent.number(kind, handle) {
            return number;
        }
        let made = &mut self.made;
        let number = *self.numbers.entry((kind, handle)).or_insert_with(|| {
            *made += 1;
            FIRST_MADE + *made - 1
        });
        self.recent.put(kind, handle, number);
        number
    }

    /// The handle of a number, if one was served.
    #[must_use]
    pub fn handle(&self, kind: ObjectKind, number: u64) -> Option<u64> {
        self.handles.get(&(kind, number)).copied()
    }

    /// Takes note of a made-up handle for a number.
    pub fn serve(&mut self, kind: ObjectKind, number: u64, handle: u64) {
        self.recent.put(kind, handle, number);
        self.numbers.insert((kind, handle), number);
        self.handles.insert((kind, number), handle);
    }

    /// Takes note of Fortran's number for a handle.
    pub fn set_fortran(&mut self, kind: ObjectKind, fortran: i32, handle: u64) {
        self.fortran.insert((kind, fortran), handle);
        self.fortran_of.insert((kind, handle), fortran);
    }

    /// The handle behind Fortran's number.
    #[must_use]
    pub fn from_fortran(&self, kind: ObjectKind, fortran: i32) -> Option<u64> {
        self.fortran.get(&(kind, fortran)).copied()
    }

    /// Fortran's number for a handle.
    #[must_use]
    pub fn to_fortran(&self, kind: ObjectKind, handle: u64) -> Option<i32> {
        self.fortran_of.get(&(kind, handle)).copied()
    }
}

/// Made-up handles for replay.
///
/// Open MPI's Fortran layer looks into the objects behind its handles: it takes Fortran's number of a request from there. So a
/// made-up pointer leads to memory in which *every* `int` is that number, wherever the field stands in this version.
#[derive(Debug)]
pub struct Slots {
    style: HandleStyle,
    base: u64,
    used: u32,
    free: Vec<u32>,
}

/// Bytes behind a made-up pointer: more than Open MPI's largest structure that its Fortran layer looks into.
const SLOT_BYTES: usize = 1024;
/// Most objects that may live at one time in a replay.
const SLOTS_MAX: u32 = 1 << 20;
/// Fortran's numbers of made-up handles begin here: above those of predefined objects.
const FORTRAN_FIRST: i32 = 1 << 24;
/// Made-up integers begin here: MPICH's own have one of the two highest bits set.
const INTEGER_FIRST: u64 = 0x0a00_0000;

impl Slots {
    /// Handles of that style; `None` if the address space for them cannot be had.
    #[must_use]
    pub fn new(style: HandleStyle) -> Option<Self> {
        let base = match style {
            HandleStyle::Integer => 0,
            HandleStyle::Pointer => {
                // SAFETY: a new private mapping, wherever the system likes; it is never unmapped.
                let address = unsafe {
                    libc::mmap(
                        std::ptr::null_mut(),
                        SLOT_BYTES * SLOTS_MAX as usize,
                        libc::PROT_READ | libc::PROT_WRITE,
                        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                        -1,
                        0,
                    )
                };
                if address == libc::MAP_FAILED {
                    return None;
                }
                address as u64
            }
        };
        Some(Self { style, base, used: 0, free: Vec::new() })
    }

    /// A handle that stands for nothing yet, and Fortran's number for it.
    pub fn make(&mut self) -> (u64, i32) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.used += 1;
            assert!(self.used < SLOTS_MAX, "more than {SLOTS_MAX} objects live in this replay");
            self.used - 1
        });
        let number = i32::try_from(slot).expect("slots are few");
        match self.style {
            HandleStyle::Integer => {
                let handle = INTEGER_FIRST + u64::from(slot);
                (handle, i32::try_from(handle).expect("made-up integers are positive"))
            }
            HandleStyle::Pointer => {
                let fortran = FORTRAN_FIRST + number;
                let handle = self.base + u64::from(slot) * SLOT_BYTES as u64;
                // SAFETY: the slot is within the mapping made in `new`, which only this function writes to.
                unsafe {
                    std::slice::from_raw_parts_mut(handle as *mut i32, SLOT_BYTES / 4).fill(fortran);
                }
                (handle, fortran)
            }
        }
    }

    /// Takes a handle back.
    pub fn give_back(&mut self, handle: u64) {
        let slot = match self.style {
            HandleStyle::Integer => handle - INTEGER_FIRST,
            HandleStyle::Pointer => (handle - self.base) / SLOT_BYTES as u64,
        };
        self.free.push(u32::try_from(slot).expect("a handle that was made here"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_keeps_its_number_and_predefined_ones_have_theirs() {
        let mut objects = Objects::default();
        objects.predefine(ObjectKind::Comm, 1, 0x10);
        objects.predefine(ObjectKind::Comm, 2, 0x10);
        assert_eq!(objects.number(ObjectKind::Comm, 0x10), Some(1), "the first name counts");
        assert_eq!(objects.number_or_new(ObjectKind::Comm, 0x20), FIRST_MADE);
        assert_eq!(objects.number_or_new(ObjectKind::Group, 0x20), FIRST_MADE + 1);
        assert_eq!(objects.number_or_new(ObjectKind::Comm, 0x20), FIRST_MADE);
        assert_eq!(objects.number(ObjectKind::Comm, 0x30), None);
    }

    #[test]
    fn every_int_behind_a_made_up_pointer_is_fortrans_number() {
        let mut slots = Slots::new(HandleStyle::Pointer).expect("address space");
        let (first, one) = slots.make();
        let (second, two) = slots.make();
        assert!(first != second && one != two);
        // SAFETY: the handle leads to a slot, and a slot is at least this long.
        let seen = unsafe { std::slice::from_raw_parts(second as *const i32, SLOT_BYTES / 4) };
        assert!(seen.iter().all(|int| *int == two));
        slots.give_back(first);
        assert_eq!(slots.make(), (first, one));
    }
}
