//! What signals ask of a service: SIGTERM and SIGINT to stop cleanly, once more to end at once, SIGUSR1 to take a checkpoint.

use crate::driver::Shared;
use crate::inbox::Phase;
use crate::service::EndError;
use mainstay_process::event::Event;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tokio::signal::unix::{SignalKind, signal};

/// Exit code of a process that a signal interrupted in its recovery, as shells have it for SIGTERM.
const EXIT_INTERRUPTED: i32 = 128 + libc::SIGTERM;

/// Listens for them from now on, on the runtime that it is called in.
///
/// # Errors
/// When the operating system does not let it.
pub(super) fn mind(shared: &Arc<Shared>, says_ended: Sender<Result<(), EndError>>) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut user = signal(SignalKind::user_defined1())?;
    let of_checkpoints = Arc::clone(shared);
    tokio::spawn(async move {
        while user.recv().await.is_some() {
            of_checkpoints.push_event(Event::CheckpointNow);
        }
    });
    let shared = Arc::clone(shared);
    let limit = shared.stop_timeout;
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
        if shared.phase() == Phase::Recovering {
            // Nothing has been taken in this life, so that there is nothing to stop cleanly.
            std::process::exit(EXIT_INTERRUPTED);
        }
        tracing::info!("stopping");
        shared.push_event(Event::Stop);
        let error = tokio::select! {
            _ = terminate.recv() => EndError::Interrupted,
            _ = interrupt.recv() => EndError::Interrupted,
            () = tokio::time::sleep(limit) => EndError::StopTimedOut { limit },
        };
        // Nobody listens any more when the service has ended meanwhile.
        let _ = says_ended.send(Err(error));
    });
    Ok(())
}
