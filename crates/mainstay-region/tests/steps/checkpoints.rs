//! Checkpoints in the journal: what is found behind one is what was there, whatever was written meanwhile.

use crate::net::{CLIENT, Net, config};
use mainstay_region::effect::{Effect, Event, RecordNumber};
use mainstay_region::limits::{Config, Limits};
use mainstay_region::log::Entry;
use mainstay_region::message::{Acknowledge, Body, Message, Numbered, Party, Reached};
use mainstay_region::operation::Operation;
use mainstay_region::patterns::Pattern;
use mainstay_region::record::RecoverError;
use mainstay_region::region::Region;
use mainstay_types::id::{Sequence, ThreadId};
use mainstay_types::machine::Machine;
use mainstay_types::operation::OperationId;
use mainstay_types::view::ViewId;

/// A copy that is not the stamper, and its journal.
struct Copy {
    net: Net,
    region: Region,
    journal: Vec<Vec<u8>>,
    whole: bool,
    counter: u64,
}

impl Copy {
    fn new(limits: Limits) -> Self {
        let mut net = Net::new(3, Config { limits, ..config() }, Pattern::OneHop);
        let second = net.id(1);
        let region = net.copies.remove(&second).expect("it is there");
        let journal = net.journals.remove(&second).expect("it has the cut");
        Self { net, region, journal, whole: false, counter: 0 }
    }

    fn tell(&mut self, event: Event) {
        let mut out = Vec::new();
        self.region.step(self.net.now, event, &mut out);
        for effect in out {
            match effect {
                Effect::Append { bytes, .. } => self.journal.push(bytes),
                Effect::Checkpointed => self.whole = true,
                _ => {}
            }
        }
    }

    /// All is safe, and some time goes by.
    fn sync(&mut self) {
        self.tell(Event::Appended(RecordNumber(self.journal.len() as u64)));
        self.tell(Event::Tick);
    }

    /// The stamper says an entry: the one before it is stable, and all have the third before it.
    fn write(&mut self, operation: Operation) {
        self.counter += 1;
        let id = OperationId { client: CLIENT, thread: ThreadId(1), sequence: Sequence(self.counter) };
        let (stable, everywhere) = (self.counter - 1, self.counter.saturating_sub(3));
        let entry = Entry::Operation { id, possible_duplicate: false, operation };
        let acknowledge = Acknowledge::Nobody;
        let entries = vec![Numbered { shard: 0, counter: self.counter, entry, acknowledge }];
        let body = Body::Entries { entries, reached: vec![Reached { shard: 0, stable, everywhere }] };
        let message = Message { view: ViewId(1), shard: 0, body };
        self.tell(Event::Received { from: Party::Member(self.net.id(0)), message });
        self.tell(Event::Drained);
    }

    fn found(&self, from: usize, to: usize) -> Result<Region, RecoverError> {
        Region::recover(self.net.config, self.journal[from..to].iter().map(Vec::as_slice))
    }
}

fn small() -> Limits {
    Limits { image_chunk_bytes_max: 1, checkpoint_tick_bytes_max: 1, ..Limits::default() }
}

fn set(key: u8) -> Operation {
    Operation::Put { key: vec![key].into(), value: vec![key; 20].into() }
}

/// Chunks are small, so that writes come between them: new keys, keys that are in the checkpoint already, one that is removed, and a counter,
/// which on half a map would count wrongly.
#[test]
fn a_copy_found_behind_a_checkpoint_is_the_copy_that_was_there() {
    let mut copy = Copy::new(small());
    for key in 1..=8 {
        copy.write(set(key));
        copy.write(Operation::Increment { key: b"n".into(), by: 1 });
    }
    copy.sync();
    copy.tell(Event::Checkpoint);
    let began = copy.journal.len();
    let mut steps = 0;
    while !copy.whole {
        steps += 1;
        copy.write(match steps % 4 {
            0 => Operation::Remove { key: vec![steps].into() },
            1 => Operation::Increment { key: b"n".into(), by: 1 },
            _ => set(steps),
        });
        copy.sync();
        assert!(steps < 200, "it comes to its end");
    }
    assert!(steps > 8, "it was kept in {steps} steps");
    let all = copy.journal.len();
    let found = copy.found(began - 1, all).expect("it begins with a checkpoint");
    // However much is left of what was before, it has no say.
    for from in 0..began {
        let again = copy.found(from, all).expect("it has a whole checkpoint");
        assert_eq!((again.state(0).at, again.state(0).digest), (found.state(0).at, found.state(0).digest));
    }
    // What the next view would begin with is what the copy has that was never found again.
    let mut ends = [copy.region.clone(), found].map(|mut region| {
        let mut out = Vec::new();
        region.step(copy.net.now, Event::Wedge { view: ViewId(1), request: 1 }, &mut out);
        let Some(Effect::Report { bytes, .. }) = out.pop() else { panic!("every request is answered") };
        let me = copy.net.id(1);
        region.step(copy.net.now, Event::Settle { reports: vec![(me, bytes)] }, &mut out);
        let Some(Effect::Cut(cut)) = out.pop() else { panic!("one report is enough") };
        let mut view = copy.net.view.clone();
        view.id = ViewId(2);
        region.step(copy.net.now, Event::Fetch { me, view, cut, sources: Vec::new() }, &mut out);
        assert_eq!(region.standing(), ViewId(2));
        region
    });
    let [never, found] = &mut ends;
    assert_eq!(found.state(0).map, never.state(0).map);
    assert_eq!(found.state(0).digest, never.state(0).digest);
    assert_eq!(found.state(0).duplicates, never.state(0).duplicates);
    // Trimmed before the checkpoint is whole, the copy is lost, and says so.
    assert_eq!(copy.found(began - 1, began + 2).map(|_| ()), Err(RecoverError::Unfinished));
    assert_eq!(copy.found(2, began + 2).map(|_| ()), Err(RecoverError::OutOfPlace { number: 1 }));
}

