//! The node: performs what the replica and the gateway ask for, and tells them what came of it.
//!
//! One thread does it all but waiting for the disk. What came in meanwhile is taken in one go, and what goes out to one other node, or to one
//! client, leaves in one write.

use crate::accepting::{self, listen};
use crate::address::{of_group, of_socket};
use crate::arbiter::{self, Arbiter};
use crate::clients::Clients;
use crate::clock;
use crate::command::OWN_KEYS;
use crate::delay::Way;
use crate::error::NodeError;
use crate::gateway::{Gateway, GatewayEffect};
use crate::head::Head;
use crate::hearing::Door;
use crate::input::{DiskDone, Input};
use crate::links::Links;
use crate::native::Natives;
use crate::peers::Peers;
use crate::resp::Reply;
use crate::retired;
use crate::secure::Security;
use crate::settings::{Entry, Settings};
use crate::store::Store;
use crate::transitions::Transitions;
use bytes::Bytes;
use mainstay_disk::open::draw_store_id;
use mainstay_region::conversation::ToClient;
use mainstay_region::effect::RecordNumber;
use mainstay_region::limits::{Config as RegionConfig, Limits};
use mainstay_region::patterns::Pattern;
use mainstay_replica::config::{Begin, Config};
use mainstay_replica::definition::{Definition, RegionId};
use mainstay_replica::effect::Effect;
use mainstay_replica::event::Event;
use mainstay_replica::message::Message;
use mainstay_replica::replica::Replica;
use mainstay_types::id::{ClientId, ClusterId};
use mainstay_types::level::Level;
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId, MemberId, ROLES_MAX};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

mod natives;
mod redefining;
mod standing;
mod telling;

use redefining::Wishes;

/// Inputs that wait for the node; beyond, connections are not read.
const INPUTS_MAX: usize = 1024;

/// Inputs that are taken before anything goes out.
const STEP_INPUTS_MAX: usize = 256;

/// Between two looks of the gateway at its clock.
const GATEWAY_TICK: Duration = Duration::from_millis(20);

/// Between two looks at connections that are not used any more, and at the wall clock.
const IDLE_LOOK: Duration = Duration::from_secs(1);

/// How long connections have to send what was said last.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Clients of other nodes whose answers are brought back, at most. Beyond, all are forgotten, and ask again.
const ROUTES_MAX: usize = 1 << 16;

/// How a node ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It was told to stop, and is a member still.
    Stopped,
    /// It has left its group.
    Left,
    /// A role that a region requires is gone, and the region wants this node to leave and ask to be let in again: it is to be run again, to listen
    /// where it did.
    Reconnects,
}

/// Where a node listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listening {
    /// For other nodes.
    pub nodes: SocketAddr,
    /// For clients.
    pub clients: SocketAddr,
}

/// Runs a node until SIGTERM, SIGINT or its leaving. `listening` is told where, once it listens.
///
/// # Errors
/// [`NodeError`].
pub fn run(settings: &Settings, listening: impl FnOnce(Listening)) -> Result<Ended, NodeError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(serve(settings, listening));
    // Connections end with the process, not one by one.
    runtime.shutdown_background();
    ended
}

async fn serve(settings: &Settings, listening: impl FnOnce(Listening)) -> Result<Ended, NodeError> {
    let security = Security::load(settings.certified.as_ref())?;
    let nodes = listen(settings.listen, &security).await?;
    if settings.listen.ip().is_unspecified() {
        return Err(NodeError::Unspecified { address: settings.listen });
    }
    security.check_address(settings.listen.ip())?;
    let clients = listen(settings.resp, &security).await?;
    let at = Listening { nodes: nodes.local_addr()?, clients: clients.local_addr()? };
    let (inputs, queue) = mpsc::channel(INPUTS_MAX);
    let (disk_done, disk_queue) = mpsc::unbounded_channel();
    let told_to_stop = Arc::new(AtomicBool::new(false));
    for kind in [SignalKind::terminate(), SignalKind::interrupt()] {
        let (mut signals, inputs, told) = (signal(kind)?, inputs.clone(), Arc::clone(&told_to_stop));
        tokio::spawn(async move {
            signals.recv().await;
            told.store(true, Ordering::Relaxed);
            let _ = inputs.send(Input::Stop).await;
        });
    }
    let mut node = Node::start(settings, at, security.clone(), disk_done, inputs.clone())?;
    listening(at);
    let door = Arc::clone(&node.door);
    tokio::spawn(accepting::nodes(nodes, security.clone(), door, inputs.clone(), settings.clients_max));
    tokio::spawn(accepting::clients(clients, security, inputs, settings.clients_max));
    let ended = node.run(queue, disk_queue).await?;
    // What was said last is on its way still.
    tokio::time::sleep(LAST_WORDS).await;
    if ended == Ended::Left {
        retired::retire(&settings.directory)?;
    }
    node.store.seal()?;
    // Nobody heard a signal any more that came with the last words.
    let stops = ended == Ended::Reconnects && told_to_stop.load(Ordering::Relaxed);
    Ok(if stops { Ended::Stopped } else { ended })
}

