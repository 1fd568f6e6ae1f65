//! `MULTI` … `EXEC`: commands are kept until `EXEC`, and then leave as one operation of the region, with one version. All their keys are of one
//! shard. What `WATCH` saw is compared where the version is given, so that nothing comes in between.

use super::{Gateway, GatewayEffect};
use crate::command::{Command, CommandReply, Identity, PartReply, ReadReply, Together, WriteReply};
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
    /// A command could not be taken: `EXEC` does nothing.
    pub(crate) broken: bool,
}

impl Transaction {
    /// Takes a command if it is one of keys.
    fn take(&mut self, command: Command, bytes_max: usize) -> Result<(), Reply> {
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
            Command::Write(Operation::Batch(batch), _) => {
                let parts = vec![PartReply::Write(WriteReply::Written); batch.steps.len()];
                (batch.steps, parts, Together::One)
            }
            Command::Write(operation, reply) => {
                (vec![operation], vec![PartReply::Write(reply)], Together::One)
            }
            _ => return refused("a region does nothing but reads and writes of keys behind MULTI"),
        };
        self.bytes += steps.iter().map(Batch::step_bytes).sum::<usize>();
        if self.bytes > bytes_max {
            self.steps.clear();
            return refused(&format!("more than {bytes_max} bytes are too many to be done as one"));
        }
        self.steps.extend(steps);
        self.replies.push(CommandReply { parts, together });
        Ok(())
    }
}

impl Gateway {
    /// A command came behind `MULTI`.
    pub(super) fn in_transaction(
        &mut self,
        now: Time,
        session: u64,
        command: Command,
        identity: Option<Identity>,
        out: &mut Vec<GatewayEffect>,
    ) {
        let bytes_max = self.config.limits.batch_bytes_max;
        let open = self.sessions.get_mut(&session).expect("it is open");
        let transaction = open.transaction.as_mut().expect("there is one");
        let reply = match command {
            Command::Exec => return self.execute(now, session, identity, out),
            Command::Discard => {
                (open.transaction, open.watched) = (None, Vec::new());
                Reply::Status("OK")
            }
            Command::Identify(_) | Command::Quit => {
                return self.command(now, session, command, identity, out);
            }
            Command::Multi => {
                transaction.broken = true;
                Reply::Error("ERR MULTI calls can not be nested".to_owned())
            }
            _ if identity.is_some() => {
                transaction.broken = true;
                Reply::Error("ERR MAINSTAY.ID names the transaction: say it right before EXEC".to_owned())
            }
            command => match transaction.take(command, bytes_max) {
                Ok(()) => Reply::Status("QUEUED"),
                Err(refusal) => {
                    transaction.broken = true;
                    refusal
                }
            },
        };
        open.take_answered(reply);
    }

    fn execute(&mut self, now: Time, session: u64, identity: Option<Identity>, out: &mut Vec<GatewayEffect>) {
        let open = self.sessions.get_mut(&session).expect("it is open");
        let watched = std::mem::take(&mut open.watched);
        let Transaction { steps, replies, broken, .. } = open.transaction.take().unwrap_or_default();
        if broken {
            let error = "EXECABORT Transaction discarded because of previous errors.";
            return open.take_answered(Reply::Error(error.to_owned()));
        }
        if steps.is_empty() && watched.is_empty() {
            return open.take_answered(Reply::Array(Vec::new()));
        }
        let operation = Operation::Batch(Batch { watched, steps });
        let task = Task::Write(operation, WriteReply::Transaction(replies), identity);
        self.parts(now, session, vec![(Vec::new(), task)], Together::One, out);
    }

    /// Reads which versions keys have.
    pub(super) fn watch(&mut self, now: Time, session: u64, keys: &[Bytes], out: &mut Vec<GatewayEffect>) {
        let open = self.sessions.get_mut(&session).expect("it is open");
        if open.watched.len() + keys.len() > WATCHED_KEYS_MAX {
            let error = format!("ERR more than {WATCHED_KEYS_MAX} keys are too many to watch");
            return open.take_answered(Reply::Error(error));
        }
        let parts = keys.iter().map(|key| (key.to_vec(), Task::Read(ReadReply::Watch))).collect();
        self.parts(now, session, parts, Together::One, out);
    }
}
