//! Copies that begin a view one after the other.

use crate::net::{CLIENT, Net, majority, member, put, view};
use mainstay_region::client::Ended;
use mainstay_region::effect::Event;
use mainstay_region::limits::{Config, Limits};
use mainstay_region::message::{Body, Message, Party, Refusal};
use mainstay_region::patterns::Pattern;
use mainstay_types::operation::Version;
use mainstay_types::view::ViewId;

/// Three copies have the cut of view 2, which the first serves; a fourth is in it too, and is gone.
fn with_one_that_begins(config: Config) -> Net {
    let mut net = Net::new(3, config, Pattern::OneHop);
    let members: Vec<_> = net.view.members.iter().map(|member| member.id()).collect();
    let reports = net.wedge(&members);
    let next = view(2, vec![member(1, 1), member(2, 1), member(3, 1), member(4, 2)]);
    net.fetch_cut(&next, &reports);
    net.step(members[0], Event::Installed { view: ViewId(2) });
    net
}

/// What a copy was told before it began was dropped: a write waited until its stamper said it again, after 50 ms, or its client, after 100.
#[test]
fn what_comes_before_a_copy_has_begun_the_view_is_taken_in_when_it_begins() {
    for pattern in [Pattern::OneHop, Pattern::OneHopClient, Pattern::Tagged, Pattern::Chain] {
        // Of the first no copy stamps the shard, and of the second it is the stamper that is late.
        for begins in [[0, 1, 2], [1, 0, 2], [2, 1, 0]] {
            let mut net = Net::new(3, majority(), pattern);
            let members: Vec<_> = net.view.members.iter().map(|member| member.id()).collect();
            let reports = net.wedge(&members);
            let next = view(2, net.view.members.clone());
            net.fetch_cut(&next, &reports);
            for place in begins {
                net.step(members[place], Event::Installed { view: ViewId(2) });
                if place == begins[0] {
                    net.tell_view();
                    net.call(put(b"value"));
                }
                net.run();
            }
            let [(_, Ended::Done { .. }, ..)] = net.ended[..] else { panic!("{pattern:?}: {:?}", net.ended) };
        }
    }
}

/// A subscription to one that begins, said by the client to the second copy.
fn subscription() -> Event {
    let body = Body::Subscribe { from: Version { view: ViewId(1), counter: 0 } };
    Event::Received { from: Party::Client(CLIENT), message: Message { view: ViewId(2), shard: 0, body } }
}

/// Its subscription would have come back without it.
#[test]
fn what_a_client_said_early_that_is_gone_is_not_taken_in() {
    for gone in [false, true] {
        let mut net = Net::new(3, majority(), Pattern::OneHop);
        let members: Vec<_> = net.view.members.iter().map(|member| member.id()).collect();
        let reports = net.wedge(&members);
        let next = view(2, net.view.members.clone());
        net.fetch_cut(&next, &reports);
        net.step(members[1], subscription());
        if gone {
            net.copies.get_mut(&members[1]).expect("it is there").disconnected(CLIENT);
        }
        members.iter().for_each(|&member| net.step(member, Event::Installed { view: ViewId(2) }));
        net.tell_view();
        net.call(put(b"value"));
        net.run();
        net.pass(100);
        let told = net.heard.iter().filter(|body| matches!(body, Body::Changed(_))).count();
        assert_eq!((net.ended.len(), told), (1, usize::from(!gone)));
    }
}

/// Calls of the client come to the second copy before it begins, then a subscription: what is refused for want of room, and how many calls it
/// hands on when it begins.
fn refused_and_kept(limits: Limits, calls: usize) -> (Vec<Body>, usize) {
    let mut net = with_one_that_begins(Config { limits, ..majority() });
    let second = net.id(1);
    net.tell_view();
    for _ in 0..calls {
        net.call(put(&[7; 100]));
    }
    for call in std::mem::take(&mut net.queue) {
        net.step(second, Event::Received { from: call.from, message: call.message });
    }
    net.step(second, subscription());
    let refused = net.queue.drain(..).map(|under_way| under_way.message.body).collect();
    net.step(second, Event::Installed { view: ViewId(2) });
    let handed_on = |body: &Body| matches!(body, Body::Forwarded { .. });
    (refused, net.queue.iter().filter(|under_way| handed_on(&under_way.message.body)).count())
}

/// A subscription for which there was no room was dropped, and a client took what was answered behind it for a sign that it held.
#[test]
fn what_is_kept_before_a_view_begins_is_bounded_and_the_rest_is_refused() {
    let is_refused = |body: &Body| matches!(body, Body::Refused { refusal: Refusal::OtherView(_), .. });
    let is_not_subscribed = |body: &Body| matches!(body, Body::NotSubscribed(Refusal::OtherView(_)));
    assert_eq!(refused_and_kept(Limits::default(), 3), (Vec::new(), 3));
    let (refused, kept) = refused_and_kept(Limits { early_messages_max: 2, ..Limits::default() }, 3);
    assert!(is_refused(&refused[0]) && is_not_subscribed(&refused[1]), "{refused:?}");
    assert_eq!((refused.len(), kept), (2, 2));
    let (refused, kept) = refused_and_kept(Limits { early_bytes_max: 150, ..Limits::default() }, 3);
    assert!(refused.iter().all(is_refused), "a subscription counts no bytes: {refused:?}");
    assert_eq!((refused.len(), kept), (2, 1));
}

/// It would be kept for nothing.
#[test]
fn a_copy_that_the_view_leaves_out_keeps_nothing_of_it() {
    let mut net = Net::new(3, majority(), Pattern::OneHop);
    let members: Vec<_> = net.view.members.iter().map(|member| member.id()).collect();
    let reports = net.wedge(&members);
    let next = view(2, net.view.members[..2].to_vec());
    net.fetch_cut(&next, &reports);
    let (cut, sources) = (net.cut(), members.clone());
    net.step(members[2], Event::Fetch { me: members[2], view: next, cut, sources });
    net.queue.clear();
    net.step(members[2], subscription());
    let [answer] = &net.queue.make_contiguous() else { panic!("{:?}", net.queue) };
    assert!(matches!(answer.message.body, Body::NotSubscribed(Refusal::OtherView(_))), "{answer:?}");
}
