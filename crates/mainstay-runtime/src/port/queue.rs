//! Outputs on their way to a receiver that may need several attempts: waiting, in the hands of a thread, given up. Silent: it is
//! told the time.

use crate::port::{PortStatus, Sent};
use mainstay_process::effect::Output;
use mainstay_process::handler::Outcome;
use mainstay_types::id::OutputId;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A receiver that does not take outputs, for long or on and off, is not complained about more often.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(300);

/// Outputs from their release until they have ended. Its length is limited by the process: `outputs_pending_max`.
#[derive(Default)]
pub(super) struct Queue {
    jobs: BTreeMap<OutputId, Job>,
    /// Jobs that no thread has in hand, by the moment they are due; then in the order of emission.
    due: BTreeSet<(Instant, OutputId)>,
    status: PortStatus,
    complained: Option<Instant>,
    closing: bool,
}

struct Job {
    output: Arc<Output>,
    attempts: u32,
    /// Why the last attempt did not get through.
    trouble: Option<String>,
    /// Whether the attempt that a thread has in hand is the last one, however it ends: a person has decided about the output, or the process that
    /// released it is gone. Not any more when another process releases it meanwhile.
    forgotten: bool,
}

/// An attempt that a thread has in hand.
pub(super) struct Attempt {
    pub(super) output: Arc<Output>,
    /// Counted from 1.
    pub(super) number: u32,
}

/// What a thread that has nothing in hand does.
pub(super) enum Next {
    Attempt(Attempt),
    /// Waits: so long, or until something changes.
    Wait(Duration),
    /// Waits until something changes.
    Empty,
    /// Ends.
    Closing,
}

/// What becomes of an output that did not get through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// It was the last attempt.
    No,
    Quietly,
    /// And is to be complained about.
    Loudly,
}

impl Job {
    fn forget(&mut self) {
        self.forgotten = true;
        self.trouble = None;
    }
}

impl Queue {
    /// Takes an output that a process released, unless it is there already.
    pub(super) fn take(&mut self, output: Output, due: Instant) {
        let id = output.id;
        match self.jobs.entry(id) {
            Entry::Vacant(vacant) => {
                let output = Arc::new(output);
                vacant.insert(Job { output, attempts: 0, trouble: None, forgotten: false });
                self.due.insert((due, id));
            }
            // The process recovered in place of the one that is gone has it still.
            Entry::Occupied(job) => job.into_mut().forgotten = false,
        }
    }

    /// Gives up an output about which a person has decided; an attempt that is under way is its last.
    pub(super) fn withdraw(&mut self, id: OutputId) {
        let before = self.due.len();
        self.due.retain(|&(_, waiting)| waiting != id);
        if self.due.len() < before {
            self.jobs.remove(&id);
        } else if let Some(job) = self.jobs.get_mut(&id) {
            job.forget();
        }
    }

    /// Gives up all of a process that is gone; attempts that are under way are their outputs' last, unless its successor releases them again.
    pub(super) fn forget(&mut self) {
        while let Some((_, id)) = self.due.pop_first() {
            self.jobs.remove(&id);
        }
        self.jobs.values_mut().for_each(Job::forget);
    }

    /// Where the port stands.
    pub(super) fn status(&self) -> PortStatus {
        let trouble = self.jobs.values().find_map(|job| job.trouble.clone());
        PortStatus { waiting: self.jobs.len() as u64, trouble, ..self.status.clone() }
    }

    /// Why outputs did not get through at their last attempt.
    pub(super) fn troubles(&self) -> BTreeMap<OutputId, String> {
        self.jobs.iter().filter_map(|(&id, job)| Some((id, job.trouble.clone()?))).collect()
    }

    /// The output that is due first, counted as attempted.
    pub(super) fn next(&mut self, now: Instant) -> Next {
        match self.due.first().copied() {
            _ if self.closing => Next::Closing,
            Some((due, id)) if due <= now => {
                self.due.pop_first();
                let job = self.jobs.get_mut(&id).expect("what is due is in the queue");
                job.attempts += 1;
                Next::Attempt(Attempt { output: Arc::clone(&job.output), number: job.attempts })
            }
            Some((due, _)) => Next::Wait(due - now),
            None => Next::Empty,
        }
    }

    /// Nothing is attempted any more.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    /// An output ended. Whether anybody still waits for it.
    pub(super) fn ended(&mut self, id: OutputId, sent: &Sent) -> bool {
        let forgotten = self.jobs.remove(&id).is_some_and(|job| job.forgotten);
        match sent {
            Sent::Ended(Outcome::Delivered { .. }) => self.status.delivered += 1,
            Sent::Ended(_) => self.status.refused += 1,
            Sent::InDoubt => self.status.in_doubt += 1,
        }
        !forgotten
    }

