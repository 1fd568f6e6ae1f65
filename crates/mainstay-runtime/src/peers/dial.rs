//! Reaching a peer with a higher number, over and over: a connection that breaks is dialled again.

use crate::peers::Shared;
use crate::peers::event::ConnectError;
use crate::peers::greeting::{Greeted, Ungreeted, greet};
use crate::peers::settings::PeerAddress;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The body of the thread that dials `peer` and reads from it; returns when this node stops.
pub(super) fn keep_dialling(shared: &Arc<Shared>, mut peer: PeerAddress) {
    let mut pause = shared.settings.reconnect_min;
    let mut told = None;
    while !shared.is_stopping() {
        peer.address = shared.slot(peer.node).expect("each peer has a slot").address();
        match dial(shared, &peer) {
            Ok(greeted) => {
                told = None;
                let began = Instant::now();
                shared.run(greeted);
                // One that breaks at once is not dialled at once, over and over.
                if began.elapsed() >= shared.settings.reconnect_max {
                    pause = shared.settings.reconnect_min;
                }
            }
            Err((remote, Ungreeted { why, .. })) => {
                let words = chain(&why);
                if told.as_ref() != Some(&words) {
                    // A peer that is not there is nothing to worry about; one that does not agree will not by itself.
                    let expected = matches!(
                        why,
                        ConnectError::Connect(_) | ConnectError::Broken(_) | ConnectError::Placeless
                    );
                    if expected {
                        tracing::info!(peer = %peer.name, address = %peer.address, why = %words, "not connected; trying again");
                    } else {
                        tracing::warn!(peer = %peer.name, address = %peer.address, why = %words, "not connected; trying again");
                    }
                    told = Some(words);
                }
                shared.report_failure(Some(peer.node), remote, why);
            }
        }
        shared.pause(jittered(pause));
        pause = (pause * 2).min(shared.settings.reconnect_max);
    }
}

fn dial(shared: &Shared, peer: &PeerAddress) -> Result<Greeted, (Option<SocketAddr>, Ungreeted)> {
    let nowhere = |why: ConnectError| (None, why.into());
    if peer.address.is_empty() {
        return Err(nowhere(ConnectError::Placeless));
    }
    let resolve = |source| ConnectError::Resolve { address: peer.address.clone(), source };
    let resolved = peer.address.to_socket_addrs().map_err(resolve).map_err(nowhere)?;
    let mut last = resolve(io::ErrorKind::NotFound.into());
    for address in resolved {
        if shared.tls.is_none() && !address.ip().is_loopback() {
            last = ConnectError::PlainBeyondLoopback { address: peer.address.clone() };
            continue;
        }
        match TcpStream::connect_timeout(&address, shared.settings.connect_timeout) {
            Ok(socket) => {
                return greet(&shared.settings, shared.tls.as_ref(), Some(peer), socket)
                    .map_err(|why| (Some(address), why));
            }
            Err(error) => last = ConnectError::Connect(error),
        }
    }
    Err(nowhere(last))
}

/// Between half of it and all of it: nodes that lost a peer together do not all return at once.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}

/// An error and its causes in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words.push_str(": ");
        words.push_str(&error.to_string());
        cause = error.source();
    }
    words
}
