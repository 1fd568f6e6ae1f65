//! `mainstay journal dump`: the records.

use super::{Common, directory, entry::Entry};
use crate::verdict::Verdict;
use anyhow::Context;
use std::io::{self, BufWriter, Write};

/// `mainstay journal dump`.
#[derive(Debug, clap::Args)]
pub(crate) struct Dump {
    #[command(flatten)]
    common: Common,
    /// Leave out what lies below this LSN.
    #[arg(long, value_name = "LSN", default_value_t = 0)]
    from: u64,
    /// Leave out what lies at or above this LSN.
    #[arg(long, value_name = "LSN", default_value_t = u64::MAX, hide_default_value = true)]
    to: u64,
    /// Print so many records at most.
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    limit: u64,
    /// Print the journal's own records too: lives, marks, seals.
    #[arg(long)]
    all: bool,
}

pub(super) fn dump(options: &Dump) -> anyhow::Result<Verdict> {
    directory::warn_of_writer(&options.common.dir);
    let mut out = BufWriter::new(io::stdout().lock());
    let mut printed = 0;
    let mut failed = None;
    let walked = directory::walk(&options.common.dir, &mut |record| {
        let wanted =
            (options.from..options.to).contains(&record.lsn.0) && (options.all || !record.kind.is_own());
        if !wanted || printed == options.limit || failed.is_some() {
            return;
        }
        printed += 1;
        let entry = Entry::of(record);
        let line = if options.common.json {
            serde_json::to_string(&entry).map_err(io::Error::from)
        } else {
            Ok(entry.line())
        };
        failed = line.and_then(|line| writeln!(out, "{line}")).err();
    })?;
    match failed.map_or_else(|| out.flush(), Err) {
        // The reader of the pipe has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Verdict::Clean),
        written => written.context("cannot write to standard output")?,
    }
    match walked {
        Ok(inspection) => match inspection.damage {
            Some(damage) => {
                eprintln!("mainstay: {}", mainstay_journal::open::OpenError::Damaged(damage));
                Ok(Verdict::Wrong)
            }
            None => Ok(Verdict::Clean),
        },
        Err(refused) => {
            eprintln!("mainstay: {refused}");
            Ok(Verdict::Wrong)
        }
    }
}
