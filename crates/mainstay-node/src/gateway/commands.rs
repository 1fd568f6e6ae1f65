//! What a command of a client is: an answer at once, a question to the node, or parts, one for each key.

use super::naming::{Naming, print};
use super::numbering::{Wanting, number};
use super::scan::Scan;
use super::transaction::Transaction;
use super::{Gateway, GatewayEffect, Place};
use crate::command::{self, Command, ReadReply, Together, WriteReply, parse};
use crate::resp::{Protocol, Reply};
use crate::session::{Came, Part, Session, Task};
use bytes::Bytes;
use mainstay_region::operation::Operation;
use mainstay_types::time::Time;

impl Gateway {
    /// Commands came, in this order.
    pub fn commands(
        &mut self,
        now: Time,
        session: u64,
        commands: impl IntoIterator<Item = Vec<Bytes>>,
        out: &mut Vec<GatewayEffect>,
    ) {
        let Some(open) = self.sessions.get_mut(&session) else { return };
        open.waiting.extend(commands.into_iter().map(Came::Command));
        self.proceed(now, session, out);
    }

    /// A command that cannot be read came: the last of its connection.
    pub fn refuse(&mut self, now: Time, session: u64, error: String, out: &mut Vec<GatewayEffect>) {
        let Some(open) = self.sessions.get_mut(&session) else { return };
        open.waiting.push_back(Came::Unreadable(error));
        self.proceed(now, session, out);
    }

    /// Begins what may begin, and writes the answers that are due. A command of many keys is done while nothing else of its connection is
    /// under way: it sees what came before it, and is seen by what comes behind.
    pub(super) fn proceed(&mut self, now: Time, session: u64, out: &mut Vec<GatewayEffect>) {
        let Some(open) = self.sessions.get_mut(&session) else { return };
        if std::mem::replace(&mut open.proceeding, true) {
            return;
        }
        while let Some(came) = self.next_to_begin(session, out) {
            self.came(now, session, came, out);
        }
        self.write_answers(session, out);
        let open = self.sessions.get_mut(&session).expect("nothing that begins closes it");
        open.proceeding = false;
    }

    /// Behind an answer of the node itself nothing goes on at once.
    pub(super) fn proceed_all(&mut self, now: Time, out: &mut Vec<GatewayEffect>) {
        let waiting = self.sessions.iter().filter(|(_, open)| !open.waiting.is_empty());
        for session in waiting.map(|(&session, _)| session).collect::<Vec<_>>() {
            self.proceed(now, session, out);
        }
    }

    fn next_to_begin(&mut self, session: u64, out: &mut Vec<GatewayEffect>) -> Option<Came> {
        let open = self.sessions.get_mut(&session).expect("it is open");
        if open.closing {
            open.waiting.clear();
        }
        let alone = wants_to_be_alone(open.waiting.front()?);
        if (alone || open.alone) && !self.write_answers(session, out) {
            return None;
        }
        let open = self.sessions.get_mut(&session).expect("it is open");
        open.alone = alone;
        open.waiting.pop_front()
    }

    fn came(&mut self, now: Time, session: u64, came: Came, out: &mut Vec<GatewayEffect>) {
        let unix_ms = self.unix_ms(now);
        let Some(open) = self.sessions.get_mut(&session) else { return };
        let words = match came {
            Came::Command(words) => words,
            Came::Unreadable(error) => {
                open.closing = true;
                return self.reply(session, Reply::Error(format!("ERR {error}")));
            }
        };
        let in_transaction = open.transaction.is_some();
        let print = if in_transaction || open.naming != Naming::Unnamed { print(&words) } else { 0 };
        match parse(&words, unix_ms) {
            Ok(command) if in_transaction => self.in_transaction(now, session, command, print, out),
            Ok(command) => self.command(now, session, command, print, out),
            Err(error) => {
                self.could_not(session, &words);
                self.reply(session, Reply::Error(error.to_string()));
            }
        }
    }

    /// A command was refused that what follows may rely on, though it is on its way already.
    fn could_not(&mut self, session: u64, words: &[Bytes]) {
        let Some(open) = self.sessions.get_mut(&session) else { return };
        match &words.first().map_or_else(Vec::new, |name| name.to_ascii_uppercase())[..] {
            b"MAINSTAY.ID" => open.naming = Naming::Refused,
            b"WATCH" => open.watch_refused = true,
            _ => {}
        }
        if let Some(transaction) = &mut open.transaction {
            transaction.broken = true;
        }
    }

    pub(super) fn reply(&mut self, session: u64, reply: Reply) {
        if let Some(open) = self.sessions.get_mut(&session) {
            open.take_answered(reply);
        }
    }

