//! Outputs by HTTP POST, each with its key; repeated until the receiver has answered.

use crate::port::queue::{Attempt, Kept, Next, Queue};
use crate::port::{Carry, PortStatus, Report, Sent};
use mainstay_process::effect::Output;
use mainstay_process::handler::Outcome;
use mainstay_process::port::Guarantee;
use mainstay_types::id::OutputId;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Stack of a sending thread, in bytes: TLS needs more than it looks.
const STACK_BYTES: usize = 512 << 10;

/// The statuses by which a receiver that looked at an output says that it never takes it.
const REFUSALS: [u16; 3] = [400, 413, 422];

const LAST_ATTEMPT: &str = "this was the last attempt to send an output: while it was under way the output was given up, or the service \
                            recovered from a panic";
const IN_DOUBT: &str =
    "an output may have taken effect or not: it is in doubt until somebody decides (`mainstay outputs`)";
const REFUSED: &str = "the receiver refused an output for good: it is not sent again, and the service is told (`output_settled`)";

/// Settings of an HTTP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// Where outputs are posted.
    pub url: String,
    /// Where the receiver can be asked for a key; with [`Guarantee::Asked`] only.
    pub ask_url: Option<String>,
    /// Outputs on their way at the same time. With more than 1 they may arrive in another order than emitted.
    pub concurrency: usize,
    /// How long one attempt may take.
    pub attempt_timeout: Duration,
    /// The first pause before an attempt is repeated; each further one is twice as long, with jitter.
    pub pause_min: Duration,
    /// The longest pause.
    pub pause_max: Duration,
    /// The statuses that refuse an output for good, because they speak of the output itself. What is neither one of them nor 2xx, as 404
    /// or a redirect, may speak of the way to the receiver only: the output is kept.
    pub refusals: Vec<u16>,
}

impl HttpSettings {
    /// Four at a time, 10 s for an attempt, pauses of 50 ms to 30 s; refused for good by 400, 413 and 422.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ask_url: None,
            concurrency: 4,
            attempt_timeout: Duration::from_secs(10),
            pause_min: Duration::from_millis(50),
            pause_max: Duration::from_secs(30),
            refusals: REFUSALS.to_vec(),
        }
    }
}

/// An HTTP port could not be started. Nothing was sent.
#[derive(Debug, thiserror::Error)]
pub enum StartHttpError {
    /// Not an address.
    #[error("`{given}` is no http or https address")]
    Address {
        /// What was given.
        given: String,
    },
    /// A concurrency of 0 sends nothing.
    #[error("a concurrency of 0 outputs would never send anything")]
    NoConcurrency,
    /// The operating system gave no thread.
    #[error("no thread for it")]
    Thread(#[from] std::io::Error),
}

/// A running HTTP port. Its threads are not joined: an attempt under way may take as long as its timeout, and what becomes of
/// it concerns nobody any more.
pub(crate) struct HttpPort {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    agent: ureq::Agent,
    settings: HttpSettings,
    guarantee: Guarantee,
    report: Report,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// How an attempt ended, and why for people.
enum AttemptEnd {
    Over(Sent, String),
    /// Not now.
    Again(String),
}

/// What the status of an answer says of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Delivered,
    Refused,
    InDoubt,
    Again,
}

impl HttpPort {
    pub(crate) fn start(
        name: &str,
        settings: HttpSettings,
        guarantee: Guarantee,
        report: Report,
    ) -> Result<Self, StartHttpError> {
        for given in std::iter::once(&settings.url).chain(&settings.ask_url) {
            let uri = given.parse::<ureq::http::Uri>().ok();
            if !uri
                .is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some())
            {
                return Err(StartHttpError::Address { given: given.clone() });
            }
        }
        if settings.concurrency == 0 {
            return Err(StartHttpError::NoConcurrency);
        }
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_idle_connections_per_host(settings.concurrency)
            .timeout_global(Some(settings.attempt_timeout))
            .build()
            .new_agent();
        let concurrency = settings.concurrency;
        let shared = Arc::new(Shared {
            name: name.to_owned(),
            agent,
            settings,
            guarantee,
            report,
            queue: Mutex::default(),
            changed: Condvar::new(),
        });
        let port = Self { shared };
        for number in 0..concurrency {
            let shared = Arc::clone(&port.shared);
            std::thread::Builder::new()
                .name(format!("port-{name}-{number}"))
                .stack_size(STACK_BYTES)
                .spawn(move || shared.run())?;
        }
        Ok(port)
    }
}

impl Carry for HttpPort {
    fn carry(&self, output: Output) {
        self.shared.lock().take(output, Instant::now());
        self.shared.changed.notify_one();
    }

    fn withdraw(&self, id: OutputId) {
        self.shared.lock().withdraw(id);
    }

    fn forget_waiting(&self) {
        self.shared.lock().forget();
    }

    fn status(&self) -> PortStatus {
        self.shared.lock().status()
    }

    fn troubles(&self) -> BTreeMap<OutputId, String> {
        self.shared.lock().troubles()
    }
}

