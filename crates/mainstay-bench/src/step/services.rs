//! What is measured: a bare echo on axum, and services at each level and policy with a handler that echoes as well.

use super::StepError;
use crate::floor::FloorFile;
use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::routing::post;
use mainstay_disk::open::Options;
use mainstay_journal::options::OpenOptions;
use mainstay_process::config::{Config, Limits};
use mainstay_process::handler::{Answer, Context, Handler, RestoreError};
use mainstay_recovery::policy::Policy;
use mainstay_runtime::keep::{KeepSettings, KeepWay};
use mainstay_runtime::service::{Running, Service, start};
use mainstay_runtime::settings::{Ingress, Settings};
use mainstay_types::level::Level;
use mainstay_types::rules::Rules;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// Answers with what it was sent, and counts.
#[derive(Debug, Default)]
pub(super) struct Echo {
    count: u64,
}

impl Handler for Echo {
    fn handle(&mut self, body: &[u8], _: &mut Context<'_>) -> Option<Answer> {
        self.count += 1;
        Some(Answer { status: 200, body: body.to_vec() })
    }

    fn query(&self, _: &[u8]) -> Answer {
        Answer { status: 200, body: self.count.to_string().into_bytes() }
    }

    fn save(&self, into: &mut dyn io::Write) -> io::Result<()> {
        into.write_all(&self.count.to_le_bytes())
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let count =
            bytes.try_into().map_err(|_| RestoreError { reason: "a count has 8 bytes".to_owned() })?;
        self.count = u64::from_le_bytes(count);
        Ok(())
    }
}

/// How the process of an [`Echo`] is set up.
pub(super) fn config(level: Level, policy: Policy) -> Config {
    Config {
        name: "echo".to_owned(),
        version: 1,
        level,
        policy,
        ports: Vec::new(),
        // The keys of a whole run are kept: measured are requests, not refusals.
        limits: Limits { keys_max: 100_000_000, ..Limits::default() },
        entropy: 1,
        cluster: None,
        rules: Rules::KEPT,
    }
}

/// How its journal is opened: the defaults.
pub(super) fn disk_options() -> Options {
    Options {
        journal: OpenOptions::default(),
        backend: mainstay_disk::disk::Backend::Auto,
        create_directory: true,
        hint: "mainstay bench step".to_owned(),
        stripes: Vec::new(),
        kept: false,
        record: None,
    }
}

/// A service in a folder of its own.
pub(crate) fn serve(directory: &Path, level: Level, policy: Policy) -> Result<Running, StepError> {
    serve_settings(settings(directory, level, policy))
}

/// One at level disk that lets cores halt while a lone client waits.
pub(super) fn serve_halting(directory: &Path, policy: Policy) -> Result<Running, StepError> {
    let mut settings = settings(&directory.join("halting"), Level::Disk, policy);
    settings.ingress.cores_may_halt = true;
    serve_settings(settings)
}

/// One at level peers, whose log the region `data` of these nodes keeps.
pub(super) fn serve_kept(
    directory: &Path,
    policy: Policy,
    servers: Vec<SocketAddr>,
) -> Result<Running, StepError> {
    let mut settings = settings(directory, Level::Peers, policy);
    settings.keep = Some(KeepSettings {
        servers,
        region: "data".to_owned(),
        name: "echo".to_owned(),
        tls: None,
        way: KeepWay::New,
    });
    serve_settings(settings)
}

fn settings(directory: &Path, level: Level, policy: Policy) -> Settings {
    Settings {
        directory: directory.join(format!("{level}-{policy}")),
        disk: disk_options(),
        process: config(level, policy),
        peers: None,
        places: None,
        keep: None,
        outputs: Vec::new(),
        ingress: Ingress { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), ..Ingress::default() },
        checkpoint_timeout: std::time::Duration::from_secs(60),
        stop_timeout: std::time::Duration::from_secs(10),
        signals: false,
    }
}

fn serve_settings(settings: Settings) -> Result<Running, StepError> {
    let service = Service {
        make: Box::new(|| Box::new(Echo::default())),
        check_command: Box::new(|_| Ok(())),
        check_query: Box::new(|_| Ok(())),
    };
    Ok(start(settings, service)?)
}

/// An echo with no service behind it, on as many threads as a service has.
#[derive(Debug)]
pub(super) struct BareEcho {
    pub(super) address: SocketAddr,
    _runtime: Runtime,
}

/// An echo with nothing behind it at all.
pub(super) fn bare_echo() -> Result<BareEcho, StepError> {
    echo(Router::new().route("/call", post(|body: Bytes| async move { body })))
}

/// An echo that makes `bytes` durable with one plain write before it answers, one request at a time: what HTTP and a sync
/// cost together when there is nothing in between.
pub(super) fn synced_echo(file: FloorFile, bytes: usize) -> Result<BareEcho, StepError> {
    let file = Arc::new(Mutex::new(file));
    let handle = move |body: Bytes| {
        let file = Arc::clone(&file);
        async move {
            let written = file.lock().unwrap_or_else(PoisonError::into_inner).write(bytes);
            written.map(|()| body).map_err(|_| StatusCode::INSUFFICIENT_STORAGE)
        }
    };
    echo(Router::new().route("/call", post(handle)))
}

fn echo(router: Router) -> Result<BareEcho, StepError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(2, |cores| cores.get() + 1))
        .enable_all()
        .build()?;
    let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
    let address = listener.local_addr()?;
    runtime.spawn(async move { axum::serve(listener, router).await });
    Ok(BareEcho { address, _runtime: runtime })
}
