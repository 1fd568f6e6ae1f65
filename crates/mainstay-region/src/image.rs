//! How a member that joins is filled by one that is there, while writes go on.
//!
//! The member that is there sends its *stable* state in chunks, and between them every version that becomes stable meanwhile, as what it changed
//! and not as what was asked (a counter on half a map would count wrongly). All of it goes over one channel in order, so that a chunk has
//! every change sent before it, and no change is applied to what is newer. Data and duplicate table are one image: a table that came
//! apart from its data let a retry see its own first attempt, or lose its version (GEODE-6195, 6108, 9913). When its own state is the one a view
//! begins with, it says so; the joining member then has exactly that, and may be a member (JGroups' SEQUENCER2 lets a joiner wait for ever for numbers that
//! were given before it came; here it begins with the view's first). Nothing else in the region waits for a joining member.

use crate::blob::Blob;
use crate::duplicates::Duplicates;
use crate::effect::{Effect, RecordNumber};
use crate::limits::Config;
use crate::message::{Body, ImagePart, Party, ThreadRows};
use crate::record::Record;
use crate::region::{Phase, Region};
use crate::shard::Shard;
use crate::state::{Applied, Forgotten, Stored};
use mainstay_types::id::{ClientId, ThreadId};
use mainstay_types::operation::Version;
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;
use mainstay_types::view::{MemberId, ViewId};
use std::collections::VecDeque;
use std::ops::Bound;

/// One member that is filled: how far.
#[derive(Clone, Debug)]
pub(crate) struct Filling {
    image: u64,
    number: u64,
    next: Next,
    /// When it was asked for a part last.
    asked: Time,
}

/// What of a copy's state comes next.
#[derive(Clone, Debug)]
pub(crate) enum Next {
    Values { shard: u16, after: Option<Blob> },
    Duplicates { shard: u16, after: Option<(ClientId, ThreadId)> },
    Nothing,
}

/// What a member that is filled knows of it.
#[derive(Clone, Debug)]
pub(crate) struct Learning {
    me: MemberId,
    from: MemberId,
    /// Who else could do it.
    others: Vec<MemberId>,
    image: u64,
    /// Place of the next part.
    next: u64,
    since: Time,
    complete: bool,
    /// The view that begins with what this copy has.
    standing: Option<ViewId>,
    /// Records of parts that are not safe yet.
    unsafe_parts: VecDeque<RecordNumber>,
    /// A part has come, and the next was not asked for yet.
    owes_next: bool,
}

impl Learning {
    /// Nothing has come.
    fn new(me: MemberId, from: MemberId, others: Vec<MemberId>, image: u64, since: Time) -> Self {
        Self {
            me,
            from,
            others,
            image,
            next: 0,
            since,
            complete: false,
            standing: None,
            unsafe_parts: VecDeque::new(),
            owes_next: false,
        }
    }
}

impl Region {
    /// Asks to be filled.
    pub(crate) fn learn(&mut self, now: Time, me: MemberId, sources: Vec<MemberId>, out: &mut Vec<Effect>) {
        let mut sources = sources.into_iter();
        let Some(from) = sources.next() else { return };
        assert!(self.undrained.is_handed_on(), "what was accepted is recorded before it is given up");
        // Whoever this copy fills gets no more of it: what it has is about to be given up. They ask elsewhere.
        self.fillings.clear();
        self.checkpointing = None;
        let image = self.learning.as_ref().map_or(0, |learning| learning.image) + 1;
        let others = sources.collect();
        self.learning = Some(Learning::new(me, from, others, image, now));
        self.phase = Phase::Learning;
        self.send(0, Party::Member(from), Body::ImageRequest { image }, out);
    }

    /// Is filled before a view takes it in.
    pub(crate) fn learn_ahead(
        &mut self,
        now: Time,
        me: MemberId,
        sources: Vec<MemberId>,
        out: &mut Vec<Effect>,
    ) {
        let goes_on = |learning: &Learning| learning.me == me && sources.contains(&learning.from);
        match &mut self.learning {
            Some(learning) if self.phase == Phase::Learning && goes_on(learning) => {
                learning.others = sources.into_iter().filter(|source| *source != learning.from).collect();
                if learning.complete {
                    out.push(Effect::Learned);
                }
            }
            _ => self.learn(now, me, sources, out),
        }
    }

