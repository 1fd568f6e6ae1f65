//! A rank's log call by call, with numbers, names and times: what every command that looks at a run begins with.

use crate::clock::{Moment, Scale, UNIT_SHIFT};
use crate::definition::{Comm, decode_texts};
use crate::field::{Field, fields};
use crate::format::Kind;
use crate::reader::damage::Damage;
use crate::reader::{Reader, Record, Tail};

/// One call, or a run of equal ones.
#[derive(Debug)]
pub struct Seen {
    /// Number of the first call.
    pub number: u64,
    /// How many calls it stands for.
    pub count: u64,
    /// `Call`, `Misses` or `Unhandled`.
    pub kind: Kind,
    /// Number of the function.
    pub function: u16,
    /// When the first call began and ended, in ticks; both 0 in a log without times.
    pub ticks: (u64, u64),
    record: Record,
}

impl Seen {
    /// The fields of the call, its time last.
    pub fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        let skipped = match self.kind {
            Kind::Call => 0,
            _ => 8.min(self.record.body.len()),
        };
        fields(&self.record.body[skipped..])
    }
}

/// What stands in the log in order.
#[derive(Debug)]
pub enum Step {
    /// A call.
    Call(Seen),
    /// A communicator is known from here on.
    Comm(Comm),
}

/// A log on its way.
#[derive(Debug)]
pub struct Walk {
    reader: Reader,
    /// Names of functions by number.
    pub names: Vec<String>,
    /// How fast the counter is. Complete at the end of the log.
    pub scale: Scale,
    /// Calls so far, those included that a log which keeps only its end lacks.
    pub calls: u64,
    /// Whether the process ended by itself. Known at the end.
    pub ended: bool,
    /// How the MPI calls itself.
    pub library: String,
    /// Ranks of the run.
    pub size: u32,
    /// Ticks at the end of the last record that has a time.
    ticks: u64,
}

impl Walk {
    /// Begins at the beginning.
    #[must_use]
    pub fn over(reader: Reader) -> Self {
        Self {
            reader,
            names: Vec::new(),
            scale: Scale::default(),
            calls: 0,
            ended: false,
            library: String::new(),
            size: 0,
            ticks: 0,
        }
    }

    /// The name of a function.
    #[must_use]
    pub fn name(&self, function: u16) -> &str {
        self.names.get(usize::from(function)).map_or("a call without a name", |name| name)
    }

    /// Whether the log keeps only its beginning and its end.
    #[must_use]
    pub fn has_gap(&self) -> bool {
        self.reader.gap().is_some()
    }

    /// What is wrong with the log, if anything is. Known at the end.
    #[must_use]
    pub fn damage(&self) -> Option<&Damage> {
        self.reader.damage()
    }

    /// How the log ends. Known at the end.
    #[must_use]
    pub fn tail(&self) -> Tail {
        self.reader.tail()
    }

    /// What went into the call that the rank waits in, if it waits: its function, number and fields.
    #[must_use]
    pub fn entered(&self) -> Option<(u16, u64, &[u8])> {
        let (function, number) = self.tail().entered?;
        let inputs = self.reader.entered_inputs().filter(|(call, _)| *call == number);
        Some((function, number, inputs.map_or(&[], |(_, inputs)| inputs)))
    }

    /// The next call or communicator; `None` at the end.
    #[must_use]
    pub fn next_step(&mut self) -> Option<Step> {
        loop {
            let record = self.reader.next_record();
            self.calls = self.reader.calls();
            let record = record?;
            // Times are said from the record before on: not known before the next moment.
            if self.reader.passed_gap() {
                self.ticks = 0;
            }
            match record.kind {
                Kind::Call | Kind::Misses | Kind::Unhandled => return Some(Step::Call(self.seen(record))),
                Kind::Comm => {
                    if let Some(comm) = Comm::decode(&record.body) {
                        return Some(Step::Comm(comm));
                    }
                }
                Kind::Names => self.names = decode_texts(&record.body).unwrap_or_default(),
                Kind::Start => self.take_start(&decode_texts(&record.body).unwrap_or_default()),
                Kind::Clock => {
                    if let Some(moment) = Moment::decode(&record.body) {
                        self.scale.add(moment);
                        // Times are counted from the first moment on.
                        if self.ticks == 0 {
                            self.ticks = moment.ticks >> UNIT_SHIFT << UNIT_SHIFT;
                        }
                    }
                }
                Kind::End => self.ended = true,
                Kind::Type | Kind::Fortran | Kind::Pad => {}
            }
        }
    }

    fn seen(&mut self, record: Record) -> Seen {
        let count = record.calls();
        let mut seen = Seen {
            number: (self.calls + 1).saturating_sub(count),
            count,
            kind: record.kind,
            function: record.function,
            ticks: (self.ticks, self.ticks),
            record,
        };
        let time = seen.fields().find_map(|field| match field {
            Field::Time(idle, spent) => Some((idle, spent)),
            _ => None,
        });
        if let Some((idle, spent)) = time.filter(|_| self.ticks != 0) {
            let begun = self.ticks.wrapping_add(idle << UNIT_SHIFT);
            self.ticks = begun.wrapping_add(spent << UNIT_SHIFT);
            seen.ticks = (begun, self.ticks);
        }
        seen
    }

    fn take_start(&mut self, values: &[String]) {
        for pair in values.chunks_exact(2) {
            match pair[0].as_str() {
                "size" => self.size = pair[1].parse().unwrap_or(0),
                "library" => pair[1].clone_into(&mut self.library),
                _ => {}
            }
        }
    }
}
