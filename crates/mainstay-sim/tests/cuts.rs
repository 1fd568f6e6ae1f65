//! Power cuts of a real run on real files: every answer at level `Disk` is found in every image, and a build that leaves
//! out syncs is found out.

use mainstay_disk::disk::Backend;
use mainstay_disk::open::{OpenDisk, Options, open};
use mainstay_disk::record::RecordOptions;
use mainstay_journal::geometry::Geometry;
use mainstay_journal::options::OpenOptions;
use mainstay_journal::storage::Storage;
use mainstay_process::checkpoint::{publish, temporary_name};
use mainstay_process::config::{Config, Limits};
use mainstay_process::effect::{Effect, Reply};
use mainstay_process::event::{CheckpointEvent, Event, Identity, ReplyToken, Request};
use mainstay_process::handler::{Answer, Context, Handler, RestoreError};
use mainstay_process::process::Process;
use mainstay_process::recover::Start;
use mainstay_recovery::policy::Policy;
use mainstay_sim::cuts::{CutsOptions, CutsReport, cuts};
use mainstay_types::level::Level;
use mainstay_types::rules::Rules;
use mainstay_types::time::Time;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// Answers with the sum of the lengths of all requests so far.
#[derive(Debug, Default)]
struct Total(u64);

impl Handler for Total {
    fn handle(&mut self, body: &[u8], _context: &mut Context<'_>) -> Option<Answer> {
        self.0 += body.len() as u64;
        Some(Answer { status: 200, body: self.0.to_string().into_bytes() })
    }

    fn query(&self, _body: &[u8]) -> Answer {
        Answer { status: 200, body: self.0.to_string().into_bytes() }
    }

    fn save(&self, into: &mut dyn io::Write) -> io::Result<()> {
        into.write_all(&self.0.to_le_bytes())
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let bytes =
            bytes.try_into().map_err(|_| RestoreError { reason: "8 bytes are a state".to_owned() })?;
        self.0 = u64::from_le_bytes(bytes);
        Ok(())
    }
}

fn config() -> Config {
    Config {
        name: "total".to_owned(),
        version: 1,
        level: Level::Disk,
        policy: Policy::Deferred,
        ports: Vec::new(),
        limits: Limits {
            body_bytes_max: 1000,
            checkpoint_log_bytes: 16 << 10,
            checkpoint_interval: Duration::from_secs(3600),
            ..Limits::default()
        },
        entropy: 7,
        cluster: None,
        rules: Rules::KEPT,
    }
}

/// Two lives of `requests` requests each, the first one killed, recorded.
fn record(directory: &Path, recording: &Path, requests: u64, skip_syncs: Range<u64>) {
    for life in 0..2 {
        let options = Options {
            journal: OpenOptions {
                geometry: Geometry { page_bytes: 4096, pages: 2, segment_pages: 2 },
                ..OpenOptions::default()
            },
            backend: Backend::Threads,
            create_directory: true,
            hint: "test".to_owned(),
            stripes: Vec::new(),
            kept: false,
            record: Some(RecordOptions { skip_syncs: skip_syncs.clone(), ..RecordOptions::new(recording) }),
        };
        let OpenDisk { journal, disk, mut storage, report } = open(directory, &options).expect("it opens");
        let mut effects = Vec::new();
        let start = Start {
            config: config(),
            handler: Total::default(),
            journal,
            report: &report,
            storage: &mut storage,
            catalog: &disk.catalog(),
            now: Time(1),
            roll_back: None,
            progress: None,
        };
        let (mut process, recovery) = Process::recover(start, &mut effects).expect("it recovers");
        for number in 0..requests {
            let key = format!("{life}/{number}");
            let body = format!("{{\"padding\": \"{}\"}}", "x".repeat(number as usize % 200));
            let request = Request {
                token: ReplyToken(number),
                identity: Identity::Key(key.clone().into_bytes()),
                body: body.clone().into_bytes(),
            };
            let mut events = VecDeque::from([Event::Request(request), Event::Drained]);
            while let Some(event) = events.pop_front() {
                process.step(recovery.time, event, &mut effects);
                for effect in std::mem::take(&mut effects) {
                    match effect {
                        Effect::Disk(effect) => {
                            events.extend([Event::Disk(disk.perform(&effect)), Event::Drained]);
                        }
                        Effect::Reply { reply: Reply::Answer { answer, .. }, .. } => {
                            let tag = serde_json::json!({
                                "identity": {"key": key},
                                "request": body,
                                "status": answer.status,
                                "answer": String::from_utf8_lossy(&answer.body),
                            });
                            storage
                                .recorder()
                                .expect("it is recorded")
                                .acknowledged(tag.to_string().as_bytes());
                        }
                        Effect::SaveCheckpoint { lsn } => {
                            let mut bytes = Vec::new();
                            let saved = process.save(&mut bytes).expect("a vector takes all");
                            let name = temporary_name(lsn);
                            storage.create(&name, 0).expect("it is new");
                            storage.write(&name, 0, &bytes).expect("there is space");
                            let (state_hash, bytes) = (saved.state_hash, saved.bytes);
                            let saved = CheckpointEvent::Saved { lsn, state_hash, bytes };
                            events.extend([Event::Checkpoint(saved), Event::Drained]);
                        }
                        Effect::PublishCheckpoint { lsn } => {
                            let oldest = publish(&mut storage, lsn).expect("it was saved");
                            events.push_back(Event::Checkpoint(CheckpointEvent::Published { lsn, oldest }));
                        }
                        _ => {}
                    }
                }
            }
        }
    }
}

fn cut(skip_syncs: Range<u64>, points_max: usize) -> CutsReport {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recording = folder.path().join("recording");
    record(&folder.path().join("journal"), &recording, 150, skip_syncs);
    let options = CutsOptions { points_max, ..CutsOptions::default() };
    cuts(&recording, &options, &config(), Total::default).expect("it was just recorded")
}

#[test]
fn every_answer_is_found_in_every_image() {
    let report = cut(0..0, 120);
    assert_eq!(report.first_violation, None);
    assert_eq!(report.acknowledgements, 300);
    assert!(report.points >= 100 && report.images >= 5 * report.points && report.asked > 5_000, "{report:?}");
}

#[test]
fn a_build_that_leaves_out_syncs_is_found_out() {
    let report = cut(40..60, 120);
    assert!(report.violations > 0, "{report:?}");
}

#[test]
fn a_build_that_leaves_out_a_single_sync_is_found_out() {
    // The next write of the same block makes it good: only a cut right behind the answer shows it.
    let report = cut(50..51, usize::MAX);
    assert!(report.violations > 0, "{report:?}");
}
