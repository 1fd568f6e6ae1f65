//! The thread backend: a few threads, each performing one write or sync at a time.

use crate::completions::Completions;
use crate::performer::Performer;
use mainstay_journal::effect::DiskEffect;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Writes and syncs that are performed at the same time, at most.
const WORKERS: usize = 3;

/// The threads and their queue, whose length the journal bounds: two writes a page, and a sync.
#[derive(Debug)]
pub(crate) struct WorkerThreads {
    queue: Arc<Queue>,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    effects: VecDeque<DiskEffect>,
    stop: bool,
}

impl WorkerThreads {
    pub(crate) fn start(performer: &Arc<Performer>, completions: &Arc<Completions>) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let mut threads = Self { queue, workers: Vec::new() };
        for number in 0..WORKERS {
            let (queue, performer, completions) =
                (Arc::clone(&threads.queue), Arc::clone(performer), Arc::clone(completions));
            let worker = thread::Builder::new()
                .name(format!("mainstay-disk-{number}"))
                .spawn(move || run(&queue, &performer, &completions))?;
            threads.workers.push(worker);
        }
        Ok(threads)
    }

    pub(crate) fn submit(&self, effect: DiskEffect) {
        self.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner).effects.push_back(effect);
        self.queue.changed.notify_one();
    }
}

impl Drop for WorkerThreads {
    /// Finishes what was submitted: the pages are there, and whoever opens next would write them again.
    fn drop(&mut self) {
        self.queue.waiting.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.queue.changed.notify_all();
        for worker in self.workers.drain(..) {
            join_unless_self(worker);
        }
    }
}

/// The last owner of a disk may be a callback on one of its own threads, which cannot wait for itself.
pub(crate) fn join_unless_self(worker: JoinHandle<()>) {
    if worker.thread().id() != thread::current().id() {
        worker.join().expect("disk threads do not panic");
    }
}

fn run(queue: &Queue, performer: &Performer, completions: &Completions) {
    loop {
        let effect = {
            let waiting = queue.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let mut waiting = queue
                .changed
                .wait_while(waiting, |waiting| waiting.effects.is_empty() && !waiting.stop)
                .unwrap_or_else(PoisonError::into_inner);
            match waiting.effects.pop_front() {
                Some(effect) => effect,
                None => return,
            }
        };
        completions.push(performer.perform(&effect));
    }
}
