//! `MULTI` … `EXEC`: commands are kept until `EXEC`, and then leave as one operation of the region, with one version. All their keys are of one
//! shard. What `WATCH` saw is compared where the version is given, so that nothing comes in between.

use super::naming::{self, Naming};
use super::{Gateway, GatewayEffect};
use crate::command::{Command, CommandReply, PartReply, ReadReply, Together, WriteReply};
use crate::resp::Reply;
use crate::session::Task;
use bytes::Bytes;
use mainstay_region::batch::Batch;
use mainstay_region::operation::Operation;
use mainstay_types::time::Time;

/// Keys that a connection watches at most.
const WATCHED_KEYS_MAX: usize = 1024;

/// The commands behind `MULTI`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Transaction {
    steps: Vec<Operation>,
    replies: Vec<CommandReply>,
    bytes: usize,
    /// Of all its commands.
    print: u64,
    /// A command could not be taken: `EXEC` does nothing.
    pub(crate) broken: bool,
}

impl Transaction {
    /// Takes a command if it is one of keys and there is room: `bytes_max` for this transaction, `all_bytes_left` until all take what they may.
    fn take(
        &mut self,
        command: Command,
        print: u64,
        bytes_max: usize,
        all_bytes_left: usize,
    ) -> Result<(), Reply> {
        let refused = |error: &str| Err(Reply::Error(format!("ERR {error}; the transaction is broken")));
        let (steps, parts, together): (Vec<_>, Vec<_>, _) = match command {
            Command::Read { reply: ReadReply::Watch, .. } => return refused("WATCH comes before MULTI"),
            Command::Read { keys, reply, together } => {
                let steps = keys.iter().map(|key| Operation::Get { key: key.as_ref().into() });
                (steps.collect(), vec![PartReply::Read(reply); keys.len()], together)
            }
            Command::Remove(keys) => {
                let steps = keys.iter().map(|key| Operation::Remove { key: key.as_ref().into() });
                (steps.collect(), vec![PartReply::Write(WriteReply::Changed); keys.len()], Together::Sum)
            }
            Command::Write(Operation::Batch(batch), _) if !batch.watched.is_empty() => {
                return refused("MSETNX is not done behind MULTI: it would have to stop itself alone");
            }
            Command::Write(Operation::Batch(batch), reply) => {
                let parts = vec![PartReply::Write(WriteReply::Written); batch.steps.len()];
                let together = if reply == WriteReply::First { Together::First } else { Together::One };
                (batch.steps, parts, together)
            }
            Command::Write(operation, reply) => {
                (vec![operation], vec![PartReply::Write(reply)], Together::One)
            }
            _ => return refused("a region does nothing but reads and writes of keys behind MULTI"),
        };
        let bytes = steps.iter().map(Batch::step_bytes).sum::<usize>();
        if self.bytes + bytes > bytes_max {
            return refused(&format!("more than {bytes_max} bytes are too many to be done as one"));
        }
        if bytes > all_bytes_left {
            let error = "OOM what waits behind MULTI, of all clients, takes what it may; the transaction is broken: try again later";
            return Err(Reply::Error(error.to_owned()));
        }
        // Of one that is broken nothing will be done.
        if !self.broken {
            self.bytes += bytes;
            self.print = naming::join(self.print, print);
            self.steps.extend(steps);
            self.replies.push(CommandReply { parts, together });
        }
        Ok(())
    }

    /// `EXEC` will do nothing: what was taken is let go.
    fn break_off(&mut self) {
        *self = Self { broken: true, ..Self::default() };
    }
}

impl Gateway {
    /// A command came behind `MULTI`.
    pub(super) fn in_transaction(
        &mut self,
        now: Time,
        session: u64,
        command: Command,
        print: u64,
        out: &mut Vec<GatewayEffect>,
    ) {
        let bytes_max = self.config.limits.batch_bytes_max;
        let open = self.sessions.get_mut(&session).expect("it is open");
        let transaction = open.transaction.as_mut().expect("there is one");
        let reply = match command {
            Command::Exec => return self.execute(now, session, out),
            Command::Discard => {
                open.naming = Naming::Unnamed;
                open.watch_nothing();
                self.end_transaction(session);
                return self.reply(session, Reply::Status("OK"));
            }
            Command::Identify(_) | Command::Quit => {
                return self.command(now, session, command, print, out);
            }
            Command::Multi => {
                transaction.broken = true;
                Reply::Error("ERR MULTI calls can not be nested".to_owned())
            }
            command => {
                let before = transaction.bytes;
                let left = self.limits.transactions_bytes_max.saturating_sub(self.transactions_bytes);
                let reply = match transaction.take(command, print, bytes_max, left) {
                    Ok(()) => Reply::Status("QUEUED"),
                    Err(refusal) => {
                        transaction.break_off();
                        refusal
                    }
                };
                self.transactions_bytes = self.transactions_bytes - before + transaction.bytes;
                reply
            }
        };
        open.take_answered(reply);
    }

    /// Ends the transaction of a connection, if there is one, and gives back its room.
    pub(super) fn end_transaction(&mut self, session: u64) -> Option<Transaction> {
        let ended = self.sessions.get_mut(&session)?.transaction.take()?;
        self.transactions_bytes -= ended.bytes;
        Some(ended)
    }

    fn execute(&mut self, now: Time, session: u64, out: &mut Vec<GatewayEffect>) {
        let ended = self.end_transaction(session).unwrap_or_default();
        let open = self.sessions.get_mut(&session).expect("it is open");
        let (watched, watch_refused) = (std::mem::take(&mut open.watched), open.watch_refused);
        open.watch_nothing();
        let named = open.naming.take(ended.print);
        let Transaction { steps, replies, broken, .. } = ended;
        if broken {
            let error = "EXECABORT Transaction discarded because of previous errors.";
            return open.take_answered(Reply::Error(error.to_owned()));
        }
        if watch_refused {
            let error = "EXECABORT a WATCH before it was refused, so that nobody knows whether the key changed; nothing was done";
            return open.take_answered(Reply::Error(error.to_owned()));
        }
        let named = match named {
            Ok(named) => named,
            Err(refusal) => return open.take_answered(refusal),
        };
        if steps.is_empty() && watched.is_empty() {
            return open.take_answered(Reply::Array(Vec::new()));
        }
        let operation = Operation::Batch(Batch { watched, steps });
        let task = Task::Write(operation, WriteReply::Transaction(replies), named);
        self.parts(now, session, vec![(Vec::new(), task)], Together::One, out);
    }

    /// Reads which versions keys have.
    pub(super) fn watch(&mut self, now: Time, session: u64, keys: &[Bytes], out: &mut Vec<GatewayEffect>) {
        let open = self.sessions.get_mut(&session).expect("it is open");
        if open.watched.len() + keys.len() > WATCHED_KEYS_MAX {
            open.watch_refused = true;
            let error = format!("ERR more than {WATCHED_KEYS_MAX} keys are too many to watch");
            return open.take_answered(Reply::Error(error));
        }
        let parts = keys.iter().map(|key| (key.to_vec(), Task::Read(ReadReply::Watch))).collect();
        self.parts(now, session, parts, Together::One, out);
    }
}
