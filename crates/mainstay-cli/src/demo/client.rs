//! A client of the demo: asks, waits, retries with the same identity, also after it was killed itself.
//!
//! It writes down what it is about to ask before it asks, and the answer before it goes on. Even-numbered clients use
//! the Rust client with its own numbering; odd-numbered ones are strangers that know HTTP and `Idempotency-Key`.

use super::board::{Board, Slot};
use super::lines::{self, Lines};
use super::requests::{request, share};
use super::run::{RunFolder, Settings};
use crate::asking::agent;
use anyhow::{Context, bail};
use mainstay_client::client::Client;
use mainstay_client::error::CallError;
use mainstay_client::options::Options;
use mainstay_client::thread::Thread;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The only thread of a client.
const THREAD: u32 = 1;

/// How long a client tries one request before it gives up and reports.
pub(crate) const CALL_DEADLINE: Duration = Duration::from_secs(60);

/// How long one attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest pause between attempts: a service that restarts is soon back.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// One line of a client's own journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Entry {
    /// The service gave it a number.
    Registered {
        /// The number.
        client: u64,
    },
    /// It is about to make a request.
    Asked {
        /// Which; the first is 0.
        number: u64,
    },
    /// It has an answer.
    Answered {
        /// To which request.
        number: u64,
        /// HTTP status.
        status: u16,
        /// The body as received.
        body: String,
        /// Whether the service said that this is the first answer given again.
        replayed: bool,
    },
}

/// What was answered in the end.
pub(crate) struct Said {
    /// HTTP status.
    pub(crate) status: u16,
    /// The body as received.
    pub(crate) body: Vec<u8>,
    /// Whether the service said that this is the first answer given again.
    pub(crate) replayed: bool,
}

enum Line {
    Rust(Thread),
    Plain { agent: ureq::Agent, url: String, seed: u64, client: usize },
}

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

    let mut answered = before.iter().filter(|entry| matches!(entry, Entry::Answered { .. })).count() as u64;
    let mut asked =
        before.iter().any(|entry| matches!(entry, Entry::Asked { number } if *number == answered));
    board.write(Slot::Answered(client), answered)?;
    let requests = share(settings.requests, client);
    if answered == requests {
        return Ok(());
    }
    let mut line = Line::open(&settings, client, answered + u64::from(asked), &before, &mut journal)?;
    while answered < requests {
        wait_for_leave(&board, (requests, settings.kills), answered)?;
        if !asked {
            journal.append(&Entry::Asked { number: answered })?;
        }
        let body = serde_json::to_vec(&request(settings.seed, client, answered))?;
        board.write(Slot::InFlight(client), answered + 1)?;
        let said = line.ask(&body, answered, asked)?;
        board.write(Slot::InFlight(client), 0)?;
        journal.append(&Entry::Answered {
            number: answered,
            status: said.status,
            body: String::from_utf8(said.body).context("the service answered with invalid UTF-8")?,
            replayed: said.replayed,
        })?;
        answered += 1;
        asked = false;
        board.write(Slot::Answered(client), answered)?;
    }
    Ok(())
}