/// Whom an answer of a region goes to.
#[derive(Clone, Copy, Debug)]
enum Route {
    Here,
    Through(Address),
}

struct Node {
    me: JoinerId,
    clients_at: SocketAddr,
    allow_cuts: bool,
    replica: Replica,
    gateway: Gateway,
    door: Arc<Door>,
    peers: Peers,
    store: Store,
    /// The region that clients of the Redis protocol use: the first.
    region: Option<RegionId>,
    clients: Clients,
    natives: Natives,
    routes: HashMap<ClientId, Route>,
    arbiter: Option<Arbiter>,
    wishes: Wishes,
    /// Why another node did not hear or let in this one, since it served last.
    refused: Option<String>,
    transitions: Transitions,
    /// It has served in this life with all roles that its regions require.
    had_roles: bool,
    wake: Time,
    gateway_tick: Time,
    idle_look: Time,
    ended: Option<Result<Ended, NodeError>>,
    effects: Vec<Effect>,
    asked: Vec<GatewayEffect>,
    /// Kept for their room.
    effects_room: Vec<Effect>,
    asked_room: Vec<GatewayEffect>,
    /// Records that are safe and were not said to be.
    appended: Vec<(RegionId, RecordNumber)>,
    /// Something was told to the replica since it was drained.
    undrained: bool,
}

impl Node {
    fn start(
        settings: &Settings,
        at: Listening,
        security: Security,
        disk_done: mpsc::UnboundedSender<Input>,
        inputs: mpsc::Sender<Input>,
    ) -> Result<Self, NodeError> {
        let hint = format!("a node at {}, clients at {}", at.nodes, at.clients);
        retired::check(&settings.directory)?;
        let (store, stored) = Store::open(&settings.directory, &hint, disk_done.clone())?;
        let me = JoinerId { address: of_group(at.nodes), store: store.id, life: store.life };
        let files = settings.certified.as_ref().map(|(files, _)| files);
        let asks = |arbiter| Arbiter::start(arbiter, files, disk_done);
        let arbiter = settings.arbiter.as_ref().map(asks).transpose()?;
        let (begin, ask_at) = match &settings.entry {
            Entry::Begin(regions) => {
                // As random as an identity of a store.
                let cluster = ClusterId(draw_store_id()?.0);
                let arbitrated = settings.arbiter.is_some();
                if let Some(arbiter) = settings.arbiter.as_ref().filter(|_| stored.record.is_none()) {
                    arbiter::begin(arbiter, files, cluster)?;
                }
                // One member may go on alone then, whichever it is: each has to have everything.
                let all = |region: &Definition| Definition {
                    acknowledged_by_all: region.acknowledged_by_all || arbitrated,
                    ..region.clone()
                };
                (Some(Begin { cluster, arbitrated, regions: regions.iter().map(all).collect() }), Vec::new())
            }
            Entry::Join(addresses) => (None, addresses.iter().copied().map(of_group).collect()),
        };
        if settings.roles.len() > ROLES_MAX {
            return Err(NodeError::Roles { roles: settings.roles.len() });
        }
        if begin.is_none() && ask_at.is_empty() && !stored.knows_group() {
            return Err(NodeError::NoGroup);
        }
        let mut config = Config { timing: settings.timing, ..Config::of(me, ask_at, begin) };
        config.offer.roles.clone_from(&settings.roles);
        config.own_keys = Some(OWN_KEYS);
        let mut effects = Vec::new();
        let now = clock::now();
        let replica = Replica::start(config, stored, now, &mut effects)?;
        let at_risk = replica.regions().find(|(_, region, _)| region.level == Level::Process);
        let at_risk = at_risk.map(|(_, region, _)| region.name.clone());
        if let Some(region) = at_risk.filter(|_| store.power_lost && !settings.accept_loss) {
            return Err(NodeError::PowerLost { directory: settings.directory.clone(), region });
        }
        store.begin()?;
        let gateway =
            Gateway::new(RegionConfig::default(), Pattern::OneHop, settings.gateway, fastrand::u64(..));
        let way = Way::of(settings.link_delay);
        let head =
            Head { cluster: None, store: me.store, address: me.address, life: me.life.0, connection: 0 };
        let mut node = Self {
            me,
            clients_at: at.clients,
            allow_cuts: settings.allow_cuts,
            replica,
            gateway,
            door: Arc::new(Door::new()),
            peers: Peers::new(Links::new(head, inputs, way.clone(), security)),
            store,
            region: None,
            clients: Clients::default(),
            natives: Natives::new(way),
            routes: HashMap::new(),
            arbiter,
            wishes: Wishes::default(),
            refused: None,
            transitions: Transitions::new(now),
            had_roles: false,
            wake: now,
            gateway_tick: now,
            idle_look: now,
            ended: None,
            effects,
            asked: Vec::new(),
            effects_room: Vec::new(),
            asked_room: Vec::new(),
            appended: Vec::new(),
            undrained: true,
        };
        node.know_cluster();
        node.perform(now);
        node.drain(now);
        node.stand(now);
        Ok(node)
    }

