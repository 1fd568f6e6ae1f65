//! `mainstay journal stat`: the sums.

use super::{Common, directory, entry::kind_name};
use crate::verdict::Verdict;
use mainstay_journal::inspect::Inspection;
use mainstay_journal::storage::Storage;
use mainstay_process::checkpoint;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Serialize)]
struct Sums {
    store: String,
    life: u64,
    page_bytes: u32,
    pages: u16,
    segment_bytes: u64,
    first_lsn: u64,
    end_lsn: u64,
    watermark: u64,
    sealed: bool,
    ring: bool,
    tail_bytes_to_cut: u64,
    damaged_lsn: Option<u64>,
    records: u64,
    record_bytes: u64,
    records_by_kind: BTreeMap<String, u64>,
    segments_in_use: usize,
    segments_free: usize,
    checkpoints: Vec<u64>,
    written_by_process: Option<u32>,
}

pub(super) fn stat(common: &Common) -> anyhow::Result<Verdict> {
    let mut records_by_kind: BTreeMap<String, u64> = BTreeMap::new();
    let walked = directory::walk(&common.dir, &mut |record| {
        *records_by_kind.entry(kind_name(record.kind)).or_default() += 1;
    })?;
    let inspection = match walked {
        Ok(inspection) => inspection,
        Err(refused) => {
            eprintln!("mainstay: {refused}");
            return Ok(Verdict::Wrong);
        }
    };
    let files = directory::open(&common.dir)?.list()?;
    let mut checkpoints: Vec<u64> =
        files.iter().filter_map(|file| checkpoint::parse_name(&file.name)).map(|lsn| lsn.0).collect();
    checkpoints.sort_unstable();
    let sums = sums(&inspection, records_by_kind, checkpoints, mainstay_disk::lock::writer(&common.dir));
    if common.json {
        println!("{}", serde_json::to_string_pretty(&sums)?);
    } else {
        print(&sums);
    }
    Ok(if inspection.damage.is_some() { Verdict::Wrong } else { Verdict::Clean })
}

fn sums(
    inspection: &Inspection,
    records_by_kind: BTreeMap<String, u64>,
    checkpoints: Vec<u64>,
    written_by_process: Option<u32>,
) -> Sums {
    let in_use = inspection.segments.iter().filter(|segment| segment.in_use).count();
    Sums {
        store: inspection.store.to_string(),
        life: inspection.generation.0,
        page_bytes: inspection.geometry.page_bytes,
        pages: inspection.geometry.pages,
        segment_bytes: inspection.geometry.segment_bytes(),
        first_lsn: inspection.first.0,
        end_lsn: inspection.end.0,
        watermark: inspection.watermark.0,
        sealed: inspection.sealed,
        ring: inspection.ring,
        tail_bytes_to_cut: inspection.tail.as_ref().map_or(0, |tail| tail.end.0 - tail.start.0),
        damaged_lsn: inspection.damage.as_ref().map(|damage| damage.lsn.0),
        records: inspection.records,
        record_bytes: inspection.record_bytes,
        records_by_kind,
        segments_in_use: in_use,
        segments_free: inspection.segments.len() - in_use,
        checkpoints,
        written_by_process,
    }
}

fn print(sums: &Sums) {
    let ending = match sums.written_by_process {
        Some(pid) => format!("process {pid} is writing it just now"),
        None if sums.sealed => "sealed by a clean stop".to_owned(),
        None => "not sealed: the last life was killed or cut off".to_owned(),
    };
    println!("store        {} (life {}; {ending})", sums.store, sums.life);
    println!(
        "pages        {} x {} bytes, segments of {} bytes",
        sums.pages, sums.page_bytes, sums.segment_bytes
    );
    println!("log          LSN {} to {}, durable watermark {}", sums.first_lsn, sums.end_lsn, sums.watermark);
    if sums.tail_bytes_to_cut > 0 {
        println!("tail         {} unsynced bytes, which opening will cut", sums.tail_bytes_to_cut);
    }
    if let Some(lsn) = sums.damaged_lsn {
        println!("DAMAGE       at LSN {lsn}; see `mainstay journal verify`");
    }
    if !sums.ring {
        println!(
            "ring         none of this life: what was acknowledged at level process only may be missing"
        );
    }
    println!("segments     {} in use, {} free", sums.segments_in_use, sums.segments_free);
    println!("records      {} with {} bytes", sums.records, sums.record_bytes);
    for (kind, count) in &sums.records_by_kind {
        println!("  {kind:<10} {count:>10}");
    }
    for lsn in &sums.checkpoints {
        println!("checkpoint   replay from LSN {lsn}");
    }
}
