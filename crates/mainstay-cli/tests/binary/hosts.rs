//! Three nodes on hosts of their own, with certificates: cut off both ways, one way, stopped past the lease, with clocks that jump, with a full disk, killed
//! at once. Clients on every side count meanwhile what they were told.

mod clients;
mod wire;

use self::clients::{Orders, Told, Worker};
use self::wire::Wire;
use crate::harness::{Folder, Said, first_line, mainstay, run, said};
use crate::region::wait_for;
use crate::resp::{Reply, Speaker};
use mainstay_tls::{TlsClient, TlsFiles};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

const NODES_PORT: u16 = 7171;
const CLIENTS_PORT: u16 = 7371;

/// Acknowledgements that a client must get before it is taken to go on.
const PROGRESS: u64 = 5;

/// Moves the wall clock of a process by the seconds that a file holds: to set the machine's would move everybody's.
const CLOCK: &str = r#"
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static volatile int64_t *ahead_s;
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("MAINSTAY_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    void *at = file < 0 ? MAP_FAILED : mmap(0, sizeof *ahead_s, PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) ahead_s = at;
}
int clock_gettime(clockid_t clock, struct timespec *time) {
    int failed = (int)syscall(SYS_clock_gettime, clock, time);
    if (!failed && clock == CLOCK_REALTIME && ahead_s) time->tv_sec += *ahead_s;
    return failed;
}
"#;

/// The wire, the nodes on it, and clients at work.
struct Group {
    folder: Folder,
    wire: Wire,
    nodes: [Option<Child>; 3],
    app: TlsClient,
    /// Whether clocks can be moved.
    clocks: bool,
}

impl Drop for Group {
    fn drop(&mut self) {
        (0..self.nodes.len()).for_each(|host| self.kill(host));
    }
}

impl Group {
    fn on(wire: Wire, folder: Folder) -> Self {
        let cert = |words: &[&str]| {
            let made = run(&folder, &[&["cert"][..], words].concat());
            assert_eq!(made.code, 0, "{}", made.err);
        };
        cert(&["init", "certificates", "--cluster", "hosts"]);
        for (number, host) in (1..).zip(&wire.hosts) {
            let (name, address) = (format!("n{number}"), host.address.to_string());
            cert(&["node", "certificates", &name, "--address", &address]);
        }
        cert(&["client", "certificates", "app"]);
        let files = TlsFiles::in_directory(&folder.path("certificates"), "app");
        let app = TlsClient::load(&files).expect("it was just made");
        std::fs::write(folder.path("clock.c"), CLOCK).expect("the folder can be written");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O", "-o", "clock.so", "clock.c"]).current_dir(folder.path("."));
        let clocks = compiler.status().is_ok_and(|status| status.success());
        let mut group = Self { folder, wire, nodes: [None, None, None], app, clocks };
        (0..3).for_each(|host| group.set_clock(host, 0));
        group.start(0, &["--init", "--region", "data:level=process"]);
        let first = SocketAddr::new(group.wire.hosts[0].address, NODES_PORT).to_string();
        group.start(1, &["--join", &first]);
        group.start(2, &["--join", &first]);
        group.wait_for_all();
        group
    }

    fn start(&mut self, host: usize, more: &[&str]) {
        let at = &self.wire.hosts[host];
        let binary = mainstay(&self.folder).get_program().to_owned();
        let mut command = at.command(binary.to_str().expect("its path is UTF-8"));
        command.env_remove("RUST_LOG");
        command.arg("node").arg("--dir").arg(at.disk().join("node")).args(more);
        command.args(["--listen", &SocketAddr::new(at.address, NODES_PORT).to_string()]);
        command.args(["--resp", &self.clients_at(host).to_string()]);
        command.arg("--tls").arg(self.folder.path("certificates"));
        command.args(["--name", &format!("n{}", host + 1)]);
        command.args(["--parent", &std::process::id().to_string()]);
        if self.clocks {
            command.env("LD_PRELOAD", self.folder.path("clock.so"));
            command.env("MAINSTAY_TEST_CLOCK", self.clock(host));
        }
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("the binary runs");
        let line = first_line(child.stdout.as_mut().expect("it is a pipe"));
        self.nodes[host] = Some(child);
        assert!(line.contains("other nodes reach it at"), "the node on host {host} does not start: `{line}`");
    }