    /// Takes what comes until the end.
    async fn run(
        &mut self,
        mut queue: mpsc::Receiver<Input>,
        mut disk_queue: mpsc::UnboundedReceiver<Input>,
    ) -> Result<Ended, NodeError> {
        loop {
            // First of all: its write takes longest.
            self.store.flush();
            self.peers.links.flush();
            self.natives.flush();
            self.clients.flush();
            if let Some(ended) = self.ended.take() {
                return ended;
            }
            let next = self.wake.min(self.gateway_tick);
            let pause = next.since(clock::now());
            let first = tokio::select! {
                biased;
                Some(input) = disk_queue.recv() => Some(input),
                Some(input) = queue.recv() => Some(input),
                () = tokio::time::sleep(pause) => None,
            };
            if let Some(input) = first {
                // Read after the input has come: a lease that has run out by now is not used.
                self.take(clock::now(), input);
                self.take_queued(&mut queue, &mut disk_queue);
            }
            let now = clock::now();
            self.pass_time(now);
            self.drain(now);
        }
    }

    /// Takes what has come, as far as it is to be answered in one step.
    fn take_queued(
        &mut self,
        queue: &mut mpsc::Receiver<Input>,
        disk_queue: &mut mpsc::UnboundedReceiver<Input>,
    ) {
        for _ in 0..STEP_INPUTS_MAX {
            let Ok(input) = disk_queue.try_recv().or_else(|_| queue.try_recv()) else { break };
            self.take(clock::now(), input);
        }
    }

    fn pass_time(&mut self, now: Time) {
        // A lease must not be kept by who can do nothing with it.
        self.peers.keep_apart(self.store.is_stuck(now));
        if now >= self.wake {
            self.step(now, Event::Tick);
        }
        if now >= self.gateway_tick {
            self.gateway_tick = now.after(GATEWAY_TICK);
            self.gateway.tell_time(now, clock::unix_ms());
            self.stand(now);
            self.give_up_wishes(now);
            self.gateway.tick(now, &mut self.asked);
            self.perform(now);
        }
        if now >= self.idle_look {
            self.idle_look = now.after(IDLE_LOOK);
            self.step(now, Event::WallClock { unix_ms: clock::unix_ms() });
            self.peers.links.forget_idle();
        }
    }

    fn take(&mut self, now: Time, input: Input) {
        match input {
            Input::LinkOpened { link, head } => self.peers.opened(link, &head),
            Input::LinkClosed { link } => self.peers.closed(link),
            Input::LinkRefused { by, why } => {
                self.refused_by(&format!("{by} does not hear this node: {why}"));
            }
            Input::Arbitrated { chosen } => self.step(now, Event::Arbitrated { chosen }),
            Input::ArbiterSilent { error } => self.arbiter_is_silent(&error),
            Input::Frames { link, frames, held } => {
                self.frames(now, link, frames);
                drop(held);
            }
            Input::NativeOpened { connection, hello, outgoing } => {
                self.natives.opened(connection, hello, outgoing);
                self.native_opened(now, connection);
            }
            Input::NativeFrames { connection, frames, held } => {
                self.native_frames(now, connection, frames);
                drop(held);
            }
            Input::NativeClosed { connection } => self.native_closed(now, connection),
            Input::Opened { session, to } => {
                self.clients.opened(session, to);
                self.gateway.opened(session);
            }
            Input::Closed { session } => {
                self.clients.closed(session);
                self.gateway.closed(session, &mut self.asked);
            }
            Input::Commands { session, commands } => {
                self.gateway.commands(now, session, commands, &mut self.asked);
                self.perform(now);
            }
            Input::Unreadable { session, error } => {
                self.gateway.refuse(now, session, error, &mut self.asked);
                self.perform(now);
            }
            Input::Disk(DiskDone::Persisted { ticket }) => self.step(now, Event::Persisted { ticket }),
            Input::Disk(DiskDone::Appended { region, record }) => {
                self.step(now, Event::Appended { region, record });
            }
            Input::Disk(DiskDone::Failed { what }) => self.fail(now, what),
            Input::Stop => self.end(Ok(Ended::Stopped)),
        }
    }