    pub(super) fn command(
        &mut self,
        now: Time,
        session: u64,
        command: Command,
        print: u64,
        out: &mut Vec<GatewayEffect>,
    ) {
        let open = self.sessions.get_mut(&session).expect("it is open");
        if open.protocol == Protocol::Two
            && open.subscriptions.count() > 0
            && let Some(reply) = while_subscribed(&command)
        {
            match command {
                Command::Identify(_) => open.naming = Naming::Refused,
                Command::Read { reply: ReadReply::Watch, .. } => open.watch_refused = true,
                _ => {}
            }
            return self.reply(session, reply);
        }
        let simple = match command {
            Command::Ping(None) => Reply::Status("PONG"),
            Command::Ping(Some(text)) | Command::Echo(text) => Reply::Bulk(text),
            Command::Hello(version, name) => {
                let reply = hello(open, session, version.as_deref());
                if let (Reply::Map(_), Some(name)) = (&reply, name) {
                    open.name = name;
                }
                reply
            }
            Command::SetName(name) => {
                open.name = name;
                Reply::Status("OK")
            }
            Command::GetName if open.name.is_empty() => Reply::Null,
            Command::GetName => Reply::Bulk(open.name.clone()),
            Command::Time => {
                let unix_ms = self.unix_ms(now);
                let parts = [unix_ms / 1000, unix_ms % 1000 * 1000];
                Reply::Array(parts.map(|part| Reply::text(part.to_string())).to_vec())
            }
            Command::Noted => Reply::Status("OK"),
            Command::ConnectionNumber => number(session),
            Command::Commands => Reply::Array(Vec::new()),
            Command::CommandNames => {
                Reply::Array(command::NAMES.iter().map(|name| Reply::text(*name)).collect())
            }
            Command::CommandCount => {
                Reply::Integer(i64::try_from(command::NAMES.len()).expect("they are few"))
            }
            Command::Info => Reply::text(self.info()),
            Command::Quit => {
                open.closing = true;
                Reply::Status("OK")
            }
            Command::Identify(identity) => {
                open.naming = Naming::Named(identity);
                Reply::Status("OK")
            }
            Command::Versions(on) => {
                open.versions = on;
                Reply::Status("OK")
            }
            Command::Explain => Reply::text(self.standing.explanation.clone()),
            Command::NewClient => {
                let place = Place { session, command: open.take(1, Together::One) };
                self.wanting.push_back(Wanting::Reply(place));
                return self.want_numbers(now, out);
            }
            Command::Status => {
                let place = Place { session, command: open.take(1, Together::One) };
                return out.push(GatewayEffect::Status { place });
            }
            Command::Leave => {
                let place = Place { session, command: open.take(1, Together::One) };
                return out.push(GatewayEffect::Leave { place });
            }
            Command::Redefine { region, pattern } => {
                let place = Place { session, command: open.take(1, Together::One) };
                return out.push(GatewayEffect::Redefine { place, region, pattern });
            }
            Command::Cut(addresses) => {
                let place = Place { session, command: open.take(1, Together::One) };
                return out.push(GatewayEffect::Cut { place, addresses });
            }
            Command::Subscribe { names, pattern } => {
                return self.subscribe(now, session, names, pattern, out);
            }
            Command::SubscribeToKeys { pattern, from } => {
                return self.subscribe_to_keys(now, session, (pattern, from), out);
            }
            Command::Unsubscribe { names, pattern } => self.unsubscribe(session, names, pattern, out),
            Command::Multi => {
                open.transaction = Some(Transaction::default());
                Reply::Status("OK")
            }
            Command::Exec => Reply::Error("ERR EXEC without MULTI".to_owned()),
            Command::Discard => Reply::Error("ERR DISCARD without MULTI".to_owned()),
            Command::Unwatch => {
                open.watch_nothing();
                Reply::Status("OK")
            }
            Command::Read { keys, reply: ReadReply::Watch, .. } => {
                return self.watch(now, session, &keys, out);
            }
            Command::Read { keys, reply, together } => {
                let parts = keys.iter().map(|key| (key.to_vec(), Task::Read(reply))).collect();
                return self.parts(now, session, parts, together, out);
            }
            // There is nothing but strings.
            Command::Scan { strings: false, .. } => {
                Reply::Array(vec![Reply::text("0"), Reply::Array(Vec::new())])
            }
            Command::Scan { cursor, pattern, count, .. } => {
                match self.scan(cursor, pattern.as_ref(), count) {
                    Ok(scan) => return self.begin_scan(now, session, scan, out),
                    Err(refusal) => refusal,
                }
            }
            Command::Keys(pattern) => return self.begin_scan(now, session, Scan::keys(&pattern), out),
            Command::Size => return self.begin_scan(now, session, Scan::size(), out),
            Command::Remove(_) if std::mem::take(&mut open.naming) != Naming::Unnamed => {
                Reply::Error("ERR MAINSTAY.ID names a write of one key, or EXEC; nothing was done".to_owned())
            }
            Command::Remove(keys) => {
                let remove = |key: &Bytes| {
                    let operation = Operation::Remove { key: key.as_ref().into() };
                    (key.to_vec(), Task::Write(operation, WriteReply::Changed, None))
                };
                return self.parts(now, session, keys.iter().map(remove).collect(), Together::Sum, out);
            }
            Command::Write(operation, reply) => match open.naming.take(print) {
                Ok(named) => {
                    let part = (operation.key().to_vec(), Task::Write(operation, reply, named));
                    return self.parts(now, session, vec![part], Together::One, out);
                }
                Err(refusal) => refusal,
            },
        };
        self.reply(session, simple);
    }

