//! What the service tells about itself: health, metrics, outputs. None of it waits for the gate.

use crate::core::Core;
use crate::driver::{NotTaken, Shared, Turn};
use crate::inbox::{Item, Phase};
use crate::ingress::{Answered, Ingress, JSON, retry_after};
use crate::port::PortStatus;
use crate::prediction::Prediction;
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use mainstay_journal::journal::Health;
use mainstay_process::process::OutputView;
use mainstay_types::id::NodeId;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::oneshot::channel;

/// Looks at the process between two steps.
///
/// # Errors
/// While there is none: why.
pub(super) async fn look<T>(
    shared: &Arc<Shared>,
    at: impl FnOnce(&Core) -> T + Send + 'static,
) -> Result<T, NotTaken>
where
    T: Send + 'static,
{
    let (tell, hears) = channel();
    let look = Item::Look(Box::new(move |core| {
        // Whoever asked may have hung up.
        let _ = tell.send(at(core));
    }));
    shared.push(look, Turn::AtOnce)?;
    hears.await.map_err(|_| match shared.phase() {
        Phase::Ended => NotTaken::Ended,
        Phase::Recovering | Phase::Running => NotTaken::Recovering,
    })
}

/// What the service does while there is no process to look at.
pub(super) fn nobody_is(why: NotTaken) -> &'static str {
    if why == NotTaken::Ended { "stopped" } else { "recovering" }
}

/// 200 while requests are taken, 503 with the reason while they are not.
pub(super) async fn health(shared: &Arc<Shared>) -> Answered {
    let looked = look(shared, |core| {
        let (process, journal) = (&core.process, core.process.journal());
        // Other nodes are giving back what this one lost: its recovery is not over.
        let recovering = process.is_collecting().then(|| (process.stats().replayed, process.waits_for()));
        let lsns = (journal.end(), journal.durable(), process.kept());
        (journal.health(), lsns, process.executed(), recovering)
    })
    .await;
    let level = shared.level;
    let (status, body) = match looked {
        Err(why) => {
            let replayed = shared.watch.replaying.load(Ordering::Relaxed);
            (503, serde_json::json!({ "status": nobody_is(why), "level": level, "replayed": replayed }))
        }
        Ok((Health::Good, .., Some((replayed, waits_for)))) => {
            let body = serde_json::json!({
                "status": "recovering", "level": level, "replayed": replayed, "waits_for": waits_for,
            });
            (503, body)
        }
        Ok((health, (end, durable, kept), executed, _)) => {
            let (status, doing) = match health {
                Health::Good => (200, "running"),
                Health::Full { .. } => (503, "disk-full"),
                Health::Poisoned { .. } => (503, "poisoned"),
                Health::Sealed => (503, "stopping"),
            };
            let mut body = serde_json::json!({
                "status": doing, "level": level, "lsn": end.0, "durable_lsn": durable.0, "deliveries": executed.0,
            });
            if let Some(kept) = kept {
                body["kept_lsn"] = kept.0.into();
            }
            (status, body)
        }
    };
    let mut response = json(status, &body);
    if status == 503 {
        retry_after(&mut response, 1);
    }
    Ok(response)
}

/// The outputs whose fate is not known, and the ports.
pub(super) async fn outputs(ingress: &Ingress) -> Answered {
    let views = look(&ingress.shared, |core| core.process.outputs().collect::<Vec<_>>()).await;
    let recovering = views.is_err();
    let running = ingress.shared.ports.get().into_iter().flatten();
    let troubles: BTreeMap<_, _> = running.flat_map(|port| port.troubles()).collect();
    let outputs: Vec<_> =
        views.unwrap_or_default().iter().map(|view| describe(view, troubles.get(&view.id))).collect();
    let ports: Vec<_> = ports(ingress)
        .map(|(name, status)| {
            let mut port = serde_json::to_value(status).expect("numbers and text are JSON");
            port["name"] = name.into();
            port
        })
        .collect();
    let status = if recovering { 503 } else { 200 };
    let level = ingress.shared.level;
    Ok(json(status, &serde_json::json!({ "level": level, "outputs": outputs, "ports": ports })))
}

