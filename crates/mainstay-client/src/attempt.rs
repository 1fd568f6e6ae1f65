//! One request, attempted until it is answered: which ends of an attempt are final, and how long to pause between two.

use crate::answer::Answer;
use crate::error::{AddressError, AttemptError, CallError};
use crate::options::Options;
use crate::thread::Identity;
use std::time::{Duration, Instant};

/// The connections to one service.
#[derive(Debug)]
pub(crate) struct Attempts {
    agent: ureq::Agent,
    address: String,
    options: Options,
}

/// The headers that name a request.
#[derive(Debug)]
pub(crate) enum Headers<'a> {
    /// Nameless: reads, and the request for a number.
    None,
    /// By key.
    Key(&'a str),
    /// By the client's own numbering.
    Client(Identity),
}

/// How one attempt ended.
enum Ended {
    Answered(Answer),
    Final(CallError),
    Again { error: AttemptError, effect_possible: bool, pause_min: Option<Duration> },
}

impl Attempts {
    pub(crate) fn new(address: &str, options: Options) -> Result<Self, AddressError> {
        let unusable = || AddressError { given: address.to_owned() };
        let uri: ureq::http::Uri = address.parse().map_err(|_| unusable())?;
        if !matches!(uri.scheme_str(), Some("http" | "https"))
            || uri.host().is_none()
            || uri.query().is_some()
        {
            return Err(unusable());
        }
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(options.attempt_timeout))
            .build()
            .new_agent();
        Ok(Self { agent, address: address.trim_end_matches('/').to_owned(), options })
    }

    /// Attempts `POST path` until there is an answer, a final refusal, or the deadline has passed.
    pub(crate) fn until_answered(
        &self,
        path: &str,
        headers: &Headers<'_>,
        body: &[u8],
    ) -> Result<Answer, CallError> {
        let deadline = Instant::now() + self.options.call_deadline;
        let mut pause = self.options.pause_min;
        let mut effect_possible_at_all = false;
        for attempts in 1.. {
            let left = deadline.saturating_duration_since(Instant::now());
            let (last, pause_asked) = match self.attempt(path, headers, body, left) {
                Ended::Answered(answer) => return Ok(answer),
                Ended::Final(error) => return Err(error),
                Ended::Again { error, effect_possible, pause_min } => {
                    effect_possible_at_all |= effect_possible;
                    (error, pause_min)
                }
            };
            let wait = pause_asked.unwrap_or_default().max(jittered(pause)).min(self.options.pause_max);
            if Instant::now() + wait >= deadline {
                return Err(if effect_possible_at_all {
                    CallError::Unknown { attempts, last }
                } else {
                    CallError::Unavailable { attempts, last }
                });
            }
            std::thread::sleep(wait);
            pause = (pause * 2).min(self.options.pause_max);
        }
        unreachable!("the deadline ends the attempts before their number overflows")
    }

    fn attempt(&self, path: &str, headers: &Headers<'_>, body: &[u8], left: Duration) -> Ended {
        let mut request = self
            .agent
            .post(format!("{}{path}", self.address))
            .config()
            .timeout_global(Some(left.min(self.options.attempt_timeout).max(Duration::from_millis(1))))
            .build()
            .content_type("application/json");
        match headers {
            Headers::None => {}
            Headers::Key(key) => request = request.header("Idempotency-Key", *key),
            Headers::Client(identity) => {
                request = request
                    .header("Mainstay-Client", identity.client.to_string())
                    .header("Mainstay-Thread", identity.thread.to_string())
                    .header("Mainstay-Sequence", identity.sequence.to_string());
            }
        }
        let sent = request.send(body).and_then(|mut response| {
            let body =
                response.body_mut().with_config().limit(self.options.answer_bytes_max).read_to_vec()?;
            Ok((response, body))
        });
        match sent {
            Ok((response, body)) => classify(&response, body),
            Err(error) if never_connected(&error) => Ended::Again {
                error: AttemptError::Connect(Box::new(error)),
                effect_possible: false,
                pause_min: None,
            },
            Err(error) => Ended::Again {
                error: AttemptError::Broken(Box::new(error)),
                effect_possible: true,
                pause_min: None,
            },
        }
    }
}

/// The service marks its own refusals with `Mainstay-Error` and its handler's answers with `Mainstay-Level`; what has
/// neither comes from something in between, such as a proxy.
fn classify<B>(response: &ureq::http::Response<B>, body: Vec<u8>) -> Ended {
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let status = response.status().as_u16();
    if header("Mainstay-Error").is_none()
        && let Some(level) = header("Mainstay-Level")
    {
        return Ended::Answered(Answer {
            status,
            level: level.to_owned(),
            replayed: header("Mainstay-Replayed") == Some("true"),
            key_expires_unix_seconds: header("Mainstay-Key-Expires").and_then(|seconds| seconds.parse().ok()),
            body,
        });
    }
    let code = header("Mainstay-Error").unwrap_or_default().to_owned();
    let message = message_of(&body);
    match status {
        410 => Ended::Final(CallError::Evicted),
        422 => Ended::Final(CallError::KeyReused),
        408 | 409 | 429 | 500 | 502..=504 => Ended::Again {
            // Only the service itself can say that nothing was done, and its limits do.
            effect_possible: !code.starts_with("busy-") && !code.starts_with("unavailable-"),
            pause_min: header("Retry-After")
                .and_then(|seconds| seconds.parse().ok())
                .map(Duration::from_secs),
            error: AttemptError::Later { status, code, message },
        },
        _ => Ended::Final(CallError::Rejected { status, code, message }),
    }
}

fn message_of(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Said {
        message: String,
    }
    serde_json::from_slice(body)
        .map_or_else(|_| String::from_utf8_lossy(body).into_owned(), |said: Said| said.message)
}

fn never_connected(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed | ureq::Error::BadUri(_) => true,
        ureq::Error::Timeout(kind) => matches!(kind, ureq::Timeout::Connect | ureq::Timeout::Resolve),
        ureq::Error::Io(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
        _ => false,
    }
}

/// Half to all of `pause`, so that clients that failed together do not come back together.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}
