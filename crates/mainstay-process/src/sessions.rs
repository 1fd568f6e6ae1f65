//! The composer's side towards other nodes: frames in, frames out.
//!
//! What must survive is in [`crate::links::Links`]; this is what a life may forget.
//!
//! ```text
//!   Frames ──> Hello     both greet; what was taken in and not delivered is dropped: it comes again
//!              Message   next ──> the protocol: deliver / wait for an announcement / orphan
//!              Control   the protocol; its wishes are performed at once
//!   gate   ──> a message may leave ──> with the next frames
//! ```

use crate::collecting::Collecting;
use crate::covering::Covering;
use crate::effect::{Effect, HangUp};
use crate::event::PeerEvent;
use crate::handler::Handler;
use crate::intake::Pending;
use crate::lifecycle::Life;
use crate::line;
use crate::links::Links;
use crate::loss::Loss;
use crate::process::Process;
use crate::record::delivery::Delivery;
use bytes::Bytes;
use mainstay_channel::channel::{Arrival, Channel, Greeted, Owed};
use mainstay_channel::frame::{Frame, Message, split};
use mainstay_channel::hello::Hello;
use mainstay_channel::refusal::Refusal;
use mainstay_journal::memory::PageMemory;
use mainstay_recovery::logging::{Admission, Wish};
use mainstay_recovery::policy::Policy;
use mainstay_types::determinant::{Place, Point};
use mainstay_types::id::{NodeId, Ssn};
use mainstay_types::rules::{Rule, Rules};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What is volatile about the links.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    /// Frames for each peer, whole, each behind its length.
    pub(crate) outgoing: BTreeMap<NodeId, Vec<u8>>,
    /// Messages that wait for an announcement on its way to this node, in the order of arrival.
    pub(crate) postponed: VecDeque<Arrived>,
    pub(crate) wishes: Vec<Wish>,
    /// Set while this life gathers what others remember of its past.
    pub(crate) collecting: Option<Collecting>,
    pub(crate) covering: Covering,
    /// Who collects, and is answered when all that this life recovered for it may leave.
    pub(crate) unanswered: BTreeSet<NodeId>,
    /// Why a peer ended its last session with this node, in its own words; until it has greeted again.
    pub(crate) refused_by: BTreeMap<NodeId, String>,
}

/// A message on its way to being delivered.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) from: NodeId,
    pub(crate) ssn: Ssn,
    pub(crate) origin: Point,
    pub(crate) place: Option<Place>,
    pub(crate) stamp: Vec<u8>,
    pub(crate) body: Bytes,
}

impl Arrived {
    /// `run` is what `message` was read from.
    fn of(from: NodeId, message: &Message<'_>, run: &Bytes) -> Self {
        Self {
            from,
            ssn: message.ssn,
            origin: message.origin,
            place: message.place,
            stamp: message.stamp.to_vec(),
            body: run.slice_ref(message.body),
        }
    }

    pub(crate) fn delivery(self) -> Delivery {
        let Self { from, ssn, origin, stamp, body, .. } = self;
        Delivery::Message { from, ssn, origin, stamp, body }
    }
}

impl Sessions {
    pub(crate) fn new(collecting: Option<Collecting>) -> Self {
        Self { collecting, ..Self::default() }
    }

    pub(crate) fn put(&mut self, to: NodeId, frame: &Frame<'_>) {
        frame.put_with_length(self.outgoing.entry(to).or_default());
    }

    /// To everyone who was greeted, also before the answer to that: the greeting tells what was so when it was put.
    pub(crate) fn put_for_all(&mut self, frame: &Frame<'_>) {
        self.outgoing.values_mut().for_each(|outgoing| frame.put_with_length(outgoing));
    }
}

/// Frames that may leave for `peer` now, into its buffer.
pub(crate) fn put_ready(links: &mut Links, outgoing: &mut Vec<u8>, peer: NodeId, attaches: bool) {
    let Links { channel, logging, .. } = links;
    let attach = |out: &mut Vec<u8>| {
        if attaches {
            logging.attach(peer, out);
        }
    };
    channel.frames_for(peer, attach, |frame| frame.put_with_length(outgoing));
}

/// What was sent and not acknowledged by the peer's process is sent again in the next session, though the transport may have
/// acknowledged it; unless that rule is broken.
fn keep_until_covered(channel: &mut Channel, peer: NodeId, rules: Rules) {
    if !rules.keep(Rule::KeepUntilCovered) {
        channel.trust_transport(peer);
    }
}

