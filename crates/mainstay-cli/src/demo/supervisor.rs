//! The process that keeps the others running and kills them according to plan. It is killed itself by the top process,
//! and takes all others with it; the next one goes on where it was, from what is on the board.

use super::board::{Board, Slot};
use super::children::Children;
use super::killer;
use super::lines::{self, Lines};
use super::plan::{Kill, Moment, Role, plan};
use super::run::{Ending, KillRecord, ListedOutput, RunFolder, Settings};
use crate::ledger::{Query, View};
use anyhow::{Context, bail};
use mainstay_client::client::Client;
use mainstay_client::options::Options;
use serde::Deserialize;
use std::time::{Duration, Instant};

/// How often children and progress are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How long the service may take, after the last request, to see all its outputs acknowledged.
const OUTPUTS_WAIT_MAX: Duration = Duration::from_secs(60);

/// Runs the demo to its end, or to the death of this process.
///
/// # Errors
/// When a part cannot be run.
pub(crate) fn supervise(folder: &RunFolder) -> anyhow::Result<()> {
    let settings = folder.settings()?;
    let board = Board::open(&folder.board())?;
    let plan = plan(settings.seed, settings.kills, settings.requests);
    let mut records = Lines::open(&folder.kills())?;
    let mut made: Vec<KillRecord> = lines::read(&folder.kills())?;
    board.write(Slot::Kills, made.len() as u64)?;
    let mut children = Children::start(folder, &board)?;

    while !(children.clients_finished() && made.len() == plan.len()) {
        children.tend(&board)?;
        match plan.get(made.len()) {
            Some(due) if due.role != Role::Supervisor && board.answered()? >= due.after_answered => {
                let due = aimed(due, &made, plan.len());
                let record = killer::kill(folder, &settings, &board, &mut children, made.len() as u64, &due)?;
                records.append(&record)?;
                made.push(record);
                board.write(Slot::Kills, made.len() as u64)?;
            }
            _ => std::thread::sleep(LOOK_EVERY),
        }
    }
    end(folder, &settings, &board, &mut children)
}

/// When none of the kills within a checkpoint has hit its moment so far, kills at work become such, and all of them are made
/// as early in the moment as can be.
fn aimed(due: &Kill, made: &[KillRecord], planned: usize) -> Kill {
    let missed = !made.iter().any(|record| record.checkpointing);
    if due.role == Role::Service && due.moment != Moment::Recovering && missed && made.len() * 3 > planned {
        Kill { moment: Moment::Checkpointing, delay: 0.0, ..*due }
    } else {
        *due
    }
}

/// Waits for the outputs, asks for the last state, and stops the service cleanly.
fn end(
    folder: &RunFolder,
    settings: &Settings,
    board: &Board,
    children: &mut Children,
) -> anyhow::Result<()> {
    let in_doubt = drain(settings, board, children)?;
    let client = Client::connect(&settings.service_url(), Options::default())?;
    let view: View = client.query(&Query::default()).context("the service does not say its last state")?;
    let status = children.stop(Role::Service)?;
    children.kill(Role::ReceiverOnce)?;
    children.kill(Role::ReceiverAgain)?;
    let stopped_cleanly = status.is_some_and(|status| status.success());
    folder.write_ending(&Ending { view, in_doubt, stopped_cleanly })
}

/// Waits until every output is acknowledged or in doubt; returns the latter.
fn drain(settings: &Settings, board: &Board, children: &mut Children) -> anyhow::Result<Vec<ListedOutput>> {
    #[derive(Deserialize)]
    struct Listing {
        outputs: Vec<ListedOutput>,
    }
    let began = Instant::now();
    loop {
        children.tend(board)?;
        let listed = ureq::get(format!("{}/outputs", settings.service_url()))
            .call()
            .and_then(|mut response| response.body_mut().read_to_vec())
            .map_err(anyhow::Error::from)
            .and_then(|text| Ok(serde_json::from_slice::<Listing>(&text)?));
        match listed {
            Ok(listing) if listing.outputs.iter().all(|output| output.state == "in-doubt") => {
                return Ok(listing.outputs);
            }
            Ok(listing) if began.elapsed() > OUTPUTS_WAIT_MAX => {
                bail!(
                    "{} outputs are still on their way {OUTPUTS_WAIT_MAX:?} after the last request",
                    listing.outputs.len()
                )
            }
            Err(error) if began.elapsed() > OUTPUTS_WAIT_MAX => {
                return Err(error.context("the service lists no outputs"));
            }
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