/// Clients keep just ahead of the kills, so that every kill meets a service at work. The end is the client's share of the
/// requests, and all kills planned.
///
/// # Errors
/// Those of the board.
pub(crate) fn wait_for_leave(board: &Board, end: (u64, u64), answered: u64) -> anyhow::Result<()> {
    while answered >= allowance(end, board.read(Slot::Kills)?) {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// How many of its share of the requests a client may have made after so many of `planned` kills: always enough for the next
/// kill to come due ([`super::plan::due_after`]), and all of them after the last.
fn allowance((share, planned): (u64, u64), kills: u64) -> u64 {
    if kills >= planned {
        return share;
    }
    let part = u128::from(share) * (2 * u128::from(kills) + 6);
    u64::try_from(part.div_ceil(2 * u128::from(planned) + 5)).expect("not above the share").min(share)
}

impl Line {
    fn open(
        settings: &Settings,
        client: usize,
        last_sequence: u64,
        before: &[Entry],
        journal: &mut Lines,
    ) -> anyhow::Result<Self> {
        let url = settings.service_url();
        if client % 2 == 1 {
            let agent = plain_agent();
            return Ok(Self::Plain { agent, url: format!("{url}/call"), seed: settings.seed, client });
        }
        let options = Options {
            call_deadline: CALL_DEADLINE,
            attempt_timeout: ATTEMPT_TIMEOUT,
            pause_min: Duration::from_millis(1),
            pause_max: PAUSE_MAX,
            ..Options::default()
        };
        let known = before.iter().find_map(|entry| match entry {
            Entry::Registered { client } => Some(*client),
            _ => None,
        });
        let client = match known {
            Some(number) => Client::resume(&url, options, number)?,
            None => {
                let client = Client::connect(&url, options)?;
                journal.append(&Entry::Registered { client: client.number()? })?;
                client
            }
        };
        Ok(Self::Rust(client.thread_at(THREAD, last_sequence)?))
    }

    fn ask(&mut self, body: &[u8], number: u64, asked_before: bool) -> anyhow::Result<Said> {
        match self {
            Self::Rust(thread) => {
                let asked = if asked_before { thread.repeat_bytes(body) } else { thread.call_bytes(body) };
                let refused = |status, why: String| Said { status, body: why.into_bytes(), replayed: false };
                // A refusal that no client of the demo should get is evidence for the audit, not the end of the demo.
                match asked {
                    Ok(answer) => {
                        Ok(Said { status: answer.status, body: answer.body, replayed: answer.replayed })
                    }
                    Err(error @ CallError::Evicted) => Ok(refused(410, error.to_string())),
                    Err(error @ CallError::KeyReused) => Ok(refused(422, error.to_string())),
                    Err(error @ CallError::Rejected { status, .. }) => Ok(refused(status, error.to_string())),
                    Err(error) => Err(anyhow::Error::from(error)
                        .context(format!("request {number} of the Rust client has no answer"))),
                }
            }
            Self::Plain { agent, url, seed, client } => {
                let key = format!("demo-{seed}-client-{client}-request-{number}");
                ask_plainly(agent, url, &key, body)
            }
        }
    }
}

/// An HTTP client for [`ask_plainly`].
#[must_use]
pub(crate) fn plain_agent() -> ureq::Agent {
    agent(ATTEMPT_TIMEOUT)
}

/// What any HTTP client can do: the same request with the same key until there is an answer.
///
/// # Errors
/// When there is none within the deadline.
pub(crate) fn ask_plainly(agent: &ureq::Agent, url: &str, key: &str, body: &[u8]) -> anyhow::Result<Said> {
    ask_within(CALL_DEADLINE, agent, url, key, body)
}

/// The same within `patience`; one attempt is always made.
///
/// # Errors
/// When there is none within it.
pub(crate) fn ask_within(
    patience: Duration,
    agent: &ureq::Agent,
    url: &str,
    key: &str,
    body: &[u8],
) -> anyhow::Result<Said> {
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_millis(1);
    loop {
        let sent = agent
            .post(url)
            .header("Idempotency-Key", key)
            .content_type("application/json")
            .send(body)
            .and_then(|mut response| response.body_mut().read_to_vec().map(|body| (response, body)));
        let problem = match sent {
            Ok((response, body)) => match response.status().as_u16() {
                409 | 429 | 503 => format!("status {}", response.status()),
                status => {
                    let replayed = response.headers().get("Mainstay-Replayed").is_some();
                    return Ok(Said { status, body, replayed });
                }
            },
            Err(error) => error.to_string(),
        };
        if Instant::now() > deadline {
            bail!("key {key} has no answer; the last attempt: {problem}");
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::plan;
    use super::super::requests::CLIENTS;
    use super::*;

    /// Clients that wait for a kill which waits for their requests would wait for ever.
    #[test]
    fn clients_may_always_go_far_enough_for_the_next_kill() {
        for (requests, kills) in [(8, 1), (10, 50), (400, 20), (5_000, 200), (20_000, 0)] {
            let allowed = |made| {
                (0..CLIENTS).map(|client| allowance((share(requests, client), kills), made)).sum::<u64>()
            };
            for (made, kill) in plan(1, kills, requests).iter().enumerate() {
                assert!(
                    allowed(made as u64) >= kill.after_answered,
                    "{requests} requests, kill {made} of {kills}"
                );
            }
            assert_eq!(allowed(kills), requests);
        }
    }
}
