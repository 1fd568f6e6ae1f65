//! The machine: what happens goes to the file whose duty it is; what a process is at a moment.

use crate::ballot::{Because, Departure, Proposal};
use crate::change::Change;
use crate::effect::Effect;
use crate::event::Event;
use crate::joining::{Asking, Waiting};
use crate::lease::Leases;
use crate::limits::{Limits, Timing};
use crate::message::{Body, Message};
use crate::outbox::Outbox;
use crate::promise::Wedged;
use crate::record::Record;
use crate::suspicion::Suspicion;
use crate::verdict::Verification;
use mainstay_types::id::{ClusterId, StoreId};
use mainstay_types::machine::Machine;
use mainstay_types::rules::{Rule, Rules};
use mainstay_types::time::Time;
use mainstay_types::view::{Address, JoinerId, Member, MemberId, MemberKind, Offer, View, ViewId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a process of a group is told when it starts.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who it is. The life must be above every earlier one of the store.
    pub me: JoinerId,
    /// What it brings.
    pub offer: Offer,
    /// Where it asks to be let in first.
    pub ask_at: Vec<Address>,
    /// It begins a new group: said once, by a person, never concluded from hearing nobody.
    pub begin: Option<Begin>,
    /// What bounds its memory.
    pub limits: Limits,
    /// How long everything takes.
    pub timing: Timing,
    /// Which safety rules are kept: all, outside the simulator.
    pub rules: Rules,
}

/// A new group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Begin {
    /// Its identity, drawn for it.
    pub cluster: ClusterId,
    /// Whether an outside arbiter decides on views: for groups of two.
    pub arbitrated: bool,
    /// What its regions begin with; opaque here.
    pub cut: Vec<u8>,
}

/// A process that cannot start so. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The record is another store's.
    #[error(
        "the record belongs to store {found}, and this is store {expected}: start it on its own directory"
    )]
    OtherStore {
        /// This store.
        expected: StoreId,
        /// The record's.
        found: StoreId,
    },
    /// The store belongs to a group already.
    #[error(
        "this store belongs to group {cluster} already: start it without --init, or on an empty directory"
    )]
    InGroup {
        /// The group.
        cluster: ClusterId,
    },
    /// A group cannot begin with a process that does not vote.
    #[error("a group begins with a server that has a vote: start it as a server with a weight of at least 1")]
    NoVote,
}

/// Whether a process is in a view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    Outside,
    /// `installed` is the ticket of the record that says it has all the data.
    Member {
        installed: Option<u64>,
    },
    Gone,
}

/// One process of a group.
#[derive(Debug)]
pub struct Group {
    pub(crate) config: Config,
    pub(crate) me: JoinerId,
    pub(crate) record: Record,
    pub(crate) standing: Standing,
    /// The ticket of the record that was the first to name the view; 0: this life has found it.
    pub(crate) entered: u64,
    /// When it learned of the view.
    pub(crate) entered_at: Time,
    /// When this life began, if it is not the store's first.
    pub(crate) returned_at: Option<Time>,
    pub(crate) leases: Leases,
    pub(crate) suspicion: Suspicion,
    pub(crate) verifying: Option<Verification>,
    /// The last suspect of whom others hear: the search goes on behind it.
    pub(crate) acquitted: Option<MemberId>,
    /// Members that are not to be in the next view.
    pub(crate) verdicts: BTreeMap<MemberId, Because>,
    pub(crate) leavers: BTreeSet<StoreId>,
    pub(crate) leaving: bool,
    /// Other members that have said that they have all the data of the view.
    pub(crate) ready: BTreeSet<StoreId>,
    /// Other members whose last beat granted nothing: they have promised, and who is heard of them goes on with the change by itself.
    pub(crate) ending: BTreeSet<StoreId>,
    pub(crate) wedged: Option<Wedged>,
    /// How often this life has asked its regions for a report.
    pub(crate) reports_asked: u64,
    pub(crate) change: Option<Change>,
    /// The highest round of a ballot about the next view that was heard of.
    pub(crate) rounds_seen: u32,
    pub(crate) joiners: BTreeMap<StoreId, Waiting>,
    pub(crate) asking: Asking,
    /// The regions of this process, which is in no view, have been filled.
    pub(crate) learned: bool,
    pub(crate) departures: VecDeque<Departure>,
    /// The newest view that was heard of.
    pub(crate) newest: ViewId,
    /// Who was told in this beat that it is outside.
    pub(crate) told: BTreeSet<Address>,
    /// When it last served.
    served: Time,
    outbox: Outbox,
    loopback: VecDeque<Message>,
    next_tick: Time,
}

