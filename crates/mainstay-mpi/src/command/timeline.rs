//! `mainstay mpi timeline`: a run as a page for a browser: ranks as rows, calls as bars, messages as arrows. The page needs
//! nothing else.

use crate::format::Kind;
use crate::history::{self, Communicators, Message};
use crate::operation::{Begins, Class};
use crate::reader::ReadError;
use crate::reader::damage::Damage;
use crate::run::Run;
use crate::walk::{Step, Walk};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The page, without its data.
const PAGE: &str = include_str!("timeline.html");
/// Where the data goes.
const PLACE: &str = "/*DATA*/";

/// Bounds of a page, so that a browser can show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bars of all ranks: beyond it neighbouring calls of a rank are drawn as one.
    pub bars_max: usize,
    /// Most messages: beyond it only every second, third, … is drawn.
    pub messages_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bars_max: 500_000, messages_max: 100_000 }
    }
}

/// There is no timeline.
#[derive(Debug, thiserror::Error)]
pub enum TimelineError {
    /// A log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The logs have no times.
    #[error("the logs have no times: recorded with --no-times or --payload none; record again without them")]
    NoTimes,
}

/// One bar: a call, a run of equal polls, or several calls drawn as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bar {
    begin: u64,
    end: u64,
    function: u16,
    /// How long the function took that took longest.
    longest: u64,
    count: u64,
    merged: bool,
}

/// Bars of a rank, as many as allowed: when there are more, neighbours within a width are merged, and the width doubles.
#[derive(Debug)]
struct Bars {
    bars: Vec<Bar>,
    bars_max: usize,
    /// In ticks; 0 while nothing was merged.
    width: u64,
}

impl Bars {
    fn push(&mut self, bar: Bar) {
        match self.bars.last_mut() {
            Some(last) if self.width > 0 && bar.end.saturating_sub(last.begin) <= self.width => {
                last.merge(bar);
            }
            _ => self.bars.push(bar),
        }
        while self.bars.len() > self.bars_max {
            let span = self.bars.last().map_or(0, |bar| bar.end) - self.bars[0].begin;
            self.width = (2 * self.width).max(span / self.bars_max as u64).max(1);
            for bar in std::mem::take(&mut self.bars) {
                match self.bars.last_mut() {
                    Some(last) if bar.end.saturating_sub(last.begin) <= self.width => last.merge(bar),
                    _ => self.bars.push(bar),
                }
            }
        }
    }
}

impl Bar {
    fn merge(&mut self, next: Self) {
        self.end = next.end;
        self.count += next.count;
        self.merged = true;
        if next.longest > self.longest {
            (self.function, self.longest) = (next.function, next.longest);
        }
    }
}

/// One rank, times in nanoseconds on the wall.
struct Row {
    rank: u32,
    damage: Option<Damage>,
    bars: Vec<Bar>,
    merged: bool,
    open: Option<(String, u64)>,
    /// When the calls began and ended that messages hang on.
    times: BTreeMap<u64, (u64, u64)>,
}

/// What was made of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The page.
    pub page: String,
    /// What is wrong with logs: those ranks are drawn as far as they are good.
    pub damage: Vec<Damage>,
}

/// The page for a run.
///
/// # Errors
/// [`TimelineError`].
pub fn timeline(run: &Run, limits: Limits) -> Result<Timeline, TimelineError> {
    let bounded = run.ranks.iter().map(|rank| Ok(run.reader(*rank)?.gap().is_some()));
    let bounded = bounded.collect::<Result<Vec<_>, ReadError>>()?.contains(&true);
    let mut messages = if bounded { Vec::new() } else { messages(run)? };
    let all_messages = messages.len();
    let step = all_messages.div_ceil(limits.messages_max.max(1)).max(1);
    messages.sort_by_key(|message| (message.from, message.sent.call));
    let messages: Vec<Message> = messages.into_iter().step_by(step).collect();

    let mut names = Names::default();
    let mut rows = Vec::new();
    for rank in &run.ranks {
        let bars_max = (limits.bars_max / run.ranks.len()).max(2);
        rows.push(row(run, *rank, bars_max, wanted(&messages, i64::from(*rank)), &mut names)?);
    }
    let timed = rows.iter().flat_map(|row| row.bars.iter());
    let first = timed.clone().map(|bar| bar.begin).min().unwrap_or(0);
    let last = timed.map(|bar| bar.end).max().unwrap_or(0);
    if first == 0 {
        return Err(TimelineError::NoTimes);
    }
    let start = run.start(run.ranks[0])?;
    let mut notes = Vec::new();
    if rows.iter().any(|row| row.merged) {
        notes.push("neighbouring calls are drawn as one: there are too many".to_owned());
    }
    if bounded {
        notes.push(
            "messages are not drawn: a log keeps only its end, and which belong together hangs on all before"
                .to_owned(),
        );
    }
    if step > 1 {
        notes.push(format!("one of {step} messages is drawn"));
    }
    let damage: Vec<Damage> = rows.iter().filter_map(|row| row.damage.clone()).collect();
    notes.extend(damage.iter().map(ToString::to_string));
    let title = format!("{} ({} ranks)", start.arguments.join(" "), run.ranks.len());
    let data = encode(&title, &notes, &names, &rows, &messages, (first, last));
    Ok(Timeline { page: PAGE.replacen(PLACE, &data, 1), damage })
}

