//! The table at the end of a demo, and the same as JSON.

use super::audit::Findings;
use super::plan::Role;
use super::requests::CLIENTS;
use super::run::{KillRecord, RecoveryRecord, Settings};
use mainstay_types::level::Level;
use serde::Serialize;
use std::time::Duration;

/// All figures of a demo.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    /// What everything random was drawn from.
    pub(crate) seed: u64,
    /// Processes killed with SIGKILL.
    pub(crate) kills: u64,
    /// Those that hit the service between taking the lock of its directory and being ready.
    pub(crate) kills_in_recovery: u64,
    /// Those that hit the service while a checkpoint was half written.
    pub(crate) kills_in_checkpoint: u64,
    /// Those that hit while a client was waiting for an answer.
    pub(crate) kills_with_inflight: u64,
    /// Kills of the service itself.
    pub(crate) kills_of_service: u64,
    /// Kills of receivers.
    pub(crate) kills_of_receivers: u64,
    /// Kills of clients.
    pub(crate) kills_of_clients: u64,
    /// Kills of the supervisor, each of which takes all others with it.
    pub(crate) kills_of_supervisor: u64,
    /// Times the service came back.
    pub(crate) recoveries: u64,
    /// Median time from opening the journal to accepting requests, in milliseconds.
    pub recovery_ms_p50: f64,
    /// Longest such time, in milliseconds.
    pub(crate) recovery_ms_max: f64,
    /// Deliveries replayed, all recoveries together.
    pub(crate) replayed: u64,
    /// Requests answered again instead of executed again, and outputs dropped by the receiver that knew their keys.
    pub(crate) duplicates_suppressed: u64,
    /// What the acknowledgements waited for.
    pub(crate) level: Level,
    /// Duration of the run, in seconds.
    pub(crate) seconds: f64,
    /// Whether the service ended with a seal and exit code 0.
    pub(crate) stopped_cleanly: bool,
    /// What the audit found.
    #[serde(flatten)]
    pub(crate) findings: Findings,
}

impl Report {
    /// Sums up.
    #[must_use]
    pub(crate) fn new(
        settings: &Settings,
        kills: &[KillRecord],
        recoveries: &[RecoveryRecord],
        stopped_cleanly: bool,
        findings: Findings,
        took: Duration,
    ) -> Self {
        let count =
            |wanted: &dyn Fn(&KillRecord) -> bool| kills.iter().filter(|kill| wanted(kill)).count() as u64;
        let recoveries: Vec<&RecoveryRecord> = recoveries.iter().filter(|ready| !ready.created).collect();
        let mut times: Vec<f64> = recoveries.iter().map(|ready| ready.recovery_ms).collect();
        times.sort_by(f64::total_cmp);
        Self {
            seed: settings.seed,
            kills: kills.len() as u64,
            kills_in_recovery: count(&|kill| kill.recovering),
            kills_in_checkpoint: count(&|kill| kill.checkpointing),
            kills_with_inflight: count(&|kill| kill.in_flight),
            kills_of_service: count(&|kill| kill.role == Role::Service),
            kills_of_receivers: count(&|kill| matches!(kill.role, Role::ReceiverOnce | Role::ReceiverAgain)),
            kills_of_clients: count(&|kill| matches!(kill.role, Role::Client(_))),
            kills_of_supervisor: count(&|kill| kill.role == Role::Supervisor),
            recoveries: recoveries.len() as u64,
            recovery_ms_p50: times.get(times.len() / 2).copied().unwrap_or(0.0),
            recovery_ms_max: times.last().copied().unwrap_or(0.0),
            replayed: recoveries.iter().map(|ready| ready.replayed).sum(),
            duplicates_suppressed: findings.answers_replayed + findings.outputs_dropped,
            level: settings.level,
            seconds: took.as_secs_f64(),
            stopped_cleanly,
            findings,
        }
    }

    /// Whether the promise was kept.
    #[must_use]
    pub(crate) fn kept(&self) -> bool {
        self.findings.kept() && self.stopped_cleanly
    }