    /// Of several ends in one step the gravest counts.
    fn end(&mut self, how: Result<Ended, NodeError>) {
        let gravity = |how: &Result<Ended, NodeError>| match how {
            Ok(Ended::Reconnects) => 0,
            Ok(Ended::Stopped) => 1,
            Ok(Ended::Left) => 2,
            Err(_) => 3,
        };
        if self.ended.as_ref().is_none_or(|ended| gravity(ended) < gravity(&how)) {
            self.ended = Some(how);
        }
    }

    fn fail(&mut self, now: Time, what: String) {
        self.step(now, Event::PersistFailed);
        self.end(Err(NodeError::Disk { what }));
    }

    fn frames(&mut self, now: Time, link: u64, frames: Vec<Bytes>) {
        let Some(from) = self.peers.hears(link) else { return };
        let limits = Limits::default();
        for frame in frames {
            match Message::parse(&frame, &limits) {
                Ok(Message::Answer { from, client, message, .. }) => {
                    self.gateway.received(now, from, client, message, &mut self.asked);
                }
                // As if it was lost on the way: it is sent again.
                Ok(Message::Region { .. } | Message::Request { .. }) if self.store.is_behind() => {}
                Ok(message) => {
                    if let Message::Request { client, .. } = &message {
                        self.remember(*client, Route::Through(from));
                    }
                    self.tell(now, Event::Arrived(message));
                }
                Err(error) => tracing::warn!(from = %of_socket(from), %error, "a message cannot be read"),
            }
        }
        self.perform(now);
    }

    fn remember(&mut self, client: ClientId, route: Route) {
        if self.routes.len() >= ROUTES_MAX {
            self.routes.clear();
        }
        self.routes.insert(client, route);
    }

    /// Performs what is asked for, and what is asked for because of that.
    fn perform(&mut self, now: Time) {
        while !(self.effects.is_empty() && self.asked.is_empty()) {
            let mut effects = std::mem::replace(&mut self.effects, std::mem::take(&mut self.effects_room));
            let mut asked = std::mem::replace(&mut self.asked, std::mem::take(&mut self.asked_room));
            effects.drain(..).for_each(|effect| self.perform_of_replica(now, effect));
            asked.drain(..).for_each(|effect| self.perform_of_gateway(now, effect));
            (self.effects_room, self.asked_room) = (effects, asked);
        }
    }

