//! Mutually authenticated TLS: who gets in, who does not, and that it is frames all the same.

use crate::flow::fill_the_queue;
use crate::harness::{ANYWHERE, Node, Raw, alone, preamble, settings};
use mainstay_runtime::peers::event::{ConnectError, DisconnectReason};
use mainstay_runtime::peers::preamble::{PreambleError, Refusal};
use mainstay_runtime::peers::settings::{PeersSettings, Security, TlsFiles};
use mainstay_runtime::peers::tls::{TlsError, check_files};
use mainstay_runtime::peers::{Peers, PeersError};
use mainstay_tls::testing::Authority;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, ClientConnection, RootCertStore};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn with(mut settings: PeersSettings, files: TlsFiles) -> PeersSettings {
    settings.security = Security::Tls(files);
    settings
}

fn dialling(address: SocketAddr) -> PeersSettings {
    settings(1, [ANYWHERE, address, ANYWHERE])
}

#[test]
fn frames_arrive_whole_and_in_order_both_ways() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let authority = Authority::new();
    let higher = Node::start(with(alone(2), authority.files(folder.path(), "n2", None)));
    let lower = Node::start(with(dialling(higher.address()), authority.files(folder.path(), "n1", None)));
    let (to_higher, to_lower) = (lower.connected(2), higher.connected(1));
    let large: Vec<u8> = (0..5_000_000_u32).map(|at| (at % 251) as u8).collect();
    lower.send(2, to_higher, &[b"one", &large, b"two"]);
    higher.send(1, to_lower, &[&large, b"other way"]);
    assert!(higher.frames(to_lower, 3) == [&b"one"[..], &large, b"two"], "what came differs");
    assert!(lower.frames(to_higher, 2) == [&large[..], b"other way"], "what came differs");
    // A connection is made anew without what was remembered of the last one.
    lower.peers.hang_up(mainstay_types::id::NodeId(2), to_higher);
    lower.disconnected();
    let again = lower.connected(2);
    lower.send(2, again, &[b"again"]);
}

#[test]
fn a_full_queue_says_so_and_loses_nothing_that_it_took() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let authority = Authority::new();
    let files = |name| authority.files(folder.path(), name, None);
    fill_the_queue(with(alone(1), files("n1")), || with(alone(2), files("n2")));
}

#[test]
fn a_certificate_of_another_authority_opens_no_door() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let higher = Node::start(with(alone(2), Authority::new().files(folder.path(), "n2", None)));
    let lower =
        Node::start(with(dialling(higher.address()), Authority::new().files(folder.path(), "n1", None)));
    let why = lower.failed(|why| matches!(why, ConnectError::Tls { .. }).then_some(why));
    assert!(why.to_string().contains("not of this cluster's authority"), "{why}");
    higher.failed(|why| matches!(why, ConnectError::Tls { .. }).then_some(()));
}

#[test]
fn a_dialling_node_with_an_untrusted_certificate_hears_that_from_the_other() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (ours, theirs) = (Authority::new(), Authority::new());
    let higher = Node::start(with(alone(2), ours.files(folder.path(), "n2", None)));
    // It trusts the authority of the other, which does not trust its own.
    let trusts = ours.files(folder.path(), "n9", None).authority;
    let shown = theirs.files(&folder.path().join("theirs"), "n1", None);
    let bundle = [&trusts, &shown.authority]
        .map(|path| std::fs::read_to_string(path).expect("it was written"))
        .concat();
    std::fs::write(&shown.authority, bundle).expect("it can be written");
    let lower = Node::start(with(dialling(higher.address()), shown));
    let why = lower.failed(|why| matches!(why, ConnectError::Tls { .. }).then_some(why));
    assert!(matches!(why, ConnectError::Tls { source: rustls::Error::AlertReceived(_) }), "{why}");
    higher.failed(|why| matches!(why, ConnectError::Tls { .. }).then_some(()));
}

#[test]
fn a_certificate_of_another_name_opens_no_door() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let authority = Authority::new();
    let mallory = authority.files(folder.path(), "mallory", None);

    // One that dials as node 1.
    let higher = Node::start(with(alone(2), authority.files(folder.path(), "n2", None)));
    let mut dials = with(dialling(higher.address()), mallory.clone());
    dials.nodes[0].name = "mallory".to_owned();
    let lower = Node::start(dials);
    let refusal = Refusal::Certificate { name: "n1".to_owned() };
    higher.failed(|why| matches!(why, ConnectError::Refused(found) if found == refusal).then_some(()));
    let code = Refusal::Certificate { name: String::new() }.code();
    lower.failed(|why| {
        matches!(why, ConnectError::RefusedByPeer { code: found, .. } if found == code).then_some(())
    });
    drop((lower, higher));

    // One that listens where node 2 is expected.
    let mut listens = with(alone(2), mallory);
    listens.nodes[1].name = "mallory".to_owned();
    let higher = Node::start(listens);
    let lower = Node::start(with(dialling(higher.address()), authority.files(folder.path(), "n1", None)));
    let why = lower.failed(|why| matches!(why, ConnectError::Tls { .. }).then_some(why));
    assert!(why.to_string().contains("another node is at this address"), "{why}");
}

