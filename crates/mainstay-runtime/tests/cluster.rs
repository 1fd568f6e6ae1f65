//! Three running services that talk over real sockets: a request goes through all of them and back, also when one of them ends as if killed.

use mainstay_process::config::{Cluster, Config, Limits};
use mainstay_process::handler::{Answer, Context, Handler, RequestId, RestoreError};
use mainstay_recovery::policy::Policy;
use mainstay_runtime::peers::settings::{PeerAddress, PeersSettings, Security};
use mainstay_runtime::service::{Running, Service, start};
use mainstay_runtime::settings::{Ingress, Settings};
use mainstay_types::id::{ClusterId, DeliveryIndex, NodeId};
use mainstay_types::level::Level;
use mainstay_types::rules::Rules;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long an answer may take before the test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// Counts what it folded; a request comes back with every node's count.
#[derive(Debug)]
struct Ring {
    me: u32,
    folded: u64,
}

impl Handler for Ring {
    fn handle(&mut self, _: &[u8], context: &mut Context<'_>) -> Option<Answer> {
        self.folded += 1;
        let RequestId(request) = context.request();
        context.tell(NodeId(self.me % 3 + 1), format!("{} {} {}", self.me, request.0, self.folded));
        None
    }

    fn message(&mut self, _: NodeId, body: &[u8], context: &mut Context<'_>) {
        let text = String::from_utf8(body.to_vec()).expect("text");
        let numbers: Vec<u64> = text.split(' ').map(|word| word.parse().expect("a number")).collect();
        if numbers[0] == u64::from(self.me) {
            let body = format!("{:?}", &numbers[2..]).into_bytes();
            context.answer(RequestId(DeliveryIndex(numbers[1])), Answer { status: 200, body });
        } else {
            self.folded += 1;
            context.tell(NodeId(self.me % 3 + 1), format!("{text} {}", self.folded));
        }
    }

    fn query(&self, _: &[u8]) -> Answer {
        Answer { status: 200, body: self.folded.to_string().into_bytes() }
    }

    fn save(&self, into: &mut dyn Write) -> io::Result<()> {
        into.write_all(&self.folded.to_le_bytes())
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        let bytes = bytes.try_into().map_err(|_| RestoreError { reason: "8 bytes".to_owned() })?;
        self.folded = u64::from_le_bytes(bytes);
        Ok(())
    }
}

/// A loopback address that connections do not come from: none of them takes a port of it between choice and use.
fn own_loopback() -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 77, high, low.max(1))
}

/// Addresses that were free a moment ago.
fn free_addresses() -> Vec<SocketAddr> {
    let listeners: Vec<_> =
        (0..3).map(|_| TcpListener::bind((own_loopback(), 0)).expect("loopback has ports")).collect();
    listeners.iter().map(|listener| listener.local_addr().expect("it is bound")).collect()
}

fn run(directory: &Path, me: u32, policy: Policy, addresses: &[SocketAddr]) -> Running {
    let others = (1..=3).filter(|node| *node != me).map(|node| (NodeId(node), policy)).collect();
    let cluster = Cluster { id: ClusterId([1; 16]), me: NodeId(me), others, links: Default::default() };
    let node = |(place, address): (usize, &SocketAddr)| {
        let number = u32::try_from(place).expect("three nodes") + 1;
        PeerAddress { node: NodeId(number), name: format!("n{number}"), address: address.to_string() }
    };
    let nodes = addresses.iter().enumerate().map(node).collect();
    let listen = addresses[me as usize - 1];
    let peers = PeersSettings::new(ClusterId([1; 16]), NodeId(me), listen, nodes, Security::Plain);
    let settings = Settings {
        directory: directory.join(format!("n{me}")),
        disk: mainstay_disk::open::Options {
            journal: mainstay_journal::options::OpenOptions::default(),
            backend: mainstay_disk::disk::Backend::Auto,
            create_directory: true,
            hint: "test".to_owned(),
            stripes: Vec::new(),
            kept: false,
            record: None,
        },
        process: Config {
            name: "ring".to_owned(),
            version: 1,
            level: Level::Disk,
            policy,
            ports: Vec::new(),
            limits: Limits::default(),
            entropy: 1,
            cluster: Some(cluster),
            rules: Rules::KEPT,
        },
        peers: Some(peers),
        places: None,
        keep: None,
        outputs: Vec::new(),
        ingress: Ingress { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), ..Ingress::default() },
        checkpoint_timeout: Duration::from_secs(60),
        stop_timeout: Duration::from_secs(10),
        signals: false,
    };
    let service = Service {
        make: Box::new(move || Box::new(Ring { me, folded: 0 })),
        check_command: Box::new(|_| Ok(())),
        check_query: Box::new(|_| Ok(())),
    };
    start(settings, service).expect("it starts")
}

/// One request; `None` if the connection broke or no answer came.
fn ask(address: SocketAddr, key: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let request = format!(
        "POST /call HTTP/1.1\r\nHost: x\r\nConnection: close\r\nIdempotency-Key: {key}\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
}

#[test]
fn a_request_goes_round_three_services_and_one_of_them_dies() {
    for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::Unlogged) {
        let directory = tempfile::tempdir().expect("a folder");
        let addresses = free_addresses();
        let mut nodes: Vec<_> =
            (1..=3).map(|me| Some(run(directory.path(), me, policy, &addresses))).collect();
        let entry = nodes[0].as_ref().expect("it runs").address();
        for number in 1..=5 {
            let answer = ask(entry, &format!("a{number}")).expect("nothing fails yet");
            assert_eq!(answer, format!("[{number}, {number}, {number}]"), "{policy}");
        }
        for dies in [2, 3] {
            drop(nodes[dies - 1].take());
            nodes[dies - 1] = Some(run(directory.path(), dies as u32, policy, &addresses));
            let base = 5 * (dies as u64 - 1);
            for number in base + 1..=base + 5 {
                let deadline = Instant::now() + PATIENCE;
                let answer = loop {
                    match ask(entry, &format!("a{number}")) {
                        Some(answer) => break answer,
                        None => assert!(Instant::now() < deadline, "{policy}: no answer"),
                    }
                };
                assert_eq!(answer, format!("[{number}, {number}, {number}]"), "{policy}");
            }
        }
    }
}
