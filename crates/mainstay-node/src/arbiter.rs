//! The arbiter of a group: etcd, which keeps for each view the first successor that it is given.
//!
//! ```text
//!   when the group begins      write /mainstay/CLUSTER/begun
//!   for each change of view    in one transaction: if that is there, and /mainstay/CLUSTER/successor/VIEW was never written, write it;
//!                              else read both
//! ```
//!
//! It speaks the JSON form of etcd's v3 API, over HTTP: one request of one kind, for which a stack of gRPC would be compiled otherwise. A request
//! whose answer is lost is harmless: the next one finds what it wrote. Nothing is ever removed: a store that comes back after long must
//! find what followed its view, or it would decide again. An etcd that does not know the group, another one or one that lost its data, decides
//! nothing.

use crate::input::Input;
use crate::settings::{Arbiter as Settings, ArbiterError};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use mainstay_group::ballot::Proposal;
use mainstay_group::message::{Body, Message};
use mainstay_tls::TlsFiles;
use mainstay_types::id::ClusterId;
use mainstay_types::view::{JoinerId, ViewId};
use serde_json::{Value, json};
use std::sync::mpsc;
use std::time::Duration;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

/// How long one endpoint may take.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Longest answer, in bytes: more than etcd takes for one value.
const ANSWER_BYTES_MAX: u64 = 16 << 20;

/// The arbiter did not decide. Asking again is safe.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("{endpoint}: {source}")]
    Unreachable { endpoint: String, source: Box<ureq::Error> },
    #[error("{endpoint} answers {status}: {text}")]
    Status { endpoint: String, status: u16, text: String },
    #[error(
        "{endpoint} knows no group {cluster}: it is another etcd than the group began with, or has lost its data"
    )]
    Unknown { endpoint: String, cluster: ClusterId },
    #[error("{endpoint} says what is no successor of a view")]
    Foreign { endpoint: String },
}

#[derive(Debug)]
struct Question {
    cluster: ClusterId,
    /// Who asks.
    me: JoinerId,
    from: ViewId,
    proposal: Proposal,
}

/// The way to the arbiter.
#[derive(Debug)]
pub(crate) struct Arbiter(mpsc::SyncSender<Question>);

