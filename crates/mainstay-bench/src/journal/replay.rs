//! Reading a journal back, record by record, beside reading and checksumming the same files.

use super::{BenchError, INSTANCE, KIND, Setting, add_target};
use crate::floor::{evict, read_and_checksum};
use crate::machine::Meter;
use crate::report::{Arm, Bound, Figure, Report, Samples, Target};
use mainstay_disk::log::Log;
use mainstay_disk::open::open;
use mainstay_journal::geometry::Geometry;
use mainstay_journal::reader::Reader;
use mainstay_types::level::Level;
use std::path::PathBuf;
use std::time::Instant;

const PAYLOAD_BYTES: usize = 128;

/// Least rate of ours over that of the floor.
const SHARE_MIN: f64 = 0.5;

/// Piece in which the floor reads, in bytes.
const PIECE_BYTES: usize = 1 << 20;

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), BenchError> {
    let (rounds, bytes) = setting.choose((7, 192 << 20), (15, 512 << 20));
    let geometry = Geometry::default();
    let payload = [11; PAYLOAD_BYTES];
    let log = setting.open_log("replay", geometry, false, 2)?;
    while log.end().0 < bytes {
        log.append(KIND, INSTANCE, &[&payload])?;
    }
    log.seal()?;
    drop(log);
    let opened = open(&setting.directory.join("replay"), &setting.options(geometry, false, 2))?;
    let catalog = opened.disk.catalog();
    let (first, end, records) = (opened.report.first, opened.report.end, opened.report.records);
    let mut storage = opened.storage.clone();
    let files: Vec<PathBuf> = catalog
        .segments()
        .filter(|&segment| segment * geometry.segment_bytes() < end.0)
        .filter_map(|segment| catalog.file_of(segment))
        .map(|name| storage.path(&name))
        .collect();
    let mut samples = [(); 4].map(|()| Samples::default());
    let mut meters = [(); 4].map(|()| Meter::new(setting.directory));
    for round in 0..=rounds {
        for (index, is_ours, is_cold) in
            [(0, true, true), (1, false, true), (2, true, false), (3, false, false)]
        {
            if is_cold {
                files.iter().try_for_each(|file| evict(file))?;
            } else if index == 2 {
                // Both warm arms find everything in the page cache.
                files.iter().try_for_each(|file| read_and_checksum(file, PIECE_BYTES).map(drop))?;
            }
            let since = Instant::now();
            let read = meters[index].slice(|| -> Result<u64, BenchError> {
                if !is_ours {
                    let read = files.iter().map(|file| read_and_checksum(file, PIECE_BYTES));
                    return Ok(read.sum::<std::io::Result<Sum>>()?.bytes);
                }
                let mut reader = Reader::new(&mut storage, &catalog, first, end);
                let mut count = 0;
                while let Some(record) = reader.next()? {
                    assert_eq!(record.payload.len(), PAYLOAD_BYTES, "what was appended is read");
                    count += 1;
                }
                assert_eq!(count, records, "every record is read");
                Ok(end.0 - first.0)
            })?;
            if round > 0 {
                samples[index].push(read as f64 / since.elapsed().as_secs_f64() / 1e6);
            }
        }
    }
    let share = |ours: usize| samples[ours].median() / samples[ours + 1].median();
    for (name, ours) in [
        ("replay of 128 B from the device: share of reading and checksumming", 0),
        ("replay of 128 B from the page cache: share of reading and checksumming", 2),
    ] {
        add_target(report, Target::new(name, share(ours), Bound::AtLeast, SHARE_MIN, "x", Some(Level::Disk)));
    }
    let operations = (rounds + 1) * records;
    let names = [
        "ours: replay, from the device",
        "floor: read + CRC-32C, from the device",
        "ours: replay, from the page cache",
        "floor: read + CRC-32C, from the page cache",
    ];
    let arms = names.into_iter().zip(samples).zip(&meters).map(|((name, samples), meter)| Arm {
        name: name.to_owned(),
        level: Some(Level::Disk),
        window: 1,
        payload_bytes: PAYLOAD_BYTES as u64,
        unit: "MB/s",
        operations,
        cpu_ns_per_operation: Some(meter.cpu_ns_per_operation(operations)),
        disk: meter.disk(),
        samples,
    });
    report.figures.push(Figure {
        name: "replay",
        meaning: format!("{records} records; bytes of log per second, an operation is a record"),
        arms: arms.collect(),
        notes: vec![
            "pages are written past the page cache, so a restart finds nothing there and reads from the device; from the page \
             cache a short checksum per record costs more than twice what one over a large piece does, three streams at once"
                .to_owned(),
        ],
    });
    // A log of its own ends the life that opening began.
    Ok(Log::new(opened).seal()?)
}

/// Bytes read, and a checksum that keeps the reading from being left out.
struct Sum {
    bytes: u64,
    checksum: u32,
}

impl std::iter::Sum<(u64, u32)> for Sum {
    fn sum<I: Iterator<Item = (u64, u32)>>(iter: I) -> Self {
        let sum = iter.fold(Self { bytes: 0, checksum: 0 }, |sum, (bytes, checksum)| Self {
            bytes: sum.bytes + bytes,
            checksum: sum.checksum ^ checksum,
        });
        std::hint::black_box(sum.checksum);
        sum
    }
}
