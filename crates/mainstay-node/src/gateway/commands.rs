//! What a command of a client is: an answer at once, a question to the node, or parts, one for each key.

use super::{Gateway, GatewayEffect, Place, Wanting, number};
use crate::command::{Command, Identity, WriteReply, parse};
use crate::resp::{Protocol, Reply};
use crate::session::{Part, ReadReply, Session, Task, Together};
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
        for words in commands {
            let Some(open) = self.sessions.get_mut(&session) else { return };
            if open.closing {
                return;
            }
            let identity = open.identity.take();
            match parse(&words) {
                Ok(command) => self.command(now, session, command, identity, out),
                Err(error) => self.reply(session, Reply::Error(error.to_string())),
            }
        }
        self.write_answers(session, out);
    }

    /// A command that cannot be read came: the last of its connection.
    pub fn refuse(&mut self, session: u64, error: String, out: &mut Vec<GatewayEffect>) {
        self.reply(session, Reply::Error(format!("ERR {error}")));
        if let Some(open) = self.sessions.get_mut(&session) {
            open.closing = true;
        }
        self.write_answers(session, out);
    }

    fn reply(&mut self, session: u64, reply: Reply) {
        if let Some(open) = self.sessions.get_mut(&session) {
            open.take_answered(reply);
        }
    }

    fn command(
        &mut self,
        now: Time,
        session: u64,
        command: Command,
        identity: Option<Identity>,
        out: &mut Vec<GatewayEffect>,
    ) {
        if identity.is_some() && !matches!(command, Command::Write(..)) {
            let error = "ERR MAINSTAY.ID names a write of one key; nothing was done";
            return self.reply(session, Reply::Error(error.to_owned()));
        }
        let open = self.sessions.get_mut(&session).expect("it is open");
        let simple = match command {
            Command::Ping(None) => Reply::Status("PONG"),
            Command::Ping(Some(text)) | Command::Echo(text) => Reply::Bulk(text),
            Command::Hello(version) => hello(open, session, version.as_deref()),
            Command::Noted => Reply::Status("OK"),
            Command::ConnectionNumber => number(session),
            Command::Commands => Reply::Array(Vec::new()),
            Command::Info => Reply::text(self.info()),
            Command::Quit => {
                open.closing = true;
                Reply::Status("OK")
            }
            Command::Identify(identity) => {
                open.identity = Some(identity);
                Reply::Status("OK")
            }
            Command::Versions(on) => {
                open.versions = on;
                Reply::Status("OK")
            }
            Command::Explain => Reply::text(self.standing.explanation.clone()),
            Command::Leave => {
                out.push(GatewayEffect::Leave);
                Reply::Status("OK")
            }
            Command::NewClient => {
                let place = Place { session, command: open.take(1, Together::One) };
                self.wanting.push_back(Wanting::Reply(place));
                return self.want_numbers(now, out);
            }
            Command::Status => {
                let place = Place { session, command: open.take(1, Together::One) };
                return out.push(GatewayEffect::Status { place });
            }
            Command::Cut(addresses) => {
                let place = Place { session, command: open.take(1, Together::One) };
                return out.push(GatewayEffect::Cut { place, addresses });
            }
            Command::Get(key) => {
                return self.parts(
                    now,
                    session,
                    vec![(key.to_vec(), Task::Read(ReadReply::Value))],
                    Together::One,
                    out,
                );
            }
            Command::Length(key) => {
                return self.parts(
                    now,
                    session,
                    vec![(key.to_vec(), Task::Read(ReadReply::Length))],
                    Together::One,
                    out,
                );
            }
            Command::GetMany(keys) => {
                let parts = keys.iter().map(|key| (key.to_vec(), Task::Read(ReadReply::Value))).collect();
                return self.parts(now, session, parts, Together::Array, out);
            }
            Command::Exists(keys) => {
                let parts = keys.iter().map(|key| (key.to_vec(), Task::Read(ReadReply::IsThere))).collect();
                return self.parts(now, session, parts, Together::Sum, out);
            }
            Command::Remove(keys) => {
                let remove = |key: &Bytes| {
                    let operation = Operation::Remove { key: key.to_vec() };
                    (key.to_vec(), Task::Write(operation, WriteReply::Changed, None))
                };
                return self.parts(now, session, keys.iter().map(remove).collect(), Together::Sum, out);
            }
            Command::Write(operation, reply) => {
                let part = (operation.key().to_vec(), Task::Write(operation, reply, identity));
                return self.parts(now, session, vec![part], Together::One, out);
            }
        };
        self.reply(session, simple);
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

    fn parts(
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
