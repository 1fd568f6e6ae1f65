//! A client of the demo with several nodes: plain HTTP, a key for each request, repeated at the same node until there is an
//! answer. It writes the answer down before it goes on.

use super::requests::{key, request};
use super::run::RunFolder;
use crate::demo::board::{Board, Slot};
use crate::demo::client::{self, Entry, ask_plainly, wait_for_leave};
use crate::demo::lines::{self, Lines};
use crate::demo::requests::share;
use anyhow::Context;

/// Makes all requests of client number `client` that have no answer yet.
///
/// # Errors
/// When a request has no answer within the deadline.
pub(crate) fn ask_all(folder: &RunFolder, client: usize) -> anyhow::Result<()> {
    let settings = folder.settings()?;
    let board = Board::open(&folder.board())?;
    let path = folder.client(client);
    let mut journal = Lines::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let before: Vec<Entry> = lines::read(&path)?;
    let answered = before.iter().filter(|entry| matches!(entry, Entry::Answered { .. })).count() as u64;
    let agent = client::plain_agent();
    let share = share(settings.requests, client);
    board.write(Slot::Answered(client), answered)?;
    for number in answered..share {
        wait_for_leave(&board, (share, settings.kills), number)?;
        let (node, request) = request(settings.seed, client, number);
        let body = serde_json::to_vec(&request)?;
        board.write(Slot::InFlight(client), number + 1)?;
        let key = key(settings.seed, client, number);
        let said = ask_plainly(&agent, &format!("{}/call", settings.url(node)), &key, &body)?;
        board.write(Slot::InFlight(client), 0)?;
        journal.append(&Entry::Answered {
            number,
            status: said.status,
            body: String::from_utf8(said.body).context("a node answered with invalid UTF-8")?,
            replayed: said.replayed,
        })?;
        board.write(Slot::Answered(client), number + 1)?;
    }
    Ok(())
}
