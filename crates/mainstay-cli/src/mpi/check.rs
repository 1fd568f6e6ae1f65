//! `mainstay mpi check`: are the logs complete, what was sent and never received, who waits for whom.

use super::DAMAGED;
use crate::verdict::Verdict;
use mainstay_mpi::command::check::{Checked, Log, check};
use mainstay_mpi::command::replay::default_folder;
use mainstay_mpi::run::Run;
use mainstay_mpi::waiting::State;
use serde_json::{Value, json};
use std::path::PathBuf;

/// `mainstay mpi check`.
#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// Folder of the run. The job may still be running.
    #[arg(value_name = "RUN", default_value = default_folder().as_os_str())]
    run: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Of one kind of finding, so many are printed; JSON has all.
const LINES_MAX: usize = 10;

pub(super) fn run(options: &Check) -> anyhow::Result<Verdict> {
    let run = Run::open(&options.run)?;
    let checked = check(&run)?;
    if options.json {
        println!("{}", as_json(&checked));
    } else {
        let complete = checked.logs.values().filter(|log| **log == Log::Complete).count();
        println!(
            "{complete} of {} logs complete, {} messages with both ends",
            checked.logs.len(),
            checked.messages
        );
        for line in checked.lines(LINES_MAX) {
            println!("{line}");
        }
    }
    Ok(match (checked.damaged(), checked.clean()) {
        (true, _) => DAMAGED,
        (false, true) => Verdict::Clean,
        (false, false) => Verdict::Wrong,
    })
}

fn as_json(checked: &Checked) -> Value {
    let logs: Vec<_> = checked
        .logs
        .iter()
        .map(|(rank, log)| match log {
            Log::Complete => json!({ "rank": rank, "log": "complete" }),
            Log::Missing => json!({ "rank": rank, "log": "missing" }),
            Log::Damaged(damage) => {
                json!({ "rank": rank, "log": "damaged", "calls": damage.calls, "file": damage.path,
                        "byte": damage.offset, "cause": damage.cause.to_string() })
            }
            Log::Cut(calls, errno) => json!({ "rank": rank, "log": "cut", "calls": calls, "errno": errno }),
            Log::Counted(names) => json!({ "rank": rank, "log": "counted", "not_recorded": names }),
        })
        .collect();
    let not_received: Vec<_> = checked
        .not_received
        .iter()
        .map(|(from, send)| {
            json!({ "from": from, "call": send.call, "to": send.peer, "bytes": send.bytes, "tag": send.tag,
                    "communicator": checked.comm_name(send.comm) })
        })
        .collect();
    let not_matched: Vec<_> = checked
        .not_matched
        .iter()
        .map(|(rank, posted)| {
            let pattern = &posted.pattern;
            json!({ "rank": rank, "call": posted.call, "from": pattern.from, "any_source": pattern.any_source,
                    "tag": pattern.tag, "communicator": checked.comm_name(pattern.comm) })
        })
        .collect();
    let collectives: Vec<_> = checked
        .collectives
        .iter()
        .map(|divided| {
            json!({ "communicator": checked.comm_name(divided.comm), "number": divided.nth,
                    "entered": divided.entered, "missing": divided.missing })
        })
        .collect();
    let waiting: Vec<_> =
        checked.standing.states.iter().filter_map(|(rank, state)| waiting(*rank, state)).collect();
    json!({
        "clean": checked.clean(), "ranks": logs, "messages": checked.messages, "not_received": not_received,
        "not_matched": not_matched, "not_sent": checked.not_sent,
        "other_bytes_than_sent": checked.disagreeing.len(), "collectives": collectives, "waiting": waiting,
        "stuck": checked.standing.stuck, "cycle": checked.standing.cycle,
    })
}

fn waiting(rank: i64, state: &State) -> Option<Value> {
    let State::Waiting { name, call, polls, needs, any } = state else {
        return None;
    };
    let needs: Vec<_> = needs
        .iter()
        .map(|need| json!({ "what": need.text, "from": need.from, "any": need.any, "on_its_way": need.on_its_way }))
        .collect();
    Some(json!({ "rank": rank, "in": name, "call": call, "polls": polls, "needs": needs, "any_need": any }))
}
