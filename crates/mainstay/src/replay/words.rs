//! Lines of a replay in words.

use super::line::{Begin, Delivered, Did, End, Replayed, Text, Touch};
use std::fmt;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

impl fmt::Display for Begin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, version, store, end, .. } = self;
        write!(f, "{service} version {version}, directory {store}: ")?;
        match (self.checkpoint, self.checkpoint_version) {
            (Some(lsn), Some(saved)) => write!(f, "from the checkpoint at LSN {lsn} (version {saved})")?,
            _ => f.write_str("from the first delivery")?,
        }
        write!(f, " to LSN {end}")
    }
}

/// The heading of a delivery: what is recorded of it.
pub(super) struct Heading<'a>(pub(super) &'a Replayed);

impl fmt::Display for Heading<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Replayed { lsn, delivery, time_ns, delivered, .. } = self.0;
        write!(f, "LSN {lsn}  delivery {delivery}  {}  {delivered}", Moment(*time_ns))
    }
}

impl fmt::Display for Delivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request { identity: Some(identity), body } => write!(f, "request, {identity}: {body}"),
            Self::Request { identity: None, body } => write!(f, "request: {body}"),
            Self::Timer { timer } => write!(f, "timer {timer}"),
            Self::Settled { output, outcome } => write!(f, "output {output} {outcome}"),
            Self::Registered => f.write_str("a client is given a number"),
            Self::Resolved { output, resolution } => write!(f, "output {output}: {resolution}"),
            Self::Message { from, number, body } => write!(f, "message {number} of node {from}: {body}"),
        }
    }
}

/// Every effect on a line of its own, indented.
impl fmt::Display for Did {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        if let Some(message) = &self.panic {
            lines.push(format!("PANIC {message}"));
        }
        if self.given_up {
            lines.push("not executed: given up by verdict, after it had failed too often".to_owned());
        }
        if let Some(answer) = &self.answer {
            lines.push(format!("answer {}: {}", answer.status, answer.body));
        }
        lines.extend(
            self.outputs
                .iter()
                .map(|output| format!("output {} to {}: {}", output.id, output.port, output.body)),
        );
        lines.extend(
            self.timers
                .iter()
                .map(|timer| format!("timer due {}, token {}", Moment(timer.due_ns), timer.token)),
        );
        lines.extend(
            self.messages.iter().map(|message| format!("message to node {}: {}", message.to, message.body)),
        );
        lines.extend(self.late_answers.iter().map(|late| {
            format!("answer to delivery {}: {} {}", late.request, late.answer.status, late.answer.body)
        }));
        if lines.is_empty() {
            lines.push("no effect to be seen outside".to_owned());
        }
        write!(f, "    {}", lines.join("\n    "))
    }
}

impl Replayed {
    /// Its effects, a line each, and whether they are those that were recorded.
    pub(super) fn effects(&self) -> String {
        let mut text = self.did.to_string();
        for touch in &self.touches {
            text += &format!("\n    {touch}");
        }
        if self.as_recorded == Some(false)
            && let Some(recorded) = &self.recorded
        {
            text += &format!("\n    DIFFERS: recorded {recorded}\n             now      {}", self.did.sum);
        }
        text
    }
}

/// What reached the instance, whom it told, what it is now: a line each.
impl fmt::Display for Touch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instance, took, told, state } = self;
        write!(f, "{instance} takes {took}")?;
        for told in told {
            write!(f, "\n    {instance} tells {told}")?;
        }
        match state {
            Some(state) => write!(f, "\n    {instance} is now {}", Text::Plain(state.to_string())),
            None => write!(f, "\n    {instance} has ended"),
        }
    }
}

/// Heading and effects.
impl fmt::Display for Replayed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", Heading(self), self.effects())
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { deliveries, differ, lsn, .. } = self;
        write!(f, "{deliveries} deliveries replayed")?;
        if self.stopped {
            write!(f, ", stopped at LSN {lsn}")?;
        }
        match differ {
            0 => f.write_str(": all as recorded")?,
            _ => write!(f, ": {differ} DIFFER from what was recorded")?,
        }
        if let Some(touched) = self.touched {
            write!(f, "; {touched} of them reached the instance")?;
        }
        if self.waiting_for_nodes > 0 {
            write!(
                f,
                "; {} more were not replayed, because only other nodes remember what comes before them",
                self.waiting_for_nodes
            )?;
        }
        if let Some(pid) = self.writer {
            write!(f, "; process {pid} writes the directory and is further by now")?;
        }
        Ok(())
    }
}

/// Nanoseconds since the UNIX epoch, as RFC 3339 has it.
struct Moment(u64);

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = OffsetDateTime::from_unix_timestamp_nanos(self.0.into())
            .ok()
            .and_then(|moment| moment.format(&Rfc3339).ok());
        match text {
            Some(text) => f.write_str(&text),
            None => write!(f, "{} ns", self.0),
        }
    }
}
