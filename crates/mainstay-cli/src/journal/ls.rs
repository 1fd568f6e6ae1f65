//! `mainstay journal ls`: the files.

use super::{Common, directory};
use crate::verdict::Verdict;
use mainstay_journal::inspect::Inspection;
use mainstay_journal::storage::{FileEntry, Storage};
use mainstay_process::checkpoint;
use serde::Serialize;

#[derive(Serialize)]
struct Listing {
    segments: Vec<Segment>,
    checkpoints: Vec<Checkpoint>,
    others: Vec<Other>,
}

#[derive(Serialize)]
struct Segment {
    file: String,
    segment: Option<u64>,
    first_lsn: u64,
    end_lsn: u64,
    generation: u64,
    bytes: u64,
    in_use: bool,
}

#[derive(Serialize)]
struct Checkpoint {
    file: String,
    lsn: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct Other {
    file: String,
    bytes: u64,
}

pub(super) fn ls(common: &Common) -> anyhow::Result<Verdict> {
    directory::warn_of_writer(&common.dir);
    let inspection = match directory::walk(&common.dir, &mut |_| {})? {
        Ok(inspection) => inspection,
        Err(refused) => {
            eprintln!("mainstay: {refused}");
            return Ok(Verdict::Wrong);
        }
    };
    let listing = listing(&inspection, directory::open(&common.dir)?.list()?);
    if common.json {
        println!("{}", serde_json::to_string_pretty(&listing)?);
    } else {
        print(&listing);
    }
    Ok(if inspection.damage.is_some() { Verdict::Wrong } else { Verdict::Clean })
}

fn listing(inspection: &Inspection, files: Vec<FileEntry>) -> Listing {
    let segments: Vec<Segment> = inspection
        .segments
        .iter()
        .map(|segment| Segment {
            file: segment.file.clone(),
            segment: segment.segment,
            first_lsn: segment.range.start.0,
            end_lsn: segment.range.end.0,
            generation: segment.generation.0,
            bytes: segment.bytes,
            in_use: segment.in_use,
        })
        .collect();
    let mut checkpoints = Vec::new();
    let mut others = Vec::new();
    for FileEntry { name, bytes } in files {
        match checkpoint::parse_name(&name) {
            Some(lsn) => checkpoints.push(Checkpoint { file: name, lsn: lsn.0, bytes }),
            None if segments.iter().any(|segment| segment.file == name) => {}
            None => others.push(Other { file: name, bytes }),
        }
    }
    checkpoints.sort_by_key(|checkpoint| checkpoint.lsn);
    others.sort_by(|one, other| one.file.cmp(&other.file));
    Listing { segments, checkpoints, others }
}

fn print(listing: &Listing) {
    for segment in &listing.segments {
        let Segment { file, first_lsn, end_lsn, generation, bytes, .. } = segment;
        match segment.segment {
            Some(number) => println!(
                "{file}  {bytes:>10} B  segment {number}, LSN {first_lsn}..{end_lsn}, prepared in life {generation}{}",
                if segment.in_use { "" } else { ", free" }
            ),
            None => println!("{file}  {bytes:>10} B  header unreadable"),
        }
    }
    for Checkpoint { file, lsn, bytes } in &listing.checkpoints {
        println!("{file}  {bytes:>9} B  replay from LSN {lsn}");
    }
    for Other { file, bytes } in &listing.others {
        println!("{file:<24}  {bytes:>10} B");
    }
}
