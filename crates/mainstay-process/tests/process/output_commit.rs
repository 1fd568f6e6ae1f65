//! Nothing leaves before what it depends on is safe: answers, duplicates, reads, errors, outputs.

use crate::support::{World, config, key};
use mainstay_process::effect::{Effect, Reply, Unavailable};
use mainstay_process::event::{Event, ReplyToken, Resolution};
use mainstay_process::handler::Outcome;
use mainstay_process::port::{OutputState, Port, PortIndex};
use mainstay_recovery::policy::Policy;
use mainstay_types::id::OutputId;
use mainstay_types::level::Level;

#[test]
fn one_sync_releases_the_answers_of_all_that_came_before_it() {
    let mut world = World::new(config());
    world.settle();
    for token in 1..=3 {
        world.say(token, "a");
    }
    assert!(world.replies.is_empty(), "nothing is durable yet");
    assert!(world.disk.is_empty(), "nothing is synced before the driver has drained");
    world.step(Event::Drained);
    assert_eq!(world.writes_asked(), 1, "one write for three requests");
    world.settle();
    assert_eq!(world.answer(1).0, "1:a");
    assert_eq!(world.answer(2).0, "2:a");
    assert_eq!(world.answer(3).0, "3:a");
}

#[test]
fn nothing_is_synced_when_nobody_waits() {
    let mut world = World::new(config());
    world.settle();
    world.step(Event::Drained);
    assert!(world.disk.is_empty());
}

#[test]
fn at_level_process_an_answer_leaves_at_once_and_nothing_is_synced() {
    let mut world = World::new(mainstay_process::config::Config { level: Level::Process, ..config() });
    world.settle();
    world.say(1, "a");
    assert_eq!(world.answer(1).0, "1:a");
    world.step(Event::Drained);
    assert!(world.disk.is_empty());
}

#[test]
fn a_duplicate_and_a_read_wait_for_what_the_first_answer_waits_for() {
    let mut world = World::new(config());
    world.settle();
    world.request(1, key("k"), "a");
    world.request(2, key("k"), "a");
    world.request(3, key("k"), "other body");
    world.step(Event::Query { token: ReplyToken(4), body: Vec::new() });
    assert!(world.replies.is_empty());
    world.settle();
    assert_eq!(world.answer(1), ("1:a".to_owned(), false));
    assert_eq!(world.answer(2), ("1:a".to_owned(), true));
    assert_eq!(world.reply(3), Some(Reply::KeyReused));
    assert!(matches!(world.reply(4), Some(Reply::Read { answer, .. }) if answer.body == b"1"));
}

#[test]
fn immediate_logging_delivers_only_what_is_durable_and_says_still_running_meanwhile() {
    let mut world = World::new(mainstay_process::config::Config { policy: Policy::Immediate, ..config() });
    world.settle();
    world.request(1, key("k"), "a");
    world.request(2, key("k"), "a");
    assert!(world.process.handler().lines.is_empty(), "its record is not durable yet");
    world.settle();
    assert_eq!(world.process.handler().lines, ["a"]);
    assert_eq!(world.answer(1).0, "1:a");
    assert_eq!(world.reply(2), Some(Reply::StillRunning));
    world.request(3, key("k"), "a");
    assert_eq!(world.answer(3), ("1:a".to_owned(), true));
}

#[test]
fn an_output_leaves_when_its_delivery_is_durable_and_is_settled_once() {
    let mut world = World::new(config());
    world.settle();
    world.say(1, "send once hello");
    assert!(world.outputs.is_empty());
    world.settle();
    assert_eq!(world.outputs.len(), 1);
    assert_eq!((&*world.outputs[0].body, world.outputs[0].again), (&b"hello"[..], false));
    let output = world.outputs[0].id;
    for _ in 0..2 {
        world.step(Event::Output { output, outcome: Outcome::Delivered { status: 200 } });
    }
    let settled = format!("{output} Delivered {{ status: 200 }}");
    assert_eq!(world.process.handler().lines, [format!("sent {output}"), settled]);
    assert_eq!(world.process.stats().outputs_pending, 0);
}

#[test]
fn an_at_most_once_output_leaves_only_after_its_intention_is_durable() {
    let mut world = World::new(config());
    world.settle();
    world.say(1, "send maybe hello");
    world.step(Event::Drained);
    world.complete_disk();
    assert!(world.outputs.is_empty(), "its delivery is durable, its intention is not");
    world.settle();
    assert_eq!(world.outputs.len(), 1);

    let mut world = world.crash(config()).expect("it recovers");
    assert!(world.outputs.is_empty(), "it may have been sent before: never again by itself");
    let views: Vec<_> = world.process.outputs().collect();
    assert_eq!((views.len(), views[0].state), (1, OutputState::InDoubt));

    let output = views[0].id;
    world.step(Event::Resolve { token: ReplyToken(9), output, resolution: Resolution::SendAgain });
    world.settle();
    assert_eq!(world.reply(9), Some(Reply::Resolved));
    assert_eq!(world.outputs.len(), 1, "a person said so");
    world.step(Event::Resolve {
        token: ReplyToken(10),
        output: OutputId(77),
        resolution: Resolution::Abandon,
    });
    world.settle();
    assert_eq!(world.reply(10), Some(Reply::NoSuchOutput));
}

