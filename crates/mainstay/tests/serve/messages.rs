//! Messages between instances of two nodes in this process: in order, each once, also around one that its receiver cannot take.

use crate::support::{metric, own_loopback, until};
use mainstay::cluster::Cluster;
use mainstay::instance::{Context, Instance, Never, Node, Reply};
use mainstay::{Policy, Refusal, Running};
use mainstay_client::{Client, Options};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

/// Tells a receiver what it is given.
#[derive(Default, Serialize, Deserialize)]
struct Teller;

impl Instance for Teller {
    const TYPE: &'static str = "teller";
    type Command = (String, String);
    type Answer = ();
    type Message = Never;
    type Query = ();
    type View = ();

    fn handle(
        &mut self,
        (to, text): (String, String),
        context: &mut Context<'_, Self>,
    ) -> Result<Reply<()>, Refusal> {
        context.tell::<Hearer>(&to, &text);
        Ok(Reply::Now(()))
    }

    fn message(&mut self, never: Never, _: &mut Context<'_, Self>) {
        match never {}
    }

    fn query(&self, (): ()) -> Result<(), Refusal> {
        Ok(())
    }
}

/// Remembers what it is told, and by whom; one word it cannot take.
#[derive(Default, Serialize, Deserialize)]
struct Hearer {
    heard: Vec<String>,
}

impl Instance for Hearer {
    const TYPE: &'static str = "hearer";
    type Command = Never;
    type Answer = ();
    type Message = String;
    type Query = ();
    type View = Vec<String>;

    fn handle(&mut self, never: Never, _: &mut Context<'_, Self>) -> Result<Reply<()>, Refusal> {
        match never {}
    }

    fn message(&mut self, text: String, context: &mut Context<'_, Self>) {
        let from = context.sender().expect("somebody told it");
        self.heard.push(format!("{text} from {from}"));
        assert!(text != "unbearable", "asked to");
    }

    fn query(&self, (): ()) -> Result<Vec<String>, Refusal> {
        Ok(self.heard.clone())
    }
}

/// Addresses that were free a moment ago.
fn free_addresses() -> [SocketAddr; 2] {
    let listeners = [(); 2].map(|()| TcpListener::bind((own_loopback(), 0)).unwrap());
    listeners.map(|listener| listener.local_addr().unwrap())
}

fn start(folder: &Path, me: u32, policy: Policy, addresses: &[SocketAddr; 2]) -> Running {
    let cluster = Cluster::new(me).node(1, addresses[0].to_string()).node(2, addresses[1].to_string());
    // Whoever has an even number of letters hears on node 2.
    let even = |key: &str, nodes: &[_]| nodes[usize::from(key.len().is_multiple_of(2))];
    let node = Node::named("messages").host_on::<Teller>(1).host_by::<Hearer>(even);
    let server = node.server().dir(folder.join(format!("n{me}"))).listen((Ipv4Addr::LOCALHOST, 0));
    // A small ring, so that a test writes kilobytes where a service writes megabytes.
    let server = server.pages(3, 64 << 10).limits(|limits| limits.body_bytes_max = 16 << 10);
    server.policy(policy).cluster(cluster).start().unwrap()
}

fn client(node: &Running) -> Client {
    Client::connect(&format!("http://{}", node.address()), Options::default()).unwrap()
}

fn heard(node: &Running, hearer: &str) -> Vec<String> {
    client(node).instance("hearer", hearer).query(&()).unwrap()
}

/// The receiver of a word that makes it fail goes on behind it, after it was tried as often as a request is.
fn is_given_up(policy: Policy) {
    let folder = tempfile::tempdir().unwrap();
    let addresses = free_addresses();
    let first = start(folder.path(), 1, policy, &addresses);
    let second = start(folder.path(), 2, policy, &addresses);
    let mut teller = client(&first).instance("teller", "t").thread().unwrap();
    for (to, text) in
        [("even", "one"), ("even", "unbearable"), ("even", "two"), ("ev", "three"), ("odd", "four")]
    {
        let (): () = teller.call(&(to, text)).unwrap();
    }
    let all = ["one from teller/t", "two from teller/t"];
    until(&format!("{policy}: all is heard"), || heard(&second, "ev") == ["three from teller/t"]);
    assert_eq!(heard(&second, "even"), all, "{policy}");
    assert_eq!(heard(&first, "odd"), ["four from teller/t"], "{policy}: on the same node");
    assert_eq!(metric(second.address(), "mainstay_quarantined_total"), 1.0, "{policy}");
    // As if killed; what was given up stays so.
    drop(second);
    let second = start(folder.path(), 2, policy, &addresses);
    let (): () = teller.call(&("even", "five")).unwrap();
    until(&format!("{policy}: more is heard"), || heard(&second, "even").len() > 2);
    assert_eq!(heard(&second, "even"), [&all[..], &["five from teller/t"]].concat(), "{policy}");
}

#[test]
fn a_message_that_cannot_be_taken_is_given_up_and_those_behind_it_are_not_under_deferred() {
    is_given_up(Policy::Deferred);
}

#[test]
fn a_message_that_cannot_be_taken_is_given_up_and_those_behind_it_are_not_under_sender_based() {
    is_given_up(Policy::SenderBased);
}

#[test]
fn a_message_that_cannot_be_taken_is_given_up_and_those_behind_it_are_not_under_causal() {
    is_given_up(Policy::Causal { f: 1 });
}

#[test]
fn a_message_that_cannot_be_taken_is_given_up_and_those_behind_it_are_not_under_optimistic() {
    is_given_up(Policy::Optimistic);
}
