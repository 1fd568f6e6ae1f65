//! `mainstay mpi diff`: where two runs of a program first went different ways.

use super::DAMAGED;
use crate::verdict::{UsageError, Verdict};
use mainstay_mpi::command::diff::{DiffError, RankDiff, What, diff_rank};
use mainstay_mpi::run::Run;
use serde_json::{Value, json};
use std::path::PathBuf;

/// `mainstay mpi diff`.
#[derive(Debug, clap::Args)]
pub(crate) struct Diff {
    /// Folder of one run.
    #[arg(value_name = "RUN1")]
    one: PathBuf,
    /// Folder of another run of the same program.
    #[arg(value_name = "RUN2")]
    other: PathBuf,
    /// Only this rank.
    #[arg(long)]
    rank: Option<u32>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(options: &Diff) -> anyhow::Result<Verdict> {
    let (one, other) = (Run::open(&options.one)?, Run::open(&options.other)?);
    let wanted = |rank: &u32| options.rank.is_none_or(|wanted| wanted == *rank);
    let ranks: Vec<u32> =
        one.ranks.iter().copied().filter(|rank| other.ranks.contains(rank) && wanted(rank)).collect();
    anyhow::ensure!(!ranks.is_empty(), "the two runs have no such rank in common");
    let (here, there) = (one.start(ranks[0])?, other.start(ranks[0])?);
    for (what, same) in [
        ("executables", here.hash == there.hash),
        ("arguments", here.arguments == there.arguments),
        ("numbers of ranks", here.size == there.size),
        ("MPI libraries", here.library == there.library),
    ] {
        if !same {
            eprintln!("mainstay: the runs have different {what}");
        }
    }
    let differs_in_mpi = |error: &DiffError| matches!(error, DiffError::OtherMpi { .. });
    if let Some(error) = diff_rank([&one, &other], ranks[0]).err().filter(differs_in_mpi) {
        return Err(UsageError { explanation: error.to_string() }.into());
    }
    let diffs = ranks.iter().map(|rank| diff_rank([&one, &other], *rank)).collect::<Result<Vec<_>, _>>()?;
    if options.json {
        println!("{}", json!({ "ranks": diffs.iter().map(as_json).collect::<Vec<_>>() }));
    } else {
        diffs.iter().for_each(print);
        let race = |diff: &&RankDiff| diff.first.as_ref().is_some_and(|first| first.what == What::Order);
        let races: Vec<String> = diffs.iter().filter(race).map(|diff| diff.rank.to_string()).collect();
        if !races.is_empty() {
            println!("messages came in another order first at rank {}", races.join(", "));
        }
    }
    let mut damaged = diffs.iter().flat_map(|diff| diff.damage.iter().flatten()).peekable();
    let differs = diffs.iter().any(|diff| diff.first.is_some());
    let verdict = match (damaged.peek().is_some(), differs) {
        (true, _) => DAMAGED,
        (false, true) => Verdict::Wrong,
        (false, false) => Verdict::Clean,
    };
    damaged.for_each(|damage| eprintln!("mainstay: {damage}; the runs were compared up to there"));
    Ok(verdict)
}

fn print(diff: &RankDiff) {
    match &diff.first {
        None => println!("rank {}: {} calls, all in the same order", diff.rank, diff.same_calls),
        Some(first) => {
            let wildcard = if first.wildcard { " (takes any)" } else { "" };
            println!(
                "rank {}: {} after {} calls that are the same",
                diff.rank,
                first.what.text(),
                diff.same_calls
            );
            for (run, ((call, name), value)) in first.calls.iter().zip(&first.values).enumerate() {
                let polls = match first.polls[run] {
                    0 => String::new(),
                    polls => format!(", after {polls} polls in vain"),
                };
                // No name: its log has no such call.
                let at = if name.is_empty() {
                    format!("after call {}", call - 1)
                } else {
                    format!("call {call}, {name}{wildcard}")
                };
                println!("  run {}: {at}: {value}{polls}", run + 1);
            }
        }
    }
    for (what, (count, first)) in
        [("sends", diff.sent_bytes), ("receives and collectives", diff.received_bytes)]
    {
        if let Some(first) = first {
            println!(
                "  {count} {what} before that have other bytes, the first of them call {first} of run 1"
            );
        }
    }
}

fn as_json(diff: &RankDiff) -> Value {
    let first = diff.first.as_ref().map(|first| {
        json!({ "what": first.what.text(), "order": first.what == What::Order, "calls": first.calls,
                "values": first.values, "wildcard": first.wildcard, "polls": first.polls })
    });
    json!({ "rank": diff.rank, "same_calls": diff.same_calls, "first": first,
            "sends_with_other_bytes": diff.sent_bytes.0, "receives_with_other_bytes": diff.received_bytes.0 })
}