/// What is lost for good, because more nodes failed at once than a policy survives.
pub(super) async fn losses(shared: &Arc<Shared>) -> Answered {
    let losses = look(shared, |core| core.process.losses().to_vec()).await;
    let status = if losses.is_err() { 503 } else { 200 };
    Ok(json(status, &serde_json::json!({ "losses": losses.unwrap_or_default() })))
}

fn describe(view: &OutputView, trouble: Option<&String>) -> serde_json::Value {
    let waits_for = view.waits_for.map(|(mark, value, published)| {
        serde_json::json!({ "mark": format!("{mark:?}").to_lowercase(), "value": value, "published": published })
    });
    serde_json::json!({
        "id": view.id.0,
        "port": view.port,
        "key": view.key,
        "state": view.state,
        "bytes": view.bytes,
        "waits_for": waits_for,
        "trouble": trouble,
    })
}

fn ports(ingress: &Ingress) -> impl Iterator<Item = (&str, PortStatus)> {
    let running = ingress.shared.ports.get().into_iter().flatten();
    ingress.port_names.iter().map(String::as_str).zip(running.map(|port| port.status()))
}

/// Metrics in the text format of Prometheus.
pub(super) async fn metrics(ingress: &Ingress) -> Answered {
    let shared = &ingress.shared;
    let asked = Instant::now();
    let looked = look(shared, |core| {
        let journal = core.process.journal();
        (
            core.process.stats(),
            *journal.stats(),
            journal.end(),
            journal.durable(),
            journal.first(),
            journal.health(),
            core.process.retained().collect::<Vec<_>>(),
            core.process.to_replay(),
            core.process.kept().map(|kept| (kept, core.process.unkept_bytes())),
        )
    })
    .await;
    let mut text = Text::default();
    text.gauge("mainstay_up", "1 while a process takes requests", u64::from(looked.is_ok()));
    if let Ok((process, journal, end, durable, first, health, retained, to_replay, kept)) = looked {
        text.gauge(
            "mainstay_poisoned",
            "1 after a failed sync",
            u64::from(matches!(health, Health::Poisoned { .. })),
        );
        text.gauge(
            "mainstay_disk_full",
            "1 while the disk is full",
            u64::from(matches!(health, Health::Full { .. })),
        );
        text.gauge("mainstay_journal_end_lsn", "End of the journal, bytes", end.0);
        text.gauge("mainstay_journal_durable_lsn", "What is past a sync, bytes", durable.0);
        text.gauge("mainstay_journal_first_lsn", "Where the kept journal begins, bytes", first.0);
        if let Some((kept, waiting_bytes)) = kept {
            text.gauge(
                "mainstay_kept_lsn",
                "What the region that keeps the log has acknowledged, bytes",
                kept.0,
            );
            text.gauge("mainstay_unkept_bytes", "Bytes of the log that wait for the region", waiting_bytes);
        }
        text.counter("mainstay_journal_appends_total", "Records appended", journal.appends);
        text.counter("mainstay_journal_append_bytes_total", "Payload bytes appended", journal.append_bytes);
        text.counter("mainstay_journal_flushes_total", "Flushes: group commits", journal.flushes);
        text.counter("mainstay_journal_writes_total", "Writes asked of the disk", journal.writes);
        text.counter("mainstay_journal_write_bytes_total", "Bytes of these writes", journal.write_bytes);
        text.counter(
            "mainstay_journal_syncs_total",
            "Syncs asked of the disk besides durable writes",
            journal.syncs,
        );
        text.counter("mainstay_journal_pages_closed_total", "Pages that were filled", journal.pages_closed);
        text.counter("mainstay_journal_stalls_total", "Appends that found no free page", journal.stalls);
        text.counter("mainstay_deliveries_total", "Deliveries executed", process.delivered);
        text.counter("mainstay_replayed_total", "Deliveries replayed by the last recovery", process.replayed);
        text.counter("mainstay_duplicates_total", "Requests recognised as repetitions", process.duplicates);
        text.counter("mainstay_evicted_total", "Requests below their floor", process.evicted);
        text.counter("mainstay_conflicts_total", "Requests answered 409 or 422", process.conflicts);
        text.counter("mainstay_refused_total", "Requests refused at a limit of the process", process.refused);
        text.counter("mainstay_quarantined_total", "Deliveries given up by verdict", process.quarantined);
        text.gauge("mainstay_held", "Effects that wait for a mark", process.held as u64);
        text.counter("mainstay_passed_total", "Effects that left without waiting", process.passed);
        text.counter("mainstay_released_total", "Effects that left after waiting", process.released);
        text.gauge("mainstay_backlog", "Requests waiting to be logged or delivered", process.backlog as u64);
        text.gauge("mainstay_keys", "Idempotency keys remembered", process.keys as u64);
        text.gauge("mainstay_clients", "Registered clients", process.clients as u64);
        text.counter(
            "mainstay_outputs_released_total",
            "Outputs released, repetitions included",
            process.outputs_released,
        );
        text.counter(
            "mainstay_outputs_settled_total",
            "Outputs whose fate is known",
            process.outputs_settled,
        );
        text.gauge(
            "mainstay_outputs_pending",
            "Outputs whose fate is not known",
            process.outputs_pending as u64,
        );
        text.gauge("mainstay_outputs_in_doubt", "Outputs in doubt", process.outputs_in_doubt as u64);
        text.counter("mainstay_checkpoints_total", "Checkpoints published", process.checkpoints);
        text.counter("mainstay_checkpoints_failed_total", "Checkpoints given up", process.checkpoints_failed);
        text.gauge("mainstay_checkpoint_bytes", "Bytes of the last checkpoint", process.checkpoint_bytes);
        let bytes = retained.iter().map(|kept| (kept.peer, kept.bytes));
        text.by_peer(
            "mainstay_sender_log_bytes",
            "Memory kept for a node until it needs it no more, bytes",
            bytes,
        );
        let spilled = retained.iter().map(|kept| (kept.peer, kept.spilled_bytes));
        text.by_peer(
            "mainstay_sender_log_spilled_bytes",
            "What is kept for a node outside of memory, bytes",
            spilled,
        );
        let messages = retained.iter().map(|kept| (kept.peer, kept.messages));
        text.by_peer(
            "mainstay_sender_log_messages",
            "Messages kept for a node until it needs them no more",
            messages,
        );
        write_prediction(&shared.watch.pace.predict(&to_replay), &mut text);
    } else {
        let replaying = &shared.watch.replaying;
        text.gauge("mainstay_replaying", "Deliveries replayed so far", replaying.load(Ordering::Relaxed));
    }
    write_driver(ingress, &mut text);
    let mut body = text.0;
    let level = shared.level;
    let _ = writeln!(body, "# HELP mainstay_info What answers wait for\n# TYPE mainstay_info gauge");
    let _ = writeln!(body, "mainstay_info{{level=\"{level}\"}} 1");
    let _ = writeln!(
        body,
        "# HELP mainstay_metrics_seconds How long collecting this took\n# TYPE mainstay_metrics_seconds gauge"
    );
    let _ = writeln!(body, "mainstay_metrics_seconds {}", asked.elapsed().as_secs_f64());
    let mut response = Response::new(Full::new(Bytes::from(body)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4"));
    Ok(response)
}

fn write_prediction(predicted: &Prediction, text: &mut Text) {
    text.gauge(
        "mainstay_recovery_deliveries",
        "Deliveries that a recovery would have to replay now",
        predicted.deliveries,
    );
    text.gauge(
        "mainstay_recovery_bytes",
        "Bytes of log that a recovery would have to read now",
        predicted.bytes,
    );
    if let Some(seconds) = predicted.seconds {
        let _ = writeln!(
            text.0,
            "# HELP mainstay_recovery_seconds How long a recovery would take now, as predicted\n\
             # TYPE mainstay_recovery_seconds gauge\nmainstay_recovery_seconds {seconds}",
        );
    }
}

fn write_driver(ingress: &Ingress, text: &mut Text) {
    let watch = &ingress.shared.watch;
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    text.counter(
        "mainstay_stall_nanoseconds_total",
        "Time in which a request waited for a free page",
        read(&watch.stall_ns),
    );
    text.counter(
        "mainstay_durable_writes_total",
        "Durable writes on the driver's thread",
        read(&watch.durable_writes),
    );
    text.counter("mainstay_rounds_total", "Batches handed to the process", read(&watch.rounds));
    text.counter("mainstay_handovers_total", "Times the driver handed its role on", read(&watch.handovers));
    text.counter(
        "mainstay_recoveries_in_place_total",
        "Recoveries after a panic or a rollback",
        read(&watch.recoveries_in_place),
    );
    text.counter(
        "mainstay_rollbacks_total",
        "Times deliveries were taken back because another node lost what they depended on",
        read(&watch.rollbacks),
    );
    text.counter(
        "mainstay_refused_at_ingress_total",
        "Requests over the limit in flight",
        read(&watch.refused_at_ingress),
    );
    text.counter(
        "mainstay_connections_refused_total",
        "Connections over their limit",
        read(&watch.connections_refused),
    );
    let in_flight = ingress.shared.in_flight.load(Ordering::Relaxed) as u64;
    text.gauge("mainstay_requests_in_flight", "Requests taken and not answered", in_flight);
    let pause_max_ns = u64::try_from(watch.checkpoint_pause.max().as_nanos()).unwrap_or(u64::MAX);
    text.gauge(
        "mainstay_checkpoint_pause_max_nanoseconds",
        "The longest pause for a checkpoint",
        pause_max_ns,
    );
    let out = &mut text.0;
    let _ = writeln!(
        out,
        "# HELP mainstay_replies_total Replies by status\n# TYPE mainstay_replies_total counter"
    );
    for hundred in 2..=5 {
        let _ = writeln!(
            out,
            "mainstay_replies_total{{status=\"{hundred}xx\"}} {}",
            read(&watch.replies[hundred])
        );
    }
    for (counter, help, value) in PORT_COUNTERS {
        let _ = writeln!(out, "# HELP {counter} {help}\n# TYPE {counter} gauge");
        for (name, status) in ports(ingress) {
            let _ = writeln!(out, "{counter}{{port=\"{}\"}} {}", escaped(name), value(&status));
        }
    }
    watch.call_latency.write(out, "mainstay_call_seconds", "From a whole request to its reply");
    watch.checkpoint_pause.write(
        out,
        "mainstay_checkpoint_pause_seconds",
        "How long the process stood still for a fork",
    );
    let (name, help) = ("mainstay_checkpoint_seconds", "From the fork until the checkpoint was published");
    watch.checkpoint_duration.write(out, name, help);
}

type PortValue = fn(&PortStatus) -> u64;

const PORT_COUNTERS: [(&str, &str, PortValue); 7] = [
    ("mainstay_port_waiting", "Outputs that the port has in hand", |status| status.waiting),
    ("mainstay_port_delivered", "Outputs delivered", |status| status.delivered),
    ("mainstay_port_refused", "Outputs refused for good", |status| status.refused),
    ("mainstay_port_in_doubt", "Outputs whose arrival is unknown", |status| status.in_doubt),
    ("mainstay_port_repeated", "Attempts beyond the first", |status| status.repeated),
    ("mainstay_port_trouble", "1 while attempts do not get through", |status| {
        u64::from(status.trouble.is_some())
    }),
    ("mainstay_port_stopped", "1 when the port has given up", |status| u64::from(status.stopped.is_some())),
];

/// A label's value as Prometheus wants it.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[derive(Default)]
struct Text(String);

impl Text {
    fn by_peer(&mut self, name: &str, help: &str, values: impl Iterator<Item = (NodeId, u64)>) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} gauge");
        for (peer, value) in values {
            let _ = writeln!(self.0, "{name}{{peer=\"{}\"}} {value}", peer.0);
        }
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
    }
}

pub(super) fn json(status: u16, body: &serde_json::Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = StatusCode::from_u16(status).expect("200 or 503");
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}