impl Arbiter {
    /// Starts a thread that asks; what comes of it comes to `inputs`.
    pub(crate) fn start(
        settings: &Settings,
        certified: Option<&TlsFiles>,
        inputs: tokio::sync::mpsc::UnboundedSender<Input>,
    ) -> Result<Self, ArbiterError> {
        let agent = agent(certified)?;
        let endpoints = settings.endpoints.clone();
        // One that waits is enough: the group asks again.
        let (questions, queue) = mpsc::sync_channel::<Question>(1);
        let answer = move || {
            for question in queue {
                let told = match ask(&agent, &endpoints, &question) {
                    Ok(chosen) => Input::Arbitrated { chosen },
                    Err(error) => Input::ArbiterSilent { error: error.to_string() },
                };
                if inputs.send(told).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("node-arbiter".to_owned())
            .spawn(answer)
            .map_err(ArbiterError::Thread)?;
        Ok(Self(questions))
    }

    /// Asks, unless a question is under way.
    pub(crate) fn ask(&self, cluster: ClusterId, me: JoinerId, from: ViewId, proposal: Proposal) {
        // Full: it is asked again with the next beat.
        let _ = self.0.try_send(Question { cluster, me, from, proposal });
    }
}

fn agent(certified: Option<&TlsFiles>) -> Result<ureq::Agent, ArbiterError> {
    let mut config =
        ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(ANSWER_MAX));
    if let Some(TlsFiles { authority, certificate, key }) = certified {
        let read = |path| std::fs::read(path).map_err(ArbiterError::File);
        let pem = |bytes: Vec<u8>| {
            Certificate::from_pem(&bytes).map_err(|error| ArbiterError::Pem(Box::new(error)))
        };
        let key = PrivateKey::from_pem(&read(key)?).map_err(|error| ArbiterError::Pem(Box::new(error)))?;
        let own = ClientCert::new_with_certs(&[pem(read(certificate)?)?], key);
        let roots = RootCerts::new_with_certs(&[pem(read(authority)?)?]);
        config = config.tls_config(TlsConfig::builder().root_certs(roots).client_cert(Some(own)).build());
    }
    Ok(config.build().new_agent())
}

/// Tells the arbiter of a new group, which does not begin before.
pub(crate) fn begin(
    settings: &Settings,
    certified: Option<&TlsFiles>,
    cluster: ClusterId,
) -> Result<(), ArbiterError> {
    let put = json!({ "success": [{ "request_put": { "key": begun(cluster), "value": "" } }] });
    let begun = post_to_any(&agent(certified)?, &settings.endpoints, &put.to_string(), |_, _| Ok(()));
    begun.map_err(|error| ArbiterError::Begin { error: error.to_string() })
}

/// What the first endpoint holds that decides.
fn ask(agent: &ureq::Agent, endpoints: &[String], question: &Question) -> Result<Proposal, AskError> {
    let Question { cluster, from, proposal, .. } = question;
    let (begun, key) =
        (begun(*cluster), BASE64_STANDARD.encode(format!("/mainstay/{cluster}/successor/{}", from.0)));
    let transaction = json!({
        "compare": [
            { "key": begun, "target": "CREATE", "result": "GREATER", "create_revision": "0" },
            { "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0" },
        ],
        "success": [{ "request_put": { "key": key, "value": BASE64_STANDARD.encode(kept(question)) } }],
        "failure": [{ "request_range": { "key": begun } }, { "request_range": { "key": key } }],
    });
    post_to_any(agent, endpoints, &transaction.to_string(), |endpoint, answer| {
        // What is false or empty is left out.
        if answer["succeeded"] == true {
            return Ok(proposal.clone());
        }
        let held = |place: usize| &answer["responses"][place]["response_range"]["kvs"][0];
        if held(0).is_null() {
            return Err(AskError::Unknown { endpoint: endpoint.to_owned(), cluster: *cluster });
        }
        let successor = successor(&held(1)["value"]).filter(|held| held.view.id == from.next());
        successor.ok_or_else(|| AskError::Foreign { endpoint: endpoint.to_owned() })
    })
}

/// A successor as the arbiter keeps it: the message by which members are told of it.
fn kept(Question { cluster, me, from, proposal }: &Question) -> Vec<u8> {
    let mut bytes = Vec::new();
    let body = Body::Install { proposal: proposal.clone() };
    Message { cluster: Some(*cluster), view: *from, from: *me, body }.put(&mut bytes);
    bytes
}

fn successor(value: &Value) -> Option<Proposal> {
    match Message::parse(&BASE64_STANDARD.decode(value.as_str()?).ok()?).ok()?.body {
        Body::Install { proposal } => Some(proposal),
        _ => None,
    }
}

fn begun(cluster: ClusterId) -> String {
    BASE64_STANDARD.encode(format!("/mainstay/{cluster}/begun"))
}

/// What `take` makes of the answer of the first endpoint that has one it takes; else the last error.
fn post_to_any<T>(
    agent: &ureq::Agent,
    endpoints: &[String],
    transaction: &str,
    take: impl Fn(&str, &Value) -> Result<T, AskError>,
) -> Result<T, AskError> {
    let mut last = None;
    for endpoint in endpoints {
        match post(agent, endpoint, transaction).and_then(|answer| take(endpoint, &answer)) {
            Ok(taken) => return Ok(taken),
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("an arbiter has an endpoint"))
}

fn post(agent: &ureq::Agent, endpoint: &str, transaction: &str) -> Result<Value, AskError> {
    let unreachable =
        |source| AskError::Unreachable { endpoint: endpoint.to_owned(), source: Box::new(source) };
    let sent = agent.post(format!("{endpoint}/v3/kv/txn")).content_type("application/json").send(transaction);
    let mut response = sent.map_err(unreachable)?;
    let status = response.status();
    let text =
        response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string().map_err(unreachable)?;
    if !status.is_success() {
        return Err(AskError::Status { endpoint: endpoint.to_owned(), status: status.as_u16(), text });
    }
    serde_json::from_str(&text).map_err(|_| AskError::Foreign { endpoint: endpoint.to_owned() })
}
