//! What a cut has left, brought up again: the real opening and recovery of every node, their talk until nothing is left to say, and
//! the same requests once more.

use super::RecordedNode;
use crate::disk::Disk;
use crate::ring::{Left, Ring};
use mainstay_journal::catalog::Catalog;
use mainstay_journal::effect::{DiskEffect, DiskEvent};
use mainstay_journal::format::{RING_FILE, SUPERBLOCK_FILE};
use mainstay_journal::geometry::{BLOCK_BYTES, Geometry};
use mainstay_journal::journal::Journal;
use mainstay_journal::memory::{PageMemory, ring_bytes};
use mainstay_journal::open::open;
use mainstay_journal::options::OpenOptions;
use mainstay_journal::storage::Storage;
use mainstay_process::acknowledgement::{Acknowledgement, Named};
use mainstay_process::config::Config;
use mainstay_process::effect::{Effect, Reply};
use mainstay_process::event::{Event, PeerEvent, ReplyToken, Request};
use mainstay_process::handler::Handler;
use mainstay_process::loss::RollBack;
use mainstay_process::process::Process;
use mainstay_process::recover::Start;
use mainstay_types::id::{NodeId, StoreId};
use mainstay_types::level::Level;
use mainstay_types::time::Time;
use std::collections::{BTreeMap, VecDeque};

/// Frames after which nodes that still talk never come to rest.
const FRAMES_MAX: u64 = 1_000_000;

/// For a journal that a cut came before: the smallest that takes the requests.
const GEOMETRY: Geometry = Geometry { page_bytes: 64 << 10, pages: 2, segment_pages: 4 };

/// One node that runs again.
struct Up<H> {
    config: Config,
    process: Process<H, Ring>,
    image: Disk,
    catalog: Catalog,
    left: Left,
    now: Time,
    replies: BTreeMap<ReplyToken, Reply>,
}

/// All nodes, with a connection between each two.
pub(super) struct Standing<'a, H> {
    ups: Vec<Up<H>>,
    on_the_way: VecDeque<(usize, usize, Vec<u8>)>,
    fresh: &'a dyn Fn(usize) -> H,
    asked: u64,
}

/// Whether a cut came before there was a journal.
pub(super) fn is_new(image: &Disk) -> bool {
    image.content(SUPERBLOCK_FILE).is_none()
}

impl<'a, H: Handler> Standing<'a, H> {
    /// Opens every image and replays what it holds.
    ///
    /// # Errors
    /// What was refused, in words.
    pub(super) fn recover(
        nodes: &[RecordedNode],
        images: Vec<Disk>,
        fresh: &'a dyn Fn(usize) -> H,
    ) -> Result<Self, String> {
        let mut standing = Self { ups: Vec::new(), on_the_way: VecDeque::new(), fresh, asked: 0 };
        let mut first = Vec::new();
        for (at, (node, image)) in nodes.iter().zip(images).enumerate() {
            let (up, effects) = up(at, node.config.clone(), image, fresh(at), None)?;
            standing.ups.push(up);
            first.push(effects);
        }
        for (at, effects) in first.into_iter().enumerate() {
            standing.perform(at, effects)?;
        }
        Ok(standing)
    }

    /// Connects each two nodes and lets them talk until they are at rest.
    ///
    /// # Errors
    /// What went wrong, in words.
    pub(super) fn talk(&mut self) -> Result<(), String> {
        for at in 0..self.ups.len() {
            for other in 0..at {
                self.connect(at, other)?;
            }
        }
        self.settle()
    }

    /// Asks one node for an answer that it gave before the cut.
    ///
    /// # Errors
    /// What it says instead, in words.
    pub(super) fn ask_again(&mut self, at: usize, acknowledged: &Acknowledgement) -> Result<(), String> {
        let token = ReplyToken(self.asked);
        self.asked += 1;
        let (identity, body) = (acknowledged.identity(), acknowledged.request.clone().into_bytes());
        self.step(at, Event::Request(Request { token, identity, body }))?;
        self.settle()?;
        match self.ups[at].replies.remove(&token) {
            Some(reply) => judge(acknowledged, &reply),
            None => Err(format!("there is no answer to {acknowledged:?}")),
        }
    }

