//! A receiver in the outside world: takes notices over HTTP, keeps each past a sync before it says 200.
//!
//! One kind drops a key it has seen, as a mailer or a payment service with idempotency keys does; the other takes
//! whatever comes, as most of the world does.

use super::lines::{self, Lines};
use super::plan::Role;
use super::run::RunFolder;
use anyhow::Context;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use tokio::sync::{mpsc, oneshot};

/// Arrivals waiting for the next sync, at most.
const ARRIVALS_WAITING_MAX: usize = 1024;

/// One notice that came in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Received {
    /// By what the sender says a repetition is recognised.
    pub(crate) key: String,
    /// The notice.
    pub(crate) body: String,
    /// Whether it was dropped because its key had been seen.
    pub(crate) dropped: bool,
}

struct Arrival {
    key: String,
    body: String,
    kept: oneshot::Sender<()>,
}

/// Receives until killed.
///
/// # Errors
/// Those of the file and the listener.
pub(crate) fn receive(folder: &RunFolder, role: Role) -> anyhow::Result<()> {
    let settings = folder.settings()?;
    let port =
        if role == Role::ReceiverOnce { settings.receiver_once_port } else { settings.receiver_again_port };
    let path = folder.receiver(role);
    let kept = Lines::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    let seen = lines::read::<Received>(&path)?.into_iter().map(|received| received.key).collect();
    let drops = role == Role::ReceiverOnce;

    let (arrivals, waiting) = mpsc::channel(ARRIVALS_WAITING_MAX);
    std::thread::spawn(move || {
        if let Err(error) = keep(waiting, kept, seen, drops) {
            // Without its file a receiver can promise nothing: it dies, and its supervisor starts another.
            eprintln!("receiver: {error}");
            std::process::exit(3);
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
            .await
            .with_context(|| format!("cannot listen on port {port}"))?;
        let routes = axum::Router::new().route("/", post(arrive)).with_state(arrivals);
        axum::serve(listener, routes).await.context("the listener failed")
    })
}

async fn arrive(
    State(arrivals): State<mpsc::Sender<Arrival>>,
    headers: HeaderMap,
    body: String,
) -> StatusCode {
    let Some(key) = headers.get("Idempotency-Key").and_then(|key| key.to_str().ok()) else {
        return StatusCode::BAD_REQUEST;
    };
    let (kept, is_kept) = oneshot::channel();
    if arrivals.send(Arrival { key: key.to_owned(), body, kept }).await.is_err() || is_kept.await.is_err() {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    StatusCode::OK
}

/// Writes arrivals, one sync for all that wait.
fn keep(
    mut waiting: mpsc::Receiver<Arrival>,
    mut file: Lines,
    mut seen: BTreeSet<String>,
    drops: bool,
) -> std::io::Result<()> {
    let mut arrivals = Vec::new();
    while waiting.blocking_recv_many(&mut arrivals, ARRIVALS_WAITING_MAX) > 0 {
        for arrival in &arrivals {
            let repeated = !seen.insert(arrival.key.clone());
            let (key, body) = (arrival.key.clone(), arrival.body.clone());
            file.stage(&Received { key, body, dropped: drops && repeated })?;
        }
        file.write_staged()?;
        file.sync()?;
        for arrival in arrivals.drain(..) {
            // Whoever sent it may have been killed meanwhile.
            let _ = arrival.kept.send(());
        }
    }
    Ok(())
}