impl<H: Handler, M: PageMemory> Process<H, M> {
    pub(crate) fn peer_event(&mut self, event: PeerEvent, out: &mut Vec<Effect>) {
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        match event {
            PeerEvent::Connected { peer } => {
                keep_until_covered(&mut links.channel, peer, self.config.rules);
                self.snapshots.forget_unread(peer);
                let mut hello = links.channel.connected(peer);
                hello.seen = hello.seen.max(line::seen_by(&self.logged, peer));
                sessions.outgoing.insert(peer, Vec::new());
                sessions.put(peer, &Frame::Hello(Box::new(hello)));
                self.line.session_ended(peer);
                if let Some(collecting) = &mut sessions.collecting {
                    collecting.connected(peer);
                }
            }
            PeerEvent::Disconnected { peer } => {
                keep_until_covered(&mut links.channel, peer, self.config.rules);
                // Frames that were made for it are of no use in another session.
                self.end_session(peer);
            }
            PeerEvent::Frames { peer, bytes } => self.take_frames(peer, &bytes.into(), out),
        }
    }

    pub(crate) fn take_frames(&mut self, peer: NodeId, run: &Bytes, out: &mut Vec<Effect>) {
        if let Err(why) = self.frames(peer, run, out) {
            self.hang_up(peer, why, out);
        }
    }

    /// Everybody who keeps something for the session with `peer` hears that it is over. Returns the frames that have not left.
    fn end_session(&mut self, peer: NodeId) -> Vec<u8> {
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else {
            return Vec::new();
        };
        links.channel.disconnected(peer);
        links.logging.disconnected(peer);
        self.line.session_ended(peer);
        if let Some(collecting) = &mut sessions.collecting {
            collecting.disconnected(peer);
        }
        self.snapshots.forget_unread(peer);
        sessions.outgoing.remove(&peer).unwrap_or_default()
    }

    pub(crate) fn hang_up(&mut self, peer: NodeId, why: HangUp, out: &mut Vec<Effect>) {
        if self.sessions.is_none() {
            return;
        }
        let mut bytes = self.end_session(peer);
        if let Some(refusal) = why.refusal() {
            let text = refusal.to_string();
            Frame::Refused { code: refusal.code(), text: &text }.put_with_length(&mut bytes);
        }
        if let HangUp::Refused(refusal) = &why {
            self.state_orphan(refusal, out);
        }
        out.push(Effect::Frames { to: peer, bytes });
        out.push(Effect::HangUp { peer, why });
    }

    fn state_orphan(&mut self, refusal: &Refusal, out: &mut Vec<Effect>) {
        if matches!(refusal, Refusal::Orphaned { .. }) && self.goes_back() {
            // How far, the next life says.
            return;
        }
        let me = self.config.cluster.as_ref().map(|cluster| cluster.me);
        if let Some(loss) = me.and_then(|me| Loss::of(me, refusal)) {
            self.say_loss(loss, out);
        }
    }

    fn frames(&mut self, peer: NodeId, run: &Bytes, out: &mut Vec<Effect>) -> Result<(), HangUp> {
        let limit = self.config.cluster.as_ref().map_or(0, |cluster| cluster.links.frame_bytes_max());
        let mut rest: &[u8] = run;
        // Within a frame the session may end: what follows is of none.
        while self.sessions.as_ref().is_some_and(|sessions| sessions.outgoing.contains_key(&peer))
            && let Some((frame, behind)) = split(rest, limit)?
        {
            let frame = Frame::parse(frame)?;
            if let Frame::Marker { snapshot } = frame {
                self.hear_of(snapshot);
            } else if let Frame::Hello(hello) = &frame {
                self.hear_of(hello.snapshot);
            }
            if self.snapshots.is_due() && self.config.rules.keep(Rule::CutBeforeDelivery) {
                // It came after the cut of the one who sent it; so must its being taken in.
                self.snapshots.read_later(peer, run.slice_ref(rest));
                return Ok(());
            }
            self.frame(peer, frame, run, out)?;
            if matches!(self.life, Life::Abandoned) {
                return Ok(());
            }
            rest = behind;
        }
        Ok(())
    }