    /// A view is to begin with this copy, which is behind: it goes on being filled, or begins to be.
    pub(crate) fn await_image(
        &mut self,
        now: Time,
        me: MemberId,
        sources: Vec<MemberId>,
        out: &mut Vec<Effect>,
    ) {
        match &mut self.learning {
            Some(learning) if self.phase == Phase::Learning && learning.image > 0 => {
                (learning.me, learning.others) = (me, sources);
                // The one that fills it says now that it stands where the view begins.
                learning.since = now;
                self.become_full(out);
            }
            _ => self.learn(now, me, sources, out),
        }
    }

    /// An image that does not go on is begun anew, elsewhere if that can be.
    pub(crate) fn tick_image(&mut self, now: Time, out: &mut Vec<Effect>) {
        let Some(learning) = &mut self.learning else { return };
        if learning.owes_next {
            // It waits for this copy's own disk.
            learning.since = now;
        }
        let waits = !learning.complete || self.awaited.is_some();
        // What was found in the journal goes on when this life is told to learn.
        if self.phase == Phase::Learning
            && learning.image > 0
            && waits
            && now.since(learning.since) >= self.config.times.image_patience
        {
            self.learn_anew(now, out);
        }
    }

    fn learn_anew(&mut self, now: Time, out: &mut Vec<Effect>) {
        let Some(learning) = &self.learning else { return };
        let (me, mut sources) = (learning.me, learning.others.clone());
        sources.push(learning.from);
        self.learn(now, me, sources, out);
    }

    pub(crate) fn received_image(
        &mut self,
        now: Time,
        member: MemberId,
        shard: u16,
        body: Body,
        out: &mut Vec<Effect>,
    ) {
        match body {
            Body::ImageRequest { image } => self.begin_filling(now, member, image, out),
            Body::ImageNext { image } if self.fills(member, image) => self.fill_next(now, member, out),
            Body::ImageTaken { image } if self.fills(member, image) => self.stop_filling(member),
            Body::Image { image, number, part } => {
                self.take_part(now, member, shard, (image, number, part), out);
            }
            _ => {}
        }
    }

    fn fills(&self, member: MemberId, image: u64) -> bool {
        self.fillings.get(&member).is_some_and(|filling| filling.image == image)
    }

    fn begin_filling(&mut self, now: Time, member: MemberId, image: u64, out: &mut Vec<Effect>) {
        if self.phase == Phase::Learning || self.standing == ViewId::NONE {
            return;
        }
        if self.fillings.len() >= self.config.limits.learners_max && !self.fillings.contains_key(&member) {
            // One that is gone would take a place for ever. One that still asks keeps it: else three that are to be filled displace each other
            // and none is ever full. But a member comes before those that are to be let in: its view waits for it, and they would take turns.
            let first = self.copies.has(member);
            let may_go = |(filled, filling): &(&MemberId, &Filling)| {
                let idle = now.since(filling.asked) >= self.config.times.image_patience;
                idle || (first && !self.copies.has(**filled))
            };
            let longest = self.fillings.iter().filter(may_go).min_by_key(|(_, filling)| filling.asked);
            let Some((&displaced, _)) = longest else { return };
            self.fillings.remove(&displaced);
        }
        let next = Next::Values { shard: 0, after: None };
        self.fillings.insert(member, Filling { image, number: 0, next, asked: now });
        let part = ImagePart::Began { standing: self.standing, at: self.stands_at() };
        self.send_part(member, 0, part, out);
    }

    /// Of each shard: the version that its state stands at, and the highest client that its table has forgotten.
    pub(crate) fn stands_at(&self) -> Vec<(Version, ClientId)> {
        let stands = |shard: &Shard| (shard.state.at, shard.state.duplicates.evicted());
        self.shards.iter().map(stands).collect()
    }

    /// Sends a member no more of an image: it is gone, or has all. One that still needs it asks again.
    pub fn stop_filling(&mut self, member: MemberId) {
        self.fillings.remove(&member);
    }

    fn send_part(&mut self, member: MemberId, shard: u16, part: ImagePart, out: &mut Vec<Effect>) {
        let Some(filling) = self.fillings.get_mut(&member) else { return };
        let body = Body::Image { image: filling.image, number: filling.number, part };
        filling.number += 1;
        self.send(shard, Party::Member(member), body, out);
    }

    fn fill_next(&mut self, now: Time, member: MemberId, out: &mut Vec<Effect>) {
        let Some(filling) = self.fillings.get(&member) else { return };
        let Some((shard, part, next)) = self.next_part(&filling.next) else { return };
        let filling = self.fillings.get_mut(&member).expect("it was there");
        (filling.next, filling.asked) = (next, now);
        self.send_part(member, shard, part, out);
    }

