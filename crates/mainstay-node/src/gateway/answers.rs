//! Answers on their way to a connection: put together from parts, kept in the order of the commands, bounded in bytes.

use super::{Gateway, GatewayEffect, Place};
use crate::command::ReadReply;
use crate::resp::Reply;
use crate::session::{Part, Session, Task};
use mainstay_types::time::Time;

/// Answers up to so many bytes are bounded by the count of commands alone.
const SMALL_BYTES_MAX: usize = 512;

/// What may be in memory for clients of a gateway: answers until they are written, in order, to their connections, and commands behind `MULTI`. A read
/// or command beyond is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteLimits {
    /// Answers to one connection, in bytes: as many values of the largest kind as commands may be under way.
    pub connection_answers_bytes_max: usize,
    /// Answers to all connections, in bytes.
    pub answers_bytes_max: usize,
    /// Commands that wait for `EXEC`, of all connections, in bytes.
    pub transactions_bytes_max: usize,
}

impl Default for ByteLimits {
    fn default() -> Self {
        Self {
            connection_answers_bytes_max: 128 << 20,
            answers_bytes_max: 512 << 20,
            transactions_bytes_max: 256 << 20,
        }
    }
}

impl Gateway {
    /// Other limits of bytes than the usual ones.
    pub fn limit_bytes(&mut self, limits: ByteLimits) {
        self.limits = limits;
    }

    /// Answers a command that the node was asked about.
    pub fn answer(&mut self, place: Place, reply: Reply, out: &mut Vec<GatewayEffect>) {
        if let Some(open) = self.sessions.get_mut(&place.session) {
            open.answer(place.command, 0, reply);
        }
        self.write_answers(place.session, out);
    }

    /// A part has its answer: the next one of the same key begins, and the next that waited for room.
    pub(super) fn finish(&mut self, now: Time, part: Part, reply: Reply, out: &mut Vec<GatewayEffect>) {
        let Some(open) = self.sessions.get_mut(&part.session) else { return };
        open.watch_refused |= part.task == Task::Read(ReadReply::Watch) && matches!(reply, Reply::Error(_));
        open.answer(part.command, part.place, reply);
        let next = open.unqueue(&part.key);
        let parked = open.parked.pop_front();
        for part in next.into_iter().chain(parked) {
            self.begin(now, part, out);
        }
        self.proceed(now, part.session, out);
    }

    /// The answer to a read, if there is room for it.
    pub(super) fn within_limits(&self, session: u64, reply: Reply) -> Reply {
        let bytes = reply.bytes();
        if bytes <= SMALL_BYTES_MAX {
            return reply;
        }
        let ByteLimits {
            connection_answers_bytes_max: connection_bytes_max,
            answers_bytes_max: bytes_max,
            ..
        } = self.limits;
        let of_connection = self.sessions.get(&session).map_or(0, Session::answer_bytes);
        let of_all: usize = self.sessions.values().map(Session::answer_bytes).sum();
        if of_connection + bytes > connection_bytes_max {
            Reply::Error(format!(
                "OOM the answers to this connection would take more than {connection_bytes_max} bytes: ask for less at once"
            ))
        } else if of_all + bytes > bytes_max {
            Reply::Error(format!("OOM answers to all take more than {bytes_max} bytes: ask again later"))
        } else {
            reply
        }
    }

    /// Writes the answers that are due; returns whether nothing of the connection is under way any more.
    pub(super) fn write_answers(&mut self, session: u64, out: &mut Vec<GatewayEffect>) -> bool {
        let Some(open) = self.sessions.get_mut(&session) else { return false };
        let mut bytes = Vec::new();
        let answered = open.put_answers(&mut bytes);
        let close = open.closing && open.is_idle();
        if answered > 0 || close {
            out.push(GatewayEffect::Write { session, bytes, answered, close });
        }
        open.is_idle()
    }
}
