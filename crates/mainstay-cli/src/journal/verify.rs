//! `mainstay journal verify`: would it open, and what would be cut or refused?

use super::{Common, directory};
use crate::verdict::Verdict;
use mainstay_journal::open::OpenError;
use serde::Serialize;

#[derive(Default, Serialize)]
struct Answer {
    opens: bool,
    records: u64,
    safe_below_lsn: Option<u64>,
    tail_bytes_to_cut: u64,
    superblock_copy_damaged: bool,
    refusal: Option<String>,
    damaged_file: Option<String>,
    damaged_offset: Option<u64>,
    damaged_lsn: Option<u64>,
    watermark: Option<u64>,
}

pub(super) fn verify(common: &Common) -> anyhow::Result<Verdict> {
    directory::warn_of_writer(&common.dir);
    let mut answer = Answer::default();
    match directory::walk(&common.dir, &mut |_| {})? {
        Ok(inspection) => {
            answer.records = inspection.records;
            answer.watermark = Some(inspection.watermark.0);
            answer.safe_below_lsn = Some(inspection.end.0);
            answer.superblock_copy_damaged = inspection.superblock_damaged;
            answer.tail_bytes_to_cut = inspection.tail.as_ref().map_or(0, |tail| tail.end.0 - tail.start.0);
            if let Some(damage) = inspection.damage {
                answer.safe_below_lsn = Some(damage.lsn.0);
                answer.damaged_file = Some(damage.file.clone());
                answer.damaged_offset = Some(damage.offset);
                answer.damaged_lsn = Some(damage.lsn.0);
                answer.refusal = Some(OpenError::Damaged(damage).to_string());
            }
        }
        Err(refused) => answer.refusal = Some(refused.to_string()),
    }
    answer.opens = answer.refusal.is_none();
    if common.json {
        println!("{}", serde_json::to_string_pretty(&answer)?);
    } else if let Some(refusal) = &answer.refusal {
        println!("refused: {refusal}");
    } else {
        println!("sound: {} records up to LSN {}", answer.records, answer.safe_below_lsn.unwrap_or_default());
        if answer.tail_bytes_to_cut > 0 {
            println!("opening will cut an unsynced tail of {} bytes", answer.tail_bytes_to_cut);
        }
        if answer.superblock_copy_damaged {
            println!("opening will rewrite one damaged copy of the superblock from the other");
        }
    }
    Ok(if answer.opens { Verdict::Clean } else { Verdict::Wrong })
}