    /// The next part of an image, and what comes behind it.
    pub(crate) fn next_part(&self, next: &Next) -> Option<(u16, ImagePart, Next)> {
        let bytes_max = self.config.limits.image_chunk_bytes_max;
        match next {
            Next::Nothing => None,
            Next::Values { shard, after } => {
                let (shard, chunk) = (*shard, self.values(*shard, after.clone(), bytes_max));
                let Some((last, _)) = chunk.last() else {
                    let (part, next) = self.rows(shard, None, bytes_max);
                    return Some((shard, part, next));
                };
                let next = Next::Values { shard, after: Some(last.clone()) };
                Some((shard, ImagePart::Values(chunk), next))
            }
            Next::Duplicates { shard, after } => {
                let (part, next) = self.rows(*shard, *after, bytes_max);
                Some((*shard, part, next))
            }
        }
    }

    fn values(&self, shard: u16, after: Option<Blob>, bytes_max: usize) -> Vec<(Blob, Stored)> {
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut bytes = 0;
        let mut chunk = Vec::new();
        for (key, stored) in self.shard(shard).state.map.range::<[u8], _>((from, Bound::Unbounded)) {
            chunk.push((key.clone(), Stored::clone(stored)));
            bytes += key.len() + stored.value.len();
            if bytes > bytes_max {
                break;
            }
        }
        chunk
    }

    /// The next rows of a shard's table; the end of the table leads to the next shard, and the last shard to the end.
    fn rows(&self, shard: u16, after: Option<(ClientId, ThreadId)>, bytes_max: usize) -> (ImagePart, Next) {
        let table: &Duplicates = &self.shard(shard).state.duplicates;
        let rows = table.chunk(after, bytes_max);
        if after.is_some() && rows.is_empty() {
            return if shard + 1 < self.config.shards {
                let rows = ThreadRows { rows };
                (ImagePart::Duplicates(rows), Next::Values { shard: shard + 1, after: None })
            } else {
                (ImagePart::Complete, Next::Nothing)
            };
        }
        // An empty table is sent too: it is what is asked to go on behind.
        let after = rows.last().map_or((ClientId(0), ThreadId(0)), |&(key, _)| key);
        (ImagePart::Duplicates(ThreadRows { rows }), Next::Duplicates { shard, after: Some(after) })
    }

    /// A version became stable: those that are filled get it too.
    pub(crate) fn fill_change(
        &mut self,
        shard: u16,
        applied: &Applied,
        forgotten: &Forgotten,
        out: &mut Vec<Effect>,
    ) {
        for member in self.fillings.keys().copied().collect::<Vec<_>>() {
            let part = ImagePart::Change { applied: applied.clone(), forgotten: forgotten.clone() };
            self.send_part(member, shard, part, out);
        }
    }

    /// This copy's state is the one that a view begins with, and with it that of all that it fills.
    pub(crate) fn filled_standing(&mut self, view: ViewId, out: &mut Vec<Effect>) {
        for member in self.fillings.keys().copied().collect::<Vec<_>>() {
            self.send_part(member, 0, ImagePart::Standing(view), out);
        }
    }

    fn take_part(
        &mut self,
        now: Time,
        member: MemberId,
        shard: u16,
        (image, number, part): (u64, u64, ImagePart),
        out: &mut Vec<Effect>,
    ) {
        let Some(learning) = &mut self.learning else { return };
        if learning.image != image || learning.from != member || self.phase != Phase::Learning {
            return;
        }
        if learning.next != number {
            return self.learn_anew(now, out);
        }
        learning.next += 1;
        learning.since = now;
        let asks = matches!(part, ImagePart::Began { .. } | ImagePart::Values(_) | ImagePart::Duplicates(_));
        let complete = matches!(part, ImagePart::Complete);
        let record = Record::Image { shard, part: part.clone() };
        if self.take_image_part(shard, part).is_none() {
            return self.learn_anew(now, out);
        }
        self.append(&record, out);
        if asks && let Some(learning) = &mut self.learning {
            learning.unsafe_parts.push_back(self.record);
            learning.owes_next = true;
            self.ask_for_next_part(out);
        }
        if complete {
            out.push(Effect::Learned);
        }
        self.become_full(out);
    }