    fn kill(&mut self, host: usize) {
        if let Some(mut node) = self.nodes[host].take() {
            let _ = node.kill();
            let _ = node.wait();
        }
    }

    fn signal(&self, host: usize, signal: Signal) {
        let node = self.nodes[host].as_ref().expect("it runs");
        kill_process(Pid::from_child(node), signal).expect("a child can be signalled");
    }

    fn clock(&self, host: usize) -> std::path::PathBuf {
        self.folder.path(&format!("clock{host}"))
    }

    /// The wall clock of that host's node is so far ahead.
    fn set_clock(&self, host: usize, seconds: i64) {
        // The node has it mapped: it must never be shorter.
        let file = File::options().create(true).truncate(false).write(true).open(self.clock(host));
        let mut file = file.expect("the folder can be written");
        file.write_all(&seconds.to_le_bytes()).expect("the folder can be written");
    }

    fn clients_at(&self, host: usize) -> SocketAddr {
        SocketAddr::new(self.wire.hosts[host].address, CLIENTS_PORT)
    }

    /// What the binary says there, as a client of the group.
    fn ask(&self, host: usize, words: &[&str]) -> Said {
        let binary = mainstay(&self.folder).get_program().to_owned();
        let mut command = self.wire.hosts[host].command(binary.to_str().expect("its path is UTF-8"));
        command.args(words).arg("--tls").arg(self.folder.path("certificates"));
        said(command.args(["--name", "app"]).output().expect("the binary runs"))
    }

    fn status(&self, host: usize) -> Option<Value> {
        let at = self.clients_at(host).to_string();
        serde_json::from_str(&self.ask(host, &["group", "status", "--json", &at]).out).ok()
    }

    fn wait_for_members(&self, host: usize, count: usize) {
        wait_for(&format!("a view of {count} on host {host}"), || {
            let status = self.status(host)?;
            (status["serves"] == true && status["members"].as_array()?.len() == count).then_some(())
        });
    }

    fn wait_for_all(&self) {
        (0..3).for_each(|host| self.wait_for_members(host, 3));
    }

    /// The others go on without that one.
    fn wait_for_others(&self, gone: usize) {
        (0..3).filter(|&host| host != gone).for_each(|host| self.wait_for_members(host, 2));
    }

    /// It does not serve, and says why.
    fn wait_for_refusal(&self, host: usize) {
        wait_for(&format!("the refusal of host {host}"), || {
            let status = self.status(host)?;
            let explanation = status["explanation"].as_str()?;
            let word = explanation.split_once(": ")?.0;
            (status["serves"] == false && ["minority", "outside"].contains(&word)).then_some(())
        });
    }