#[test]
fn a_view_change_ends_a_checkpoint_unfinished_and_nothing_is_trimmed_for_it() {
    let mut copy = Copy::new(small());
    (1..=8).for_each(|key| copy.write(set(key)));
    copy.tell(Event::Checkpoint);
    copy.sync();
    let mut out = Vec::new();
    copy.region.step(copy.net.now, Event::Wedge { view: ViewId(1), request: 1 }, &mut out);
    let Some(Effect::Report { bytes, .. }) = out.pop() else { panic!("every request is answered") };
    let me = copy.net.id(1);
    copy.region.step(copy.net.now, Event::Settle { reports: vec![(me, bytes)] }, &mut out);
    let Some(Effect::Cut(cut)) = out.pop() else { panic!("one report is enough") };
    let mut view = copy.net.view.clone();
    view.id = ViewId(2);
    copy.tell(Event::Fetch { me, view, cut, sources: Vec::new() });
    (0..30).for_each(|_| copy.sync());
    assert!(!copy.whole && !copy.region.is_checkpointing());
    let found = copy.found(0, copy.journal.len()).expect("the journal is whole");
    assert_eq!((found.standing(), found.state(0).digest), (ViewId(2), copy.region.state(0).digest));
}

/// A node that had such a region never made its journal shorter.
#[test]
fn a_copy_without_versions_is_found_again_behind_a_checkpoint_too() {
    let config = Config { unversioned: true, limits: small(), ..config() };
    let mut net = Net::new(3, config, Pattern::Unversioned);
    let me = net.id(1);
    for key in 1..=8 {
        net.call(set(key));
        net.call(Operation::Increment { key: b"n".into(), by: 1 });
        net.run();
    }
    net.step(me, Event::Checkpoint);
    let began = net.journals[&me].len();
    let mut steps: u8 = 0;
    let whole = |net: &Net| net.said.contains(&(me, Effect::Checkpointed));
    while !whole(&net) {
        steps += 1;
        let id = net.call(match steps % 4 {
            0 => Operation::Remove { key: vec![steps].into() },
            1 => Operation::Increment { key: b"n".into(), by: 1 },
            _ => set(steps),
        });
        net.run();
        assert_eq!(net.how(id).len(), 1, "writes go on");
        net.step(me, Event::Tick);
        assert!(steps < 200, "it comes to its end");
    }
    assert!(steps > 8, "it was kept in {steps} steps");
    net.call(set(201));
    net.run();
    let there = net.copies[&me].state(0).clone();
    let journal = &net.journals[&me];
    for from in 0..began {
        let records = journal[from..].iter().map(Vec::as_slice);
        let found = Region::recover(config, records).expect("it has a whole checkpoint");
        let state = found.state(0);
        assert_eq!((&state.map, &state.duplicates, state.at), (&there.map, &there.duplicates, there.at));
    }
    // And it is taken into the next view, as one that was never found again.
    let records = journal[began - 1..].iter().map(Vec::as_slice);
    let found = Region::recover(config, records).expect("it begins with a checkpoint");
    net.copies.insert(me, found);
    let members = [net.id(0), me, net.id(2)];
    let reports = net.wedge(&members);
    let mut next = net.view.clone();
    next.id = ViewId(2);
    net.install(&next, &reports, None);
    assert_eq!((net.copies[&me].standing(), &net.copies[&me].state(0).map), (ViewId(2), &there.map));
    net.tell_view();
    let id = net.call(set(202));
    net.run();
    assert_eq!(net.how(id).len(), 1);
}