/// Messages of which both ends are in the logs.
fn messages(run: &Run) -> Result<Vec<Message>, ReadError> {
    let mut communicators = Communicators::default();
    let histories = run
        .ranks
        .iter()
        .map(|rank| history::read(run, *rank, &mut communicators, false))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(history::pair(&histories).whole)
}

/// Calls of a rank that messages hang on.
fn wanted(messages: &[Message], rank: i64) -> BTreeMap<u64, (u64, u64)> {
    let ends = messages
        .iter()
        .flat_map(|message| [(message.from, message.sent.call), (message.to, message.received.done)]);
    ends.filter(|(of, _)| *of == rank).map(|(_, call)| (call, (0, 0))).collect()
}

/// Names of functions, one number for all ranks.
#[derive(Default)]
struct Names(Vec<String>);

impl Names {
    fn number(&mut self, name: &str) -> u16 {
        let place = self.0.iter().position(|known| known == name).unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        });
        u16::try_from(place).expect("functions are few")
    }
}

fn row(
    run: &Run,
    rank: u32,
    bars_max: usize,
    mut times: BTreeMap<u64, (u64, u64)>,
    names: &mut Names,
) -> Result<Row, ReadError> {
    let mut walk = Walk::over(run.reader(rank)?);
    let mut bars = Bars { bars: Vec::new(), bars_max, width: 0 };
    let mut numbers: Vec<Option<u16>> = Vec::new();
    while let Some(step) = walk.next_step() {
        let Step::Call(seen) = step else {
            continue;
        };
        numbers.resize(walk.names.len().max(numbers.len()), None);
        let number = numbers.get(usize::from(seen.function)).copied().flatten();
        let function = number.unwrap_or_else(|| names.number(walk.name(seen.function)));
        if let Some(known) = numbers.get_mut(usize::from(seen.function)) {
            *known = Some(function);
        }
        let (begin, end) = seen.ticks;
        if bounded_without_time(&walk, seen.ticks) {
            continue;
        }
        if let Some(time) = times.get_mut(&seen.number) {
            *time = seen.ticks;
        }
        let merged = seen.kind == Kind::Unhandled && seen.count > 1;
        bars.push(Bar { begin, end, function, longest: end - begin, count: seen.count, merged });
    }
    let ns = |ticks: u64| walk.scale.wall_ns(ticks);
    for bar in &mut bars.bars {
        (bar.begin, bar.end) = (ns(bar.begin), ns(bar.end));
    }
    for time in times.values_mut() {
        *time = (ns(time.0), ns(time.1));
    }
    let whole = !walk.ended && walk.damage().is_none();
    let entered = walk.entered().filter(|(_, call, _)| whole && *call == walk.calls + 1);
    Ok(Row {
        rank,
        damage: walk.damage().cloned(),
        merged: bars.width > 0,
        open: entered.map(|(function, call, _)| (walk.name(function).to_owned(), call)),
        bars: bars.bars,
        times,
    })
}

/// Behind the gap of a log that keeps only its end no call has a time before the next moment.
fn bounded_without_time(walk: &Walk, ticks: (u64, u64)) -> bool {
    ticks == (0, 0) && walk.has_gap()
}

/// Of one unit of the page, in nanoseconds.
const UNIT_NS: u64 = 100;

