//! The yardstick: what a bare program would do, blocking reads and writes of whole messages, and for the stream the same bytes per
//! system call as the transport is given per call.

use super::{Arguments, BATCH_BYTES, ORDER_BYTES, Order, TransportError};
use crate::logging::node::say;
use crate::logging::{Arguments as NodeArguments, NodeProcess};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Instant;

/// This end, and the process at the other.
pub(crate) struct Bare {
    stream: TcpStream,
    _peer: NodeProcess,
}

impl Bare {
    pub(crate) fn start(program: &Path) -> Result<Self, TransportError> {
        let (peer, address) = NodeProcess::listening(program, NodeArguments::Transport(Arguments::Bare))?;
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, _peer: peer })
    }

    /// How long it took, in seconds.
    pub(crate) fn run(&mut self, order: Order) -> io::Result<f64> {
        self.stream.write_all(&order.encode())?;
        if order.stream { self.stream_of(order) } else { self.ping_pong(order) }
    }

    fn ping_pong(&mut self, order: Order) -> io::Result<f64> {
        let mut message = vec![7; order.bytes as usize];
        let began = Instant::now();
        for _ in 0..order.count {
            self.stream.write_all(&message)?;
            self.stream.read_exact(&mut message)?;
        }
        Ok(began.elapsed().as_secs_f64())
    }

    fn stream_of(&mut self, order: Order) -> io::Result<f64> {
        let batch = vec![7; order.bytes as usize * order.per_call() as usize];
        let began = Instant::now();
        let mut left = order.total_bytes();
        while left > 0 {
            let now = left.min(batch.len());
            self.stream.write_all(&batch[..now])?;
            left -= now;
        }
        self.stream.read_exact(&mut [0])?;
        Ok(began.elapsed().as_secs_f64())
    }
}

/// The other end: until this one hangs up.
pub(super) fn serve(answers: &mut dyn Write) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    say(answers, listener.local_addr()?)?;
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut order = [0; ORDER_BYTES];
    loop {
        match stream.read_exact(&mut order) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        let order = Order::decode(order);
        if order.stream {
            let mut buffer = vec![0; BATCH_BYTES];
            let mut left = order.total_bytes();
            while left > 0 {
                let room = left.min(buffer.len());
                left -= match stream.read(&mut buffer[..room])? {
                    0 => return Ok(()),
                    count => count,
                };
            }
            stream.write_all(&[1])?;
        } else {
            let mut message = vec![0; order.bytes as usize];
            for _ in 0..order.count {
                stream.read_exact(&mut message)?;
                stream.write_all(&message)?;
            }
        }
    }
}
