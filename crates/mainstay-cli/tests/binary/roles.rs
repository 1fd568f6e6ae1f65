//! Regions that require a role: what is refused while nobody offers it, in which words, and that it goes on when somebody does.

use crate::harness::{Folder, run};
use crate::region::{Node, wait_for, wait_for_members};
use crate::resp::{Reply, Speaker};
use mainstay_region_client::{Client, Settings, WriteError};
use serde_json::Value;

fn status(folder: &Folder, node: &Node) -> Value {
    run(folder, &["group", "status", &node.clients_at.to_string(), "--json"]).json()
}

/// What a node says to a command.
fn tell(node: &Node, words: &[&str]) -> Reply {
    let mut speaker = Speaker::open(node.clients_at, None).expect("the node listens");
    speaker.ask(words).expect("the node answers")
}

const SETS: &[&str] = &["SET", "k", "v"];
const GETS: &[&str] = &["GET", "k"];
const REMEDY: &[&str] = &["role `stock`", "--role stock"];

#[test]
fn a_region_is_read_only_while_nobody_offers_its_role() {
    let folder = Folder::new();
    let requires = [
        "--init",
        "--region",
        "data:level=process",
        "--require-role",
        "stock",
        "--on-role-loss",
        "read-only",
    ];
    let first = Node::start(&folder, "n1", &requires);
    wait_for_members(&folder, &first, 1);
    assert!(
        tell(&first, SETS).refuses(&["READONLY role:", REMEDY[0], REMEDY[1]]),
        "{:?}",
        tell(&first, SETS)
    );
    assert_eq!(tell(&first, GETS), Reply::Nothing);
    let at = first.clients_at.to_string();
    let said = run(&folder, &["group", "status", &at]);
    assert!(said.code == 1 && said.out.contains("requires stock; access without: read-only"), "{}", said.out);
    let explained = run(&folder, &["group", "explain", &at]);
    assert!(REMEDY.iter().all(|word| explained.out.contains(word)), "{}", explained.out);
    let mut client = Client::connect(&[first.nodes_at], "data", Settings::default()).expect("it is read");
    match client.put(b"k", b"v") {
        Err(WriteError::RoleMissing { explanation }) => {
            assert!(explanation.contains(REMEDY[1]), "{explanation}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(client.get(b"k"), Ok(None));

    let join = first.nodes_at.to_string();
    let offers = ["--join", &join, "--role", "stock", "--role", "prices"];
    let second = Node::start(&folder, "n2", &offers);
    let third = Node::start(&folder, "n3", &["--join", &join]);
    [&first, &second, &third].iter().for_each(|node| wait_for_members(&folder, node, 3));
    assert_eq!(tell(&third, SETS), Reply::ok());
    let said = run(&folder, &["group", "status", &at]);
    assert!(said.code == 0 && said.out.contains("offers stock, prices"), "{}", said.out);
    wait_for("a write of the client that was refused", || client.put(b"other", b"v").ok());

    // Two of three go on, without the role.
    second.kill();
    [&first, &third].iter().for_each(|node| wait_for_members(&folder, node, 2));
    assert!(tell(&third, SETS).refuses(REMEDY) && tell(&first, &["INCR", "n"]).refuses(REMEDY));
    assert_eq!(tell(&third, GETS), Reply::Text("v".to_owned()));
    assert!(matches!(tell(&third, &["MAINSTAY.ID", "NEW"]), Reply::Number(_)), "numbers are nobody's data");
    assert_eq!(status(&folder, &third)["regions"][0]["roles_missing"], serde_json::json!(["stock"]));
    let second = Node::start(&folder, "n2", &["--role", "stock"]);
    wait_for_members(&folder, &second, 3);
    assert_eq!(tell(&first, SETS), Reply::ok());
}

#[test]
fn nodes_reconnect_once_when_a_role_goes_and_nothing_is_read_until_it_is_back() {
    let folder = Folder::new();
    let requires = [
        "--init",
        "--region",
        "data:level=process",
        "--require-role",
        "stock",
        "--on-role-loss",
        "reconnect",
    ];
    let first = Node::start(&folder, "n1", &requires);
    let join = first.nodes_at.to_string();
    let second = Node::start(&folder, "n2", &["--join", &join, "--role", "stock"]);
    let third = Node::start(&folder, "n3", &["--join", &join]);
    [&first, &second, &third].iter().for_each(|node| wait_for_members(&folder, node, 3));
    assert_eq!(tell(&third, SETS), Reply::ok());
    let lives = [&first, &third].map(|node| status(&folder, node)["life"].as_u64().expect("it has one"));
    second.kill();
    for (node, life) in [&first, &third].into_iter().zip(lives) {
        wait_for("another life", || (asked(&folder, node)?["life"].as_u64()? > life).then_some(()));
        wait_for("its service", || (asked(&folder, node)?["serves"] == true).then_some(()));
    }
    let again = [&first, &third].map(|node| status(&folder, node)["life"].clone());
    for words in [GETS, SETS] {
        assert!(tell(&first, words).refuses(&["CLUSTERDOWN role:", REMEDY[0], REMEDY[1]]));
    }
    let second = Node::start(&folder, "n2", &["--role", "stock"]);
    [&first, &second, &third].iter().for_each(|node| wait_for_members(&folder, node, 3));
    assert_eq!(tell(&first, GETS), Reply::Text("v".to_owned()));
    assert_eq!([&first, &third].map(|node| status(&folder, node)["life"].clone()), again, "once is enough");
}

/// Where a node stands, if it answers.
fn asked(folder: &Folder, node: &Node) -> Option<Value> {
    let said = run(folder, &["group", "status", &node.clients_at.to_string(), "--json"]);
    serde_json::from_str(&said.out).ok()
}

fn words(flags: &[String]) -> Vec<&str> {
    flags.iter().map(String::as_str).collect()
}

#[test]
fn a_role_that_cannot_be_is_refused() {
    let folder = Folder::new();
    let ports = ["--listen", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
    let many: Vec<String> = (0..17).map(|number| format!("--role=r{number}")).collect();
    let required: Vec<String> = (0..17).map(|number| format!("--require-role=r{number}")).collect();
    for (more, word) in [
        (vec!["--init", "--role", "two words"], "without spaces"),
        (vec!["--require-role", "stock"], "--init"),
        (vec!["--init", "--on-role-loss", "none"], "--require-role"),
        (vec!["--init", "--require-role", "stock", "--on-role-loss", "panic"], "read-only"),
        ([vec!["--init"], words(&many)].concat(), "16 are possible"),
        ([vec!["--init"], words(&required)].concat(), "16 are possible"),
    ] {
        let said = run(&folder, &[&["node", "--dir", "n"][..], &ports, &more].concat());
        assert!(said.code != 0 && said.err.contains(word), "{more:?}: {}", said.err);
    }
}
