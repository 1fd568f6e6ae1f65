//! Who connects to a node: other nodes and clients that speak as nodes do, at one port; clients of the Redis protocol, at the other.

use crate::input::Input;
use crate::{clients, links, native};
use mainstay_region::conversation::{MAGIC, ToClient};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

/// Between two attempts to accept, when one has failed.
const PAUSE: Duration = Duration::from_millis(50);

/// Nodes, and at most `clients_max` clients: their first word tells them apart.
pub(crate) async fn nodes(listener: TcpListener, inputs: mpsc::Sender<Input>, clients_max: usize) {
    let room = Arc::new(Semaphore::new(clients_max));
    for number in 1.. {
        let mut stream = accept(&listener).await;
        let (inputs, room) = (inputs.clone(), Arc::clone(&room));
        tokio::spawn(async move {
            match native::first_word(&mut stream).await {
                Ok(MAGIC) => match room.try_acquire() {
                    Ok(_place) => native::serve(stream, number, inputs).await,
                    Err(_) => full(&stream, clients_max),
                },
                Ok(word) => links::hear(stream, &word, number, inputs).await,
                Err(error) => tracing::debug!(%error, "a connection ended before its first word"),
            }
        });
    }
}

fn full(stream: &TcpStream, clients_max: usize) {
    let reason =
        format!("{clients_max} clients are connected here, and more are not taken: try another node");
    let mut frame = Vec::new();
    ToClient::NotServing { explanation: reason }.put(&mut frame);
    let _ = stream.try_write(&frame);
}

/// At most `clients_max` clients of the Redis protocol.
pub(crate) async fn clients(listener: TcpListener, inputs: mpsc::Sender<Input>, clients_max: usize) {
    let room = Arc::new(Semaphore::new(clients_max));
    for session in 1.. {
        let stream = accept(&listener).await;
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            let _ = stream.try_write(b"-ERR max number of clients reached\r\n");
            continue;
        };
        let inputs = inputs.clone();
        tokio::spawn(async move {
            clients::serve(stream, session, inputs).await;
            drop(place);
        });
    }
}

async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            Err(error) => {
                // No descriptor is free, or the like: it passes.
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
