//! The gateway over a replica of one node, without sockets and clock: commands in, bytes out.

use bytes::{Bytes, BytesMut};
use mainstay_node::gateway::{Gateway, GatewayEffect, GatewayTimes, Standing};
use mainstay_node::resp::{CommandLimits, take_command};
use mainstay_region::limits::Config as RegionConfig;
use mainstay_region::patterns::Pattern;
use mainstay_replica::config::{Begin, Config, Stored};
use mainstay_replica::definition::{Definition, RegionId};
use mainstay_replica::effect::Effect;
use mainstay_replica::event::Event;
use mainstay_replica::replica::Replica;
use mainstay_types::id::{ClusterId, Incarnation, StoreId};
use mainstay_types::machine::Machine;
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId};
use std::collections::BTreeMap;
use std::time::Duration;

/// A node of its own group. What it appends and persists is safe at once, unless `stuck`.
pub(crate) struct Alone {
    pub(crate) now: Time,
    pub(crate) replica: Replica,
    pub(crate) gateway: Gateway,
    effects: Vec<Effect>,
    pub(crate) asked: Vec<GatewayEffect>,
    pub(crate) said: BTreeMap<u64, String>,
    /// Messages to the region are lost.
    pub(crate) stuck: bool,
}

impl Alone {
    pub(crate) fn new() -> Self {
        let me = JoinerId {
            address: Address::v4([127, 0, 0, 1], 1),
            store: StoreId([1; 16]),
            life: Incarnation(1),
        };
        let regions = vec![Definition::named("data")];
        let begin = Begin { cluster: ClusterId([9; 16]), arbitrated: false, regions };
        let (now, mut effects) = (Time(1_000_000_000_000), Vec::new());
        let config = Config::of(me, Vec::new(), Some(begin));
        let replica = Replica::start(config, Stored::default(), now, &mut effects).expect("it can begin");
        let gateway = Gateway::new(RegionConfig::default(), Pattern::OneHop, GatewayTimes::default(), 7);
        Self { now, replica, gateway, effects, asked: Vec::new(), said: BTreeMap::new(), stuck: false }
    }

    pub(crate) fn serve(&mut self) {
        self.perform();
        let standing = Standing {
            serves: self.replica.serves(self.now),
            explanation: "serves".to_owned(),
            restriction: None,
        };
        assert!(standing.serves);
        self.gateway.stand(self.now, standing, &mut self.asked);
        self.perform();
    }

    pub(crate) fn perform(&mut self) {
        loop {
            self.perform_asked();
            self.replica.step(self.now, Event::Drained, &mut self.effects);
            if self.effects.is_empty() {
                return;
            }
        }
    }

    fn perform_asked(&mut self) {
        while !self.effects.is_empty() || !self.asked.is_empty() {
            for effect in std::mem::take(&mut self.effects) {
                let event = match effect {
                    Effect::PersistRecord { ticket, .. } => Event::Persisted { ticket },
                    Effect::Append { region, record, .. } => Event::Appended { region, record },
                    Effect::Answer { client, message, .. } => {
                        let from = self.replica.name();
                        self.gateway.received(self.now, from, client, message, &mut self.asked);
                        continue;
                    }
                    Effect::Serving { view } => {
                        self.gateway.view(self.now, &view, &mut self.asked);
                        continue;
                    }
                    _ => continue,
                };
                self.replica.step(self.now, event, &mut self.effects);
            }
            for asked in std::mem::take(&mut self.asked) {
                match asked {
                    GatewayEffect::Unfollow { client } => {
                        self.replica.step(self.now, Event::Disconnected { client }, &mut self.effects);
                    }
                    GatewayEffect::Send { client, message, .. }
                    | GatewayEffect::SendHere { client, message }
                        if !self.stuck =>
                    {
                        let event = Event::Asked { client, region: RegionId(1), message };
                        self.replica.step(self.now, event, &mut self.effects);
                    }
                    GatewayEffect::Write { session, bytes, .. } => {
                        let text = String::from_utf8(bytes).expect("it is text");
                        self.said.entry(session).or_default().push_str(&text);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Lines of commands at a connection; what is said so far.
    pub(crate) fn ask(&mut self, session: u64, lines: &str) -> String {
        let mut input = BytesMut::from(format!("{}\r\n", lines.replace("; ", "\r\n")).as_bytes());
        let mut commands: Vec<Vec<Bytes>> = Vec::new();
        while let Some(command) = take_command(&mut input, &CommandLimits::default()).expect("it is a line") {
            commands.push(command);
        }
        self.gateway.commands(self.now, session, commands, &mut self.asked);
        self.perform();
        self.said.remove(&session).unwrap_or_default()
    }

    /// It is so late by every wall clock.
    pub(crate) fn tell_time(&mut self, unix_ms: u64) {
        self.gateway.tell_time(self.now, unix_ms);
        self.replica.step(self.now, Event::WallClock { unix_ms }, &mut self.effects);
        self.perform();
    }

    pub(crate) fn pass(&mut self, time: Duration) -> String {
        for _ in 0..10 {
            self.now = self.now.after(time / 10);
            self.gateway.tick(self.now, &mut self.asked);
            self.perform();
        }
        std::mem::take(&mut self.said).into_values().collect()
    }
}