    fn frame(
        &mut self,
        peer: NodeId,
        frame: Frame<'_>,
        run: &Bytes,
        out: &mut Vec<Effect>,
    ) -> Result<(), HangUp> {
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else {
            return Ok(());
        };
        match frame {
            Frame::Hello(hello) => return self.hello(peer, &hello, out),
            Frame::Message(message) => return self.message(peer, &message, run, out),
            Frame::Received { ssn } => links.channel.received(peer, ssn)?,
            Frame::Covered { ssn } => links.channel.covered(peer, ssn)?,
            Frame::Control(body) => {
                links.logging.control(peer, body, &mut sessions.wishes)?;
                self.perform_wishes(out);
                self.retry_postponed(out);
                self.go_on_collecting(out);
            }
            Frame::Collected => {
                links.channel.collected(peer)?;
                if let Some(collecting) = &mut sessions.collecting {
                    collecting.told(peer);
                }
                self.answer_collectors_if_due();
                self.go_on_collecting(out);
            }
            Frame::Recovered { ends } => {
                links.channel.peer_recovered(peer, &ends)?;
                if let Some(collecting) = &mut sessions.collecting {
                    collecting.recovered(peer);
                }
                self.drop_lost_in_hand(peer, &ends)?;
                if self.depends_on_lost(peer, &ends) {
                    self.go_behind(peer, &ends, out);
                    return Ok(());
                }
                self.say_heard(peer);
                self.go_on_collecting(out);
            }
            Frame::Heard => links.channel.heard(peer)?,
            Frame::Outlived { asks, lives } => self.take_outlived(peer, asks, &lives, out),
            Frame::Passive { reached } => {
                links.channel.check_recovers(peer)?;
                self.take_passive(peer, reached, out);
            }
            Frame::Agreed { asks, lives } => {
                links.channel.rejoined(peer);
                self.line.take_agreed(peer, asks, lives);
            }
            // Its memory is full of what this node has not covered.
            Frame::Pinned { .. } => self.schedule.force(),
            // Heard of before it is taken in.
            Frame::Marker { .. } => {}
            Frame::Refused { code, text } => {
                sessions.refused_by.insert(peer, text.to_owned());
                return Err(HangUp::RefusedByPeer { peer, code, text: text.to_owned() });
            }
        }
        Ok(())
    }

    fn hello(&mut self, peer: NodeId, hello: &Hello, out: &mut Vec<Effect>) -> Result<(), HangUp> {
        let ours = self.config.policy;
        let listed = self.config.cluster.as_ref().and_then(|cluster| cluster.others.get(&peer)).copied();
        let theirs = Policy::from_code([hello.declared.policy, hello.declared.failures_max]);
        if theirs != listed || listed.is_none_or(|theirs| ours.pair(theirs).is_err()) {
            return Err(HangUp::Policies { peer, listed, theirs, ours });
        }
        self.drop_lost_in_hand(peer, &hello.ends)?;
        let Some(links) = &mut self.history.links else { return Ok(()) };
        let greeted = match links.channel.greeted(peer, hello) {
            Err(refusal @ Refusal::Orphaned { .. }) => {
                self.go_behind(peer, &hello.ends, out);
                return Err(refusal.into());
            }
            // Who rolls back together with its like is told what they lost by the protocol; of others it has to be seen here.
            Ok(Greeted { orphan: Some(_), .. }) if !listed.is_some_and(Policy::rolls_back) => {
                self.go_behind(peer, &hello.ends, out);
                return Ok(());
            }
            greeted => greeted?,
        };
        if self.depends_on_lost(peer, &hello.ends) {
            self.go_behind(peer, &hello.ends, out);
            return Ok(());
        }
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else {
            return Ok(());
        };
        sessions.refused_by.remove(&peer);
        // What came in an earlier session and is not delivered comes again in this one.
        self.backlog.retain(|pending| !is_from(&pending.delivery, peer));
        sessions.postponed.retain(|arrived| arrived.from != peer);
        if let Some(collecting) = &mut sessions.collecting {
            collecting.greeted(peer, hello);
        }
        links.logging.connected(peer, greeted.incarnation, &mut sessions.wishes);
        for &(incarnation, last) in &hello.ends {
            links.logging.ended(peer, incarnation, last, &mut sessions.wishes);
        }
        if greeted.collecting {
            match &mut sessions.collecting {
                Some(mine) => _ = mine.to_answer.insert(peer),
                None => self.answer_collector(peer),
            }
        }
        self.answer_collectors_if_due();
        self.perform_wishes(out);
        if hello.rejoins && self.life != Life::Collecting {
            self.say_all_is_told(peer);
        }
        self.say_heard(peer);
        Ok(())
    }

