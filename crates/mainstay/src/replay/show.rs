//! Shows a replay while it goes on, and stops it where asked.

use super::follow::Followed;
use super::line::{Begin, End, Line, Replayed};
use super::words::Heading;
use mainstay_process::retrace::{Beginning, Executed, Recorded, Watcher};
use mainstay_types::id::Lsn;
use std::io::{self, BufWriter, Stdout, Write};
use std::ops::ControlFlow;
use std::sync::Arc;

/// How it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// For people; `step`: each delivery waits for them.
    Words { step: bool },
    /// A line of JSON each.
    Json,
    /// Only how it ended.
    Quiet,
}

/// Standard output as the watcher of a replay.
pub(super) struct Show {
    service: String,
    version: u32,
    style: Style,
    from: Option<Lsn>,
    until: Option<Lsn>,
    /// Only what reaches this instance is shown.
    followed: Option<Arc<Followed>>,
    touched: u64,
    out: BufWriter<Stdout>,
    /// Deliveries that go on without being asked for, in steps.
    free: u64,
    /// The first write that failed.
    broken: Option<io::Error>,
    deliveries: u64,
    differ: u64,
    at: Lsn,
}

impl Show {
    pub(super) fn new(
        service: &str,
        version: u32,
        style: Style,
        from: Option<Lsn>,
        until: Option<Lsn>,
        followed: Option<Arc<Followed>>,
    ) -> Self {
        let out = BufWriter::new(io::stdout());
        let (free, deliveries, differ) = (0, 0, 0);
        Self {
            service: service.to_owned(),
            version,
            style,
            from,
            until,
            followed,
            touched: 0,
            out,
            free,
            broken: None,
            deliveries,
            differ,
            at: Lsn::ZERO,
        }
    }

    /// Why it could not be shown on: a broken pipe when whoever read it has seen enough.
    pub(super) fn broken(&self) -> Option<&io::Error> {
        self.broken.as_ref()
    }

    /// Shows how it ended, and returns whether anything differed from what was recorded.
    pub(super) fn end(&mut self, replayed: &mainstay_runtime::replay::Replayed) -> bool {
        let end = End {
            deliveries: self.deliveries,
            differ: self.differ,
            lsn: self.at.0,
            stopped: replayed.retraced.stopped,
            waiting_for_nodes: replayed.retraced.waiting_for_nodes,
            writer: replayed.writer,
            touched: self.followed.is_some().then_some(self.touched),
        };
        self.put(&Line::End(end));
        self.differ > 0
    }

    /// Writes one thing in the style asked for, whole, so that it is seen even if what comes next ends the process.
    fn put(&mut self, line: &Line) {
        let written = match (self.style, line) {
            (Style::Json, line) => serde_json::to_writer(&mut self.out, line)
                .map_err(io::Error::from)
                .and_then(|()| self.out.write_all(b"\n")),
            (_, Line::Begin(begin)) => writeln!(self.out, "{begin}"),
            // Its heading is there already.
            (_, Line::Delivery(replayed)) => writeln!(self.out, "{}", replayed.effects()),
            (_, Line::End(end)) => writeln!(self.out, "{end}"),
        };
        self.keep(written);
    }

    fn keep(&mut self, written: io::Result<()>) {
        let written = written.and_then(|()| self.out.flush());
        if let (Err(error), None) = (written, &self.broken) {
            self.broken = Some(error);
        }
    }

    fn is_shown(&self, recorded: &Recorded<'_>) -> bool {
        self.style != Style::Quiet && self.from.is_none_or(|from| recorded.lsn >= from)
    }

    /// Asks whether to go on.
    fn step(&mut self) -> ControlFlow<()> {
        if self.free > 0 {
            self.free -= 1;
            return ControlFlow::Continue(());
        }
        let mut asked = String::new();
        match io::stdin().read_line(&mut asked) {
            Ok(0) | Err(_) => return ControlFlow::Break(()),
            Ok(_) => {}
        }
        match asked.trim() {
            "q" => ControlFlow::Break(()),
            number => {
                self.free = number.parse().unwrap_or(1_u64).saturating_sub(1);
                ControlFlow::Continue(())
            }
        }
    }

    /// Writes what a delivery is, and waits behind it if that was asked for.
    fn head(&mut self, replayed: &Replayed) -> ControlFlow<()> {
        let Style::Words { step } = self.style else { return ControlFlow::Continue(()) };
        let written = writeln!(self.out, "{}", Heading(replayed));
        self.keep(written);
        if step { self.step() } else { ControlFlow::Continue(()) }
    }

    fn flow(&self) -> ControlFlow<()> {
        if self.broken.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Watcher for Show {
    fn begin(&mut self, beginning: &Beginning) {
        self.put(&Line::Begin(Begin::of(beginning, &self.service, self.version)));
    }

    fn before(&mut self, recorded: &Recorded<'_>) -> ControlFlow<()> {
        if self.until.is_some_and(|until| recorded.lsn > until) {
            return ControlFlow::Break(());
        }
        // Whether it reaches the instance that is followed is known behind it only.
        if self.followed.is_none() && self.is_shown(recorded) {
            self.head(&Replayed::before(recorded))?;
        }
        self.flow()
    }

    fn after(&mut self, recorded: &Recorded<'_>, executed: &Executed<'_>) -> ControlFlow<()> {
        self.deliveries += 1;
        self.at = recorded.end;
        let differs = executed.is_as_recorded(recorded) == Some(false);
        self.differ += u64::from(differs || executed.panic.is_some());
        let touches = self.followed.as_ref().map(|followed| followed.take());
        self.touched += u64::from(touches.as_ref().is_some_and(|touches| !touches.is_empty()));
        if self.is_shown(recorded) && touches.as_ref().is_none_or(|touches| !touches.is_empty()) {
            let follows = touches.is_some();
            let replayed = Box::new(Replayed::after(recorded, executed, touches.unwrap_or_default()));
            if follows {
                self.head(&replayed)?;
            }
            self.put(&Line::Delivery(replayed));
        }
        self.flow()
    }
}
