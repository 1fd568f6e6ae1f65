//! Connections of clients: commands in, replies out, both within limits.

use crate::input::{Input, Written};
use crate::resp::{CommandLimits, take_command};
use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, mpsc};

/// Commands of one connection that are taken and not answered yet, the answers that wait to be written among them.
pub(crate) const PIPELINE_COMMANDS_MAX: usize = 128;

/// How much is read at once, in bytes.
const READ_BYTES: usize = 16 << 10;

/// Serves a connection until it ends.
pub(crate) async fn serve(stream: TcpStream, session: u64, inputs: mpsc::Sender<Input>) {
    let _ = stream.set_nodelay(true);
    let (reading, writing) = stream.into_split();
    let (writes, queue) = mpsc::unbounded_channel();
    let room = Semaphore::new(PIPELINE_COMMANDS_MAX);
    if inputs.send(Input::Opened { session, to: writes }).await.is_err() {
        return;
    }
    tokio::select! {
        () = read(reading, session, &room, &inputs) => {}
        () = write(writing, queue, &room) => {}
    }
    let _ = inputs.send(Input::Closed { session }).await;
}

async fn read(mut reading: OwnedReadHalf, session: u64, room: &Semaphore, inputs: &mpsc::Sender<Input>) {
    let limits = CommandLimits::default();
    let mut buffer = BytesMut::new();
    loop {
        let mut commands = Vec::new();
        let mut unreadable = None;
        while commands.len() < PIPELINE_COMMANDS_MAX {
            match take_command(&mut buffer, &limits) {
                Ok(Some(command)) => commands.push(command),
                Ok(None) => break,
                Err(error) => {
                    unreadable = Some(error.to_string());
                    break;
                }
            }
        }
        let full = commands.len() == PIPELINE_COMMANDS_MAX;
        if !commands.is_empty() {
            let count = u32::try_from(commands.len()).expect("they are few");
            let Ok(permits) = room.acquire_many(count).await else { return };
            // Given back when the answers are written.
            permits.forget();
            if inputs.send(Input::Commands { session, commands }).await.is_err() {
                return;
            }
        }
        if let Some(error) = unreadable {
            let _ = inputs.send(Input::Unreadable { session, error }).await;
            // The answer is on its way; closing is the writer's.
            return std::future::pending().await;
        }
        if full {
            continue;
        }
        buffer.reserve(READ_BYTES);
        match reading.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

async fn write(mut writing: OwnedWriteHalf, mut queue: mpsc::UnboundedReceiver<Written>, room: &Semaphore) {
    while let Some((bytes, answered, close)) = queue.recv().await {
        if writing.write_all(&bytes).await.is_err() {
            return;
        }
        room.add_permits(answered);
        if close {
            let _ = writing.shutdown().await;
            return;
        }
    }
}
