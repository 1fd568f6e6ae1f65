//! A restart with a million small messages to replay, beside reading and checksumming the same files.

use super::services::{Echo, config, disk_options};
use super::{Setting, StepError};
use crate::floor::read_and_checksum;
use crate::report::{Report, Table, number};
use mainstay_disk::open::{OpenDisk, open};
use mainstay_journal::effect::DiskEffect;
use mainstay_process::effect::Effect;
use mainstay_process::event::{Event, Identity, ReplyToken, Request};
use mainstay_process::process::Process;
use mainstay_process::recover::{Recovery, Start};
use mainstay_recovery::policy::Policy;
use mainstay_types::level::Level;
use mainstay_types::time::Time;
use std::path::PathBuf;
use std::time::Instant;

/// Bytes of each message.
const MESSAGE_BYTES: usize = 100;

/// Piece in which the floor reads, in bytes.
const PIECE_BYTES: usize = 1 << 20;

type EchoProcess = Process<Echo, mainstay_disk::mapped_pages::MappedPages>;

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), StepError> {
    let messages = setting.choose(200_000, 1_000_000);
    let rounds = setting.choose(3, 5);
    let directory = setting.directory.join("restart");
    let (mut process, opened, _) = recover(&directory)?;
    fill(&mut process, &opened, messages);
    drop((process, opened));

    let mut rows = Vec::new();
    for _ in 0..rounds {
        let since = Instant::now();
        let (process, opened, recovery) = recover(&directory)?;
        let restart_ms = since.elapsed().as_secs_f64() * 1e3;
        assert_eq!(recovery.replayed, messages, "every message is replayed");
        let files: Vec<PathBuf> = {
            let catalog = opened.disk.catalog();
            let names = catalog.segments().filter_map(|segment| catalog.file_of(segment));
            names.map(|name| opened.storage.path(&name)).collect()
        };
        drop((process, opened));
        let since = Instant::now();
        for file in &files {
            read_and_checksum(file, PIECE_BYTES)?;
        }
        let floor_ms = since.elapsed().as_secs_f64() * 1e3;
        rows.push(vec![
            messages.to_string(),
            number(recovery.replayed_bytes as f64 / 1e6),
            number(restart_ms),
            number(messages as f64 / restart_ms / 1e3),
            number(floor_ms),
        ]);
    }
    report.tables.push(Table {
        name: "restart",
        meaning: format!(
            "open, repair and replay of {MESSAGE_BYTES} B messages through the handler, from the page cache; the floor \
             reads and checksums the same segment files whole"
        ),
        columns: ["messages", "MB of log", "restart ms", "million messages/s", "read + checksum ms"]
            .map(str::to_owned)
            .to_vec(),
        rows,
    });
    Ok(())
}

fn recover(directory: &std::path::Path) -> Result<(EchoProcess, Opened, Recovery), StepError> {
    let OpenDisk { journal, disk, mut storage, report } = open(directory, &disk_options())?;
    let mut config = config(Level::Process, Policy::Deferred);
    // Everything is to be replayed: no checkpoint may come between.
    config.limits.checkpoint_log_bytes = u64::MAX;
    let start = Start {
        config,
        handler: Echo::default(),
        journal,
        report: &report,
        storage: &mut storage,
        catalog: &disk.catalog(),
        now: Time(1),
        roll_back: None,
        progress: None,
    };
    let mut effects = Vec::new();
    let (process, recovery) = Process::recover(start, &mut effects)?;
    for effect in effects {
        if let Effect::Disk(effect) = effect {
            disk.submit(effect);
        }
    }
    Ok((process, Opened { disk, storage }, recovery))
}

struct Opened {
    disk: mainstay_disk::disk::Disk,
    storage: mainstay_disk::file_storage::FileStorage,
}

/// Logs and executes `messages` without clients; ends without a seal, as a kill would.
fn fill(process: &mut EchoProcess, opened: &Opened, messages: u64) {
    let mut effects = Vec::new();
    let mut completed = Vec::new();
    let body = vec![b'1'; MESSAGE_BYTES];
    let mut answered = 0;
    let mut sent = 0;
    while answered < messages {
        if sent < messages && sent - answered < 1000 {
            let request = Request { token: ReplyToken(sent), identity: Identity::None, body: body.clone() };
            process.step(Time(1), Event::Request(request), &mut effects);
            sent += 1;
        }
        opened.disk.poll(&mut completed);
        for event in completed.drain(..) {
            process.step(Time(1), Event::Disk(event), &mut effects);
        }
        for effect in effects.drain(..) {
            match effect {
                Effect::Disk(effect @ DiskEffect::Write { durable: true, .. }) => {
                    completed.push(opened.disk.perform(&effect));
                }
                Effect::Disk(effect) => opened.disk.submit(effect),
                Effect::Reply { .. } => answered += 1,
                _ => {}
            }
        }
    }
}