fn encode(
    title: &str,
    notes: &[String],
    names: &Names,
    rows: &[Row],
    messages: &[Message],
    (first, last): (u64, u64),
) -> String {
    let unit = |ns: u64| ns.saturating_sub(first) / UNIT_NS;
    let mut out = format!("{{\"title\":{},\"span\":{},\"notes\":[", text(title), unit(last));
    list(&mut out, notes.iter().map(|note| text(note)));
    out.push_str("],\"functions\":[");
    list(&mut out, names.0.iter().map(|name| text(name)));
    out.push_str("],\"classes\":[");
    list(&mut out, names.0.iter().map(|name| class(name).to_string()));
    out.push_str("],\"ranks\":[");
    list(
        &mut out,
        rows.iter().map(|row| {
            let begin = row.bars.first().map_or(0, |bar| unit(bar.begin));
            let open = row
                .open
                .as_ref()
                .map_or_else(|| "null".to_owned(), |(name, call)| format!("[{},{call}]", text(name)));
            let mut one = format!("{{\"rank\":{},\"first\":{begin},\"open\":{open},\"calls\":[", row.rank);
            let mut at = begin;
            for (place, bar) in row.bars.iter().enumerate() {
                // Rounded ends, not rounded lengths: errors must not add up.
                let (begin, end) = (unit(bar.begin).max(at), unit(bar.end).max(at));
                let count = if bar.merged { format!("-{}", bar.count) } else { bar.count.to_string() };
                let comma = if place == 0 { "" } else { "," };
                let _ = write!(one, "{comma}{},{},{},{count}", begin - at, end - begin, bar.function);
                at = end;
            }
            one.push_str("]}");
            one
        }),
    );
    out.push_str("],\"messages\":[");
    let times: BTreeMap<i64, &Row> = rows.iter().map(|row| (i64::from(row.rank), row)).collect();
    let time = |rank: i64, call: u64| times.get(&rank).and_then(|row| row.times.get(&call)).copied();
    list(
        &mut out,
        messages.iter().filter_map(|message| {
            let Message { from, to, sent, received } = message;
            let (left, came) = (time(*from, sent.call)?.0, time(*to, received.done)?.1);
            let (call, done, bytes, tag) = (sent.call, received.done, sent.bytes, sent.tag);
            Some(format!("{from},{call},{to},{done},{},{},{bytes},{tag}", unit(left), unit(came)))
        }),
    );
    out.push_str("]}");
    out
}

fn list(out: &mut String, items: impl Iterator<Item = String>) {
    for (place, item) in items.enumerate() {
        if place > 0 {
            out.push(',');
        }
        out.push_str(&item);
    }
}

/// A text as JSON that may stand within a page.
fn text(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The place of a function's class in the page's legend.
fn class(name: &str) -> usize {
    match Class::of(name) {
        Class::Send(_) | Class::Start => 0,
        Class::Receive(_) | Class::ReceiveMatched(_) | Class::SendReceive => 1,
        Class::WaitAll(true) | Class::WaitAny(true) | Class::Probe(true) | Class::MatchedProbe(true) => 2,
        Class::WaitAll(false) | Class::WaitAny(false) | Class::Probe(false) | Class::MatchedProbe(false) => 3,
        Class::Collective(Begins::Blocking | Begins::Request | Begins::Persistent) | Class::Finalize => 4,
        Class::Cancel | Class::Free | Class::Other => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_merged_beyond_the_limit_and_no_call_is_lost() {
        let mut bars = Bars { bars: Vec::new(), bars_max: 100, width: 0 };
        for at in 0..10_000 {
            let function = if at % 10 == 0 { 7 } else { 1 };
            let longest = if at % 10 == 0 { 8 } else { 1 };
            bars.push(Bar {
                begin: at * 10,
                end: at * 10 + longest,
                function,
                longest,
                count: 1,
                merged: false,
            });
        }
        assert!(bars.bars.len() <= 100 && bars.bars.len() > 20, "{}", bars.bars.len());
        assert_eq!(bars.bars.iter().map(|bar| bar.count).sum::<u64>(), 10_000);
        assert!(bars.bars.windows(2).all(|pair| pair[0].end <= pair[1].begin));
        assert!(bars.bars[0].merged && bars.bars[0].function == 7, "the one that took longest");
    }

    #[test]
    fn no_text_ends_the_script_that_it_stands_in() {
        assert_eq!(text("a</script>\"\\\n"), "\"a\\u003c/script\\u003e\\\"\\\\\\u000a\"");
        assert_eq!(PAGE.matches(PLACE).count(), 1);
    }
}