#[test]
fn nobody_gets_in_without_a_certificate() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let files = Authority::new().files(folder.path(), "n2", None);
    let node = Node::start(with(alone(2), files.clone()));
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(&files.authority).expect("it was written"))
        .expect("it is an authority's");
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has them")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("n2").expect("it is a name");
    let mut tls = ClientConnection::new(Arc::new(config), name).expect("the settings are fine");
    let mut raw = Raw::dial(node.address());
    let mut stream = rustls::Stream::new(&mut tls, &mut raw.0);
    // This end believes that all is well until it reads.
    let _ = stream.write_all(&preamble(1, 2).encode());
    assert!(stream.read(&mut [0]).is_err(), "no answer but an alert");
    drop(raw);
    node.failed(|why| {
        let expected = rustls::Error::NoCertificatesPresented;
        matches!(why, ConnectError::Tls { source } if source == expected).then_some(())
    });
}

#[test]
fn plain_text_and_tls_are_told_apart() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let authority = Authority::new();
    let higher = Node::start(with(alone(2), authority.files(folder.path(), "n2", None)));
    let lower = Node::start(dialling(higher.address()));
    let why = higher.failed(|why| matches!(why, ConnectError::Tls { .. }).then_some(why));
    assert!(why.to_string().contains("the other seems to use plain text"), "{why}");
    let why = lower.failed(|why| matches!(why, ConnectError::Preamble(_)).then_some(why));
    assert!(why.to_string().contains("which is TLS"), "{why}");
    drop((lower, higher));

    let higher = Node::start(alone(2));
    let _lower = Node::start(with(dialling(higher.address()), authority.files(folder.path(), "n1", None)));
    let why = higher
        .failed(|why| matches!(why, ConnectError::Preamble(PreambleError::Foreign { .. })).then_some(why));
    assert!(why.to_string().contains("which is TLS"), "{why}");
}

#[test]
fn bytes_changed_on_the_way_end_the_connection() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let authority = Authority::new();
    let higher = Node::start(with(alone(2), authority.files(folder.path(), "n2", None)));
    let between = TcpListener::bind(ANYWHERE).expect("a port is free");
    let address = between.local_addr().expect("it is bound");
    let lower = Node::start(with(dialling(address), authority.files(folder.path(), "n1", None)));
    let dialled = between.accept().expect("the node dials").0;
    let passed_on = TcpStream::connect(higher.address()).expect("the other listens");
    let flip = Arc::new(AtomicBool::new(false));
    let (of_thread, mut from, mut to) = (
        Arc::clone(&flip),
        dialled.try_clone().expect("a socket can be shared"),
        passed_on.try_clone().expect("a socket can be shared"),
    );
    let there = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if of_thread.load(Ordering::Relaxed) {
                bytes[count / 2] ^= 1;
            }
            if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
    });
    let (mut from, mut to) = (passed_on, dialled);
    let back = std::thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
    let (to_higher, to_lower) = (lower.connected(2), higher.connected(1));
    lower.send(2, to_higher, &[b"untouched"]);
    assert_eq!(higher.frames(to_lower, 1), [b"untouched"]);
    flip.store(true, Ordering::Relaxed);
    lower.send(2, to_higher, &[b"touched"]);
    let (_, session, why) = higher.disconnected();
    assert_eq!(session, to_lower);
    assert!(matches!(why, DisconnectReason::Tls(_)), "{why}");
    drop((lower, higher));
    there.join().expect("it does not panic");
    back.join().expect("it does not panic");
}

#[test]
fn files_that_prove_nothing_are_refused_at_the_start() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let authority = Authority::new();
    let good = authority.files(folder.path(), "n2", None);
    check_files(&good, "n2").expect("these are good");

    let refused = |files: TlsFiles| {
        let refused = Peers::start(with(alone(2), files), |_| {}).err().expect("it is refused");
        let PeersError::Tls(error) = refused else { panic!("{refused}") };
        error
    };
    let unfit = |error: TlsError, wanted: fn(&CertificateError) -> bool| {
        let TlsError::Unfit { source: rustls::Error::InvalidCertificate(source), .. } = &error else {
            panic!("{error}")
        };
        assert!(wanted(source), "{error}");
    };
    unfit(refused(authority.files(folder.path(), "n1", None)), |error| {
        matches!(error, CertificateError::NotValidForNameContext { .. })
    });
    let expired = authority.expired_files(folder.path(), "n2", None);
    unfit(refused(expired), |error| matches!(error, CertificateError::ExpiredContext { .. }));
    let good = authority.files(folder.path(), "n2", None);
    let foreign = TlsFiles {
        authority: Authority::new().files(&folder.path().join("other"), "other", None).authority,
        ..good.clone()
    };
    unfit(refused(foreign), |error| {
        matches!(error, CertificateError::UnknownIssuer | CertificateError::BadSignature)
    });
    let key = authority.files(folder.path(), "n1", None).key;
    assert!(matches!(refused(TlsFiles { key, ..good.clone() }), TlsError::Key { .. }));
    let key = good.certificate.clone();
    assert!(matches!(refused(TlsFiles { key, ..good.clone() }), TlsError::File { kind: "private key", .. }));
    let certificate = folder.path().join("missing.pem");
    let missing = refused(TlsFiles { certificate, ..good });
    assert!(missing.to_string().contains("missing.pem"), "{missing}");
}
