//! Being reached by peers with a lower number.

use crate::driver::EndProcessOnPanic;
use crate::peers::Shared;
use crate::peers::dial::chain;
use crate::peers::greeting::{Ungreeted, greet};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Pause after the operating system refused to give a connection, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The same complaint about the same address is not repeated for so long: whoever reaches the port must not fill the log.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(10);

/// Who is at the door.
#[derive(Default)]
pub(super) struct Door {
    strangers: AtomicUsize,
    complaint: Mutex<Option<(IpAddr, String, Instant)>>,
}

/// The body of the thread that accepts; returns when this node stops.
pub(super) fn keep_accepting(shared: &Arc<Shared>, listener: &TcpListener) {
    let _end = EndProcessOnPanic;
    while !shared.is_stopping() {
        let (socket, remote) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(_) if shared.is_stopping() => return,
            Err(error) => {
                tracing::warn!(%error, "no connection from a peer can be accepted");
                shared.pause(ACCEPT_PAUSE);
                continue;
            }
        };
        let strangers_max = shared.settings.strangers_max;
        if shared.door.strangers.fetch_add(1, Ordering::Relaxed) >= strangers_max {
            shared.door.strangers.fetch_sub(1, Ordering::Relaxed);
            let what = format!("{strangers_max} connections have not said yet who they are: closed");
            shared.door.complain(remote, what);
            continue;
        }
        let for_thread = Arc::clone(shared);
        let spawned = std::thread::Builder::new()
            .name("peer".into())
            .spawn(move || answer(&for_thread, socket, remote));
        if let Err(error) = spawned {
            shared.door.strangers.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!(%error, "no thread for a peer's connection");
        }
    }
}

/// The body of the thread of one connection: greets, and reads until it ends.
fn answer(shared: &Arc<Shared>, socket: TcpStream, remote: SocketAddr) {
    let _end = EndProcessOnPanic;
    let greeted = greet(&shared.settings, shared.tls.as_ref(), None, socket);
    shared.door.strangers.fetch_sub(1, Ordering::Relaxed);
    match greeted {
        Ok(greeted) => shared.run(greeted),
        Err(Ungreeted { node, why }) => {
            shared.door.complain(remote, chain(&why));
            shared.report_failure(node, Some(remote), why);
        }
    }
}

impl Door {
    fn complain(&self, remote: SocketAddr, what: String) {
        let mut last = self.complaint.lock().unwrap_or_else(PoisonError::into_inner);
        let repeated = last.as_ref().is_some_and(|(address, words, when)| {
            *address == remote.ip() && *words == what && when.elapsed() < COMPLAINT_PAUSE
        });
        if !repeated {
            tracing::warn!(%remote, why = %what, "a connection to the port of this node's peers was turned away");
            *last = Some((remote.ip(), what, Instant::now()));
        }
    }
}
