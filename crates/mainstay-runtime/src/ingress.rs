//! HTTP/1.1 in: the contract of `docs/http.md`.
//!
//! hyper rather than axum: the head timeout and the limit on connections are set where a connection is served, which axum
//! leaves to hyper anyway, and ten paths need no router.

mod identity;
mod instance;
mod refusal;
mod report;
mod snapshots;
mod status;

use crate::driver::{NotTaken, Shared, Turn};
use crate::inbox::Item;
use crate::ingress::identity::identity_of;
use crate::ingress::instance::Target;
use crate::ingress::refusal::Refusal;
use crate::ingress::snapshots::Asked;
use crate::mailbox::ReplyTo;
use crate::replies::Said;
use crate::service::{Check, Unfit};
use crate::settings;
use crate::threads::{Seat, ServingThreads};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use mainstay_process::effect::Reply;
use mainstay_process::event::{Event, Resolution};
use mainstay_process::handler::Answer;
use mainstay_types::id::OutputId;
use mainstay_types::level::Level;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::oneshot::{Receiver, channel};

/// Bytes of a request's head, at most.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// How much of a body over the limit is read and thrown away, in bytes, so that its sender gets to read the refusal.
const DISCARD_BYTES_MAX: usize = 8 << 20;

/// Bytes of the body of `POST /outputs/{id}/resolve`, at most.
const RESOLUTION_BYTES_MAX: usize = 256;

/// How long accepting pauses when the operating system has no descriptor for another connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const MAINSTAY_LEVEL: HeaderName = HeaderName::from_static("mainstay-level");
const MAINSTAY_REPLAYED: HeaderName = HeaderName::from_static("mainstay-replayed");
const MAINSTAY_KEY_EXPIRES: HeaderName = HeaderName::from_static("mainstay-key-expires");
const MAINSTAY_AS_OF: HeaderName = HeaderName::from_static("mainstay-as-of");
const MAINSTAY_NODE: HeaderName = HeaderName::from_static("mainstay-node");
const MAINSTAY_ERROR: HeaderName = HeaderName::from_static("mainstay-error");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The ingress of one service.
pub(crate) struct Ingress {
    pub(crate) shared: Arc<Shared>,
    pub(crate) settings: settings::Ingress,
    pub(crate) body_bytes_max: usize,
    pub(crate) check_command: Check,
    pub(crate) check_query: Check,
    /// Ports by name, as declared.
    pub(crate) port_names: Vec<String>,
}

type Answered = Result<Response<Full<Bytes>>, Refusal>;

/// Accepts connections for ever, and hands them to the threads that serve.
pub(crate) async fn accept(listener: TcpListener, ingress: Arc<Ingress>, threads: ServingThreads) {
    let places = Arc::new(Semaphore::new(ingress.settings.connections_max));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "no connection could be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            ingress.shared.watch.connections_refused.fetch_add(1, Ordering::Relaxed);
            refuse_connection(&stream);
            continue;
        };
        // Without it an answer waits for the acknowledgement of the one before (Nagle's algorithm).
        let _ = stream.set_nodelay(true);
        // The sockets of a thread are looked at by its own runtime.
        let Ok(stream) = stream.into_std() else { continue };
        let (ingress, threads) = (Arc::clone(&ingress), threads.clone());
        tokio::spawn(async move {
            let serve = |seat| async move {
                match TcpStream::from_std(stream) {
                    Ok(stream) => serve(stream, &ingress, &seat).await,
                    Err(error) => tracing::warn!(%error, "a connection could not be served"),
                }
                drop(place);
            };
            threads.serve(serve).await;
        });
    }
}

/// Says 503 as far as the socket's buffer takes it, and closes.
fn refuse_connection(stream: &TcpStream) {
    let refusal = Refusal::Connections;
    let body = refusal.body();
    let text = format!(
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nmainstay-error: {}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        refusal.code(),
        body.len(),
    );
    let _ = stream.try_write(text.as_bytes());
}

