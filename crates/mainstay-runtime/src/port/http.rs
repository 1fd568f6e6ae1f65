//! Outputs by HTTP POST, each with its key; repeated until the receiver has answered.

use crate::port::{Carry, PortStatus, Report, Sent};
use mainstay_process::effect::Output;
use mainstay_process::handler::Outcome;
use mainstay_process::port::Guarantee;
use mainstay_types::id::OutputId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Stack of a sending thread, in bytes: TLS needs more than it looks.
const STACK_BYTES: usize = 512 << 10;

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
}

impl HttpSettings {
    /// Four at a time, 10 s for an attempt, pauses of 50 ms to 30 s.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            ask_url: None,
            concurrency: 4,
            attempt_timeout: Duration::from_secs(10),
            pause_min: Duration::from_millis(50),
            pause_max: Duration::from_secs(30),
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
    agent: ureq::Agent,
    settings: HttpSettings,
    guarantee: Guarantee,
    report: Report,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Its length is limited by the process: `outputs_pending_max`.
#[derive(Default)]
struct Queue {
    jobs: BTreeMap<OutputId, Job>,
    /// Jobs that no thread has in hand, by the moment they are due; then in the order of emission.
    due: BTreeSet<(Instant, OutputId)>,
    status: PortStatus,
    closing: bool,
}

#[derive(Clone)]
struct Job {
    output: Arc<Output>,
    attempts: u32,
}

enum Attempt {
    Over(Sent),
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
        let mut queue = self.shared.lock();
        let id = output.id;
        if queue.jobs.contains_key(&id) {
            return;
        }
        queue.jobs.insert(id, Job { output: Arc::new(output), attempts: 0 });
        queue.due.insert((Instant::now(), id));
        drop(queue);
        self.shared.changed.notify_one();
    }

    fn forget_waiting(&self) {
        let mut queue = self.shared.lock();
        while let Some((_, id)) = queue.due.pop_first() {
            queue.jobs.remove(&id);
        }
    }

    fn status(&self) -> PortStatus {
        let queue = self.shared.lock();
        PortStatus { waiting: queue.jobs.len() as u64, ..queue.status.clone() }
    }
}

impl Drop for HttpPort {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            let id = job.output.id;
            match self.attempt(&job) {
                Attempt::Over(sent) => {
                    let mut queue = self.lock();
                    queue.jobs.remove(&id);
                    match &sent {
                        Sent::Ended(Outcome::Delivered { .. }) => queue.status.delivered += 1,
                        Sent::Ended(_) => queue.status.refused += 1,
                        Sent::InDoubt => queue.status.in_doubt += 1,
                    }
                    drop(queue);
                    (self.report)(id, sent);
                }
                Attempt::Again => {
                    let due = Instant::now() + self.pause(job.attempts);
                    let mut queue = self.lock();
                    queue.status.repeated += 1;
                    queue.due.insert((due, id));
                }
            }
        }
    }

    /// The next job that is due, counted as attempted; `None` when the port is closing.
    fn next(&self) -> Option<Job> {
        let mut queue = self.lock();
        loop {
            if queue.closing {
                return None;
            }
            let now = Instant::now();
            match queue.due.first().copied() {
                Some((due, id)) if due <= now => {
                    queue.due.pop_first();
                    let job =
                        queue.jobs.get_mut(&id).expect("a job leaves the queue only in a thread's hand");
                    job.attempts += 1;
                    return Some(job.clone());
                }
                Some((due, _)) => {
                    let waited = self.changed.wait_timeout(queue, due - now);
                    queue = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                None => queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn attempt(&self, job: &Job) -> Attempt {
        let output = &job.output;
        if self.guarantee == Guarantee::Asked && (output.again || job.attempts > 1) {
            match self.ask(&output.key) {
                Some(true) => return Attempt::Over(Sent::Ended(Outcome::Delivered { status: 200 })),
                Some(false) => {}
                None => return Attempt::Again,
            }
        }
        let sent = self
            .agent
            .post(&self.settings.url)
            .content_type("application/json")
            .header("Idempotency-Key", &output.key)
            .send(&output.body[..]);
        match sent {
            Ok(response) => self.classify(&output.key, response.status().as_u16()),
            Err(error) => {
                tracing::debug!(key = output.key, %error, "an output did not get through");
                if self.guarantee == Guarantee::AtMostOnce && !never_connected(&error) {
                    return Attempt::Over(Sent::InDoubt);
                }
                Attempt::Again
            }
        }
    }

    fn classify(&self, key: &str, status: u16) -> Attempt {
        match status {
            200..=299 => Attempt::Over(Sent::Ended(Outcome::Delivered { status })),
            // The receiver said so itself, before doing anything.
            429 => Attempt::Again,
            408 | 409 | 500..=599 if self.guarantee == Guarantee::AtMostOnce => Attempt::Over(Sent::InDoubt),
            // 409: a receiver that follows the Idempotency-Key draft is still working on our first attempt.
            408 | 409 | 500..=599 => Attempt::Again,
            _ => {
                tracing::warn!(key, status, "the receiver refused an output for good");
                Attempt::Over(Sent::Ended(Outcome::Refused { status }))
            }
        }
    }

    /// Whether the receiver has the key; `None` when it gave no usable answer.
    fn ask(&self, key: &str) -> Option<bool> {
        let url =
            self.settings.ask_url.as_ref().expect("an asked port has an address to ask, checked at start");
        match self.agent.get(url).query("key", key).call() {
            Ok(response) if response.status() == 200 => Some(true),
            Ok(response) if response.status() == 404 => Some(false),
            _ => None,
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
