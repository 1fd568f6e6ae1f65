//! The service of the demo: the bundled ledger with both receivers as its outside world, and small pages, so that
//! segments, checkpoints and trimming come to happen within seconds.

use super::lines::Lines;
use super::run::{RecoveryRecord, RunFolder};
use crate::ledger::{Ledger, NOTIFY_AGAIN, NOTIFY_ONCE};
use anyhow::Context;
use mainstay::{Guarantee, OutputPort, Server};
use mainstay_disk::record::RecordOptions;
use mainstay_process::config::Config;
use mainstay_types::level::Level;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Pages of the ring, and bytes of one.
const PAGES: (u16, u32) = (3, 256 << 10);

/// Outputs on their way to one receiver at the same time: it takes them together, one sync for all that wait.
const OUTPUTS_AT_A_TIME: usize = 16;

/// Longest request, in bytes: it must fit a page.
const BODY_BYTES_MAX: usize = 4 << 10;

/// Log after which a checkpoint is taken, in bytes.
const CHECKPOINT_LOG_BYTES: u64 = 1 << 20;

/// Time after which a checkpoint is taken.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(2);

/// Serves until stopped or killed.
///
/// # Errors
/// When it cannot start or go on.
pub(crate) fn serve(folder: &RunFolder) -> anyhow::Result<()> {
    mainstay::command_line::log_to_standard_error();
    let _alone = wait_for_predecessor(folder)?;
    let settings = folder.settings()?;
    let mut server = server(settings.level, settings.receiver_once_port, settings.receiver_again_port)
        .dir(folder.service())
        .listen(SocketAddr::from((Ipv4Addr::LOCALHOST, settings.service_port)));
    if let Some(record) = &settings.record {
        let skip_syncs = settings.skip_syncs.clone().unwrap_or(0..0);
        server = server.record(RecordOptions { skip_syncs, ..RecordOptions::new(record) });
    }
    server.settings_mut().signals = true;
    let running = server.start().context("the ledger does not start")?;
    let started = running.started();
    Lines::open(&folder.recoveries())?.append(&RecoveryRecord {
        pid: std::process::id(),
        created: started.journal.created,
        recovery_ms: started.duration.as_secs_f64() * 1e3,
        replayed: started.recovery.replayed,
        outputs_again: started.recovery.outputs_again,
    })?;
    running.wait().context("the ledger ended")
}

/// What the process of the demo's service is told, for those who run it on what it recorded.
#[must_use]
pub(crate) fn process_config() -> Config {
    let mut server = server(Level::Disk, 1, 1);
    let settings = server.settings_mut();
    let ports = settings.outputs.iter().map(OutputPort::declared).collect();
    Config { ports, ..settings.process.clone() }
}

fn server(level: Level, receiver_once_port: u16, receiver_again_port: u16) -> Server<Ledger> {
    let receiver = |name, port| {
        OutputPort::http(name, format!("http://127.0.0.1:{port}/"))
            .http_settings(|settings| settings.concurrency = OUTPUTS_AT_A_TIME)
    };
    Server::new(Ledger::default)
        .level(level)
        .pages(PAGES.0, PAGES.1)
        .output(receiver(NOTIFY_ONCE, receiver_once_port))
        .output(receiver(NOTIFY_AGAIN, receiver_again_port).guarantee(Guarantee::AtMostOnce))
        .limits(|limits| {
            limits.body_bytes_max = BODY_BYTES_MAX;
            limits.checkpoint_log_bytes = CHECKPOINT_LOG_BYTES;
            limits.checkpoint_interval = CHECKPOINT_INTERVAL;
        })
}

/// Returns when no service of this demo runs any more.
///
/// # Errors
/// Those of the file.
pub(crate) fn wait_until_gone(folder: &RunFolder) -> anyhow::Result<()> {
    wait_for_predecessor(folder).map(drop)
}

/// A service killed with its supervisor may be a moment in dying; a second one would be refused its directory and port.
fn wait_for_predecessor(folder: &RunFolder) -> anyhow::Result<File> {
    let alone = File::create(folder.path().join("service.alone"))?;
    alone.lock()?;
    Ok(alone)
}