    /// What the node on that host says to these commands, of which the last counts.
    fn tell(&self, host: usize, commands: &'static [&'static [&'static str]]) -> Reply {
        let (at, app) = (self.clients_at(host), self.app.clone());
        let said = self.wire.hosts[host].thread(move || {
            let mut speaker = Speaker::open(at, Some(&app)).expect("the node listens");
            let said = commands.iter().map(|words| speaker.ask(words).expect("the node answers"));
            said.last().expect("there is a command")
        });
        said.join().expect("the node answers")
    }

    /// The same, until it is done.
    fn tell_until(&self, host: usize, command: &'static [&'static [&'static str]], wanted: &Reply) {
        wait_for(&format!("{wanted:?} of host {host}"), || {
            (self.tell(host, command) == *wanted).then_some(())
        });
    }
}

/// The clients of a host.
struct Side {
    with: Worker,
    without: Worker,
}

impl Side {
    fn of(group: &Group, host: usize, orders: &Arc<Orders>) -> Self {
        let at = &group.wire.hosts[host];
        let nodes = SocketAddr::new(at.address, NODES_PORT);
        Self {
            with: Worker::with_identity(at, nodes, group.app.clone(), orders),
            without: Worker::without_identity(at, group.clients_at(host), group.app.clone(), orders),
        }
    }
}

/// These clients go on.
fn go_on<'a>(told: impl Iterator<Item = &'a Arc<Told>>) {
    let before: Vec<(&Arc<Told>, u64)> = told.map(|told| (told, told.acknowledged())).collect();
    wait_for("progress of clients", || {
        before.iter().all(|(told, was)| told.acknowledged() >= was + PROGRESS).then_some(())
    });
}

fn all_go_on(sides: &[Side]) {
    go_on(sides.iter().flat_map(|side| [&side.with.told, &side.without.told]));
}

/// Host `cut` is cut off: it refuses with a reason, its clients hear so, and the others go on.
fn one_is_cut_off(group: &Group, sides: &[Side], cut: usize) {
    group.wait_for_others(cut);
    group.wait_for_refusal(cut);
    let refused = sides[cut].without.told.refused();
    wait_for("a refusal that a client hears", || (sides[cut].without.told.refused() > refused).then_some(()));
    let others = sides.iter().enumerate().filter(|(host, _)| *host != cut);
    go_on(others.flat_map(|(_, side)| [&side.with.told, &side.without.told]));
}

#[test]
fn nodes_on_hosts_of_their_own_lose_and_double_nothing() {
    let folder = Folder::new();
    let wire = match Wire::laid(&folder) {
        Ok(wire) => wire,
        Err(why) => return println!("skipped: nodes on hosts of their own: {why}"),
    };
    let mut group = Group::on(wire, folder);
    let orders = Arc::new(Orders::default());
    let sides = [0, 1, 2].map(|host| Side::of(&group, host, &orders));
    all_go_on(&sides);

    for (cut, how) in [Wire::cut, Wire::mute, Wire::deafen as fn(&Wire, usize)].into_iter().enumerate() {
        how(&group.wire, cut);
        one_is_cut_off(&group, &sides, cut);
        group.wire.heal();
        group.wait_for_all();
        all_go_on(&sides);
    }
    one_stands_still_past_its_lease(&group);
    all_go_on(&sides);
    clocks_jump(&group, &sides);
    a_disk_is_full(&mut group, &sides);
    all_go_on(&sides);

    // Every copy is in memory and in a mapping of its process: nobody is left to ask.
    (0..3).for_each(|host| group.signal(host, Signal::KILL));
    (0..3).for_each(|host| group.kill(host));
    (0..3).for_each(|host| group.start(host, &[]));
    group.wait_for_all();
    all_go_on(&sides);

    orders.stop();
    let workers = sides.into_iter().flat_map(|side| [side.with, side.without]);
    let ended: Vec<_> = workers.map(Worker::ended).collect();
    for (counter, told, done) in ended {
        let count = counted(&group, counter.clone());
        let doubt = if counter.starts_with("with/") { 0 } else { told.in_doubt() };
        assert!(
            (done..=done + doubt).contains(&count),
            "{counter}: {done} were acknowledged, {doubt} are in doubt, and {count} are there"
        );
        assert!(done > 6 * PROGRESS, "{counter}: {done}");
    }
    let everywhere = [0, 1, 2].map(|host| group.clients_at(host).to_string());
    let words = [&["region", "verify"][..], &everywhere.each_ref().map(String::as_str)].concat();
    let verified = group.ask(0, &words);
    assert_eq!(verified.code, 0, "{}{}", verified.out, verified.err);
}

/// A counter as the last node has it.
fn counted(group: &Group, counter: String) -> u64 {
    let (at, app) = (group.clients_at(2), group.app.clone());
    let said = group.wire.hosts[2].thread(move || {
        Speaker::open(at, Some(&app)).and_then(|mut speaker| speaker.ask(&["GET", &counter]))
    });
    match said.join().expect("it does not panic").expect("the node answers") {
        Reply::Text(count) => count.parse().expect("it is a number"),
        other => panic!("{other:?}"),
    }
}

/// What it was asked before it knows that it stood still, it must not answer by what it has.
fn one_stands_still_past_its_lease(group: &Group) {
    const STILL: usize = 1;
    group.tell_until(0, &[&["SET", "fresh", "old"]], &Reply::ok());
    group.tell_until(STILL, &[&["GET", "fresh"]], &Reply::Text("old".to_owned()));
    let (at, app) = (group.clients_at(STILL), group.app.clone());
    let (asked, to_ask) = std::sync::mpsc::channel::<()>();
    let (begun, to_begin) = std::sync::mpsc::channel();
    let (sent, to_send) = std::sync::mpsc::channel();
    let asks = group.wire.hosts[STILL].thread(move || {
        let mut speaker = Speaker::open(at, Some(&app)).expect("the node listens");
        begun.send(()).expect("somebody waits");
        to_ask.recv().expect("somebody says when");
        speaker.say(&["GET", "fresh"]).expect("the socket takes it");
        speaker.say(&["MAINSTAY.CAS", "fresh", "old", "stale"]).expect("the socket takes it");
        sent.send(()).expect("somebody waits");
        [speaker.hear(), speaker.hear()].map(|said| said.expect("the node answers"))
    });
    to_begin.recv().expect("it connects");
    group.signal(STILL, Signal::STOP);
    group.wait_for_others(STILL);
    group.tell_until(0, &[&["SET", "fresh", "new"]], &Reply::ok());
    asked.send(()).expect("it waits");
    to_send.recv().expect("it asks");
    group.signal(STILL, Signal::CONT);
    let [read, written] = asks.join().expect("the node answers");
    assert!(
        matches!(&read, Reply::Error(_)) || read == Reply::Text("new".to_owned()),
        "a stale read: {read:?}"
    );
    assert!(matches!(&written, Reply::Error(_) | Reply::Nothing), "a stale write: {written:?}");
    group.wait_for_all();
    group.tell_until(STILL, &[&["GET", "fresh"]], &Reply::Text("new".to_owned()));
}

/// Wall clocks jump, those of all nodes one after the other: values end by them, and nothing else.
fn clocks_jump(group: &Group, sides: &[Side]) {
    if !group.clocks {
        return println!("skipped: clocks that jump: no C compiler is installed");
    }
    group.tell_until(0, &[&["SET", "soon", "gone", "EX", "3600"]], &Reply::ok());
    group.tell_until(1, &[&["GET", "soon"]], &Reply::Text("gone".to_owned()));
    for host in 0..3 {
        group.set_clock(host, 2 * 3600);
        all_go_on(sides);
    }
    (0..3).for_each(|host| group.tell_until(host, &[&["GET", "soon"]], &Reply::Nothing));
    for host in [2, 0, 1] {
        group.set_clock(host, -3600);
        all_go_on(sides);
    }
    (0..3).for_each(|host| group.set_clock(host, 0));
    (0..3).for_each(|host| group.tell_until(host, &[&["GET", "soon"]], &Reply::Nothing));
    (0..3).for_each(|host| group.tell_until(host, &[&["GET", "fresh"]], &Reply::Text("new".to_owned())));
}

/// The node ends when its journal has to grow, the others go on, and it comes back when there is space.
fn a_disk_is_full(group: &mut Group, sides: &[Side]) {
    const FULL: usize = 2;
    group.wire.hosts[FULL].fill_disk();
    let (at, app) = (group.clients_at(0), group.app.clone());
    let large = "x".repeat(900 << 10);
    let node = group.nodes[FULL].as_mut().expect("it runs");
    let mut ended = || node.try_wait().expect("a child can be waited for");
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let writes = group.wire.hosts[0].thread(move || {
        let mut speaker = Speaker::open(at, Some(&app)).expect("the node listens");
        while stopped.try_recv().is_err() {
            speaker.ask(&["SET", "large", &large]).expect("the node answers");
        }
    });
    let status = wait_for("the end of a node whose disk is full", &mut ended);
    assert!(!status.success(), "it ended as if all was well");
    stop.send(()).expect("it waits");
    writes.join().expect("the others answer");
    group.wait_for_others(FULL);
    go_on(sides[..FULL].iter().flat_map(|side| [&side.with.told, &side.without.told]));
    group.wire.hosts[FULL].clear_disk();
    group.start(FULL, &[]);
    group.wait_for_all();
}
