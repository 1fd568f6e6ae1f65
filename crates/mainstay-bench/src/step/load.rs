//! A closed loop of HTTP/1.1 clients on kept-alive connections, every request with a key of its own; the same for every
//! arm, so that what it costs itself is in all of them.

use super::StepError;
use crate::report::Samples;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Bytes of every request's and answer's body.
pub(super) const BODY_BYTES: usize = 100;

/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: usize = 4096;

/// What one slice gave.
#[derive(Debug, Default)]
pub(super) struct Slice {
    /// Time from sending to the whole answer, in microseconds.
    pub(super) latency_us: Samples,
    /// Answers per second.
    pub(super) rate: f64,
}

/// Drives `address` with `clients` connections for `duration`.
pub(super) fn run(
    server: &str,
    address: SocketAddr,
    clients: usize,
    duration: Duration,
) -> Result<Slice, StepError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut connections = Vec::with_capacity(clients);
        for _ in 0..clients {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            connections.push(stream);
        }
        let begun = Instant::now();
        let end = begun + duration;
        let tasks: Vec<_> = connections
            .into_iter()
            .map(|stream| tokio::spawn(client(server.to_owned(), stream, end)))
            .collect();
        let mut slice = Slice::default();
        for task in tasks {
            slice.latency_us.extend(task.await.expect("clients do not panic")?);
        }
        slice.rate = slice.latency_us.values().len() as f64 / begun.elapsed().as_secs_f64();
        Ok(slice)
    })
}

async fn client(server: String, mut stream: TcpStream, end: Instant) -> Result<Vec<f64>, StepError> {
    static KEY: AtomicU64 = AtomicU64::new(0);
    let body = format!("\"{}\"", "x".repeat(BODY_BYTES - 2));
    let mut latency_us = Vec::with_capacity(1 << 14);
    let mut answer = [0; ANSWER_BYTES_MAX];
    let mut request = Vec::new();
    loop {
        let sent = Instant::now();
        if sent >= end {
            return Ok(latency_us);
        }
        let key = KEY.fetch_add(1, Ordering::Relaxed);
        request.clear();
        request.extend_from_slice(
            b"POST /call HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
        );
        request.extend_from_slice(
            format!("Idempotency-Key: {key:016x}\r\nContent-Length: {BODY_BYTES}\r\n\r\n{body}").as_bytes(),
        );
        stream.write_all(&request).await?;
        let mut length = 0;
        while !complete(&answer[..length]) {
            let read = stream.read(&mut answer[length..]).await?;
            if read == 0 {
                return Err(status(&server, &answer[..length]));
            }
            length += read;
        }
        if !answer.starts_with(b"HTTP/1.1 200") {
            return Err(status(&server, &answer[..length]));
        }
        latency_us.push(sent.elapsed().as_secs_f64() * 1e6);
    }
}

fn complete(answer: &[u8]) -> bool {
    let Some(head) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let length = std::str::from_utf8(&answer[..head]).ok().and_then(|head| {
        let field = head.lines().find(|line| line.to_ascii_lowercase().starts_with("content-length:"))?;
        field["content-length:".len()..].trim().parse::<usize>().ok()
    });
    answer.len() >= head + 4 + length.unwrap_or(0)
}

fn status(server: &str, answer: &[u8]) -> StepError {
    let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    StepError::Status { server: server.to_owned(), status_line: String::from_utf8_lossy(line).into_owned() }
}
