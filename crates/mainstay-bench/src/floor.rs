//! The floors: the least that the same bytes cost on this machine with plain calls, on a file written in full once.

use crate::scratch::AlignedBytes;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ScopedJoinHandle;

/// Direct writes are aligned to this, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// The two plain ways of making bytes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurableWrite {
    /// `pwrite` and `fdatasync`.
    Fdatasync,
    /// `O_DIRECT | O_DSYNC`, rounded to whole blocks.
    DirectDsync,
}

/// A file that is written over and over, as a log would: each write begins where the last one ended.
#[derive(Debug)]
pub struct FloorFile {
    method: DurableWrite,
    file: File,
    bytes: AlignedBytes,
    file_bytes: u64,
    position: u64,
}

impl FloorFile {
    /// Makes a file of `file_bytes`, written in full and synced, for writes of at most `write_bytes_max`.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn create(
        path: &Path,
        method: DurableWrite,
        file_bytes: u64,
        write_bytes_max: usize,
    ) -> io::Result<Self> {
        write_in_full(path, file_bytes)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if method == DurableWrite::DirectDsync {
            options.custom_flags(libc::O_DIRECT | libc::O_DSYNC);
        }
        let file = options.open(path)?;
        let bytes = AlignedBytes::filled(write_bytes_max + 2 * BLOCK_BYTES, 0xA5);
        Ok(Self { method, file, bytes, file_bytes, position: 0 })
    }

    /// Writes `length` bytes durably, and goes on after them.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&mut self, length: usize) -> io::Result<()> {
        if self.position + (length + 2 * BLOCK_BYTES) as u64 > self.file_bytes {
            self.position = 0;
        }
        match self.method {
            DurableWrite::Fdatasync => {
                self.file.write_all_at(&self.bytes[..length], self.position)?;
                self.file.sync_data()?;
            }
            DurableWrite::DirectDsync => {
                let block = BLOCK_BYTES as u64;
                let from = self.position / block * block;
                let to = (self.position + length as u64).next_multiple_of(block);
                let count = usize::try_from(to - from).expect("a write fits in memory");
                self.file.write_all_at(&self.bytes[..count], from)?;
            }
        }
        self.position += length as u64;
        Ok(())
    }
}

/// Large sequential direct writes over bytes that are there already, some at once, each on a thread of its own.
#[derive(Debug)]
pub struct DirectStream {
    /// What is written, in turn.
    buffers: Vec<AlignedBytes>,
    outstanding: usize,
}

/// Where one write of a [`DirectStream`] goes.
#[derive(Clone, Debug)]
pub struct DirectPlace {
    /// Open for direct writes.
    pub file: Arc<File>,
    /// Of the first byte, in the file.
    pub offset: u64,
}

impl DirectStream {
    /// For writes of `write_bytes`, `outstanding` at once, over and over from as many buffers: from caches that hold them.
    #[must_use]
    pub fn from_caches(write_bytes: usize, outstanding: usize) -> Self {
        Self::of(outstanding, write_bytes, outstanding)
    }

    /// The same, but each of `writes` in a row from a buffer of its own: from memory where no cache holds them all.
    #[must_use]
    pub fn from_memory(write_bytes: usize, outstanding: usize, writes: usize) -> Self {
        Self::of(writes, write_bytes, outstanding)
    }

    fn of(buffers: usize, write_bytes: usize, outstanding: usize) -> Self {
        Self { buffers: (0..buffers).map(|_| AlignedBytes::filled(write_bytes, 0x5A)).collect(), outstanding }
    }

    /// Whether its buffers are in huge pages. Else the device takes them in more and smaller requests, and the floor is lower than the disk's.
    #[must_use]
    pub fn in_huge_pages(&self) -> bool {
        self.buffers.iter().all(AlignedBytes::in_huge_pages)
    }

    /// Opens a file for these writes.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path)
    }

    /// Writes to all places, and then flushes the device once: the least that makes them durable where the files keep their blocks.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn run(&self, places: &[DirectPlace]) -> io::Result<()> {
        let next = AtomicUsize::new(0);
        let write = || -> io::Result<()> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(place) = places.get(index) else { return Ok(()) };
                place.file.write_all_at(&self.buffers[index % self.buffers.len()], place.offset)?;
            }
        };
        std::thread::scope(|scope| join_all((0..self.outstanding).map(|_| scope.spawn(write)).collect()))?;
        flush_after(places)
    }
}

/// As [`DirectStream::run`], with a thread for each of `buffers`, which it first fills with `message` over and over, computing a CRC-32C of each copy: one
/// plain way of bringing messages to the disk without a log.
///
/// # Errors
/// Those of the file system.
pub fn fill_and_write<'a>(
    buffers: impl Iterator<Item = &'a mut [u8]>,
    places: &[DirectPlace],
    message: &[u8],
) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let write = |buffer: &mut [u8]| -> io::Result<()> {
        while let Some(place) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
            let count = (buffer.len() / message.len()) as u64;
            std::hint::black_box(copy_and_checksum(message, buffer, count));
            place.file.write_all_at(buffer, place.offset)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| join_all(buffers.map(|buffer| scope.spawn(|| write(buffer))).collect()))?;
    flush_after(places)
}

fn join_all(writers: Vec<ScopedJoinHandle<'_, io::Result<()>>>) -> io::Result<()> {
    writers.into_iter().try_for_each(|writer| writer.join().expect("writers do not panic"))
}

fn flush_after(places: &[DirectPlace]) -> io::Result<()> {
    places.last().map_or(Ok(()), |place| place.file.sync_data())
}

/// Copies `message` to the next place of `ring` and computes its CRC-32C, `count` times; one checksum over all keeps the
/// work from being left out.
#[must_use]
pub fn copy_and_checksum(message: &[u8], ring: &mut [u8], count: u64) -> u32 {
    let mut position = 0;
    let mut all = 0;
    for _ in 0..count {
        if position + message.len() > ring.len() {
            position = 0;
        }
        let place = &mut ring[position..position + message.len()];
        place.copy_from_slice(std::hint::black_box(message));
        all ^= crc32c::crc32c(std::hint::black_box(place));
        position += message.len();
    }
    all
}

/// Reads `path` from front to back in pieces of `piece_bytes` and computes a CRC-32C over all of it.
///
/// # Errors
/// Those of the file system.
pub fn read_and_checksum(path: &Path, piece_bytes: usize) -> io::Result<(u64, u32)> {
    let file = File::open(path)?;
    let mut piece = vec![0; piece_bytes];
    let (mut position, mut checksum) = (0, 0);
    loop {
        let count = file.read_at(&mut piece, position)?;
        if count == 0 {
            return Ok((position, checksum));
        }
        checksum = crc32c::crc32c_append(checksum, &piece[..count]);
        position += count as u64;
    }
}

/// Drops what the page cache holds of `path`, so that the next read is from the device.
///
/// # Errors
/// Those of the file system.
pub fn evict(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_data()?;
    // SAFETY: plain advice on an open file.
    let result = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    if result == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(result)) }
}

fn write_in_full(path: &Path, file_bytes: u64) -> io::Result<()> {
    let piece = vec![0_u8; 1 << 20];
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let mut position = 0;
    while position < file_bytes {
        let count = usize::try_from(file_bytes - position).map_or(piece.len(), |left| left.min(piece.len()));
        file.write_all_at(&piece[..count], position)?;
        position += count as u64;
    }
    file.sync_all()
}