    fn begin_scan(&mut self, now: Time, session: u64, scan: Scan, out: &mut Vec<GatewayEffect>) {
        self.parts(now, session, vec![(Vec::new(), Task::Scan(scan))], Together::One, out);
    }

    fn info(&self) -> String {
        let mut text = format!(
            "# Server\r\nmainstay_version:{}\r\nredis_mode:standalone\r\n# Region\r\n",
            env!("CARGO_PKG_VERSION")
        );
        for (name, value) in self.sizes() {
            text.push_str(&format!("{name}:{value}\r\n"));
        }
        text.push_str(&format!("view:{}\r\nstanding:{}\r\n", self.copies.view.0, self.standing.explanation));
        text
    }

    pub(super) fn parts(
        &mut self,
        now: Time,
        session: u64,
        parts: Vec<(Vec<u8>, Task)>,
        together: Together,
        out: &mut Vec<GatewayEffect>,
    ) {
        let open = self.sessions.get_mut(&session).expect("it is open");
        let command = open.take(parts.len(), together);
        for (place, (key, task)) in parts.into_iter().enumerate() {
            let part = Part { session, command, place, key, task, since: now };
            let Some(open) = self.sessions.get_mut(&session) else { return };
            if open.queue(&part) {
                self.begin(now, part, out);
            }
        }
    }
}

/// What a connection of RESP2 is told that is subscribed, and must not take an answer for a message; `None`: it may do that.
fn while_subscribed(command: &Command) -> Option<Reply> {
    match command {
        Command::Subscribe { .. }
        | Command::SubscribeToKeys { .. }
        | Command::Unsubscribe { .. }
        | Command::Quit => None,
        Command::Ping(text) => {
            let text = Reply::Bulk(text.clone().unwrap_or_default());
            Some(Reply::Array(vec![Reply::text("pong"), text]))
        }
        _ => Some(Reply::Error(
            "ERR a connection of RESP2 that is subscribed does SUBSCRIBE, PSUBSCRIBE, MAINSTAY.SUBSCRIBE, UNSUBSCRIBE, PUNSUBSCRIBE, PING and QUIT alone"
                .to_owned(),
        )),
    }
}

/// Whether it concerns more keys than one at a time, or the order of everything.
fn wants_to_be_alone(came: &Came) -> bool {
    let Came::Command(words) = came else { return true };
    let name = words.first().map_or_else(Vec::new, |name| name.to_ascii_uppercase());
    matches!(
        &name[..],
        b"EXEC"
            | b"WATCH"
            | b"SCAN"
            | b"KEYS"
            | b"DBSIZE"
            | b"MSET"
            | b"MSETNX"
            | b"RENAME"
            | b"RENAMENX"
            | b"COPY"
            | b"SUBSCRIBE"
            | b"PSUBSCRIBE"
            | b"MAINSTAY.SUBSCRIBE"
    )
}

fn hello(open: &mut Session, session: u64, version: Option<&[u8]>) -> Reply {
    match version {
        None => {}
        Some(b"2") => open.protocol = Protocol::Two,
        Some(b"3") => open.protocol = Protocol::Three,
        Some(_) => return Reply::Error("NOPROTO unsupported protocol version".to_owned()),
    }
    let protocol = if open.protocol == Protocol::Two { 2 } else { 3 };
    Reply::Map(vec![
        ("server", Reply::text("mainstay")),
        ("version", Reply::text(env!("CARGO_PKG_VERSION"))),
        ("proto", Reply::Integer(protocol)),
        ("id", number(session)),
        ("mode", Reply::text("standalone")),
        ("role", Reply::text("master")),
        ("modules", Reply::Array(Vec::new())),
    ])
}