async fn serve(stream: TcpStream, ingress: &Arc<Ingress>, seat: &Arc<Seat>) {
    let service = service_fn(|request| {
        let (ingress, seat) = (Arc::clone(ingress), Arc::clone(seat));
        async move {
            seat.lookout.request_came(ingress.shared.in_flight.load(Ordering::Relaxed) == 0);
            let answered = ingress.answer(request, &seat).await;
            seat.lookout.answered();
            Ok::<_, Infallible>(ingress.counted(answered.unwrap_or_else(|refusal| refusal.response())))
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ingress.settings.head_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection ended early");
    }
}

impl Ingress {
    async fn answer(&self, request: Request<Incoming>, seat: &Seat) -> Answered {
        let path = request.uri().path();
        let addressed = self.settings.addressed;
        let Target { path, head } = Target::of(path, addressed)?;
        let allowed = match path {
            "/call" | "/query" | "/clients" | "/checkpoint" | "/snapshots" | "/snapshots/block" => {
                Method::POST
            }
            "/health" | "/losses" | "/metrics" | "/outputs" | "/status" => Method::GET,
            _ if output_to_resolve(path).is_some() => Method::POST,
            _ if let Some(asked) = Asked::of(path) => asked.method(request.method()),
            _ => return Err(Refusal::NoSuchPath { addressed }),
        };
        if request.method() != allowed {
            return Err(Refusal::MethodNotAllowed { allowed });
        }
        match path {
            "/call" => self.call(request, head, seat).await,
            "/query" => self.query(request, head, seat).await,
            "/clients" => self.register(seat).await,
            "/health" => report::health(&self.shared).await,
            "/metrics" => report::metrics(self).await,
            "/outputs" => report::outputs(self).await,
            "/status" => status::status(self).await,
            "/losses" => report::losses(&self.shared).await,
            "/checkpoint" => self.checkpoint(),
            "/snapshots" => self.begin_snapshot().await,
            "/snapshots/block" => self.begin_block().await,
            _ if let Some(asked) = Asked::of(path) => self.snapshot(asked, request.method()).await,
            _ => self.resolve(request, seat).await,
        }
    }

    async fn call(&self, request: Request<Incoming>, instance: Vec<u8>, seat: &Seat) -> Answered {
        let (head, body) = request.into_parts();
        let identity = identity_of(&head.headers)?;
        let body = self.read_body(body, self.body_bytes_max.saturating_sub(instance.len())).await?;
        let body = behind(instance, body);
        fit(&self.check_command, &body)?;
        let arrived = Instant::now();
        let said = self.ask(seat, |reply| Item::Call { reply, identity, body }).await;
        self.shared.watch.call_latency.record(arrived.elapsed());
        match said? {
            Reply::Answer { answer, replayed, expires } => {
                let mut response = self.response(answer.status, Bytes::from(take_body(answer)));
                let headers = response.headers_mut();
                if replayed {
                    headers.insert(MAINSTAY_REPLAYED, HeaderValue::from_static("true"));
                }
                if let Some(expires) = expires {
                    headers.insert(MAINSTAY_KEY_EXPIRES, HeaderValue::from(expires.unix_seconds()));
                }
                Ok(response)
            }
            other => Err(Refusal::of(&other)),
        }
    }

    async fn query(&self, request: Request<Incoming>, instance: Vec<u8>, seat: &Seat) -> Answered {
        let mut body = self.read_body(request.into_body(), self.body_bytes_max).await?;
        if body.is_empty() {
            body.extend_from_slice(b"null");
        }
        let body = behind(instance, body);
        fit(&self.check_query, &body)?;
        match self.ask(seat, |reply| Item::Query { reply, body }).await? {
            Reply::Read { answer, as_of } => {
                let mut response = self.response(answer.status, answer.body.into());
                response.headers_mut().insert(MAINSTAY_AS_OF, HeaderValue::from(as_of.0));
                Ok(response)
            }
            other => Err(Refusal::of(&other)),
        }
    }

    async fn register(&self, seat: &Seat) -> Answered {
        match self.ask(seat, |reply| Item::Register { reply }).await? {
            Reply::Registered { client } => {
                Ok(self.response(200, format!("{{\"client\":{}}}", client.0).into()))
            }
            other => Err(Refusal::of(&other)),
        }
    }

    async fn resolve(&self, request: Request<Incoming>, seat: &Seat) -> Answered {
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "kebab-case")]
        enum Said {
            Delivered,
            SendAgain,
            Abandon,
        }
        #[derive(serde::Deserialize)]
        struct Body {
            resolution: Said,
        }
        let output = output_to_resolve(request.uri().path()).expect("routed by it");
        let body = self.read_body(request.into_body(), RESOLUTION_BYTES_MAX).await?;
        let body: Body = serde_json::from_slice(&body).map_err(|error| Refusal::of_json(&error))?;
        let resolution = match body.resolution {
            Said::Delivered => Resolution::Delivered,
            Said::SendAgain => Resolution::SendAgain,
            Said::Abandon => Resolution::Abandon,
        };
        match self.ask(seat, |reply| Item::Resolve { reply, output, resolution }).await? {
            Reply::Resolved => Ok(self.response(200, Bytes::from_static(b"{\"resolved\":true}"))),
            other => Err(Refusal::of(&other)),
        }
    }

    fn checkpoint(&self) -> Answered {
        self.shared.push(Item::Event(Event::CheckpointNow), Turn::AtOnce)?;
        Ok(self.response(202, Bytes::from_static(b"{\"checkpoint\":\"asked for\"}")))
    }

    async fn ask(&self, seat: &Seat, item: impl FnOnce(ReplyTo) -> Item) -> Result<Reply, Refusal> {
        let (reply, hears): (_, Receiver<Said>) = channel();
        let turn = self.turn(seat);
        if let Err(not_taken) = self.shared.push(item(ReplyTo::here(reply, &seat.mailbox)), turn) {
            if not_taken == NotTaken::InFlight {
                self.shared.watch.refused_at_ingress.fetch_add(1, Ordering::Relaxed);
            }
            return Err(not_taken.into());
        }
        match hears.await {
            Ok(Said::Reply(reply)) => Ok(reply),
            Ok(Said::OutcomeUnknown) | Err(_) => Err(Refusal::OutcomeUnknown),
        }
    }

    /// The thread of a lone connection has nothing else to do. Others would wait for the disk with it, unread; where nothing waits
    /// for the disk, handing the role to another thread costs more than it gains.
    fn turn(&self, seat: &Seat) -> Turn {
        match self.shared.level {
            _ if !seat.shared() => Turn::AtOnce,
            Level::Disk => Turn::Elsewhere,
            Level::Memory | Level::Process | Level::Peers => Turn::AfterReadyTasks,
        }
    }

    async fn read_body(&self, mut incoming: Incoming, limit: usize) -> Result<Vec<u8>, Refusal> {
        let announced = usize::try_from(incoming.size_hint().lower()).unwrap_or(usize::MAX);
        let mut body = Vec::with_capacity(announced.min(limit));
        let mut total = 0_usize;
        let read = async {
            while let Some(frame) = incoming.frame().await {
                let Ok(data) = frame.map_err(|_| Refusal::BrokenBody)?.into_data() else { continue };
                total = total.saturating_add(data.len());
                if total <= limit {
                    body.extend_from_slice(&data);
                } else if announced.max(total) > limit.saturating_add(DISCARD_BYTES_MAX) {
                    break;
                }
            }
            Ok::<(), Refusal>(())
        };
        match tokio::time::timeout(self.settings.body_timeout, read).await {
            Err(_) => return Err(Refusal::BodyTimeout),
            Ok(read) => read?,
        }
        if total > limit {
            return Err(Refusal::BodyTooLarge { limit });
        }
        std::str::from_utf8(&body).map_err(|error| Refusal::Utf8 { valid_bytes: error.valid_up_to() })?;
        Ok(body)
    }

    fn response(&self, status: u16, body: Bytes) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers: &mut HeaderMap = response.headers_mut();
        headers.insert(CONTENT_TYPE, JSON);
        headers.insert(MAINSTAY_LEVEL, level_header(self.shared.level));
        response
    }

    fn counted(&self, response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
        let hundred = usize::from(response.status().as_u16() / 100).min(5);
        self.shared.watch.replies[hundred].fetch_add(1, Ordering::Relaxed);
        response
    }
}

