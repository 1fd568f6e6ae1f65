//! What a client of a service made with Mainstay waits, by size and level: the same echo through HTTP, the log and the handler.

use super::{LoggingCostError, SIZES, Setting};
use crate::logging::Client;
use crate::report::{Arm, Figure, Report, Samples};
use crate::step::serve_echo;
use mainstay_recovery::policy::Policy;
use mainstay_types::level::Level;
use std::time::Instant;

/// The name of the figure.
pub(super) const NAME: &str = "service";

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), LoggingCostError> {
    let (rounds, calls) = setting.choose((10, 20), (50, 40));
    let mut running = Vec::new();
    let mut arms = Vec::new();
    for level in [Level::Memory, Level::Process, Level::Disk] {
        let service = serve_echo(setting.directory, level, Policy::Deferred)?;
        let client = Client::connect(service.address())?;
        running.push((level, service, client));
    }
    let mut key = 0_u64;
    for bytes in SIZES {
        let body = vec![b'x'; bytes as usize];
        let mut samples = [Samples::default(), Samples::default(), Samples::default()];
        for round in 0..=rounds {
            for ((_, _, client), samples) in running.iter_mut().zip(&mut samples) {
                for _ in 0..calls {
                    key += 1;
                    let header = format!("Idempotency-Key: {key:016x}\r\n");
                    let since = Instant::now();
                    let answer = client.post("/call", &header, &body)?;
                    let waited_us = since.elapsed().as_secs_f64() * 1e6;
                    if answer.status != 200 || answer.body != body {
                        return Err(LoggingCostError::Length { sent: body.len(), found: answer.body.len() });
                    }
                    if round > 0 {
                        samples.push(waited_us);
                    }
                }
            }
        }
        arms.extend(running.iter().zip(samples).map(|((level, ..), samples)| {
            Arm::of_latencies("the service".to_owned(), Some(*level), u64::from(bytes), samples)
        }));
    }
    report.figures.push(Figure {
        name: NAME,
        meaning: "POST /call of a service that echoes, with a key of its own, deferred logging, until the whole answer is there".to_owned(),
        arms,
        notes: vec!["at level memory the record is made and copied all the same, and nothing waits for it".to_owned()],
    });
    for (_, service, _) in running {
        service.stop().map_err(crate::step::StepError::from)?;
    }
    Ok(())
}