    fn step(&mut self, at: usize, event: Event) -> Result<(), String> {
        let mut effects = Vec::new();
        let up = &mut self.ups[at];
        up.process.step(up.now, event, &mut effects);
        self.perform(at, effects)
    }

    fn perform(&mut self, at: usize, mut effects: Vec<Effect>) -> Result<(), String> {
        while !effects.is_empty() {
            let mut completed = Vec::new();
            for effect in effects.drain(..) {
                let up = &mut self.ups[at];
                match effect {
                    Effect::Disk(effect) => completed.push(Event::Disk(up.perform(&effect)?)),
                    Effect::Reply { token, reply } => drop(up.replies.insert(token, reply)),
                    Effect::Frames { to, bytes } => {
                        let to = self.place_of(to)?;
                        self.on_the_way.push_back((at, to, bytes));
                    }
                    Effect::RollBack(rolled_back) => return self.roll_back(at, rolled_back),
                    Effect::HangUp { peer, why } => {
                        return Err(format!("{} hangs up on {peer}: {why}", self.name(at)));
                    }
                    Effect::Lost(loss) => return Err(format!("{} states a loss: {loss}", self.name(at))),
                    Effect::Abandon(abandoned) => return Err(format!("the handler panics: {abandoned:?}")),
                    // A checkpoint never comes to an end, nor does what frees memory, and the outside takes nothing.
                    Effect::Output(_)
                    | Effect::Withdraw { .. }
                    | Effect::Spill(_)
                    | Effect::SaveCheckpoint { .. }
                    | Effect::PublishCheckpoint { .. }
                    | Effect::Wake(_)
                    | Effect::Keep { .. }
                    | Effect::Confirm { .. }
                    | Effect::SaveSnapshot { .. }
                    | Effect::PublishSnapshot { .. }
                    | Effect::DiscardSnapshot { .. }
                    | Effect::Stopped => {}
                }
            }
            let up = &mut self.ups[at];
            for event in completed {
                up.process.step(up.now, event, &mut effects);
            }
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..FRAMES_MAX {
            if self.on_the_way.is_empty() {
                for at in 0..self.ups.len() {
                    self.step(at, Event::Drained)?;
                }
            }
            let Some((from, to, bytes)) = self.on_the_way.pop_front() else { return Ok(()) };
            let peer = self.node(from);
            self.step(to, Event::Peer(PeerEvent::Frames { peer, bytes }))?;
        }
        Err("the nodes never come to rest".to_owned())
    }

    /// It depends on what another node lost: begins anew where it does not.
    fn roll_back(&mut self, at: usize, rolled_back: RollBack) -> Result<(), String> {
        let peer = self.node(at);
        self.on_the_way.retain(|(from, to, _)| *from != at && *to != at);
        let Up { config, process, mut image, left, .. } = self.ups.remove(at);
        drop(process);
        if let Some(ring) = left.take() {
            image.replace(RING_FILE, ring);
        }
        let (up, effects) = up(at, config, image, (self.fresh)(at), Some(rolled_back))?;
        self.ups.insert(at, up);
        self.perform(at, effects)?;
        for other in (0..self.ups.len()).filter(|other| *other != at) {
            self.step(other, Event::Peer(PeerEvent::Disconnected { peer }))?;
            self.connect(at, other)?;
        }
        Ok(())
    }

    fn connect(&mut self, one: usize, other: usize) -> Result<(), String> {
        for (at, peer) in [(one, other), (other, one)] {
            let peer = self.node(peer);
            self.step(at, Event::Peer(PeerEvent::Connected { peer }))?;
        }
        Ok(())
    }

    fn node(&self, at: usize) -> NodeId {
        self.ups[at].config.cluster.as_ref().map_or(NodeId(0), |cluster| cluster.me)
    }

    fn name(&self, at: usize) -> String {
        self.node(at).to_string()
    }

    fn place_of(&self, node: NodeId) -> Result<usize, String> {
        (0..self.ups.len())
            .find(|at| self.node(*at) == node)
            .ok_or_else(|| format!("{node} is spoken to, and there is no recording of it"))
    }
}

impl<H: Handler> Up<H> {
    fn perform(&mut self, effect: &DiskEffect) -> Result<DiskEvent, String> {
        Ok(match *effect {
            DiskEffect::Write { ticket, slot, from, to, place, .. } => {
                let file =
                    self.catalog.file_of(place.segment).ok_or("a write to a segment that is not there")?;
                let bytes = &self.process.journal().memory().page(slot)[from as usize..to as usize];
                // No second cut follows.
                self.image.write_durable(&file, place.offset, bytes);
                DiskEvent::Done { ticket }
            }
            DiskEffect::Sync { ticket, .. } => DiskEvent::Done { ticket },
            DiskEffect::Prepare { segment } => {
                self.catalog.prepare(&mut self.image, segment).map_err(|error| error.to_string())?;
                DiskEvent::Prepared { segment }
            }
            DiskEffect::Trim { first } => {
                self.catalog.trim(&mut self.image, first).map_err(|error| error.to_string())?;
                DiskEvent::Trimmed { first }
            }
        })
    }
}

/// Opens and recovers one image.
fn up<H: Handler>(
    at: usize,
    config: Config,
    mut image: Disk,
    handler: H,
    roll_back: Option<RollBack>,
) -> Result<(Up<H>, Vec<Effect>), String> {
    let store = u8::try_from(at + 1).expect("a cluster is small");
    let options = OpenOptions {
        create: is_new(&image),
        new_store: StoreId([store; 16]),
        geometry: GEOMETRY,
        half_bytes_min: BLOCK_BYTES,
        ..OpenOptions::default()
    };
    let opened = open(&mut image, &options).map_err(|error| format!("the journal is refused: {error}"))?;
    let geometry = opened.report.geometry;
    let bytes = ring_bytes(geometry.page_bytes, geometry.pages);
    if image.content(RING_FILE).is_none_or(|ring| ring.len() != bytes) {
        let _ = image.remove(RING_FILE);
        image.create(RING_FILE, bytes as u64).map_err(|error| error.to_string())?;
    }
    let left = Left::default();
    let ring = image.content(RING_FILE).expect("it was just made");
    let ring = Ring::new(ring, geometry.page_bytes, geometry.pages, &left);
    let start = Start {
        // Nothing is to be waited for: no second cut follows.
        config: Config { level: Level::Memory, ..config.clone() },
        handler,
        journal: Journal::start(opened.resume, ring),
        report: &opened.report,
        storage: &mut image,
        catalog: &opened.catalog,
        // A retry long after: keys that expired meanwhile are new, so the clock stands still.
        now: Time::EPOCH,
        roll_back,
        progress: None,
    };
    let mut effects = Vec::new();
    let (process, recovery) = Process::recover(start, &mut effects)
        .map_err(|error| format!("recovery is refused: {error} ({error:?})"))?;
    let (catalog, now, replies) = (opened.catalog, recovery.time, BTreeMap::new());
    Ok((Up { config, process, image, catalog, left, now, replies }, effects))
}

/// A repetition gets the first answer; an older one of a numbering client may be told that its answer is gone, an expired key is new.
fn judge(acknowledged: &Acknowledgement, reply: &Reply) -> Result<(), String> {
    match reply {
        Reply::Answer { answer, replayed: true, .. }
            if answer.status == acknowledged.status
                && String::from_utf8_lossy(&answer.body) == acknowledged.answer =>
        {
            Ok(())
        }
        Reply::Evicted if matches!(acknowledged.identity, Some(Named::Client { .. })) => Ok(()),
        reply => Err(format!("{acknowledged:?} is answered {reply:?} after the cut")),
    }
}
