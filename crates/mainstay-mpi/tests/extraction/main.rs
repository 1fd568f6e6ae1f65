//! The matching rule against a small MPI: random programs with wildcards, probes, cancels, persistent requests, communicators
//! that come and go, and several threads by turns. What is put together from the senders' logs must be the receiver's own log,
//! byte for byte; and each part of the rule, turned off, must be missed.

mod network;
mod order;
mod rank;
mod simulation;

use mainstay_mpi::assembly::assemble;
use mainstay_mpi::format::Kind;
use mainstay_mpi::matching::Rule;
use mainstay_mpi::reader::{Reader, Record};
use mainstay_mpi::run::Run;
use simulation::{Reached, Simulation};

/// What one program showed.
#[derive(Default)]
struct Shown {
    reached: Reached,
    messages: u64,
    cuts: u64,
}

fn records(mut reader: Reader) -> Vec<Record> {
    // The end has figures of the pages.
    std::iter::from_fn(|| reader.next_record()).filter(|record| record.kind != Kind::End).collect()
}

/// Runs the program of a seed and extracts each rank. The error says what differs.
fn extract_all(seed: u64, rule: Rule) -> Result<Shown, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let simulation = Simulation::new(folder.path(), seed);
    let ranks = simulation.ranks();
    let (reached, unsaid) = simulation.run(600);
    let mut shown = Shown { reached, ..Shown::default() };
    let run = |policy: &str| Run::open(&folder.path().join(policy)).expect("a run");
    let (receivers, senders) = (run("receiver"), run("sender"));
    for rank in 0..u32::try_from(ranks).expect("few") {
        let mut found = Vec::new();
        let assembled = assemble(&senders, i64::from(rank), rule, &mut |record| {
            found.push(record);
            Ok::<_, std::convert::Infallible>(())
        });
        let assembled = assembled.map_err(|error| format!("seed {seed}, rank {rank}: {error}"))?;
        found.retain(|record| record.kind != Kind::End);
        let wanted = records(receivers.reader(rank).expect("a log"));
        if let Some(cut) = assembled.cut {
            if !unsaid {
                return Err(format!("seed {seed}, rank {rank}: {cut}"));
            }
            shown.cuts += 1;
        } else if found.len() != wanted.len() {
            return Err(format!("seed {seed}, rank {rank}: {} records, not {}", found.len(), wanted.len()));
        }
        if let Some(at) = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted) {
            return Err(format!(
                "seed {seed}, rank {rank}, record {at}: {:?}, not {:?}",
                found[at], wanted[at]
            ));
        }
        shown.messages += assembled.messages;
    }
    Ok(shown)
}

#[test]
fn what_is_extracted_is_the_receivers_own_log() {
    let programs = std::env::var("MAINSTAY_MPI_PROGRAMS").map_or(150, |text| text.parse().expect("a number"));
    let mut all = Shown::default();
    for seed in 0..programs {
        let shown = extract_all(seed, Rule::WHOLE).unwrap_or_else(|error| panic!("{error}"));
        shown.reached.into_iter().for_each(|(what, count)| *all.reached.entry(what).or_default() += count);
        all.messages += shown.messages;
        all.cuts += shown.cuts;
    }
    println!("{programs} programs, {} messages, {} cut: {:?}", all.messages, all.cuts, all.reached);
    assert!(
        all.messages > 10 * programs && all.cuts < programs / 2,
        "messages {}, cut {}",
        all.messages,
        all.cuts
    );
    let rare = [
        "wildcard",
        "matched probe",
        "cancelled receive",
        "cancelled send",
        "persistent send",
        "persistent receive",
        "shared handle",
        "receive without an end",
        "inter-communicator",
        "freed communicator",
    ];
    for what in rare {
        assert!(
            all.reached.get(what).is_some_and(|count| *count > programs / 50),
            "{what}: {:?}",
            all.reached
        );
    }
}

#[test]
fn every_part_of_the_rule_is_needed() {
    let whole = Rule::WHOLE;
    let broken = [
        ("tags", Rule { by_tag: false, ..whole }),
        ("communicators", Rule { by_comm: false, ..whole }),
        ("the order of posts", Rule { by_post: false, ..whole }),
        ("cancelled sends", Rule { without_cancelled: false, ..whole }),
        ("posts without an end", Rule { open_posts: false, ..whole }),
    ];
    for (part, rule) in broken {
        let missed = (0..150).find(|seed| extract_all(*seed, rule).is_err());
        println!("without {part}: seed {missed:?} fails");
        assert!(missed.is_some(), "nothing fails without {part}");
    }
}
