//! How long logging takes at the server, and how long the client waits, by size and way of logging: the server and the client of
//! Zhao 2014, two processes on one connection, one message at a time.

use super::server::{Client, Way};
use super::{LoggingCostError, SIZES, Setting};
use crate::report::{Arm, Figure, Report, Samples, Table, number};

/// What both figures and the table are asked for by.
pub(super) const NAME: &str = "latency";

/// The figure of logging alone.
pub(super) const AT_SERVER: &str = "logging latency, at the server";

/// The figure of what the client sees.
pub(super) const AT_CLIENT: &str = "end-to-end latency, at the client";

struct Measured {
    way: Way,
    bytes: u32,
    at_server: Samples,
    at_client: Samples,
    /// The mean of each round, at the client.
    rounds_us: Samples,
}

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), LoggingCostError> {
    let mut client = Client::start(setting)?;
    let mut all = Vec::new();
    for bytes in SIZES {
        if !setting.quick {
            setting.say(&format!("{NAME}, {bytes} B"));
        }
        all.extend(at(bytes, &mut client, setting)?);
    }
    report.tables.push(table(&all));
    let figure = |name, meaning: &str| Figure {
        name,
        meaning: meaning.to_owned(),
        arms: Vec::new(),
        notes: Vec::new(),
    };
    let mut at_server = figure(AT_SERVER, "from the whole request being read until it is logged as asked");
    let mut at_client =
        figure(AT_CLIENT, "from the request's sending until the whole answer, of the same length, is there");
    at_server.notes.push(
        "one journal directory: striping a journal over several is reserved in its format and not built"
            .to_owned(),
    );
    for measured in all {
        let Measured { way, bytes, at_server: logging_us, at_client: waited_us, .. } = measured;
        if way != Way::None {
            at_server.arms.push(arm(way, bytes, logging_us));
        }
        at_client.arms.push(arm(way, bytes, waited_us));
    }
    report.figures.extend([at_server, at_client]);
    Ok(())
}

fn at(bytes: u32, client: &mut Client, setting: &Setting<'_>) -> Result<Vec<Measured>, LoggingCostError> {
    let (rounds, calls) = setting.choose((21, 40), (100, 50));
    let body = vec![b'x'; bytes as usize];
    let mut all = Way::ALL.map(|way| Measured {
        way,
        bytes,
        at_server: Samples::default(),
        at_client: Samples::default(),
        rounds_us: Samples::default(),
    });
    for round in 0..=rounds {
        let mut order: Vec<_> = all.iter_mut().collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for measured in order {
            let mut waited = Samples::default();
            for _ in 0..calls {
                let (logging_us, waited_us) = client.call(measured.way, &body)?;
                if round > 0 {
                    measured.at_server.push(logging_us);
                    waited.push(waited_us);
                }
            }
            if round > 0 {
                measured.rounds_us.push(waited.mean_with_bound().0);
                measured.at_client.extend(waited.values().iter().copied());
            }
        }
        client.let_go()?;
    }
    Ok(all.into())
}

fn table(all: &[Measured]) -> Table {
    let row = |measured: &Measured| {
        let (logging, waited) = (&measured.at_server, &measured.at_client);
        let (logging_us, waited_us) = (logging.mean_with_bound().0, waited.mean_with_bound().0);
        let none = all.iter().find(|none| none.way == Way::None && none.bytes == measured.bytes);
        let ratios = measured.rounds_us.ratios_to(&none.expect("it is measured with all sizes").rounds_us);
        let (ratio, bound) = ratios.mean_with_bound();
        let bound = bound.map_or_else(|| "?".to_owned(), number);
        vec![
            measured.way.name().to_owned(),
            measured.way.level().map_or_else(|| "-".to_owned(), |level| level.to_string()),
            measured.bytes.to_string(),
            number(logging_us),
            number(logging.deviation()),
            number(logging.median()),
            number(logging.quantile(0.99)),
            number(waited_us),
            number(waited.deviation()),
            number(waited.median()),
            number(waited.quantile(0.99)),
            format!("{:.0} %", 100.0 * logging_us / waited_us),
            format!("{} +- {bound}", number(ratio)),
        ]
    };
    Table {
        name: NAME,
        meaning: "logging at the server, and end to end at the client, in us; `share` is mean logging over mean end to end; the last column \
                  is end to end over that without logging: mean of rounds of pairs, with its 95 % bound"
            .to_owned(),
        columns: [
            "way", "level", "bytes", "logging mean", "sd", "p50", "p99", "end to end mean", "sd", "p50", "p99", "share",
            "over none",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: all.iter().map(row).collect(),
    }
}

fn arm(way: Way, bytes: u32, samples: Samples) -> Arm {
    Arm::of_latencies(way.name().to_owned(), way.level(), u64::from(bytes), samples)
}