    fn perform_of_replica(&mut self, now: Time, effect: Effect) {
        match effect {
            Effect::Send { to, message } => self.peers.send(to, &message),
            Effect::Answer { client, region, message } => self.answer(now, client, region, message),
            // The gateway names the region that there is.
            Effect::NoRegion { .. } => {}
            Effect::PersistRecord { ticket, bytes } => {
                self.know_cluster();
                self.store.persist(ticket, bytes);
            }
            Effect::Append { region, record, bytes } => {
                let level = self.level(region);
                match self.store.append(level, region, record, bytes) {
                    Ok(true) => self.is_safe(region, record),
                    Ok(false) => {}
                    Err(error) => self.fail(now, format!("the regions' journal: {error}")),
                }
            }
            Effect::CheckpointBegins => self.store.checkpoint_begins(),
            Effect::Trim => self.store.trim(),
            Effect::Wake { at } => self.wake = at,
            Effect::AskArbiter { from, proposal } => match (&self.arbiter, self.replica.cluster()) {
                (Some(arbiter), Some(cluster)) => arbiter.ask(cluster, self.me, from, proposal),
                _ => self.arbiter_is_silent("this node was started without --arbiter, and its group has one"),
            },
            Effect::Serving { view } => {
                if self.arbiter.is_some() && !view.arbitrated {
                    tracing::warn!("this group was begun without an arbiter: --arbiter is not used");
                }
                self.refused = None;
                self.look_for_roles();
                self.know_region();
                self.stand(now);
                self.gateway.view(now, &view, &mut self.asked);
                self.tell_all_standing(now);
            }
            Effect::NotServing { .. } => self.stand(now),
            Effect::Refused { refusal } => self.refused_by(&format!("not let in: {refusal}")),
            Effect::Unreadable { from } => {
                tracing::error!(?from, "the nodes run versions that do not understand each other");
            }
            Effect::Left => {
                // Where no other one had a vote, the group waits for this store.
                let last = self.replica.group().record().view();
                let alone = last.is_none_or(|view| view.members.len() == 1);
                self.end(Ok(if alone { Ended::Stopped } else { Ended::Left }));
            }
            Effect::Redefined { region, pattern, view } => self.redefined(region, pattern, view),
            Effect::NotRedefined { region, pattern, error } => self.not_redefined(region, pattern, error),
            Effect::Stopped => {
                let what = "a record could not be made durable".to_owned();
                self.end(Err(NodeError::Disk { what }));
            }
        }
    }

    fn perform_of_gateway(&mut self, now: Time, effect: GatewayEffect) {
        match effect {
            GatewayEffect::Send { to, client, message } => self.ask(now, to, client, message),
            GatewayEffect::SendHere { client, message } => {
                self.ask(now, self.replica.name(), client, message);
            }
            // Not performed from within: answers leave in the order in which they were given.
            GatewayEffect::Unfollow { client } => self.tell(now, Event::Disconnected { client }),
            GatewayEffect::Write { session, bytes, answered, close } => {
                self.clients.write(session, bytes, answered, close);
            }
            GatewayEffect::Status { place } => {
                let json = serde_json::to_string(&self.status(now)).expect("it is plain data");
                self.gateway.answer(place, Reply::text(json), &mut self.asked);
            }
            GatewayEffect::Number { connection, number } => {
                self.natives.say(connection, &ToClient::Number(number));
            }
            GatewayEffect::Known { connection, number, given } => self.known(now, connection, number, given),
            GatewayEffect::Leave { place } => {
                let reply = self.leave(now);
                self.gateway.answer(place, reply, &mut self.asked);
            }
            GatewayEffect::Redefine { place, region, pattern } => self.redefine(now, place, &region, pattern),
            GatewayEffect::Cut { place, addresses } => {
                let reply = if self.allow_cuts {
                    self.peers.cut(addresses.into_iter().map(of_group).collect());
                    Reply::Status("OK")
                } else {
                    Reply::Error("ERR this node was not started for demonstrations of cuts".to_owned())
                };
                self.gateway.answer(place, reply, &mut self.asked);
            }
        }
    }

    /// Links say which group they are of, once it is known.
    fn know_cluster(&mut self) {
        if let Some(cluster) = self.replica.cluster() {
            self.door.know(cluster);
            self.peers.links.know(cluster);
        }
    }

    /// The gateway says something to a member, which may be this node.
    fn ask(&mut self, now: Time, to: MemberId, client: ClientId, message: mainstay_region::message::Message) {
        let (Some(region), Some(cluster)) = (self.region, self.replica.cluster()) else { return };
        if to.address != self.me.address {
            self.peers.send(to.address, &Message::Request { cluster, region, client, message });
        } else if !self.store.is_behind() {
            self.remember(client, Route::Here);
            self.tell(now, Event::Asked { client, region, message });
        }
    }

    fn answer(
        &mut self,
        now: Time,
        client: ClientId,
        region: RegionId,
        message: mainstay_region::message::Message,
    ) {
        let from = self.replica.name();
        self.gateway.overhear(&message);
        self.natives.tell(client, from, &message);
        let follows = self.gateway.follows(client).then_some(&Route::Here);
        match follows.or_else(|| self.routes.get(&client)) {
            Some(Route::Here) => self.gateway.received(now, from, client, message, &mut self.asked),
            Some(&Route::Through(to)) => {
                self.peers.send(to, &Message::Answer { region, from, client, message });
            }
            None => {}
        }
    }

    fn level(&self, region: RegionId) -> Level {
        let defined = self.replica.regions().find(|(id, _, _)| *id == region);
        defined.map_or(Level::Disk, |(_, definition, _)| definition.level)
    }
}
