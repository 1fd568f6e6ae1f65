//! Who connects to a node: other nodes and clients that speak as nodes do, at one port; clients of the Redis protocol, at the other.

use crate::budget::Budget;
use crate::clients::{self, Room};
use crate::error::NodeError;
use crate::head::LinkRefusal;
use crate::hearing::{self, CONNECTIONS_MAX, Door, HEAD_MAX};
use crate::input::Input;
use crate::native;
use crate::secure::{Complaints, Security, Stream};
use mainstay_region::conversation::{MAGIC, ToClient};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

/// Between two attempts to accept or to listen, when one has failed.
const PAUSE: Duration = Duration::from_millis(50);

/// How long an address may be taken that is to be listened at: a node that was killed a moment ago holds it until it has given its memory back.
const TAKEN_MAX: Duration = Duration::from_secs(3);

/// Listens there, which without certificates must be on loopback.
pub(crate) async fn listen(address: SocketAddr, security: &Security) -> Result<TcpListener, NodeError> {
    if matches!(security, Security::Plain) && !address.ip().is_loopback() {
        return Err(NodeError::NotLoopback { address });
    }
    let until = Instant::now() + TAKEN_MAX;
    let mut said = false;
    loop {
        match TcpListener::bind(address).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < until => {
                if !std::mem::replace(&mut said, true) {
                    tracing::info!(%address, "the address is taken: waiting for whoever may be ending");
                }
                tokio::time::sleep(PAUSE).await;
            }
            bound => return bound.map_err(|source| NodeError::Listen { address, source }),
        }
    }
}

/// At most [`CONNECTIONS_MAX`] nodes, and who has not said yet what it is, and `clients_max` clients: their first word tells them apart.
pub(crate) async fn nodes(
    listener: TcpListener,
    security: Security,
    door: Arc<Door>,
    inputs: mpsc::Sender<Input>,
    clients_max: usize,
) {
    let complaints = Complaints::default();
    let of_nodes = Arc::new(Semaphore::new(usize::from(CONNECTIONS_MAX)));
    let room = Arc::new(Semaphore::new(clients_max));
    let large = Budget::new(native::LARGE_BYTES_MAX);
    for number in 1.. {
        let (stream, other) = accept(&listener).await;
        let Ok(place) = Arc::clone(&of_nodes).try_acquire_owned() else {
            tracing::warn!("as many connections from nodes as there may be: one more is refused");
            if matches!(security, Security::Plain) {
                let _ = stream.try_write(&LinkRefusal::full(CONNECTIONS_MAX));
            }
            continue;
        };
        let (door, inputs, room) = (Arc::clone(&door), inputs.clone(), Arc::clone(&room));
        let (security, complaints, large) = (security.clone(), complaints.clone(), large.clone());
        tokio::spawn(async move {
            let (mut stream, shown) = match security.accept(stream).await {
                Ok(accepted) => accepted,
                Err(error) => return complaints.log(other, "a connection from a node is refused", &error),
            };
            match tokio::time::timeout(HEAD_MAX, native::first_word(&mut stream)).await {
                Ok(Ok(MAGIC)) => {
                    drop(place);
                    match room.try_acquire() {
                        Ok(_place) => native::serve(stream, number, &large, inputs).await,
                        Err(_) => full(&mut stream, clients_max).await,
                    }
                }
                Ok(Ok(word)) if native::is_of_other_version(word) => {
                    native::refuse_other_version(&mut stream, word).await;
                }
                Ok(Ok(word)) => hearing::hear(stream, shown, word, number, &door, inputs).await,
                Ok(Err(_)) | Err(_) => tracing::debug!("a connection ended before its first word"),
            }
        });
    }
}

async fn full(stream: &mut Stream, clients_max: usize) {
    let reason =
        format!("{clients_max} clients are connected here, and more are not taken: try another node");
    let mut frame = Vec::new();
    ToClient::NotServing { explanation: reason }.put(&mut frame);
    // It fits into the socket's buffer.
    let _ = stream.write_all(&frame).await;
    let _ = stream.flush().await;
}

/// At most `clients_max` clients of the Redis protocol.
pub(crate) async fn clients(
    listener: TcpListener,
    security: Security,
    inputs: mpsc::Sender<Input>,
    clients_max: usize,
) {
    let complaints = Complaints::default();
    let places = Arc::new(Semaphore::new(clients_max));
    let room = Arc::new(Room::new());
    for session in 1.. {
        let (stream, other) = accept(&listener).await;
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            if matches!(security, Security::Plain) {
                let _ = stream.try_write(b"-ERR max number of clients reached\r\n");
            }
            continue;
        };
        let (inputs, room) = (inputs.clone(), Arc::clone(&room));
        let (security, complaints) = (security.clone(), complaints.clone());
        tokio::spawn(async move {
            match security.accept(stream).await {
                Ok((stream, _)) => clients::serve(stream, session, inputs, &room).await,
                Err(error) => complaints.log(other, "a connection of a client is refused", &error),
            }
            drop(place);
        });
    }
}

async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                // No descriptor is free, or the like: it passes.
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_that_is_given_up_a_moment_later_is_waited_for() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = held.local_addr().expect("it has one");
        let (listening, ()) = tokio::join!(listen(address, &Security::Plain), async { drop(held) });
        assert_eq!(listening.expect("it is free now").local_addr().expect("it has one"), address);
    }

    #[tokio::test]
    async fn an_address_that_stays_taken_is_an_error() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = held.local_addr().expect("it has one");
        let refused = listen(address, &Security::Plain).await.expect_err("it is held");
        assert!(matches!(refused, NodeError::Listen { address: at, .. } if at == address));
    }
}