    fn message(
        &mut self,
        peer: NodeId,
        message: &Message<'_>,
        run: &Bytes,
        out: &mut Vec<Effect>,
    ) -> Result<(), HangUp> {
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else {
            return Ok(());
        };
        let ssn = message.ssn;
        match links.channel.arrived(peer, message)? {
            Arrival::Duplicate { covered } => {
                links.logging.carried(peer, message.attached, &mut sessions.wishes)?;
                if !covered {
                    links.logging.duplicate(peer, ssn, &mut sessions.wishes);
                }
                return Ok(());
            }
            Arrival::Next => {}
        }
        let is_this = |logged: &crate::intake::Logged| is_message(&logged.pending.delivery, peer, ssn);
        if matches!(self.life, Life::Stopping { .. }) || self.logged.iter().any(is_this) {
            // Its sender keeps it for the next life; or it is in the journal and waits for its record to be safe.
            links.logging.carried(peer, message.attached, &mut sessions.wishes)?;
            return Ok(());
        }
        let (origin, stamp) = (message.origin, message.stamp);
        let admission = links.logging.arrived(peer, origin, stamp, message.attached, &mut sessions.wishes)?;
        let arrived = Arrived::of(peer, message, run);
        if let Some(collecting) = &mut sessions.collecting {
            collecting.arrived(arrived);
            self.perform_wishes(out);
            self.go_on_collecting(out);
            return Ok(());
        }
        let behind = sessions.postponed.iter().any(|waiting| waiting.from == peer);
        match admission {
            Admission::Deliver if !behind => self.deliver_message(arrived, out),
            Admission::Deliver | Admission::NotYet => sessions.postponed.push_back(arrived),
            Admission::Orphan => self.drop_orphan(arrived),
        }
        self.perform_wishes(out);
        Ok(())
    }

    pub(crate) fn deliver_message(&mut self, arrived: Arrived, out: &mut Vec<Effect>) {
        self.submit(Pending { delivery: arrived.delivery(), token: None }, out);
    }

    /// Its sender rolls back, and its next life greets again; until then nothing behind it is taken.
    fn drop_orphan(&mut self, arrived: Arrived) {
        self.stats.orphans_dropped += 1;
        if let Some(sessions) = &mut self.sessions {
            sessions.postponed.push_back(arrived);
        }
    }

    /// After news of a life that ended, and at the end of a round, when more may have become recoverable: what waited for it is looked
    /// at again.
    pub(crate) fn retry_postponed(&mut self, out: &mut Vec<Effect>) {
        let Some(sessions) = &mut self.sessions else { return };
        let mut blocked: Vec<NodeId> = Vec::new();
        for arrived in std::mem::take(&mut sessions.postponed) {
            let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else {
                return;
            };
            let Arrived { from, origin, ref stamp, .. } = arrived;
            let deliver = !blocked.contains(&from)
                && links
                    .logging
                    .arrived(from, origin, stamp, &[], &mut sessions.wishes)
                    .is_ok_and(|admission| admission == Admission::Deliver);
            if deliver {
                self.deliver_message(arrived, out);
            } else {
                blocked.push(from);
                sessions.postponed.push_back(arrived);
            }
        }
    }

    pub(crate) fn message_may_leave(&mut self, to: NodeId, ssn: Ssn) {
        if let Some(links) = &mut self.history.links {
            links.channel.release(to, ssn);
        }
    }

    /// Takes an empty buffer with room for the next frames to `peer`: such as one that [`Effect::Frames`] gave away.
    pub fn reuse(&mut self, peer: NodeId, buffer: Vec<u8>) {
        debug_assert!(buffer.is_empty(), "nothing is sent twice");
        if let Some(outgoing) = self.sessions.as_mut().and_then(|sessions| sessions.outgoing.get_mut(&peer))
            && outgoing.capacity() == 0
        {
            *outgoing = buffer;
        }
    }

    /// Whatever may leave for other nodes now. Acknowledgements that can wait ride with the next frame, or with the end of a round.
    pub(crate) fn send_frames(&mut self, round_ends: bool, out: &mut Vec<Effect>) {
        let Some((links, sessions)) = self.history.links.as_mut().zip(self.sessions.as_mut()) else { return };
        let attaches = self.config.rules.keep(Rule::DeterminantsTravel);
        let least = if round_ends { Owed::Later } else { Owed::Now };
        for (&peer, outgoing) in &mut sessions.outgoing {
            if links.channel.owed(peer) >= least {
                put_ready(links, outgoing, peer, attaches);
            }
            if !outgoing.is_empty() {
                out.push(Effect::Frames { to: peer, bytes: std::mem::take(outgoing) });
            }
        }
    }
}

fn is_from(delivery: &Delivery, peer: NodeId) -> bool {
    matches!(delivery, Delivery::Message { from, .. } if *from == peer)
}

fn is_message(delivery: &Delivery, peer: NodeId, number: Ssn) -> bool {
    matches!(delivery, Delivery::Message { from, ssn, .. } if *from == peer && *ssn == number)
}
