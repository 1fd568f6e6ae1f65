//! Copies that are filled while views come and go.

use crate::net::{Net, majority, member, view};
use mainstay_region::effect::{Effect, Event};
use mainstay_region::message::{Body, ImagePart, Message, Party};
use mainstay_region::operation::Operation;
use mainstay_region::patterns::Pattern;
use mainstay_region::region::{Phase, Region};
use mainstay_types::machine::Machine;
use mainstay_types::operation::Version;
use mainstay_types::view::{MemberId, ViewId};

fn increment() -> Operation {
    Operation::Increment { key: b"n".into(), by: 1 }
}

/// Two copies serve view 2; the third is a member of it, and has not been told so yet.
fn with_an_empty_member() -> (Net, MemberId) {
    let mut net = Net::new(2, majority(), Pattern::OneHop);
    net.call(increment());
    net.run();
    let reports = net.wedge(&[net.id(0), net.id(1)]);
    let grown = view(2, vec![member(1, 1), member(2, 1), member(3, 2)]);
    let third = member(3, 2).id();
    net.install(&grown, &reports, None);
    net.tell_view();
    for _ in 0..3 {
        net.call(increment());
    }
    net.run();
    assert_eq!(net.ended.len(), 4, "two of three are enough");
    net.copies.insert(third, Region::new(net.config));
    (net, third)
}

fn fetch(net: &mut Net, me: MemberId) {
    let (view, cut) = (net.view.clone(), net.cut());
    let sources = vec![net.id(1), net.id(0)];
    net.step(me, Event::Fetch { me, view, cut, sources });
}

fn value(region: &Region) -> Vec<u8> {
    region.state(0).value(b"n").expect("it is there").value.to_vec()
}

/// It took the entries of the view a second time, and an assertion ended it.
#[test]
fn a_copy_filled_by_one_that_serves_the_view_goes_on_behind_what_it_was_given() {
    let (mut net, third) = with_an_empty_member();
    fetch(&mut net, third);
    net.run();
    net.step(third, Event::Installed { view: ViewId(2) });
    assert_eq!(net.copies[&third].phase(), Phase::Serving);
    net.call(increment());
    net.pass(200);
    assert_eq!(value(&net.copies[&third]), b"5");
    let journal: Vec<Vec<u8>> = net.journals[&third].clone();
    let again = Region::recover(net.config, journal.iter().map(Vec::as_slice)).expect("it is whole");
    assert_eq!((again.phase(), again.standing()), (Phase::Wedged, ViewId(2)));
    let last = again.log(0).last().map_or(again.state(0).at.counter, |(counter, _)| counter);
    assert_eq!(last, 4);
}

/// It gave no answer, and the group waited for one.
#[test]
fn a_copy_that_is_being_filled_reports_that_it_has_nothing_and_takes_nothing_in_afterwards() {
    let (mut net, third) = with_an_empty_member();
    fetch(&mut net, third);
    net.step(third, Event::Installed { view: ViewId(2) });
    let nothing = net.wedge(&[third]);
    let with_others = net.wedge(&[net.id(1), third]);
    let cut_of = |net: &mut Net, reports: Vec<(MemberId, Vec<u8>)>| {
        net.said.clear();
        net.step(third, Event::Settle { reports });
        net.said.pop().expect("settling has an answer").1
    };
    assert_eq!(cut_of(&mut net, nothing), Effect::Unsettled { member: third });
    let alone = with_others[..1].to_vec();
    assert_eq!(cut_of(&mut net, with_others), cut_of(&mut net, alone));
    net.said.clear();
    net.run();
    assert!(net.said.iter().any(|(_, said)| matches!(said, Effect::Ready { view: ViewId(2), .. })));
    assert_eq!(net.copies[&third].phase(), Phase::Wedged, "the cut would lack what it accepted now");
}

/// It went on out of its own half-filled map.
#[test]
fn a_copy_that_falls_behind_fills_nobody_any_more() {
    let (mut net, third) = with_an_empty_member();
    let (second, first) = (net.id(1), net.id(0));
    fetch(&mut net, third);
    net.run_only(|under_way| under_way.to == Party::Member(second));
    net.step(second, Event::Learn { me: second, sources: vec![first] });
    net.queue.clear();
    let message = Message { view: ViewId(2), shard: 0, body: Body::ImageNext { image: 1 } };
    net.step(second, Event::Received { from: Party::Member(third), message });
    assert!(net.queue.is_empty());
}

/// Something is said to a copy.
fn asks(net: &mut Net, of: MemberId, learner: MemberId, body: Body) {
    let message = Message { view: ViewId(2), shard: 0, body };
    net.step(of, Event::Received { from: Party::Member(learner), message });
}

