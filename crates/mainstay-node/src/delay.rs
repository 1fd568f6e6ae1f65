//! Holds back what a node says, as a longer way to the others would: for measuring on one machine.

use bytes::Bytes;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// What is said, to whom, and when it may go on.
type Held = (Instant, UnboundedSender<Bytes>, Bytes);

/// The way from this node to others, as long as it is said to be.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    line: Option<(Duration, mpsc::Sender<Held>)>,
}

impl Way {
    /// A way that takes so long besides. A thread of its own waits: the timers of the node's runtime count in milliseconds.
    pub(crate) fn of(delay: Duration) -> Self {
        if delay.is_zero() {
            return Self { line: None };
        }
        let (line, queue) = mpsc::channel::<Held>();
        std::thread::spawn(move || {
            // All are held back for equally long, so that they go on in the order in which they came.
            for (due, to, chunk) in queue {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let _ = to.send(chunk);
            }
        });
        Self { line: Some((delay, line)) }
    }

    /// Sends; what nobody takes any more is dropped.
    pub(crate) fn send(&self, to: &UnboundedSender<Bytes>, chunk: Bytes) {
        match &self.line {
            Some((delay, line)) => {
                let _ = line.send((Instant::now() + *delay, to.clone(), chunk));
            }
            None => {
                let _ = to.send(chunk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_back_comes_later_and_in_order() {
        let delay = Duration::from_millis(30);
        let (to, mut from) = tokio::sync::mpsc::unbounded_channel();
        let began = Instant::now();
        let way = Way::of(delay);
        for byte in 0..3_u8 {
            way.send(&to, Bytes::from(vec![byte]));
        }
        let came: Vec<u8> = (0..3).map(|_| from.blocking_recv().expect("it comes")[0]).collect();
        assert_eq!(came, [0, 1, 2]);
        assert!(began.elapsed() >= delay);
    }
}
