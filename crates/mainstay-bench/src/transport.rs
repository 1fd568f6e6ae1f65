//! `mainstay bench transport`: the transport between nodes alone, plain and with TLS, beside bare TCP. Nothing is logged.

mod bare;
mod node;

use crate::logging::LoggingError;
use crate::report::{Arm, Bound, Figure, Report, Samples, Target};
use crate::setting::{self, Part};
pub(crate) use bare::Bare;
use mainstay_runtime::peers::PeersError;
use node::{Certificates, Node};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

/// Least share of bare TCP's rate that the plain transport reaches.
const BARE_SHARE_MIN: f64 = 0.6;

/// Bytes handed over per call while streaming: what a node emits in one round.
const BATCH_BYTES: usize = 64 << 10;

/// The benchmark could not be run to its end.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// A socket, or the scratch directory.
    #[error("cannot use the scratch directory or a loopback socket: {0}")]
    Io(#[from] io::Error),
    /// The process at the other end did not come up.
    #[error("the other end: {0}")]
    Peer(#[from] LoggingError),
    /// The transport could not be started.
    #[error(transparent)]
    Start(#[from] PeersError),
    /// The certificates could not be made.
    #[error("the certificates could not be made: `cert {what}` failed")]
    Certificates {
        /// The command.
        what: String,
    },
    /// The other end stopped answering.
    #[error("the other end did not answer within {seconds} s")]
    Silent {
        /// How long was waited, in seconds.
        seconds: u64,
    },
}

/// What is told to this benchmark alone: a program that is the other end when it gets `bench-node ARGUMENTS`, and makes
/// certificates when it gets `cert ARGUMENTS`.
type Setting<'a> = setting::Setting<'a, Path>;

/// What a process at the other end is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Arguments {
    /// Blocking sockets.
    Bare,
    /// The transport.
    Node(Option<Certificates>),
}

/// Is the other end until the benchmark hangs up.
///
/// # Errors
/// Those of its start and its socket.
pub(crate) fn serve(arguments: &Arguments, answers: &mut dyn io::Write) -> Result<(), TransportError> {
    match arguments {
        Arguments::Bare => Ok(bare::serve(answers)?),
        Arguments::Node(certificates) => node::serve(certificates.as_ref(), answers),
    }
}

/// What the other end is asked: a ping of so many bytes is sent back; a stream of so many messages is answered once, at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) stream: bool,
    pub(crate) bytes: u32,
    pub(crate) count: u32,
}

const ORDER_BYTES: usize = 9;

impl Order {
    fn encode(self) -> [u8; ORDER_BYTES] {
        let mut bytes = [0; ORDER_BYTES];
        bytes[0] = u8::from(self.stream);
        bytes[1..5].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[5..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; ORDER_BYTES]) -> Self {
        let [stream, b0, b1, b2, b3, c0, c1, c2, c3] = bytes;
        let (length, count) = (u32::from_le_bytes([b0, b1, b2, b3]), u32::from_le_bytes([c0, c1, c2, c3]));
        Self { stream: stream == 1, bytes: length, count }
    }

    /// Messages per call, so that a call carries about [`BATCH_BYTES`].
    fn per_call(self) -> u32 {
        let fit = BATCH_BYTES / (self.bytes as usize).max(1);
        u32::try_from(fit).unwrap_or(u32::MAX).clamp(1, self.count.max(1))
    }

    fn total_bytes(self) -> usize {
        self.bytes as usize * self.count as usize
    }
}

/// Measures everything; `progress` is told what comes next. `program` is the other end when it gets `bench-node ARGUMENTS`, and
/// makes certificates when it gets `cert ARGUMENTS`.
///
/// # Errors
/// See [`TransportError`]; the other ends are ended and the scratch directory is removed all the same.
pub fn transport(
    options: &setting::Options,
    program: &Path,
    progress: &dyn Fn(&str),
) -> Result<Report, TransportError> {
    let parts = [
        Part { name: "transport, ping-pong", measure: |setting, report| measure(false, setting, report) },
        Part { name: "transport, stream", measure: |setting, report| measure(true, setting, report) },
    ];
    setting::run("transport", options, program, &parts, progress)
}

fn measure(stream: bool, setting: &Setting<'_>, report: &mut Report) -> Result<(), TransportError> {
    let certificates =
        Certificates::make(setting.given, &setting.directory.join(format!("certificates-{stream}")))?;
    let mut bare = Bare::start(setting.given)?;
    let plain = Node::start(setting.given, None)?;
    let secure = Node::start(setting.given, Some(&certificates))?;
    let mut figure = Figure {
        name: if stream { "transport, stream" } else { "transport, ping-pong" },
        meaning: if stream {
            "one way, 64 KiB handed over per call, 8 MiB may wait for the socket; a sample is a round"
                .to_owned()
        } else {
            "there and back, one message under way; a sample is the mean of a round".to_owned()
        },
        arms: Vec::new(),
        notes: Vec::new(),
    };
    for bytes in [if stream { 100 } else { 10 }, 1000, 10_000, 100_000] {
        let count =
            if stream { setting.choose(32 << 20, 256 << 20) / bytes } else { setting.choose(1000, 4000) };
        let order = Order { stream, bytes, count };
        let mut samples = [Samples::default(), Samples::default(), Samples::default()];
        for round in 0..=setting.choose(5, 9) {
            let taken = [bare.run(order)?, plain.run(order)?, secure.run(order)?];
            // The first round warms up.
            if round > 0 {
                samples
                    .iter_mut()
                    .zip(taken)
                    .for_each(|(samples, seconds)| samples.push(in_unit(order, seconds)));
            }
        }
        let share =
            if stream { samples[1].ratios_to(&samples[0]) } else { samples[0].ratios_to(&samples[1]) };
        report.targets.push(Target::new(
            format!("{}, {bytes} B: plain, share of bare TCP's rate", figure.name),
            share.median(),
            Bound::AtLeast,
            BARE_SHARE_MIN,
            "x",
            None,
        ));
        let names = ["bare TCP", "transport, plain", "transport, TLS"];
        figure.arms.extend(samples.into_iter().zip(names).map(|(samples, name)| Arm {
            name: name.to_owned(),
            level: None,
            window: 1,
            payload_bytes: u64::from(bytes),
            unit: if stream { "MB/s" } else { "us" },
            operations: u64::from(count) * samples.values().len() as u64,
            cpu_ns_per_operation: None,
            disk: None,
            samples,
        }));
    }
    report.figures.push(figure);
    Ok(())
}

/// Microseconds per ping-pong, or megabytes per second.
fn in_unit(order: Order, seconds: f64) -> f64 {
    if order.stream {
        order.total_bytes() as f64 / seconds / 1e6
    } else {
        seconds * 1e6 / f64::from(order.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_read_back_and_calls_carry_a_batch() {
        let order = Order { stream: true, bytes: 1000, count: 50_000 };
        assert_eq!(Order::decode(order.encode()), order);
        assert_eq!(order.per_call(), 65);
        assert_eq!(Order { bytes: 100_000, ..order }.per_call(), 1);
        assert_eq!(in_unit(order, 0.5), 100.0);
        assert_eq!(in_unit(Order { stream: false, ..order }, 0.5), 10.0);
    }
}
