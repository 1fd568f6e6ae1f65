//! Clients that number their own requests: server-issued numbers, one floor and one answer per thread.

use crate::handler::Answer;
use crate::keys::Entry;
use mainstay_types::id::{ClientId, Lsn, Sequence, ThreadId};
use mainstay_types::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// The table of clients.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Clients {
    issued: ClientId,
    entries: BTreeMap<ClientId, Client>,
    /// Clients by the time of their last use.
    idle: BTreeSet<(Time, ClientId)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Client {
    used: Time,
    threads: BTreeMap<ThreadId, Thread>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Thread {
    /// The highest sequence number applied: what is below is answered `Evicted`.
    floor: Sequence,
    entry: Entry,
}

/// What the table says of a request.
#[derive(Debug)]
pub(crate) enum Place<'a> {
    /// Above the floor: apply it.
    Fresh,
    /// At the floor: this was the answer.
    Repeated(&'a Entry),
    /// Below the floor, which the record that ends at `end` raised, or from a client whose place was given away.
    Evicted { end: Option<Lsn> },
    /// The client may have no more threads.
    ThreadsFull,
}

impl Clients {
    pub(crate) fn place(
        &self,
        client: ClientId,
        thread: ThreadId,
        sequence: Sequence,
        threads_max: usize,
    ) -> Place<'_> {
        let Some(known) = self.entries.get(&client) else {
            return Place::Evicted { end: None };
        };
        match known.threads.get(&thread) {
            None if sequence == Sequence(0) => Place::Evicted { end: None },
            None if known.threads.len() >= threads_max => Place::ThreadsFull,
            None => Place::Fresh,
            Some(present) if sequence > present.floor => Place::Fresh,
            Some(present) if sequence == present.floor => Place::Repeated(&present.entry),
            Some(present) => Place::Evicted { end: Some(present.entry.end) },
        }
    }

    /// Raises the floor of a thread to `sequence`. The answer below it is forgotten: by sending the next request the
    /// thread said that it has it.
    pub(crate) fn insert(&mut self, client: ClientId, thread: ThreadId, sequence: Sequence, entry: Entry) {
        let Some(known) = self.entries.get_mut(&client) else {
            return;
        };
        known.threads.insert(thread, Thread { floor: sequence, entry });
    }

    /// Remembers an answer, and that the client was there. Not when the request was logged: a registration that is executed
    /// in between must give away the same place in replay, where each request is executed as soon as it is met.
    pub(crate) fn answer(
        &mut self,
        (client, thread, sequence): (ClientId, ThreadId, Sequence),
        answer: Arc<Answer>,
        end: Lsn,
        now: Time,
    ) {
        let Some(known) = self.entries.get_mut(&client) else {
            return;
        };
        self.idle.remove(&(known.used, client));
        known.used = now;
        self.idle.insert((now, client));
        let Some(present) = known.threads.get_mut(&thread) else {
            return;
        };
        if present.floor == sequence {
            present.entry.answer = Some(answer);
            present.entry.end = present.entry.end.max(end);
        }
    }

    /// The clients whose places may be given away, longest idle first.
    pub(crate) fn idle(&self, idle_min: Duration, now: Time) -> impl Iterator<Item = ClientId> + '_ {
        self.idle.iter().take_while(move |(used, _)| now.since(*used) >= idle_min).map(|&(_, client)| client)
    }

    /// Issues the next number; `replaces` gives up its place.
    pub(crate) fn register(&mut self, replaces: Option<ClientId>, now: Time) -> ClientId {
        if let Some(replaced) = replaces.and_then(|client| self.entries.remove_entry(&client)) {
            self.idle.remove(&(replaced.1.used, replaced.0));
        }
        self.issued = self.issued.next();
        self.entries.insert(self.issued, Client { used: now, threads: BTreeMap::new() });
        self.idle.insert((now, self.issued));
        self.issued
    }

    /// See [`crate::tables::Tables::carry_over`].
    pub(crate) fn carry_over(&mut self) {
        let threads = self.entries.values_mut().flat_map(|known| known.threads.values_mut());
        threads.for_each(|present| present.entry.end = Lsn::ZERO);
    }

    /// See [`crate::tables::Tables::forget_unexecuted`]; `is_open` knows requests that are executed and not answered.
    pub(crate) fn forget_unexecuted(&mut self, is_open: impl Fn(ClientId, ThreadId, Sequence) -> bool) {
        for (&client, known) in &mut self.entries {
            for (&thread, present) in &mut known.threads {
                if present.entry.answer.is_none() && !is_open(client, thread, present.floor) {
                    // Its request is new again; the one before was acknowledged by it.
                    present.floor = Sequence(present.floor.0.saturating_sub(1));
                }
            }
        }
    }

    /// Issues no number up to `number` any more.
    pub(crate) fn skip_to(&mut self, number: ClientId) {
        self.issued = self.issued.max(number);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THREAD: ThreadId = ThreadId(0);

    fn entry() -> Entry {
        Entry { fingerprint: 1, answer: None, end: Lsn(8), expires: None }
    }

    #[test]
    fn below_the_floor_is_evicted_at_it_repeated_above_it_fresh() {
        let mut clients = Clients::default();
        let client = clients.register(None, Time(1));
        clients.insert(client, THREAD, Sequence(5), entry());
        assert!(matches!(clients.place(client, THREAD, Sequence(4), 9), Place::Evicted { .. }));
        assert!(matches!(clients.place(client, THREAD, Sequence(5), 9), Place::Repeated(_)));
        assert!(matches!(clients.place(client, THREAD, Sequence(6), 9), Place::Fresh));
        assert!(matches!(clients.place(client, ThreadId(1), Sequence(1), 1), Place::ThreadsFull));
    }

    #[test]
    fn the_longest_idle_place_is_given_away_and_its_number_never_again() {
        let mut clients = Clients::default();
        let first = clients.register(None, Time(1));
        let second = clients.register(None, Time(2));
        clients.insert(first, THREAD, Sequence(1), entry());
        let answer = Arc::new(Answer { status: 200, body: Vec::new() });
        clients.answer((first, THREAD, Sequence(1)), answer, Lsn(8), Time(100));
        assert_eq!(clients.idle(Duration::from_nanos(50), Time(40)).next(), None);
        let idle: Vec<_> = clients.idle(Duration::from_nanos(50), Time(60)).collect();
        assert_eq!(idle, [second]);
        let third = clients.register(Some(second), Time(60));
        assert!(third > second);
        assert!(matches!(clients.place(second, THREAD, Sequence(1), 9), Place::Evicted { .. }));
        assert!(matches!(clients.place(first, THREAD, Sequence(1), 9), Place::Repeated(_)));
        assert_eq!(clients.len(), 2);
    }
}
