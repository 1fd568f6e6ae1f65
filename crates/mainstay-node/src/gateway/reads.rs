//! Reads of the region: asked of the stamper, and asked again until there is an answer.

use super::{Gateway, GatewayEffect, Waiter};
use crate::command::ReadReply;
use crate::replies::found;
use crate::session::Task;
use mainstay_region::message::{Body, Found, Freshness, Message, Query};
use mainstay_region::operation::shard_of;
use mainstay_types::time::Time;

/// A read under way.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) waiter: Waiter,
    shard: u16,
    query: Query,
    pub(super) since: Time,
    pub(super) tried: Time,
}

impl Gateway {
    pub(super) fn read_key(&mut self, now: Time, waiter: Waiter, key: Vec<u8>, out: &mut Vec<GatewayEffect>) {
        let shard = shard_of(&key, self.config.shards);
        self.read(now, waiter, shard, Query::Get { key }, out);
    }

    pub(super) fn read(
        &mut self,
        now: Time,
        waiter: Waiter,
        shard: u16,
        query: Query,
        out: &mut Vec<GatewayEffect>,
    ) {
        self.next_read += 1;
        self.reads.insert(self.next_read, Read { waiter, shard, query, since: now, tried: now });
        self.send_read(now, self.next_read, out);
    }

    pub(super) fn send_read(&mut self, now: Time, request: u64, out: &mut Vec<GatewayEffect>) {
        let Some(read) = self.reads.get_mut(&request) else { return };
        read.tried = now;
        let shard = read.shard;
        let Some(to) = self.copies.stamper(shard) else { return };
        let query = read.query.clone();
        let body = Body::Read { request, query, freshness: Freshness::Linearizable };
        let message = Message { view: self.copies.view, shard, body };
        out.push(GatewayEffect::Send { to, client: self.reader, message });
    }

    pub(super) fn answered(&mut self, now: Time, request: u64, answer: Found, out: &mut Vec<GatewayEffect>) {
        let Some(read) = self.reads.remove(&request) else { return };
        match read.waiter {
            Waiter::Part(part) => match part.task {
                Task::Read(as_what) => {
                    let unix_ms = self.unix_ms(now);
                    let Some(open) = self.sessions.get_mut(&part.session) else { return };
                    if as_what == ReadReply::Watch {
                        let version = answer.entries.first().map(|(_, stored)| stored.version);
                        open.watched.push((part.key.clone(), version));
                    }
                    let versions = open.versions && as_what != ReadReply::Watch;
                    let reply = found(answer, as_what, versions, unix_ms);
                    let reply = self.within_limits(part.session, reply);
                    self.finish(now, part, reply, out);
                }
                Task::Scan(_) => self.scanned(now, part, answer, out),
                Task::Write(..) => {}
            },
            Waiter::Numbers => {
                let value = answer.entries.into_iter().next().map(|(_, stored)| stored.value);
                self.numbers.read(value.as_deref());
                self.prove(now, out);
                if !self.wanting.is_empty()
                    && let Some((id, operation)) = self.numbers.take(value)
                {
                    self.write(now, id, operation, false, Waiter::Numbers, out);
                }
            }
        }
    }
}
