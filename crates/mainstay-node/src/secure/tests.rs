//! Who gets in and who does not, and that both ends say what to do about it.

use super::*;
use crate::head::{Head, LinkRefusal, REFUSAL_BYTES};
use crate::hearing::{Door, hear};
use crate::native::first_word;
use mainstay_tls::testing::Authority;
use mainstay_types::id::{ClusterId, StoreId};
use mainstay_types::view::Address;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use std::net::Ipv4Addr;
use std::path::Path;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn node(authority: &Authority, folder: &Path, name: &str, address: IpAddr) -> Security {
    let files = authority.files(folder, name, Some(address));
    Security::load(Some(&(files, name.to_owned()))).expect("these are good")
}

/// What comes of one node calling another and speaking as the one at loopback: what the one that dials is told, and whether the other heard it, or
/// why not.
async fn call(dials: &Security, listens: &Security) -> (String, String) {
    let listener = TcpListener::bind((HERE, 0)).await.expect("a port is free");
    let at = listener.local_addr().expect("it is bound");
    let dialling = async {
        let mut stream = match dials.dial(at, Duration::from_secs(60)).await {
            Ok(stream) => stream,
            Err(error) => return error.to_string(),
        };
        let head = Head {
            cluster: None,
            store: StoreId([1; 16]),
            address: Address::v4([127, 0, 0, 1], 7171),
            life: 1,
            connection: 1,
        };
        stream.write_all(&head.bytes()).await.expect("the other reads to the end");
        stream.flush().await.expect("the other reads to the end");
        last_words(stream).await
    };
    let accepting = async {
        let (stream, _) = listener.accept().await.expect("it is dialled");
        let (mut stream, shown) = match listens.accept(stream).await {
            Ok(accepted) => accepted,
            Err(error) => return error.to_string(),
        };
        let (inputs, mut heard) = mpsc::channel(8);
        let word = first_word(&mut stream).await.expect("it is said");
        let door = Door::new();
        // Who is heard may go on for as long as it likes: once is enough here.
        tokio::select! {
            () = hear(stream, shown, word, 1, &door, inputs) => "refused".to_owned(),
            Some(_) = heard.recv() => "heard".to_owned(),
        }
    };
    tokio::join!(dialling, accepting)
}

async fn last_words(mut stream: Stream) -> String {
    let mut words = Vec::new();
    match stream.read_to_end(&mut words).await {
        _ if is_tls(&words) => ConnectError::OtherUsesTls.to_string(),
        Ok(REFUSAL_BYTES) => {
            let words = words.try_into().expect("it has its length");
            LinkRefusal::read(&words, Some(ClusterId([1; 16]))).expect("it is one").to_string()
        }
        Ok(_) => "heard".to_owned(),
        Err(error) => match explained(error) {
            ConnectError::Broken(_) => "heard".to_owned(),
            error => error.to_string(),
        },
    }
}

#[tokio::test]
async fn both_ends_say_why_there_is_no_connection() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let (ours, theirs) = (Authority::new(), Authority::new());
    let first = node(&ours, folder.path(), "n1", HERE);
    let second = node(&ours, folder.path(), "n2", HERE);
    let elsewhere = node(&ours, folder.path(), "n3", IpAddr::V4(Ipv4Addr::new(10, 0, 0, 3)));
    let foreign = node(&theirs, &folder.path().join("theirs"), "n4", HERE);
    let plain = Security::Plain;
    let (authority, address, flags) = ("not of this cluster's authority", "--address 127.0.0.1", "--tls");
    for (what, dials, listens, at_dialling, at_listening) in [
        ("two nodes", &first, &second, "heard", "heard"),
        ("plain text", &plain, &plain, "heard", "heard"),
        ("another cluster calls", &foreign, &first, authority, authority),
        ("another cluster is called", &first, &foreign, authority, authority),
        ("a node of another address calls", &elsewhere, &first, address, "refused"),
        (
            "a node of another address is called",
            &first,
            &elsewhere,
            "another node is at this address",
            "must carry",
        ),
        ("plain text calls", &plain, &first, flags, "plain text"),
        ("plain text is called", &first, &plain, "plain text", "refused"),
    ] {
        let (dialled, heard) = call(dials, listens).await;
        assert!(dialled.contains(at_dialling), "{what}: the one that dials says: {dialled}");
        assert!(heard.contains(at_listening), "{what}: the one that listens says: {heard}");
    }
}

#[tokio::test]
async fn a_certificate_that_expired_meanwhile_is_refused_with_the_remedy_at_both_ends() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let authority = Authority::new();
    let listens = node(&authority, folder.path(), "n1", HERE);
    let expired = authority.expired_files(folder.path(), "n2", Some(HERE));
    let refused = Security::load(Some(&(expired.clone(), "n2".to_owned()))).expect_err("it is no use");
    assert!(refused.to_string().contains("mainstay cert node DIR n2"), "{refused}");

    // As a node has it that was started before: it does not look at its own again.
    let Security::Tls(good) = &listens else { unreachable!("it has a certificate") };
    let mut config = (*good.client()).clone();
    let chain = vec![CertificateDer::from_pem_file(&expired.certificate).expect("it was written")];
    let key = PrivateKeyDer::from_pem_file(&expired.key).expect("it was written");
    let provider = Arc::clone(config.crypto_provider());
    let certified =
        rustls::sign::CertifiedKey::from_der(chain, key, &provider).expect("they belong together");
    config.client_auth_cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(certified));
    let listener = TcpListener::bind((HERE, 0)).await.expect("a port is free");
    let at = listener.local_addr().expect("it is bound");
    let dialling = async {
        let stream = TcpStream::connect(at).await.expect("it listens");
        let dialled = TlsConnector::from(Arc::new(config)).connect(ServerName::from(HERE), stream).await;
        last_words(Box::new(dialled.expect("this end believes that all is well until it reads"))).await
    };
    let accepting =
        async { listens.accept(listener.accept().await.expect("it is dialled").0).await.map(drop) };
    let (dialled, accepted) = tokio::join!(dialling, accepting);
    for said in [dialled, accepted.expect_err("it is refused").to_string()] {
        assert!(said.contains("make a new one with `mainstay cert node`"), "{said}");
    }
}

#[tokio::test]
async fn plain_text_does_not_leave_the_machine() {
    let to = "192.0.2.1:7171".parse().expect("it is an address");
    let refused = Security::Plain.dial(to, Duration::ZERO).await.err();
    assert!(matches!(refused, Some(ConnectError::PlainBeyondLoopback { address }) if address == to));
}
