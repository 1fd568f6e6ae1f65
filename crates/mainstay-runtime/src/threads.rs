//! Threads with a runtime each: those that serve connections, and the one that accepts them and minds timer and signals.
//!
//! A connection stays on its thread, so that what arrives on it wakes one thread and no other; a runtime of several
//! threads wakes a second one around every event, in case there is more to do, and on a virtual machine each such wake
//! takes a third of a sync.

use crate::lookout::Lookout;
use crate::mailbox::Mailbox;
use crate::wakeful::Wakeful;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot};

/// Stack of every thread on which the handler may run, in bytes: a delivery that fits in one fits in all.
pub(crate) const STACK_BYTES: usize = 2 << 20;

/// How long a new connection waits for its thread before it goes to the next one: that runs a handler that takes long.
const PICK_UP_MAX: Duration = Duration::from_millis(20);

/// A thread that runs tasks, and nothing else, until it is stopped.
#[derive(Debug)]
pub(crate) struct RuntimeThread {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    ended: Receiver<()>,
}

impl RuntimeThread {
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let (says_ended, ended): (Sender<()>, _) = channel();
        let run = move || {
            // Told so, or by the sender having been dropped.
            let _ = runtime.block_on(stopped);
            drop(runtime);
            drop(says_ended);
        };
        std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(run)?;
        Ok(Self { handle, stop: Some(stop), ended })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Lets it end once its task at hand is done; the others are dropped.
    pub(crate) fn stop(&mut self) {
        self.stop = None;
    }

    /// Waits until it has ended, or until `deadline`.
    pub(crate) fn wait_until(&self, deadline: Instant) {
        let ended = self.ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        debug_assert!(matches!(ended, Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout)));
    }
}

/// What belongs to one serving thread and is known to its connections.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) lookout: Lookout,
    connections: AtomicUsize,
}

impl Seat {
    /// Whether other connections are served here as well.
    pub(crate) fn shared(&self) -> bool {
        self.connections.load(Ordering::Relaxed) > 1
    }
}

/// The threads that serve connections.
#[derive(Clone, Debug)]
pub(crate) struct ServingThreads {
    seats: Arc<Vec<(Handle, Arc<Seat>)>>,
}

impl ServingThreads {
    pub(crate) fn start(count: usize, wakeful: &Arc<Wakeful>) -> io::Result<(Self, Vec<RuntimeThread>)> {
        let mut seats = Vec::with_capacity(count);
        let mut threads = Vec::with_capacity(count);
        for _ in 0..count {
            let thread = RuntimeThread::start("serve")?;
            let seat = Arc::new(Seat {
                mailbox: Arc::default(),
                lookout: Lookout::new(Arc::clone(wakeful)),
                connections: AtomicUsize::new(0),
            });
            thread.handle().spawn(Arc::clone(&seat.mailbox).deliver());
            let of_lookout = Arc::clone(&seat);
            thread.handle().spawn(async move { of_lookout.lookout.keep().await });
            seats.push((thread.handle().clone(), seat));
            threads.push(thread);
        }
        Ok((Self { seats: Arc::new(seats) }, threads))
    }

    /// Has a connection served by the thread with the fewest of them; where that does not get to it, by the next.
    pub(crate) async fn serve<F, S>(&self, serve: S)
    where
        S: FnOnce(Arc<Seat>) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut seats: Vec<_> = self.seats.iter().collect();
        seats.sort_by_key(|(_, seat)| seat.connections.load(Ordering::Relaxed));
        let waiting = Arc::new(Waiting { serve: Mutex::new(Some(serve)), picked_up: Notify::new() });
        for (handle, seat) in seats {
            let (place, waiting_there) = (Place::take(seat), Arc::clone(&waiting));
            handle.spawn(async move {
                let place = place;
                if let Some(serve) = waiting_there.pick_up() {
                    serve(Arc::clone(&place.0)).await;
                }
            });
            if tokio::time::timeout(PICK_UP_MAX, waiting.picked_up.notified()).await.is_ok() {
                return;
            }
        }
    }
}

/// A connection among those of a thread, for as long as it is served there.
struct Place(Arc<Seat>);

impl Place {
    fn take(seat: &Arc<Seat>) -> Self {
        seat.connections.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(seat))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that the first thread to get to it serves.
struct Waiting<S> {
    serve: Mutex<Option<S>>,
    picked_up: Notify,
}

impl<S> Waiting<S> {
    fn pick_up(&self) -> Option<S> {
        let serve = self.serve.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.picked_up.notify_one();
        serve
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_of_a_thread_that_is_held_up_is_served_by_another() {
        let (serving, _threads) = ServingThreads::start(2, &Arc::default()).expect("two threads");
        let accept = RuntimeThread::start("accept").expect("one more thread");
        let (says_held, held) = channel();
        let (let_go, holds) = channel::<()>();
        serving.seats[0].0.spawn(async move {
            says_held.send(std::thread::current().id()).expect("somebody waits");
            let _ = holds.recv();
        });
        let held = held.recv().expect("the first thread is held up");
        let (says_served, served) = channel();
        accept.handle().spawn(async move {
            let serve =
                |_| async move { says_served.send(std::thread::current().id()).expect("somebody waits") };
            serving.serve(serve).await;
        });
        assert_ne!(served.recv().expect("served while the first thread is still held up"), held);
        drop(let_go);
    }

    #[test]
    fn connections_are_spread_over_the_threads() {
        let (serving, _threads) = ServingThreads::start(2, &Arc::default()).expect("two threads");
        let accept = RuntimeThread::start("accept").expect("one more thread");
        for _ in 0..4 {
            accept.handle().block_on(serving.serve(|_| std::future::pending()));
        }
        let counts: Vec<_> =
            serving.seats.iter().map(|(_, seat)| seat.connections.load(Ordering::Relaxed)).collect();
        assert_eq!(counts, [2, 2]);
    }
}
