//! A public load generator (wrk) with a key for every request, against the ledger while that is killed with -9; then an
//! audit of every key: what was answered is answered again, and each request took effect once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What is in `pool` before the load begins.
const POOL: u64 = 1_000_000_000;

/// How often the service is killed.
const KILLS: usize = 5;

/// Answers between two kills.
const ANSWERS_BETWEEN_KILLS: usize = 200;

/// How long anything may take before the test says that it hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A child that dies with the test.
struct Dies(Child);

impl Dies {
    fn kill(&mut self) {
        self.0.kill().expect("a child can be killed");
        self.0.wait().expect("a child can be waited for");
    }
}

impl Drop for Dies {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(folder: &Path, port: u16) -> (Dies, u16) {
    let port_file = folder.join("port");
    let _ = fs::remove_file(&port_file);
    let child = Command::new(env!("CARGO_BIN_EXE_mainstay"))
        .args(["serve", "--dir", "ledger", "--port-file", "port", "--listen", &format!("127.0.0.1:{port}")])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let child = Dies(child);
    until("the service takes requests", || port_file.exists());
    let port =
        fs::read_to_string(&port_file).expect("the file was just seen").trim().parse().expect("a port");
    (child, port)
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The whole lines of all files whose name begins with `prefix`.
fn lines(folder: &Path, prefix: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder can be listed").flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            let text = fs::read_to_string(entry.path()).expect("the file can be read");
            lines.extend(
                text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned),
            );
        }
    }
    lines
}

/// Body of the answer by key, for all that were answered 200; while the service recovers it answers 503.
fn acknowledged(folder: &Path) -> BTreeMap<String, String> {
    let mut acknowledged = BTreeMap::new();
    for line in lines(folder, "answered-") {
        let mut words = line.splitn(3, ' ');
        let (Some(key), Some(status), Some(body)) = (words.next(), words.next(), words.next()) else {
            panic!("the load tool wrote `{line}`");
        };
        if status == "200" {
            acknowledged.insert(key.to_owned(), body.to_owned());
        }
    }
    acknowledged
}

struct Ledger {
    agent: ureq::Agent,
    url: String,
}

impl Ledger {
    fn new(port: u16) -> Self {
        let agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
        Self { agent, url: format!("http://127.0.0.1:{port}") }
    }

    /// Status, whether it was an answer given again, and the body.
    fn call(&self, key: &str, body: &str) -> (u16, bool, String) {
        let url = format!("{}/call", self.url);
        let mut answer =
            self.agent.post(url).header("Idempotency-Key", key).send(body).expect("the service answers");
        let replayed = answer.headers().contains_key("mainstay-replayed");
        let text = answer.body_mut().read_to_string().expect("an answer is text");
        (answer.status().as_u16(), replayed, text)
    }

    fn view(&self) -> serde_json::Value {
        let url = format!("{}/query", self.url);
        let mut answer = self.agent.post(url).send_empty().expect("the service answers");
        serde_json::from_str(&answer.body_mut().read_to_string().expect("an answer is text")).expect("JSON")
    }
}

#[test]
fn every_key_of_a_public_load_tool_takes_effect_once_under_kills() {
    if Command::new("wrk").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        println!("skipped: public load tool under kills: wrk is not installed (setup.sh installs it)");
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let folder = folder.path();
    let (mut service, port) = serve(folder, 0);
    let ledger = Ledger::new(port);
    assert_eq!(ledger.call("open", r#"{"open":{"account":"pool"}}"#).0, 200);
    assert_eq!(ledger.call("fill", &format!(r#"{{"deposit":{{"account":"pool","amount":{POOL}}}}}"#)).0, 200);

    let load = Command::new("wrk")
        .args(["--threads", "2", "--connections", "2", "--duration", "600s", "--script"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/load_tool/unique_keys.lua"))
        .arg(format!("http://127.0.0.1:{port}"))
        .args(["--", "."])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("wrk starts");
    let mut load = Dies(load);
    for kill in 1..=KILLS {
        until("answers come", || acknowledged(folder).len() >= kill * ANSWERS_BETWEEN_KILLS);
        service.kill();
        service = serve(folder, port).0;
    }
    until("answers come", || acknowledged(folder).len() >= (KILLS + 1) * ANSWERS_BETWEEN_KILLS);
    load.kill();

    let sent: BTreeSet<String> = lines(folder, "sent-").into_iter().collect();
    let acknowledged = acknowledged(folder);
    let mut operations = BTreeSet::new();
    for key in &sent {
        let (status, replayed, body) = ledger.call(key, r#"{"withdraw":{"account":"pool","amount":1}}"#);
        assert_eq!(status, 200, "{key}: {body}");
        if let Some(first) = acknowledged.get(key) {
            assert!(replayed, "{key} was acknowledged and is forgotten");
            assert_eq!(&body, first, "{key} was answered otherwise");
        }
        let receipt: serde_json::Value = serde_json::from_str(&body).expect("a receipt is JSON");
        assert_eq!(receipt["outcome"], "done");
        assert!(operations.insert(receipt["operation"].as_u64()), "{key} shares its operation: {body}");
    }
    let view = ledger.view();
    let count = sent.len() as u64;
    assert_eq!(view["operations"], count + 2, "every key took effect once: {view}");
    assert_eq!(view["accounts"][0]["balance"], POOL - count, "{view}");
}
