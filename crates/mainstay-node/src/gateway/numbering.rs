//! Client numbers as this node gives them to connections and clients, and as it finds out whether one was given by another node.

use super::{Gateway, GatewayEffect, Place, Waiter};
use crate::numbers::Numbers;
use crate::resp::Reply;
use crate::session::{Part, Task};
use mainstay_types::id::ClientId;
use mainstay_types::time::Time;

/// Who waits for a client number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanting {
    Session(u64),
    Reply(Place),
    /// A connection that does not speak by this gateway.
    Other(u64),
}

/// What waits until it is known whether some node gave a client's number.
#[derive(Debug)]
pub(super) enum Unproven {
    Write(Part),
    /// A connection that does not speak by this gateway.
    Other(u64, ClientId),
}

impl Gateway {
    /// A connection that does not speak by this gateway says that it is this client: [`GatewayEffect::Known`], as soon as it is known whether a
    /// client has that number. What it said before counts no more.
    pub fn know_number(
        &mut self,
        now: Time,
        connection: u64,
        number: ClientId,
        out: &mut Vec<GatewayEffect>,
    ) {
        self.forget_unproven(connection);
        match self.numbers.given(number) {
            Some(given) => out.push(GatewayEffect::Known { connection, number, given }),
            None => {
                self.unproven.push(Unproven::Other(connection, number));
                self.want_numbers(now, out);
            }
        }
    }

    /// A connection that does not speak by this gateway is gone: it waits for nothing.
    pub fn other_closed(&mut self, connection: u64) {
        self.wanting.retain(|wanting| *wanting != Wanting::Other(connection));
        self.forget_unproven(connection);
    }

    fn forget_unproven(&mut self, connection: u64) {
        let of_another =
            |waits: &Unproven| !matches!(waits, Unproven::Other(other, _) if *other == connection);
        self.unproven.retain(of_another);
        self.proving.retain(of_another);
    }

    /// A connection that does not speak by this gateway wants a number: [`GatewayEffect::Number`], as soon as there is one.
    pub fn number_for(&mut self, now: Time, connection: u64, out: &mut Vec<GatewayEffect>) {
        let wanting = Wanting::Other(connection);
        if !self.wanting.contains(&wanting) {
            self.wanting.push_back(wanting);
            self.want_numbers(now, out);
        }
    }

    /// Gives numbers to those who wait for them, and takes more if there are none.
    pub(super) fn want_numbers(&mut self, now: Time, out: &mut Vec<GatewayEffect>) {
        while let Some(&wanting) = self.wanting.front() {
            let open = match wanting {
                Wanting::Session(session) | Wanting::Reply(Place { session, .. }) => {
                    self.sessions.contains_key(&session)
                }
                Wanting::Other(_) => true,
            };
            if !open {
                self.wanting.pop_front();
                continue;
            }
            let Some(given) = self.numbers.next() else { break };
            self.wanting.pop_front();
            match wanting {
                Wanting::Other(connection) => out.push(GatewayEffect::Number { connection, number: given }),
                Wanting::Reply(place) => self.answer(place, number(given.0), out),
                Wanting::Session(session) => {
                    let open = self.sessions.get_mut(&session).expect("it is open");
                    open.number(now, given);
                    for part in std::mem::take(&mut open.parked) {
                        self.begin(now, part, out);
                    }
                }
            }
        }
        let wanted = !self.wanting.is_empty() || !self.unproven.is_empty();
        if wanted && self.standing.serves && self.numbers.begin() {
            // What comes while the count is read waits for the next time: its number may have been given out since.
            self.proving.append(&mut self.unproven);
            self.read_key(now, Waiter::Numbers, Numbers::key(), out);
        }
    }

    /// The count of numbers was read: what waited for it begins, or is refused.
    pub(super) fn prove(&mut self, now: Time, out: &mut Vec<GatewayEffect>) {
        for waits in std::mem::take(&mut self.proving) {
            let part = match waits {
                Unproven::Write(part) => part,
                Unproven::Other(connection, number) => {
                    let given = self.numbers.given(number) == Some(true);
                    out.push(GatewayEffect::Known { connection, number, given });
                    continue;
                }
            };
            let Task::Write(_, _, Some(named)) = &part.task else { continue };
            let client = named.identity.client;
            match self.numbers.given(client) {
                Some(true) => self.begin(now, part, out),
                _ => self.refuse_number(now, client, part, out),
            }
        }
    }

    /// A region forgets clients by their numbers: one with a number far ahead of the others would take them along.
    pub(super) fn refuse_number(
        &mut self,
        now: Time,
        client: ClientId,
        part: Part,
        out: &mut Vec<GatewayEffect>,
    ) {
        let why = format!(
            "ERR client number {} was given to nobody: ask for one with MAINSTAY.ID NEW; nothing was done",
            client.0
        );
        self.finish(now, part, Reply::Error(why), out);
    }

    /// One name for two commands: whichever was meant, the other must not be taken for it.
    pub(super) fn refuse_name(&mut self, now: Time, part: Part, out: &mut Vec<GatewayEffect>) {
        let why = "ERR the identity of MAINSTAY.ID names another command already; nothing was done: what is no repetition has a \
                   sequence of its own";
        self.finish(now, part, Reply::Error(why.to_owned()), out);
    }

    /// What waits for a client number, or for it to be known, in vain.
    pub(super) fn refuse_parked(&mut self, now: Time, out: &mut Vec<GatewayEffect>) {
        let deadline = self.times.deadline;
        let late = |part: &Part| now.since(part.since) >= deadline;
        let parked = self.sessions.values_mut();
        let overdue: Vec<Part> =
            parked.filter_map(|session| session.parked.pop_front_if(|part| late(part))).collect();
        let unproven =
            self.unproven.extract_if(.., |waits| matches!(waits, Unproven::Write(part) if late(part)));
        let unproven: Vec<Unproven> = unproven.collect();
        let unproven = unproven.into_iter().filter_map(|waits| match waits {
            Unproven::Write(part) => Some(part),
            Unproven::Other(..) => None,
        });
        for part in overdue.into_iter().chain(unproven) {
            let refusal = self.refusal("nothing was sent");
            self.finish(now, part, refusal, out);
        }
    }
}

/// A number as a reply.
pub(super) fn number(number: u64) -> Reply {
    Reply::Integer(i64::try_from(number).unwrap_or(i64::MAX))
}
