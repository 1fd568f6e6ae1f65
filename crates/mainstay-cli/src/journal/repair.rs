//! `mainstay journal repair`: the plan, the question, and only what was agreed to.

use super::{Common, directory};
use crate::verdict::Verdict;
use anyhow::{Context, bail};
use mainstay_disk::lock::DirectoryLock;
use mainstay_journal::open::OpenError;
use mainstay_journal::repair::{Agreement, Remedy, RepairPlan, plan_repair, repair as apply};
use serde::Serialize;
use std::io::{self, BufRead, Write};

/// How many plans follow upon each other at most; each applied one leaves less to do.
const ROUNDS_MAX: usize = 1000;

/// `mainstay journal repair`.
#[derive(Debug, clap::Args)]
pub(crate) struct Repair {
    #[command(flatten)]
    common: Common,
    /// Agree to the plan without being asked.
    #[arg(long)]
    yes: bool,
}

#[derive(Default, Serialize)]
struct Done {
    needed: bool,
    agreed: bool,
    planned: Vec<String>,
    applied: Vec<String>,
    refusal: Option<String>,
}

pub(super) fn repair(options: &Repair) -> anyhow::Result<Verdict> {
    let mut storage = directory::open(&options.common.dir)?;
    if !options.common.dir.join("superblock").exists() && !holds_segments(&mut storage)? {
        bail!("{} holds no journal: there is nothing to repair", options.common.dir.display());
    }
    let _lock = DirectoryLock::acquire(&options.common.dir, "mainstay journal repair")?;
    let mut done = Done::default();
    for _ in 0..ROUNDS_MAX {
        let plan = match plan_repair(&mut storage) {
            Ok(plan) => plan,
            Err(OpenError::Storage(error)) => return Err(error).context("the directory cannot be read"),
            Err(refused) => {
                done.refusal = Some(refused.to_string());
                break;
            }
        };
        if plan.remedies.is_empty() {
            break;
        }
        done.needed = true;
        let words: Vec<String> = plan.remedies.iter().map(in_words).collect();
        if !options.common.json {
            println!("To make this journal open:");
            words.iter().for_each(|remedy| println!("  - {remedy}"));
        }
        done.planned.extend(words);
        if !(options.yes || (!options.common.json && agreed()?)) {
            return end(options, &done);
        }
        done.agreed = true;
        let report = apply(&mut storage, &Agreement(RepairPlan { remedies: plan.remedies }))?;
        done.applied.extend(report.applied.iter().map(in_words));
    }
    end(options, &done)
}

fn end(options: &Repair, done: &Done) -> anyhow::Result<Verdict> {
    let mended =
        done.refusal.is_none() && (!done.needed || done.agreed) && done.planned.len() == done.applied.len();
    if options.common.json {
        println!("{}", serde_json::to_string_pretty(done)?);
    } else if let Some(refusal) = &done.refusal {
        println!("no remedy is known: {refusal}");
    } else if !done.needed {
        println!("nothing to repair: the journal opens");
    } else if mended {
        println!("done; the journal opens now");
    } else {
        println!("nothing was changed");
    }
    Ok(if mended { Verdict::Clean } else { Verdict::Wrong })
}

fn in_words(remedy: &Remedy) -> String {
    match remedy {
        Remedy::Cut { at, lost } => format!(
            "end the journal at LSN {at}: everything below is kept; LSN {}..{} is GIVEN UP although it was durable \
             ({} bytes of acknowledged history)",
            lost.start,
            lost.end,
            lost.end.0.saturating_sub(lost.start.0)
        ),
        Remedy::Quarantine { file } => {
            format!(
                "rename `{file}` to `quarantine-{file}`; if records of this journal were in it, the next plan says so"
            )
        }
    }
}

fn agreed() -> io::Result<bool> {
    print!("Do this? Nothing has been changed so far. [yes/NO] ");
    io::stdout().flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim().eq_ignore_ascii_case("yes"))
}

fn holds_segments(storage: &mut dyn mainstay_journal::storage::Storage) -> anyhow::Result<bool> {
    Ok(storage.list()?.iter().any(|file| file.name.starts_with("segment-")))
}