impl Group {
    /// Starts a life, with the store's record if it has one.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        config: Config,
        record: Option<Record>,
        now: Time,
        out: &mut Vec<Effect>,
    ) -> Result<Self, StartError> {
        let me = config.me;
        let returned_at = record.as_ref().and_then(Record::view).map(|_| now);
        let record = record.unwrap_or_else(|| Record::of_new(me.store));
        if record.store != me.store {
            return Err(StartError::OtherStore { expected: me.store, found: record.store });
        }
        let mut group = Self {
            me,
            record,
            standing: Standing::Outside,
            entered: 0,
            entered_at: now,
            returned_at,
            leases: Leases::default(),
            suspicion: Suspicion::default(),
            verifying: None,
            acquitted: None,
            verdicts: BTreeMap::new(),
            leavers: BTreeSet::new(),
            leaving: false,
            ready: BTreeSet::new(),
            ending: BTreeSet::new(),
            wedged: None,
            reports_asked: 0,
            change: None,
            rounds_seen: 0,
            joiners: BTreeMap::new(),
            asking: Asking { since: now, ..Asking::default() },
            learned: false,
            departures: VecDeque::new(),
            newest: ViewId::NONE,
            told: BTreeSet::new(),
            served: now,
            outbox: Outbox::default(),
            loopback: VecDeque::new(),
            next_tick: now,
            config,
        };
        if let Some(begin) = group.config.begin.take() {
            group.begin(begin, now, out)?;
        }
        if let Some(installed) = group.record.installed.clone().filter(|_| !group.record.is_ready()) {
            out.push(Effect::Fetch { view: installed.view, base: installed.base, cut: installed.cut });
        }
        out.push(Effect::Wake { at: now });
        Ok(group)
    }

    fn begin(&mut self, begin: Begin, now: Time, out: &mut Vec<Effect>) -> Result<(), StartError> {
        if let Some(cluster) = self.record.cluster {
            return Err(StartError::InGroup { cluster });
        }
        if self.config.offer.kind != MemberKind::Server || self.config.offer.weight == 0 {
            return Err(StartError::NoVote);
        }
        let id = ViewId::NONE.next();
        let members = vec![Member { born: id, joiner: self.me, offer: self.config.offer.clone() }];
        let view = View { id, arbitrated: begin.arbitrated, members };
        self.record.cluster = Some(begin.cluster);
        self.record.ready = id;
        self.record.installed = Some(Proposal {
            view: view.clone(),
            base: ViewId::NONE,
            cut: begin.cut.clone(),
            departures: Vec::new(),
        });
        let ticket = self.persist(out);
        self.standing = Standing::Member { installed: Some(ticket) };
        self.entered = ticket;
        self.suspicion.begin(&view, self.me.store, now);
        self.emit(Effect::Installed { view, cut: begin.cut }, out);
        Ok(())
    }

    /// Whether this process may serve its view at `now`, which must have been read after the request came in.
    #[must_use]
    pub fn serves(&self, now: Time) -> bool {
        now < self.serves_until()
    }

    /// Until when it may serve its view if nothing happens, by its own clock; [`Time::EPOCH`] if it may not at all.
    #[must_use]
    pub fn serves_until(&self) -> Time {
        match self.record.view().filter(|_| self.admits()) {
            None => Time::EPOCH,
            Some(_) if !self.config.rules.keep(Rule::ServeWithinLease) => Time(u64::MAX),
            Some(view) => self.leases.until(view, self.me.store),
        }
    }

    /// Whether the regions of this process take in what others of the view send: they have all the data, and the view has not ended here.
    #[must_use]
    pub fn admits(&self) -> bool {
        self.is_installed() && self.wedged.is_none()
    }

    /// It has all the data of its view, and a later life of its store would know it.
    fn is_installed(&self) -> bool {
        matches!(self.standing, Standing::Member { installed: Some(ticket) } if self.outbox.is_durable(ticket))
    }

    /// A later life of its store would know the view, and what it owes its members.
    fn has_entered(&self) -> bool {
        self.outbox.is_durable(self.entered)
    }

    /// The view that this process is in.
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.record.view().filter(|_| self.is_member())
    }

    /// What this process is called in its view.
    #[must_use]
    pub fn member_id(&self) -> Option<MemberId> {
        self.view()?.member(&self.me).map(Member::id)
    }

    /// What the store has to find again.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    pub(crate) fn is_member(&self) -> bool {
        matches!(self.standing, Standing::Member { .. })
    }

    /// Who changes the view: the oldest server with a vote that is heard.
    pub(crate) fn coordinator(&self, now: Time) -> Option<StoreId> {
        self.eligible(now).next()
    }

    fn eligible(&self, now: Time) -> impl Iterator<Item = StoreId> {
        let members = self.record.view().into_iter().flat_map(|view| &view.members);
        let heard = members.filter(move |member| {
            let store = member.joiner.store;
            let up = store == self.me.store
                || !(self.verdicts.contains_key(&member.id())
                    || self.suspicion.is_silent(store, now, &self.config.timing));
            up && leads(member)
        });
        heard.map(|member| member.joiner.store)
    }

    /// Where the other members are.
    pub(crate) fn others(&self) -> Vec<Address> {
        let members = self.record.view().into_iter().flat_map(|view| &view.members);
        members.map(|member| member.joiner.address).filter(|&address| address != self.me.address).collect()
    }

    /// Says to all others that this member is up.
    pub(crate) fn beat(&mut self, now: Time, out: &mut Vec<Effect>) {
        let members = self.record.view().into_iter().flat_map(|view| &view.members);
        let others: Vec<JoinerId> = members.map(|m| m.joiner).filter(|joiner| *joiner != self.me).collect();
        for other in others {
            self.beat_to(now, other, out);
        }
    }

    /// Says so to one of them.
    pub(crate) fn beat_to(&mut self, now: Time, other: JoinerId, out: &mut Vec<Effect>) {
        let (grants, ready) = (self.grants(), self.is_installed());
        let echo = self.leases.echo(other.store, grants);
        self.send(other.address, Body::Beat { sent: now.0, echo, grants, ready }, out);
    }

    /// Whether others may serve for longer because of this member: who has promised lets nobody.
    fn grants(&self) -> bool {
        self.has_entered() && self.wedged.is_none()
    }

    /// Records up to this one are durable. The first beat that may grant a lease leaves at once: the view is served for nobody before.
    fn persisted(&mut self, now: Time, ticket: u64, out: &mut Vec<Effect>) {
        let granted = self.grants();
        self.outbox.persisted(ticket);
        if self.is_member() && self.grants() && !granted {
            self.beat(now, out);
        }
    }

    pub(crate) fn send(&mut self, to: Address, body: Body, out: &mut Vec<Effect>) {
        let message =
            Message { cluster: self.record.cluster, view: self.record.view_id(), from: self.me, body };
        self.emit(Effect::Send { to, message }, out);
    }

    /// Lets an effect leave when every record so far is durable; but what holds whatever of them a crash would forget leaves at once, so that who waits
    /// for its disk is not taken for dead.
    pub(crate) fn emit(&mut self, effect: Effect, out: &mut Vec<Effect>) {
        let rests_on_record = match &effect {
            Effect::Send { message, .. } => match message.body {
                // A beat grants nothing, and is not ready, before the record that this rests on is durable.
                Body::Beat { .. } | Body::Verify { .. } | Body::Verified { .. } | Body::Located { .. } => {
                    false
                }
                // What is decided stays so.
                Body::Join { .. } | Body::Install { .. } => !self.has_entered(),
                _ => true,
            },
            _ => true,
        };
        let leaves = match rests_on_record && self.config.rules.keep(Rule::PromiseDurable) {
            true => self.outbox.hold(effect, self.config.limits.waiting_messages_max),
            false => Some(effect),
        };
        if let Some(effect) = leaves {
            self.perform(effect, out);
        }
    }

    fn perform(&mut self, effect: Effect, out: &mut Vec<Effect>) {
        match effect {
            Effect::Send { to, message } if to == self.me.address => self.loopback.push_back(message),
            effect => out.push(effect),
        }
    }

    /// Makes the record durable; whatever is emitted from here on waits for it.
    pub(crate) fn persist(&mut self, out: &mut Vec<Effect>) -> u64 {
        let ticket = self.outbox.ticket();
        let mut record = Vec::new();
        self.record.put(&mut record);
        out.push(Effect::Persist { ticket, record });
        ticket
    }

    /// Whether every record so far is durable.
    pub(crate) fn is_recorded(&self) -> bool {
        self.outbox.is_clear()
    }

    fn tick(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.standing == Standing::Gone {
            return;
        }
        let beat = self.config.timing.beat;
        if now.since(self.next_tick) > beat * 2 {
            self.suspicion.stood_still(now);
        }
        self.next_tick = now.after(beat);
        self.told.clear();
        self.forget_joiners(now);
        match self.standing {
            Standing::Member { .. } => self.attend(now, out),
            Standing::Outside => self.ask(now, out),
            Standing::Gone => return,
        }
        self.drive_change(now, out);
        out.push(Effect::Wake { at: self.next_tick });
    }

    /// What a member does in every beat.
    fn attend(&mut self, now: Time, out: &mut Vec<Effect>) {
        self.leave_alone(out);
        if self.standing == Standing::Gone {
            return;
        }
        self.beat(now, out);
        self.suspicion.look(now, &self.config.timing);
        if self.serves(now) {
            self.served = now;
        } else if now.since(self.served) > self.config.timing.change {
            // The others may have gone on, and be elsewhere by now.
            self.ask_everywhere(now, out);
        }
        let coordinator = self.coordinator(now);
        if self.leaving && coordinator != Some(self.me.store) {
            let view = self.record.view().expect("a member has a view");
            let at = coordinator.and_then(|store| view.of_store(store)).map(|member| member.joiner.address);
            if let Some(at) = at {
                self.send(at, Body::Leave, out);
            }
        }
        let rank = self.eligible(now).position(|store| store == self.me.store);
        let Some(rank) = rank else { return };
        if rank == 0 {
            self.verify(now, out);
            if self.serves(now) {
                self.tell_where(now, out);
            }
        }
        if self.change.is_some() {
            return;
        }
        let turn = self.config.timing.change * u32::try_from(rank).unwrap_or(u32::MAX);
        let begins = match &self.wedged {
            Some(wedged) => {
                let waited = now.since(wedged.since) > self.patience() + turn;
                waited && !self.eligible(now).take(rank).any(|store| self.ending.contains(&store))
            }
            None => rank == 0 && self.wants_change(now),
        };
        if begins {
            self.begin_change(now, out);
        }
    }

    fn wants_change(&self, now: Time) -> bool {
        let gathered = |waiting: &Waiting| {
            waiting.hears
                && !self.learns_first(waiting, self.lacks_data(now))
                && now.since(waiting.since) >= self.config.timing.gathering
        };
        !self.verdicts.is_empty() || !self.who_leaves().is_empty() || self.joiners.values().any(gathered)
    }

    /// The stores that the next view is without because they asked to be: all but one if nobody else could go on with the data.
    pub(crate) fn who_leaves(&self) -> BTreeSet<StoreId> {
        let Some(view) = self.view() else { return BTreeSet::new() };
        let mut asked = self.leavers.clone();
        if self.leaving {
            asked.insert(self.me.store);
        }
        let goes_on = |member: &&Member| {
            let store = member.joiner.store;
            let ready =
                if store == self.me.store { self.record.is_ready() } else { self.ready.contains(&store) };
            leads(member) && ready && !self.verdicts.contains_key(&member.id())
        };
        let able: Vec<StoreId> =
            view.members.iter().filter(goes_on).map(|member| member.joiner.store).collect();
        if able.iter().all(|store| asked.contains(store)) {
            match able.first() {
                Some(oldest) => asked.remove(oldest),
                None => return BTreeSet::new(),
            };
        }
        asked
    }

    fn leave(&mut self, out: &mut Vec<Effect>) {
        self.leaving = true;
        self.leave_alone(out);
    }

    /// Where no other server is in the view, nobody has to agree: the group goes on when this store comes back.
    fn leave_alone(&mut self, out: &mut Vec<Effect>) {
        let others =
            |view: &View| view.members.iter().any(|member| member.joiner != self.me && leads(member));
        if self.leaving && !self.view().is_some_and(others) && self.standing != Standing::Gone {
            self.standing = Standing::Gone;
            out.push(Effect::Left);
        }
    }
}

/// Whether a member may coordinate and lead: a server with a vote.
pub(crate) fn leads(member: &Member) -> bool {
    member.offer.kind == MemberKind::Server && member.offer.weight > 0
}

impl Machine for Group {
    type Event = Event;
    type Effect = Effect;

    fn step(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::Tick => self.tick(now, out),
            Event::Arrived(message) => self.hear(now, message, out),
            Event::Persisted { ticket } => self.persisted(now, ticket, out),
            Event::PersistFailed => {
                self.standing = Standing::Gone;
                out.push(Effect::Stopped);
            }
            Event::Report { view, request, bytes } => self.reported(now, (view, request), bytes, out),
            Event::Cut { view, ballot, bytes } => self.settled(now, (view, ballot), bytes, out),
            Event::Fetched { view } => self.fetched(view, out),
            Event::Learned => self.filled(now),
            Event::Arbitrated { chosen } => self.arbitrated(now, chosen, out),
            Event::Renew => self.renew(now, out),
            Event::Leave => self.leave(out),
        }
        loop {
            while let Some(effect) = self.outbox.release() {
                self.perform(effect, out);
            }
            let Some(message) = self.loopback.pop_front() else { break };
            self.hear(now, message, out);
        }
    }
}
