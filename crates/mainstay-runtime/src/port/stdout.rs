//! Outputs as lines on standard output: at least once, since a pipe can neither drop a line nor be asked.

use crate::port::{Carry, PortStatus, Report, Sent};
use mainstay_process::effect::Output;
use mainstay_process::handler::Outcome;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// A running standard-output port. Its thread is not joined: a full pipe would hold up the stop of the service.
pub(crate) struct StdoutPort {
    /// Its length is limited by the process: `outputs_pending_max`.
    outputs: Sender<Taken>,
    counts: Arc<Counts>,
}

/// An output, and the life that released it.
struct Taken {
    life: u64,
    output: Output,
}

#[derive(Default)]
struct Counts {
    /// How often the waiting outputs were forgotten.
    life: AtomicU64,
    taken: AtomicU64,
    delivered: AtomicU64,
    stopped: Mutex<Option<String>>,
}

impl StdoutPort {
    pub(crate) fn start(name: &str, report: Report) -> io::Result<Self> {
        let (outputs, received) = channel();
        let counts = Arc::new(Counts::default());
        let shared = Arc::clone(&counts);
        std::thread::Builder::new()
            .name(format!("port-{name}"))
            .spawn(move || run(&received, &shared, &report))?;
        Ok(Self { outputs, counts })
    }
}

impl Carry for StdoutPort {
    fn carry(&self, output: Output) {
        self.counts.taken.fetch_add(1, Ordering::Relaxed);
        // After the thread has stopped, the output stays pending in the process, and `stopped` says why.
        let life = self.counts.life.load(Ordering::Acquire);
        let _ = self.outputs.send(Taken { life, output });
    }

    fn forget_waiting(&self) {
        self.counts.life.fetch_add(1, Ordering::AcqRel);
    }

    fn status(&self) -> PortStatus {
        let delivered = self.counts.delivered.load(Ordering::Relaxed);
        PortStatus {
            waiting: self.counts.taken.load(Ordering::Relaxed).saturating_sub(delivered),
            delivered,
            stopped: self.counts.stopped.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            ..PortStatus::default()
        }
    }
}

fn run(received: &Receiver<Taken>, counts: &Counts, report: &Report) {
    while let Ok(Taken { life, output }) = received.recv() {
        if life != counts.life.load(Ordering::Acquire) {
            counts.taken.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        if let Err(error) = write_line(&output.body) {
            tracing::error!(%error, "standard output is gone; outputs to it stay pending");
            let said = format!("standard output cannot be written ({error}); restart with one that can");
            *counts.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
            return;
        }
        counts.delivered.fetch_add(1, Ordering::Relaxed);
        report(output.id, Sent::Ended(Outcome::Delivered { status: 0 }));
    }
}

fn write_line(body: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(body)?;
    stdout.write_all(b"\n")?;
    stdout.flush()
}
