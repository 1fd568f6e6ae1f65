//! Replies on their way to the thread that serves the connection they belong to.

use crate::replies::Said;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use tokio::sync::Notify;
use tokio::sync::oneshot::Sender;

/// Replies that another thread has made for the connections of one thread. One wake brings all that have gathered; a wake
/// for each would be a system call for each. No more are in it than there are requests in flight.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    gathered: Mutex<Vec<(Sender<Said>, Said)>>,
    filled: Notify,
}

impl Mailbox {
    fn put(&self, sender: Sender<Said>, said: Said) {
        let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
        let first = gathered.is_empty();
        gathered.push((sender, said));
        drop(gathered);
        if first {
            self.filled.notify_one();
        }
    }

    /// Hands out what is put in, for ever; on the thread that it is the mailbox of.
    pub(crate) async fn deliver(self: Arc<Self>) {
        let mut taken = Vec::new();
        loop {
            self.filled.notified().await;
            std::mem::swap(&mut taken, &mut *self.gathered.lock().unwrap_or_else(PoisonError::into_inner));
            for (sender, said) in taken.drain(..) {
                // A client that hung up meanwhile repeats the request and gets this answer from the table.
                let _ = sender.send(said);
            }
        }
    }
}

/// Where a reply goes.
#[derive(Debug)]
pub(crate) struct ReplyTo {
    sender: Sender<Said>,
    mailbox: Arc<Mailbox>,
    /// The mailbox's thread.
    thread: ThreadId,
}

impl ReplyTo {
    /// For a task on this thread, which `mailbox` belongs to.
    pub(crate) fn here(sender: Sender<Said>, mailbox: &Arc<Mailbox>) -> Self {
        Self { sender, mailbox: Arc::clone(mailbox), thread: std::thread::current().id() }
    }

    /// Says it to whoever waits; from any thread.
    pub(crate) fn say(self, said: Said) {
        if self.thread == std::thread::current().id() {
            // A client that hung up meanwhile repeats the request and gets this answer from the table.
            let _ = self.sender.send(said);
        } else {
            self.mailbox.put(self.sender, said);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_process::effect::Reply;
    use tokio::sync::oneshot::channel;

    #[test]
    fn a_reply_of_another_thread_comes_by_mail_and_one_of_this_thread_at_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let mailbox = Arc::new(Mailbox::default());
        let (here, mut hears_here) = channel();
        let (there, mut hears_there) = channel();
        let (here, there) = (ReplyTo::here(here, &mailbox), ReplyTo::here(there, &mailbox));
        here.say(Said::Reply(Reply::Evicted));
        std::thread::spawn(move || there.say(Said::OutcomeUnknown)).join().expect("it only says");
        assert!(matches!(hears_here.try_recv(), Ok(Said::Reply(Reply::Evicted))));
        assert!(hears_there.try_recv().is_err(), "not before it is delivered");
        runtime.block_on(async {
            tokio::spawn(Arc::clone(&mailbox).deliver());
            assert!(matches!(hears_there.await, Ok(Said::OutcomeUnknown)));
        });
    }
}