    /// Puts an output back until it is `due`.
    pub(super) fn again(&mut self, id: OutputId, now: Instant, due: Instant, why: &str) -> Kept {
        let job = self.jobs.get_mut(&id).expect("a job leaves the queue only when it has ended, or was due");
        if job.forgotten {
            self.jobs.remove(&id);
            return Kept::No;
        }
        job.trouble = Some(why.to_owned());
        self.status.repeated += 1;
        self.due.insert((due, id));
        if self.complained.is_some_and(|before| now - before < COMPLAINT_PAUSE) {
            return Kept::Quietly;
        }
        self.complained = Some(now);
        Kept::Loudly
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_process::port::PortIndex;

    fn output(id: u64) -> Output {
        let (id, key, body) = (OutputId(id), id.to_string(), Arc::from([]));
        Output { id, port: PortIndex(0), key, body, again: false }
    }

    #[test]
    fn it_complains_at_once_and_then_now_and_again() {
        let (mut queue, start) = (Queue::default(), Instant::now());
        let complains: Vec<_> = [0, 1, 299, 300, 301, 700]
            .into_iter()
            .filter(|seconds| {
                queue.take(output(1), start);
                let now = start + Duration::from_secs(*seconds);
                let kept = queue.again(OutputId(1), now, now, "the receiver answers 404");
                // On and off.
                queue.ended(OutputId(1), &Sent::Ended(Outcome::Delivered { status: 200 }));
                kept == Kept::Loudly
            })
            .collect();
        assert_eq!(complains, [0, 300, 700]);
    }

    #[test]
    fn one_that_does_not_get_through_is_not_hidden_by_others_that_do() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        (1..=3).for_each(|id| queue.take(output(id), now));
        assert_eq!(queue.status().trouble, None);
        queue.again(OutputId(2), now, now, "the receiver answers 404");
        queue.ended(OutputId(1), &Sent::Ended(Outcome::Delivered { status: 200 }));
        queue.ended(OutputId(3), &Sent::Ended(Outcome::Refused { status: 422 }));
        let status = queue.status();
        assert_eq!((status.trouble.as_deref(), status.waiting), (Some("the receiver answers 404"), 1));
        queue.ended(OutputId(2), &Sent::InDoubt);
        assert_eq!((queue.status().trouble, queue.status().in_doubt), (None, 1));
    }

    /// Each to a thread.
    fn hand_out(queue: &mut Queue) {
        while let Next::Attempt(_) = queue.next(Instant::now()) {}
    }

    #[test]
    fn what_did_not_get_through_is_attempted_again_when_it_is_due_and_not_before() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        let attempted = |next| match next {
            Next::Attempt(Attempt { output, number }) => Some((output.id.0, number)),
            _ => None,
        };
        assert!(matches!(queue.next(now), Next::Empty));
        (1..=2).for_each(|id| queue.take(output(id), now));
        assert_eq!(attempted(queue.next(now)), Some((1, 1)));
        let due = now + Duration::from_secs(5);
        queue.again(OutputId(1), now, due, "the receiver answers 404");
        assert_eq!(attempted(queue.next(now)), Some((2, 1)));
        assert!(matches!(queue.next(now), Next::Wait(pause) if pause == due - now));
        assert_eq!(attempted(queue.next(due)), Some((1, 2)));
        queue.again(OutputId(1), due, due, "the receiver answers 404");
        queue.close();
        assert!(matches!(queue.next(due), Next::Closing));
    }

    fn again(queue: &mut Queue, id: u64) -> Kept {
        let now = Instant::now();
        queue.again(OutputId(id), now, now, "the receiver answers 404")
    }

    #[test]
    fn what_is_withdrawn_is_not_tried_again() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        (1..=3).for_each(|id| queue.take(output(id), now));
        queue.withdraw(OutputId(1));
        assert_eq!((queue.due.len(), queue.status().waiting), (2, 2), "it waited");
        hand_out(&mut queue);
        queue.withdraw(OutputId(2));
        queue.withdraw(OutputId(3));
        assert_eq!(queue.status().waiting, 2, "threads have them in hand");
        assert_eq!(again(&mut queue, 2), Kept::No);
        assert!(!queue.ended(OutputId(3), &Sent::InDoubt));
        assert_eq!(
            (queue.due.len(), queue.status()),
            (0, PortStatus { in_doubt: 1, ..PortStatus::default() })
        );
        queue.withdraw(OutputId(9));
    }

    #[test]
    fn what_is_in_hand_when_the_process_goes_is_tried_again_only_for_the_one_in_its_place() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        (1..=2).for_each(|id| queue.take(output(id), now));
        again(&mut queue, 1);
        hand_out(&mut queue);
        queue.take(output(3), now);
        assert!(queue.status().trouble.is_some());
        queue.forget();
        assert_eq!((queue.due.len(), queue.status().waiting), (0, 2), "one waited, threads have two in hand");
        assert_eq!(queue.status().trouble, None, "who asks would be told that it is sent again");
        queue.take(output(2), now);
        assert!(queue.due.is_empty(), "a thread has it in hand still");
        assert_eq!([again(&mut queue, 1), again(&mut queue, 2)], [Kept::No, Kept::Quietly]);
        assert_eq!(queue.due.iter().map(|(_, id)| id.0).collect::<Vec<_>>(), [2]);
        assert!(queue.ended(OutputId(2), &Sent::InDoubt));
    }
}