impl Drop for HttpPort {
    fn drop(&mut self) {
        self.shared.lock().close();
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some(attempted) = self.next() {
            let id = attempted.output.id;
            match self.attempt(&attempted) {
                AttemptEnd::Over(sent, why) => {
                    let awaited = self.lock().ended(id, &sent);
                    match sent {
                        _ if !awaited => self.tell(&attempted, &why, LAST_ATTEMPT),
                        Sent::InDoubt => self.tell(&attempted, &why, IN_DOUBT),
                        Sent::Ended(Outcome::Refused { .. }) => {
                            self.tell(&attempted, &why, REFUSED);
                        }
                        Sent::Ended(_) => {}
                    }
                    (self.report)(id, sent);
                }
                AttemptEnd::Again(why) => {
                    tracing::debug!(port = self.name, %id, why, "an output did not get through");
                    let now = Instant::now();
                    let kept = self.lock().again(id, now, now + self.pause(attempted.number), &why);
                    match kept {
                        Kept::No => self.tell(&attempted, &why, LAST_ATTEMPT),
                        Kept::Quietly => {}
                        Kept::Loudly => tracing::warn!(
                            port = self.name,
                            why,
                            "outputs are kept and sent again until they get through (`mainstay outputs` says which)"
                        ),
                    }
                }
            }
        }
    }

    fn tell(&self, Attempt { output, .. }: &Attempt, why: &str, what: &str) {
        tracing::warn!(port = self.name, key = output.key, bytes = output.body.len(), why, "{what}");
    }

    /// The next output that is due, counted as attempted; `None` when the port is closing.
    fn next(&self) -> Option<Attempt> {
        let mut queue = self.lock();
        loop {
            queue = match queue.next(Instant::now()) {
                Next::Attempt(attempted) => return Some(attempted),
                Next::Closing => return None,
                Next::Wait(pause) => {
                    let waited = self.changed.wait_timeout(queue, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Next::Empty => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn attempt(&self, Attempt { output, number }: &Attempt) -> AttemptEnd {
        if self.guarantee == Guarantee::Asked && (output.again || *number > 1) {
            match self.ask(&output.key) {
                Ok(true) => {
                    let delivered = Sent::Ended(Outcome::Delivered { status: 200 });
                    return AttemptEnd::Over(delivered, "the receiver has it".to_owned());
                }
                Ok(false) => {}
                Err(why) => return AttemptEnd::Again(why),
            }
        }
        let sent = self
            .agent
            .post(&self.settings.url)
            .content_type("application/json")
            .header("Idempotency-Key", &output.key)
            .send(&output.body[..]);
        match sent {
            Ok(response) => self.answered(response.status().as_u16()),
            Err(error) if never_connected(&error) => {
                AttemptEnd::Again(format!("the receiver is not reached: {error}"))
            }
            Err(error) => {
                let why = format!("the receiver gives no answer: {error}");
                match self.guarantee {
                    Guarantee::AtMostOnce => AttemptEnd::Over(Sent::InDoubt, why),
                    _ => AttemptEnd::Again(why),
                }
            }
        }
    }

    fn answered(&self, status: u16) -> AttemptEnd {
        let why = format!("the receiver answers {status}");
        match verdict(status, self.guarantee, &self.settings.refusals) {
            Verdict::Delivered => AttemptEnd::Over(Sent::Ended(Outcome::Delivered { status }), why),
            Verdict::Refused => AttemptEnd::Over(Sent::Ended(Outcome::Refused { status }), why),
            Verdict::InDoubt => AttemptEnd::Over(Sent::InDoubt, why),
            Verdict::Again => AttemptEnd::Again(why),
        }
    }

    /// Whether the receiver has the key, or why that is not known.
    fn ask(&self, key: &str) -> Result<bool, String> {
        let url =
            self.settings.ask_url.as_ref().expect("an asked port has an address to ask, checked at start");
        match self.agent.get(url).query("key", key).call().map(|response| response.status().as_u16()) {
            Ok(200) => Ok(true),
            Ok(404) => Ok(false),
            Ok(status) => Err(format!("the receiver answers {status} when it is asked for a key")),
            Err(error) => Err(format!("the receiver gives no answer when it is asked for a key: {error}")),
        }
    }

    /// Half to all of a pause that doubles with each attempt.
    fn pause(&self, attempts: u32) -> Duration {
        let doubled = self.settings.pause_min.saturating_mul(1 << attempts.saturating_sub(1).min(20));
        doubled.min(self.settings.pause_max).mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

/// Whether it is certain that the receiver saw nothing of the request.
fn never_connected(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => true,
        ureq::Error::Timeout(kind) => matches!(kind, ureq::Timeout::Connect | ureq::Timeout::Resolve),
        ureq::Error::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        _ => false,
    }
}

fn verdict(status: u16, guarantee: Guarantee, refusals: &[u16]) -> Verdict {
    match status {
        200..=299 => Verdict::Delivered,
        _ if refusals.contains(&status) => Verdict::Refused,
        // The receiver said so itself, before doing anything.
        429 => Verdict::Again,
        _ if guarantee == Guarantee::AtMostOnce => Verdict::InDoubt,
        // 409 among them: a receiver that follows the Idempotency-Key draft is still working on our first attempt.
        _ => Verdict::Again,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_speaks_of_the_output_itself_gives_it_up() {
        for guarantee in
            [Guarantee::Deduplicated, Guarantee::Asked, Guarantee::AtLeastOnce, Guarantee::AtMostOnce]
        {
            for status in 100..600 {
                let expected = match (status, guarantee) {
                    (200..=299, _) => Verdict::Delivered,
                    (400 | 413 | 422, _) => Verdict::Refused,
                    (429, _) => Verdict::Again,
                    (_, Guarantee::AtMostOnce) => Verdict::InDoubt,
                    _ => Verdict::Again,
                };
                assert_eq!(verdict(status, guarantee, &REFUSALS), expected, "{status}, {guarantee}");
            }
        }
        assert_eq!(verdict(404, Guarantee::Deduplicated, &[404]), Verdict::Refused);
        assert_eq!(verdict(422, Guarantee::Deduplicated, &[404]), Verdict::Again);
    }
}
