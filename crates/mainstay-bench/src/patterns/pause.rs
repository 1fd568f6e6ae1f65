//! How long a write waits at most when a node is killed, and when one stands still.

use super::{DEFAULT, PatternsError, Setting};
use crate::group::{Group, Made, NODES};
use crate::report::{Arm, Bound, Figure, Report, Samples, Target};
use mainstay_region_client::{Client, Settings};
use mainstay_types::level::Level;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Clients, one write after the other each.
const CLIENTS: usize = 4;

/// Longest pause when a node is killed, in seconds.
const KILLED_SECONDS_MAX: f64 = 1.0;

/// Longest pause when a node stands still, in seconds.
const STOPPED_SECONDS_MAX: f64 = 1.5;

/// How long it goes on before and after the failure.
const BEFORE: Duration = Duration::from_millis(500);
const AFTER: Duration = Duration::from_secs(3);

/// Measures both.
pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), PatternsError> {
    let folder = setting.directory.join("pause");
    // A majority: who is gone keeps nobody waiting but where it stamped.
    let region = format!("ack=majority,pattern={}", DEFAULT.name());
    let mut group = Group::start(Made { program: &setting.given.program, folder, region, link_delay_us: 0 })?;
    let (mut killed, mut stopped) = (Samples::default(), Samples::default());
    let mut operations = 0;
    for round in 0..setting.choose(1, 3) {
        // Each node once, the oldest among them.
        let place = round % NODES;
        setting.say(&format!("pause: node {} is killed", place + 1));
        let (longest, done) = longest_pause(&group.servers(), || group.signal(place, libc::SIGKILL))?;
        killed.push(longest);
        operations += done;
        group.restart(place)?;
        setting.say(&format!("pause: node {} is stopped", place + 1));
        let (longest, done) = longest_pause(&group.servers(), || group.signal(place, libc::SIGSTOP))?;
        stopped.push(longest);
        operations += done;
        group.signal(place, libc::SIGCONT);
        group.wait_until_all_serve()?;
    }
    let level = Some(Level::Process);
    let arm = |name: &str, samples: &Samples| Arm {
        name: name.to_owned(),
        level,
        window: 1,
        payload_bytes: 1000,
        unit: "s",
        operations,
        cpu_ns_per_operation: None,
        disk: None,
        samples: samples.clone(),
    };
    for (name, samples, most) in
        [("SIGKILL", &killed, KILLED_SECONDS_MAX), ("SIGSTOP", &stopped, STOPPED_SECONDS_MAX)]
    {
        let name = format!("{name} of a node: longest pause of a write");
        report.targets.push(Target::new(name, samples.quantile(1.0), Bound::AtMost, most, "s", level));
    }
    report.figures.push(Figure {
        name: "pause",
        meaning: format!(
            "{CLIENTS} clients, one put after the other each, to keys of all shards, acknowledged by a majority; a sample is the longest put of a round \
             in which one node fails"
        ),
        arms: vec![arm("SIGKILL", &killed), arm("SIGSTOP", &stopped)],
        notes: vec![format!("{operations} puts, all acknowledged")],
    });
    Ok(())
}

/// The longest that one write took, in seconds, with `fail` in the middle; and how many there were.
fn longest_pause(servers: &[SocketAddr], fail: impl FnOnce()) -> Result<(f64, u64), PatternsError> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let stop = &stop;
                scope.spawn(move || write_until(servers, number, stop))
            })
            .collect();
        std::thread::sleep(BEFORE);
        fail();
        std::thread::sleep(AFTER);
        stop.store(true, Ordering::Relaxed);
        let (mut longest, mut operations) = (0.0_f64, 0);
        for writer in writers {
            let (of_writer, done) = writer.join().expect("writers do not panic")?;
            longest = longest.max(of_writer);
            operations += done;
        }
        Ok((longest, operations))
    })
}

fn write_until(
    servers: &[SocketAddr],
    number: usize,
    stop: &AtomicBool,
) -> Result<(f64, u64), PatternsError> {
    let mut client = Client::connect(servers, "data", Settings::default())?;
    let value = [7; 1000];
    let (mut longest, mut operations) = (0.0_f64, 0);
    while !stop.load(Ordering::Relaxed) {
        let key = format!("{number}-{}", operations % 100);
        let began = Instant::now();
        client.put(key.as_bytes(), &value)?;
        longest = longest.max(began.elapsed().as_secs_f64());
        operations += 1;
    }
    Ok((longest, operations))
}