    /// The table.
    #[must_use]
    pub(crate) fn table(&self) -> String {
        let found = &self.findings;
        let yes_no = |yes: bool| if yes { "yes" } else { "NO" };
        let mut text = String::new();
        let mut row = |name: &str, value: String, note: String| add_row(&mut text, name, &value, &note);
        row(
            "requests",
            self.findings.requests.to_string(),
            format!("by {CLIENTS} client processes in {:.1} s", self.seconds),
        );
        row(
            "kills -9",
            self.kills.to_string(),
            format!(
                "service {}, receivers {}, clients {}, supervisor {} (with all others)",
                self.kills_of_service,
                self.kills_of_receivers,
                self.kills_of_clients,
                self.kills_of_supervisor
            ),
        );
        row(
            "  in recovery",
            self.kills_in_recovery.to_string(),
            "holding its directory, not ready yet".to_owned(),
        );
        row(
            "  in a checkpoint",
            self.kills_in_checkpoint.to_string(),
            "found half written afterwards".to_owned(),
        );
        row(
            "  with requests waiting",
            self.kills_with_inflight.to_string(),
            "sent and not answered".to_owned(),
        );
        row(
            "recoveries",
            self.recoveries.to_string(),
            format!("median {:.1} ms, longest {:.1} ms", self.recovery_ms_p50, self.recovery_ms_max),
        );
        row("  deliveries replayed", self.replayed.to_string(), String::new());
        row(
            "duplicates suppressed",
            self.duplicates_suppressed.to_string(),
            format!(
                "{} answers given again, {} outputs dropped",
                found.answers_replayed, found.outputs_dropped
            ),
        );
        text.push('\n');
        let mut row = |name: &str, value: String, note: String| add_row(&mut text, name, &value, &note);
        row("lost", found.lost.to_string(), "requests without an answer that the history holds".to_owned());
        row("doubled", found.doubled.to_string(), "operations executed more often than asked for".to_owned());
        row(
            "answers wrong",
            found.answers_wrong.to_string(),
            "not what a ledger without failures answers".to_owned(),
        );
        row(
            "outputs lost",
            found.outputs_lost.to_string(),
            format!("of {} emitted to 2 receivers", found.outputs),
        );
        row("outputs doubled", found.outputs_doubled.to_string(), "took effect more than once".to_owned());
        if found.outputs_unexplained > 0 {
            row(
                "outputs unexplained",
                found.outputs_unexplained.to_string(),
                "nobody emitted them".to_owned(),
            );
        }
        row(
            "outputs in doubt",
            found.outputs_in_doubt.to_string(),
            format!(
                "to the receiver that drops nothing, at most once: {} had arrived",
                found.outputs_in_doubt_arrived
            ),
        );
        row("last state as oracle's", yes_no(found.state_equal).to_owned(), String::new());
        row("stopped cleanly", yes_no(self.stopped_cleanly).to_owned(), String::new());
        row("level", self.level.to_string(), level_note(self.level).to_owned());
        for finding in &found.described {
            text.push_str(&format!("  ! {finding}\n"));
        }
        text
    }
}

/// One line of a table: name, value, remark.
pub(crate) fn add_row(text: &mut String, name: &str, value: &str, note: &str) {
    text.push_str(format!("  {name:<24}{value:>10}   {note}").trim_end());
    text.push('\n');
}

/// What acknowledgements at that level are good for.
#[must_use]
pub(crate) fn level_note(level: Level) -> &'static str {
    match level {
        Level::Disk => "every acknowledgement waited for this machine's disk",
        Level::Process => "every acknowledgement survives kill -9, not power loss",
        Level::Peers => "every acknowledgement waited for the region that keeps the log",
        Level::Memory => "acknowledgements survive nothing by themselves",
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Moment;
    use super::*;

    #[test]
    fn json_has_the_promised_names() {
        let settings = Settings {
            seed: 1,
            requests: 5,
            kills: 1,
            level: Level::Disk,
            service_port: 1,
            receiver_once_port: 2,
            receiver_again_port: 3,
            record: None,
            skip_syncs: None,
            lose_ring: false,
        };
        let kill = KillRecord {
            index: 0,
            role: Role::Service,
            moment: Moment::Working,
            recovering: false,
            checkpointing: true,
            in_flight: true,
        };
        let recovery = |created, recovery_ms| RecoveryRecord {
            pid: 1,
            created,
            recovery_ms,
            replayed: 7,
            outputs_again: 0,
        };
        let recoveries =
            [recovery(true, 900.0), recovery(false, 3.0), recovery(false, 1.0), recovery(false, 2.0)];
        let findings = Findings { requests: 5, ..Findings::default() };
        let report = Report::new(&settings, &[kill], &recoveries, true, findings, Duration::from_secs(1));
        assert_eq!((report.recoveries, report.recovery_ms_p50, report.recovery_ms_max), (3, 2.0, 3.0));
        let json = serde_json::to_value(&report).expect("plain data");
        for name in [
            "requests",
            "kills",
            "kills_in_recovery",
            "kills_in_checkpoint",
            "kills_with_inflight",
            "recoveries",
            "recovery_ms_p50",
            "recovery_ms_max",
            "replayed",
            "duplicates_suppressed",
            "lost",
            "doubled",
            "outputs_lost",
            "outputs_doubled",
            "outputs_in_doubt",
            "level",
        ] {
            assert!(json.get(name).is_some(), "`{name}` is missing");
            let text = serde_json::to_string(&report).expect("plain data");
            assert_eq!(text.matches(&format!("\"{name}\":")).count(), 1, "`{name}` is there once");
        }
        assert_eq!(json["level"], "disk");
    }
}