/// Whether the body is what the handler takes: asked before anything is logged.
fn fit(check: &Check, body: &[u8]) -> Result<(), Refusal> {
    check(body).map_err(|unfit| match unfit {
        Unfit::Syntax { message } => Refusal::Json { message },
        Unfit::Content { message } => Refusal::Unfit { message },
        Unfit::NoSuchType { hosted } => Refusal::NoSuchType { hosted },
        Unfit::Elsewhere { node } => Refusal::OtherNode { node },
    })
}

/// A body behind the address of its instance, if there is one.
fn behind(mut instance: Vec<u8>, body: Vec<u8>) -> Vec<u8> {
    if instance.is_empty() {
        return body;
    }
    instance.extend_from_slice(&body);
    instance
}

/// The answer is shared with the table of duplicates only while that remembers it.
fn take_body(answer: Arc<Answer>) -> Vec<u8> {
    Arc::try_unwrap(answer).map_or_else(|shared| shared.body.clone(), |own| own.body)
}

fn level_header(level: Level) -> HeaderValue {
    HeaderValue::from_static(match level {
        Level::Memory => "memory",
        Level::Process => "process",
        Level::Disk => "disk",
        Level::Peers => "peers",
    })
}

/// The number in `/outputs/{id}/resolve`.
fn output_to_resolve(path: &str) -> Option<OutputId> {
    let id = path.strip_prefix("/outputs/")?.strip_suffix("/resolve")?;
    id.parse().ok().map(OutputId)
}

fn retry_after(response: &mut Response<Full<Bytes>>, seconds: u64) {
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
}