    /// Asks for the next part once few enough of those that came are not safe: its own disk sets the pace of what it asks for, and not the network,
    /// so that what waits for a slow disk in memory is bounded. Changes that become stable meanwhile come unasked.
    pub(crate) fn ask_for_next_part(&mut self, out: &mut Vec<Effect>) {
        let (safe, parts_max) = (self.safe, self.config.limits.image_unsafe_parts_max);
        let Some(learning) = &mut self.learning else { return };
        while learning.unsafe_parts.pop_front_if(|record| *record <= safe).is_some() {}
        if learning.owes_next && learning.unsafe_parts.len() <= parts_max {
            learning.owes_next = false;
            let (from, image) = (learning.from, learning.image);
            self.send(0, Party::Member(from), Body::ImageNext { image }, out);
        }
    }

    /// With an image that a view begins with, and that view awaited, this copy is a full one.
    fn become_full(&mut self, out: &mut Vec<Effect>) {
        let Some(Learning { complete: true, standing: Some(standing), .. }) = self.learning else { return };
        if self.awaited_view() == Some(standing) {
            if let Some(Learning { from, image, .. }) = self.learning.take() {
                self.send(0, Party::Member(from), Body::ImageTaken { image }, out);
            }
            self.phase = Phase::Wedged;
            self.standing = standing;
            self.append(&Record::Filled { view: standing }, out);
            for shard in 0..self.config.shards {
                let copy = self.shard_mut(shard);
                copy.begin_filled(standing);
                let counter = copy.stable;
                self.wait_for_durable(shard, counter);
            }
            self.ready(out);
        }
    }

    fn take_image_part(&mut self, shard: u16, part: ImagePart) -> Option<()> {
        if matches!(part, ImagePart::Began { .. }) {
            self.forget_undurable();
        }
        if let Some(learning) = &mut self.learning {
            match &part {
                ImagePart::Began { standing: view, .. } | ImagePart::Standing(view) => {
                    learning.standing = Some(*view);
                }
                ImagePart::Complete => learning.complete = true,
                _ => {}
            }
        }
        fill_shards(&self.config, &mut self.shards, shard, part)
    }

    pub(crate) fn redo_image(&mut self, shard: u16, part: ImagePart) -> Option<()> {
        if let ImagePart::Began { .. } = part {
            self.phase = Phase::Learning;
            // Only what the journal says counts from here: nobody is asked.
            let nobody = MemberId {
                address: mainstay_types::view::Address { ip: [0; 16], port: 0 },
                born: ViewId::NONE,
            };
            self.learning = Some(Learning::new(nobody, nobody, Vec::new(), 0, Time::EPOCH));
        }
        self.take_image_part(shard, part)
    }

    pub(crate) fn redo_filled(&mut self, view: ViewId) -> Option<()> {
        let learning = self.learning.take()?;
        self.phase = Phase::Wedged;
        self.standing = view;
        self.shards.iter_mut().for_each(|shard| shard.begin_filled(view));
        (learning.standing == Some(view)).then_some(())
    }
}

/// Takes a part of an image into the shards of a copy that is being filled, or found again. `None` if it does not fit behind those before it.
pub(crate) fn fill_shards(
    config: &Config,
    shards: &mut Vec<Shard>,
    shard: u16,
    part: ImagePart,
) -> Option<()> {
    match part {
        ImagePart::Began { at, .. } => {
            if at.len() != shards.len() {
                return None;
            }
            *shards = vec![Shard::default(); at.len()];
            for (shard, (at, evicted)) in shards.iter_mut().zip(at) {
                shard.state.duplicates = Duplicates::behind(evicted);
                shard.state.at = at;
                shard.state.history_behind = at;
            }
        }
        ImagePart::Values(values) => {
            let state = &mut shards.get_mut(usize::from(shard))?.state;
            values.into_iter().for_each(|(key, stored)| state.fill(&key, stored));
        }
        ImagePart::Duplicates(ThreadRows { rows }) => {
            if config.rules.keep(Rule::TableMovesWithData) {
                shards.get_mut(usize::from(shard))?.state.duplicates.fill(rows);
            }
        }
        ImagePart::Complete => {}
        ImagePart::Change { applied, forgotten } => {
            let state = &mut shards.get_mut(usize::from(shard))?.state;
            if applied.version <= state.at {
                return None;
            }
            state.apply_as_told(applied, &config.limits);
            forgotten.into_iter().for_each(|thread| state.duplicates.forget(thread));
        }
        ImagePart::Standing(view) => shards.iter_mut().for_each(|shard| shard.begin(view)),
    }
    Some(())
}
