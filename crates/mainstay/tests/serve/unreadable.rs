//! A service whose state reads back as something else: no checkpoint of it is kept, and its log stays.

use crate::support::{metric, post};
use mainstay::{Context, Refusal, Server, Service};
use serde::{Deserialize, Serialize};
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

/// Left out when it is `None`, which only a format that names its fields can read back.
#[derive(Default, Serialize, Deserialize)]
struct Register {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    calls: u64,
}

impl Service for Register {
    const NAME: &'static str = "register";
    type Command = ();
    type Answer = u64;
    type Query = ();
    type View = u64;

    fn handle(&mut self, (): (), _: &mut Context<'_>) -> Result<u64, Refusal> {
        self.calls += 1;
        Ok(self.calls)
    }

    fn query(&self, (): ()) -> Result<u64, Refusal> {
        Ok(self.calls)
    }
}

fn checkpoints(directory: &Path) -> usize {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with("checkpoint-")).count()
}

#[test]
fn a_clean_stop_keeps_the_log_where_the_state_could_not_be_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("d");
    let start = || {
        let server = Server::new(Register::default).dir(&directory).listen((Ipv4Addr::LOCALHOST, 0));
        server.start().unwrap()
    };
    let call = |address, key| post(address, "/call", &[("Idempotency-Key", key)], b"null");
    let running = start();
    assert_eq!(call(running.address(), "k1").json::<u64>(), 1);
    running.stop().unwrap();
    assert_eq!(checkpoints(&directory), 0);
    let running = start();
    let again = call(running.address(), "k1");
    assert_eq!((again.json::<u64>(), again.header("mainstay-replayed")), (1, Some("true")));
    assert_eq!(metric(running.address(), "mainstay_replayed_total"), 1.0);
    assert_eq!(call(running.address(), "k2").json::<u64>(), 2);
    running.stop().unwrap();
}
