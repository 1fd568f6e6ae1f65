//! A group of two with a real etcd for its arbiter: one node goes on without the other, and neither without etcd.

use crate::harness::{Folder, run};
use crate::region::{Node, wait_for};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

/// A running etcd; killed when dropped.
struct Etcd(Child);

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where an etcd listens: in plain text, by TLS, for others of its kind, for questions about its health.
struct Ports([u16; 4]);

impl Ports {
    fn free() -> Self {
        let listeners = [(); 4].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port is free"));
        Self(listeners.map(|listener| listener.local_addr().expect("it is bound").port()))
    }

    fn plain(&self) -> String {
        format!("http://127.0.0.1:{}", self.0[0])
    }

    fn secure(&self) -> String {
        format!("https://127.0.0.1:{}", self.0[1])
    }

    /// Starts an etcd with its data in that folder, and waits until it serves.
    fn etcd(&self, folder: &Folder, data: &str) -> Etcd {
        let [peers, health] = [self.0[2], self.0[3]].map(|port| format!("http://127.0.0.1:{port}"));
        let clients = format!("{},{}", self.plain(), self.secure());
        let mut command = Command::new("etcd");
        command.args(["--data-dir", data, "--log-level", "fatal", "--listen-client-urls", &clients]);
        command.args(["--advertise-client-urls", &clients, "--listen-peer-urls", &peers]);
        command.args([
            "--initial-advertise-peer-urls",
            &peers,
            "--initial-cluster",
            &format!("default={peers}"),
        ]);
        command.args(["--cert-file", "certificates/etcd.pem", "--key-file", "certificates/etcd.key"]);
        command.args(["--client-cert-auth", "--trusted-ca-file", "certificates/ca.pem"]);
        command.args(["--listen-metrics-urls", &health]).current_dir(folder.path("."));
        let etcd = Etcd(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("etcd runs"));
        wait_for("etcd", || {
            let healthy = ureq::get(format!("{health}/health")).call().ok()?;
            healthy.into_body().read_to_string().ok()?.contains("true").then_some(())
        });
        etcd
    }
}

fn status(folder: &Folder, node: &Node) -> serde_json::Value {
    let at = node.clients_at.to_string();
    let said = run(folder, &["group", "status", &at, "--json", "--tls", "certificates", "--name", "app"]);
    serde_json::from_str(&said.out).unwrap_or_default()
}

fn wait_for_members(folder: &Folder, node: &Node, count: usize) {
    wait_for(&format!("a view of {count}"), || {
        let status = status(folder, node);
        let members = status["members"].as_array().map_or(0, Vec::len);
        (status["serves"] == true && members == count).then_some(())
    });
}

fn wait_for_refusal(folder: &Folder, node: &Node, because: &str) {
    wait_for(because, || {
        let status = status(folder, node);
        let explanation = status["explanation"].as_str().unwrap_or_default();
        (status["serves"] == false && explanation.contains(because)).then_some(())
    });
}

fn redis(folder: &Folder, node: &Node, command: &[&str]) -> String {
    let port = node.clients_at.port().to_string();
    let mut redis = Command::new("redis-cli");
    redis.args(["-h", "127.0.0.1", "-p", &port, "--tls", "--cacert", "certificates/ca.pem"]);
    redis.args(["--cert", "certificates/app.pem", "--key", "certificates/app.key"]).args(command);
    let said = redis.current_dir(folder.path(".")).output().expect("redis-cli runs");
    String::from_utf8_lossy(&said.stdout).trim_end().to_owned()
}

#[test]
fn one_of_two_goes_on_when_etcd_says_so_and_waits_when_it_does_not() {
    for program in ["etcd", "redis-cli"] {
        if Command::new(program).arg("--version").output().is_err() {
            println!(
                "skipped: a group of two with an arbiter: {program} is not installed (setup.sh installs it)"
            );
            return;
        }
    }
    let folder = Folder::new();
    for arguments in [
        &["init", "certificates", "--cluster", "two"][..],
        &["node", "certificates", "n1", "--address", "127.0.0.1"],
        &["node", "certificates", "n2", "--address", "127.0.0.1"],
        &["node", "certificates", "etcd", "--address", "127.0.0.1"],
        &["client", "certificates", "app"],
    ] {
        let made = run(&folder, &[&["cert"][..], arguments].concat());
        assert_eq!(made.code, 0, "{}", made.err);
    }
    let ports = Ports::free();
    let (plain, secure) = (ports.plain(), ports.secure());
    let no_etcd = run(
        &folder,
        &[
            "node",
            "--dir",
            "n0",
            "--init",
            "--arbiter",
            &plain,
            "--resp",
            "127.0.0.1:0",
            "--listen",
            "127.0.0.1:0",
        ],
    );
    assert!(no_etcd.code == 3 && no_etcd.err.contains("start etcd"), "{}", no_etcd.err);
    let etcd = ports.etcd(&folder, "data");

    let certified = |name| ["--tls", "certificates", "--name", name];
    let first =
        Node::start(&folder, "n1", &[&["--init", "--arbiter", &plain][..], &certified("n1")].concat());
    let at_first = first.nodes_at.to_string();
    let second_as = ["--join", &at_first, "--arbiter", &secure];
    let second = Node::start(&folder, "n2", &[&second_as[..], &certified("n2")].concat());
    [&first, &second].iter().for_each(|node| wait_for_members(&folder, node, 2));
    assert_eq!(redis(&folder, &second, &["SET", "k", "one"]), "OK");

    first.kill();
    wait_for_members(&folder, &second, 1);
    assert_eq!(redis(&folder, &second, &["GET", "k"]), "one");
    assert_eq!(redis(&folder, &second, &["SET", "k", "two"]), "OK");
    let at_second = second.nodes_at.to_string();
    let first_as = ["--join", &at_second, "--arbiter", &plain];
    let first = Node::start(&folder, "n1", &[&first_as[..], &certified("n1")].concat());
    wait_for_members(&folder, &first, 2);
    assert_eq!(redis(&folder, &first, &["GET", "k"]), "two");

    // Without etcd, and with one that has lost its data, whoever is left does not pretend to know what it decided.
    drop(etcd);
    second.kill();
    wait_for_refusal(&folder, &first, "the arbiter does not decide");
    let emptied = ports.etcd(&folder, "other-data");
    wait_for_refusal(&folder, &first, "knows no group");
    drop(emptied);
    let _etcd = ports.etcd(&folder, "data");
    wait_for_members(&folder, &first, 1);
    assert_eq!(redis(&folder, &first, &["GET", "k"]), "two");
}