fn withdrawn(world: &World) -> Vec<(PortIndex, OutputId)> {
    let withdrawn = |effect: &Effect| match effect {
        Effect::Withdraw { port, output } => Some((*port, *output)),
        _ => None,
    };
    world.other.iter().filter_map(withdrawn).collect()
}

#[test]
fn an_output_that_does_not_get_through_is_given_up_by_a_person_and_never_sent_again() {
    let mut world = World::new(config());
    world.settle();
    world.say(1, "send once hello");
    let resolve = |token, output, resolution| Event::Resolve { token: ReplyToken(token), output, resolution };
    let prepared = world.process.outputs().next().expect("it is pending").id;
    world.step(resolve(2, prepared, Resolution::Abandon));
    world.settle();
    assert_eq!(world.reply(2), Some(Reply::NoSuchOutput), "it had not left");
    let output = world.outputs.remove(0).id;
    world.step(resolve(3, output, Resolution::SendAgain));
    world.settle();
    assert_eq!(world.reply(3), Some(Reply::NoSuchOutput), "its port sends it again anyhow");

    world.step(resolve(4, output, Resolution::Abandon));
    assert_eq!(withdrawn(&world), [(PortIndex(0), output)]);
    assert_eq!(world.reply(4), None, "the decision is not durable");
    world.settle();
    assert_eq!(world.reply(4), Some(Reply::Resolved));
    // An attempt that was under way.
    world.step(Event::Output { output, outcome: Outcome::Delivered { status: 200 } });
    world.step(resolve(5, output, Resolution::Abandon));
    world.settle();
    assert_eq!(world.reply(5), Some(Reply::NoSuchOutput));
    assert_eq!(world.process.handler().lines, [format!("sent {output}"), format!("{output} Abandoned")]);
    let mut world = world.crash(config()).expect("it recovers");
    world.settle();
    assert!(world.outputs.is_empty() && world.process.outputs().next().is_none());
}

#[test]
fn who_gives_an_output_up_too_late_is_told_so() {
    let mut world = World::new(mainstay_process::config::Config { policy: Policy::Immediate, ..config() });
    world.settle();
    world.say(1, "send once hello");
    world.settle();
    let output = world.outputs[0].id;
    world.step(Event::Output { output, outcome: Outcome::Delivered { status: 200 } });
    assert_eq!(world.process.outputs().count(), 1, "its end is logged and not delivered");
    world.step(Event::Resolve { token: ReplyToken(2), output, resolution: Resolution::Abandon });
    world.settle();
    assert_eq!((world.reply(2), withdrawn(&world)), (Some(Reply::NoSuchOutput), vec![]));

    world.say(3, "send maybe hello");
    world.settle();
    let output = world.outputs[1].id;
    world.step(Event::OutputInDoubt { output });
    world.step(Event::Output { output, outcome: Outcome::Delivered { status: 200 } });
    world.step(Event::Resolve { token: ReplyToken(4), output, resolution: Resolution::SendAgain });
    world.settle();
    assert_eq!((world.reply(4), world.outputs.len()), (Some(Reply::NoSuchOutput), 2));
}

#[test]
fn lines_are_not_given_up() {
    let mut of_lines = config();
    of_lines.ports[0] = Port { lines: true, ..of_lines.ports[0].clone() };
    let mut world = World::new(of_lines);
    world.settle();
    world.say(1, "send once hello");
    world.settle();
    let output = world.outputs[0].id;
    world.step(Event::Resolve { token: ReplyToken(2), output, resolution: Resolution::Abandon });
    world.settle();
    assert_eq!(world.reply(2), Some(Reply::NoSuchOutput));
    assert_eq!(world.process.outputs().count(), 1);
}

#[test]
fn an_at_most_once_output_that_was_never_intended_is_sent_by_the_next_life() {
    let mut world = World::new(config());
    world.settle();
    world.say(1, "send maybe hello");
    world.step(Event::Drained);
    world.complete_disk();
    let mut world = world.crash(config()).expect("it recovers");
    world.settle();
    assert_eq!(world.outputs.len(), 1);
    assert!(!world.outputs[0].again, "nothing had left");
}

#[test]
fn an_unanswered_output_of_a_deduplicating_port_is_sent_again_with_the_same_key() {
    let mut world = World::new(config());
    world.say(1, "send once hello");
    world.settle();
    let first = world.outputs.remove(0);
    let world = world.crash(config()).expect("it recovers");
    assert_eq!(world.outputs.len(), 1);
    assert!(world.outputs[0].again);
    assert_eq!(world.outputs[0].key, first.key);
}

#[test]
fn a_failed_sync_answers_nobody_with_success_ever_again() {
    let mut world = World::new(config());
    world.settle();
    world.say(1, "a");
    world.fail_disk();
    let poisoned = Some(Reply::Unavailable { reason: Unavailable::Poisoned });
    assert_eq!(world.reply(1), poisoned);
    world.say(2, "b");
    assert_eq!(world.reply(2), poisoned);
    world.step(Event::Query { token: ReplyToken(3), body: Vec::new() });
    assert_eq!(world.reply(3), poisoned, "a read would show what may be lost");
}