/// Whose image begins, of what is on its way.
fn began(net: &Net) -> Vec<Party> {
    let began = net.queue.iter().filter(|under_way| {
        matches!(under_way.message.body, Body::Image { part: ImagePart::Began { .. }, .. })
    });
    began.map(|under_way| under_way.to).collect()
}

/// Each displaced another, and none was ever full.
#[test]
fn who_is_being_filled_keeps_its_place_while_it_asks() {
    let (mut net, _) = with_an_empty_member();
    let first = net.id(0);
    let learners: Vec<MemberId> = (4..=6).map(|number| member(number, 3).id()).collect();
    for &learner in &learners {
        asks(&mut net, first, learner, Body::ImageRequest { image: 1 });
    }
    assert_eq!(began(&net), [Party::Member(learners[0]), Party::Member(learners[1])]);
    net.now = net.now.after(net.config.times.image_patience);
    asks(&mut net, first, learners[1], Body::ImageNext { image: 1 });
    net.queue.clear();
    asks(&mut net, first, learners[2], Body::ImageRequest { image: 2 });
    assert_eq!(began(&net), [Party::Member(learners[2])], "the first does not ask any more");
}

/// Two that were to be let in took turns at being filled, as each change of the view began anew, and the view waited for its own member for ever.
#[test]
fn a_member_is_filled_before_those_that_are_to_be_let_in() {
    let (mut net, third) = with_an_empty_member();
    let (first, outside) = (net.id(0), [4, 5].map(|number| member(number, 3).id()));
    for learner in [outside[0], outside[1], third, outside[0]] {
        asks(&mut net, first, learner, Body::ImageRequest { image: 1 });
    }
    assert_eq!(began(&net), [outside[0], outside[1], third].map(Party::Member));
    net.queue.clear();
    net.now = net.now.after(net.config.times.image_patience / 2);
    asks(&mut net, first, third, Body::ImageNext { image: 1 });
    assert!(!net.queue.is_empty(), "nobody from outside has its place");
}

/// It asked for an image, in vain where no other copy stood there.
#[test]
fn a_cut_that_is_handed_on_is_what_the_copy_has_already() {
    let mut net = Net::new(3, majority(), Pattern::OneHop);
    net.call(increment());
    net.run();
    let reports = net.wedge(&[net.id(0), net.id(1)]);
    let smaller = view(2, vec![member(1, 1), member(2, 1)]);
    net.install(&smaller, &reports, None);
    let (first, cut) = (net.id(0), net.cut());
    net.call(increment());
    net.queue.clear();
    let again = view(3, smaller.members.clone());
    net.step(first, Event::Fetch { me: first, view: again, cut, sources: vec![net.id(1)] });
    assert_eq!((net.copies[&first].phase(), net.copies[&first].standing()), (Phase::Wedged, ViewId(3)));
    assert_eq!(value(&net.copies[&first]), b"1");
    let journal: Vec<Vec<u8>> = net.journals[&first].clone();
    let found = Region::recover(net.config, journal.iter().map(Vec::as_slice)).expect("it is whole");
    assert_eq!((found.standing(), found.log(0).count()), (ViewId(3), 0));
}

/// The cut that founds a region is handed on, where the first view did nothing, to a copy that is new: that stood at no version, and what it showed to readers
/// of any copy was older than it said.
#[test]
fn a_founding_cut_that_is_handed_on_is_one_version_at_old_copies_and_new() {
    let net = Net::new(2, majority(), Pattern::OneHop);
    let (first, second) = (net.id(0), member(3, 2).id());
    let mut settled = Vec::new();
    Region::new(net.config).step(net.now, Event::Settle { reports: Vec::new() }, &mut settled);
    let Some(Effect::Cut(cut)) = settled.pop() else { panic!("nothing founds a region") };
    let mut old = Region::new(net.config);
    let mut new = old.clone();
    let fetch = |region: &mut Region, me, id| {
        let view = view(id, vec![member(1, 1), member(3, 2)]);
        region.step(
            net.now,
            Event::Fetch { me, view, cut: cut.clone(), sources: Vec::new() },
            &mut Vec::new(),
        );
    };
    fetch(&mut old, first, 1);
    fetch(&mut old, first, 2);
    fetch(&mut new, second, 2);
    let stands = |region: &Region| (region.phase(), region.standing(), region.state(0).at);
    assert_eq!(stands(&old), stands(&new));
    assert_eq!(new.state(0).at, Version { view: ViewId(2), counter: 0 });
}
