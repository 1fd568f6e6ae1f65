//! Replaying: what the program hands in is compared with the log, what came out is served from it.

use crate::call::Call;
use crate::definition::{self, Comm};
use crate::ending::{Cause, Ending};
use crate::field::{Field, ObjectKind};
use crate::format::{Kind, stop_reason};
use crate::reader::{Reader, Record};
use crate::typemap::Typemap;
use crate::varint::Bytes;

/// The log that is being replayed.
#[derive(Debug)]
pub struct Replaying {
    reader: Reader,
    /// The next record that is a call, or a run of them with as many left.
    next: Option<(Record, u64)>,
    names: Vec<String>,
    /// Calls served so far, the current one included.
    calls: u64,
    /// Sends that differed and were let pass.
    differences: u64,
    tolerate_send_diff: bool,
    /// How the recorded process ended, if the log has its end.
    ending: Option<Ending>,
}

/// Why a replay goes no further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Halt {
    /// The log has no more calls, and what the program does now is no other than what was recorded.
    #[error("the log ends: {text}")]
    LogEnds {
        /// How it ended.
        text: String,
    },
    /// The recorded process was killed or crashed between two calls, and the program goes on.
    #[error("the recorded rank ended after call {calls}, by a crash or killed; this one went on to {to}")]
    WentOn {
        /// Calls in the log.
        calls: u64,
        /// What the program does.
        to: String,
    },
    /// The program ended in another way.
    #[error("after all {calls} calls: {now} now, {logged} in the log")]
    OtherEnd {
        /// Calls in the log.
        calls: u64,
        /// How it ended.
        now: String,
        /// How it ended when it was recorded.
        logged: String,
    },
    /// The program calls something else.
    #[error("call {call}: the program calls {called}, the log has {logged}")]
    OtherCall {
        /// Number of the call.
        call: u64,
        /// What it calls.
        called: String,
        /// What it called when it was recorded.
        logged: String,
    },
    /// The program hands in something else.
    #[error("call {call}, {function}: {now} now, {logged} in the log")]
    OtherInput {
        /// Number of the call.
        call: u64,
        /// The function.
        function: String,
        /// What is handed in.
        now: String,
        /// What was handed in.
        logged: String,
    },
    /// The program ended and the log goes on.
    #[error("the program ended after {calls} calls, the log goes on with {logged}")]
    LogGoesOn {
        /// Calls that were served.
        calls: u64,
        /// What comes next.
        logged: String,
    },
    /// Something that cannot be replayed.
    #[error("call {call}: {what}")]
    Unsupported {
        /// Number of the call.
        call: u64,
        /// What it is.
        what: String,
    },
}

impl Halt {
    /// One word for programs.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::LogEnds { .. } => "log-ends",
            Self::WentOn { .. } => "went-on",
            Self::OtherCall { .. }
            | Self::OtherInput { .. }
            | Self::OtherEnd { .. }
            | Self::LogGoesOn { .. } => "diverged",
            Self::Unsupported { .. } => "unsupported",
        }
    }
}

/// What definitions between calls say.
pub trait Definitions {
    /// A type, flattened.
    fn define_type(&mut self, id: u64, map: Typemap);
    /// A communicator.
    fn define_comm(&mut self, comm: Comm);
    /// Fortran's number of a predefined object.
    fn define_fortran(&mut self, kind: ObjectKind, id: u64, fortran: i32);
}

impl Replaying {
    /// Replays a log from its beginning.
    pub fn new(reader: Reader, tolerate_send_diff: bool, definitions: &mut dyn Definitions) -> Self {
        let mut replaying = Self {
            reader,
            next: None,
            names: Vec::new(),
            calls: 0,
            differences: 0,
            tolerate_send_diff,
            ending: None,
        };
        replaying.advance(definitions);
        replaying
    }

    /// Calls served so far, the current one included.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Sends that differed and were let pass.
    #[must_use]
    pub fn differences(&self) -> u64 {
        self.differences
    }

    /// The program calls `function`, named `name`: takes the record of this call.
    ///
    /// # Errors
    /// [`Halt`] when the log has something else.
    pub fn open(
        &mut self,
        call: &mut Call,
        name: &str,
        definitions: &mut dyn Definitions,
    ) -> Result<(), Halt> {
        // Clocks that the program reads no more.
        while self.next_name().is_some_and(|logged| !logged.starts_with("MPI_") && logged != name) {
            self.calls += 1;
            self.advance(definitions);
        }
        let number = self.calls + 1;
        let Some((record, left)) = &mut self.next else {
            return Err(self.log_ends(name, name));
        };
        let logged =
            self.names.get(usize::from(record.function)).map_or("a call without a name", |name| name);
        if record.thread != 0 {
            let what = format!("{logged} was called by a second thread, which is not replayed yet");
            return Err(Halt::Unsupported { call: number, what });
        }
        if record.kind == Kind::Unhandled {
            let what = format!("{logged} was forwarded and not recorded: replay does not know it yet");
            return Err(Halt::Unsupported { call: number, what });
        }
        if logged != name {
            return Err(Halt::OtherCall { call: number, called: name.to_owned(), logged: logged.to_owned() });
        }
        self.calls = number;
        if record.kind == Kind::Misses {
            call.logged.clone_from(&record.body);
            call.logged_used = 8;
        } else {
            std::mem::swap(&mut call.logged, &mut record.body);
            call.logged_used = 0;
        }
        *left -= 1;
        Ok(())
    }

    /// The name of the call that comes next in the log.
    #[must_use]
    pub fn next_name(&self) -> Option<&str> {
        self.next.as_ref().map(|(record, _)| self.name(record.function))
    }

    /// The call is over: looks at what comes next.
    pub fn close(&mut self, definitions: &mut dyn Definitions) {
        if self.next.as_ref().is_none_or(|(_, left)| *left == 0) {
            self.advance(definitions);
        }
    }

    /// An input: compared.
    ///
    /// # Errors
    /// [`Halt::OtherInput`] when it differs.
    pub fn input(&mut self, call: &mut Call, name: &str, now: &Field<'_>) -> Result<(), Halt> {
        let logged = next_field(call);
        match (now, logged) {
            (now, Some(logged)) if *now == logged => Ok(()),
            (Field::Data(..), Some(Field::Data(..))) if self.tolerate_send_diff => {
                self.differences += 1;
                Ok(())
            }
            (now, logged) => Err(self.other(name, &now.to_string(), logged)),
        }
    }

    /// A result: what `take` makes of the next field.
    ///
    /// # Errors
    /// [`Halt::OtherInput`] when the log has something else there.
    pub fn output<'a, T>(
        &self,
        call: &'a mut Call,
        name: &str,
        wanted: &str,
        take: impl FnOnce(Field<'a>) -> Option<T>,
    ) -> Result<T, Halt> {
        let mut bytes = Bytes::new(&call.logged[call.logged_used..]);
        let before = bytes.rest().len();
        let field = Field::decode(&mut bytes);
        call.logged_used += before - bytes.rest().len();
        match field.and_then(take) {
            Some(taken) => Ok(taken),
            None => Err(self.other(name, wanted, field)),
        }
    }

    /// Whether message data comes next in the call.
    #[must_use]
    pub fn data_comes(call: &Call) -> bool {
        let next = Field::decode(&mut Bytes::new(&call.logged[call.logged_used..]));
        matches!(next, Some(Field::Received(_)))
    }

    /// The program ends. How it ended when it was recorded, if the log has its end.
    ///
    /// # Errors
    /// [`Halt::LogGoesOn`] when the log has more calls, [`Halt::OtherEnd`] when the program ended in another way, [`Halt::LogEnds`] or
    /// [`Halt::WentOn`] when the log does not have its end.
    pub fn finish(&mut self, now: Ending, definitions: &mut dyn Definitions) -> Result<Ending, Halt> {
        while self.next_name().is_some_and(|logged| !logged.starts_with("MPI_")) {
            self.calls += 1;
            self.advance(definitions);
        }
        let calls = self.calls;
        match (&self.next, self.ending) {
            (Some((record, _)), _) => {
                Err(Halt::LogGoesOn { calls, logged: self.name(record.function).to_owned() })
            }
            (None, Some(logged)) if logged.within.is_none() && logged.agrees_with(&now) => Ok(logged),
            (None, Some(logged)) => {
                Err(Halt::OtherEnd { calls, now: now.text(), logged: self.end_text(logged) })
            }
            (None, None) => Err(match self.entered_next() {
                Some(name) => Halt::LogGoesOn { calls, logged: name.to_owned() },
                None => self.log_ends("its end", &now.text()),
            }),
        }
    }

    /// How the recorded process ended, in words.
    fn end_text(&self, ending: Ending) -> String {
        match ending.within {
            Some(function) => format!("{} in {}", ending.text(), self.name(function)),
            None => ending.text(),
        }
    }

    /// The call of MPI that the recorded process was cut off in.
    fn entered_next(&self) -> Option<&str> {
        let (function, entered) = self.reader.tail().entered.filter(|_| self.ending.is_none())?;
        let name = self.name(function);
        (entered == self.calls + 1 && name.starts_with("MPI_")).then_some(name)
    }

    fn other(&self, name: &str, now: &str, logged: Option<Field<'_>>) -> Halt {
        Halt::OtherInput {
            call: self.calls,
            function: name.to_owned(),
            now: now.to_owned(),
            logged: logged.map_or_else(|| "nothing".to_owned(), |field| field.to_string()),
        }
    }

    fn name(&self, function: u16) -> &str {
        self.names.get(usize::from(function)).map_or("a call without a name", |name| name)
    }

    /// The program goes on to `to`, a call or its end, and the log has nothing there.
    fn log_ends(&self, called: &str, to: &str) -> Halt {
        let tail = self.reader.tail();
        let calls = self.calls;
        let called_other =
            |logged: String| Halt::OtherCall { call: calls + 1, called: called.to_owned(), logged };
        if let Some((errno, _)) = tail.stopped {
            let reason = stop_reason(errno);
            let text = format!("recording stopped after {calls} calls: {reason}; the program is at {to}");
            return Halt::LogEnds { text };
        }
        if let Some(ending) = self.ending {
            let text = self.end_text(ending);
            let in_this = ending.within.is_some_and(|function| self.name(function) == called);
            return match ending.cause {
                // What runs behind an abort hangs on the MPI.
                Cause::Unknown | Cause::Abort => Halt::LogEnds {
                    text: format!(
                        "the recorded rank ended after {calls} calls ({text}); the program goes on to {to}"
                    ),
                },
                _ if in_this => Halt::LogEnds { text: format!("the recorded rank ended there: {text}") },
                Cause::Finalized | Cause::Exit => called_other(text),
            };
        }
        let left =
            tail.left.map_or(String::new(), |status| format!(" by _exit with status {}", status & 0xff));
        match (self.entered_next(), tail.entered) {
            (Some(entered), _) if entered == called => {
                let end = if left.is_empty() { "was cut off" } else { "ended" };
                let text = format!("the recorded rank {end} in {entered}, call {}{left}", calls + 1);
                Halt::LogEnds { text }
            }
            (Some(entered), _) => called_other(entered.to_owned()),
            (None, Some((_, entered))) if entered <= calls && left.is_empty() => {
                Halt::WentOn { calls, to: to.to_owned() }
            }
            (None, Some((_, entered))) if entered <= calls => called_other(format!("its end{left}")),
            _ => {
                let text =
                    format!("the recorded rank was cut off after {calls} calls; the program goes on to {to}");
                Halt::LogEnds { text }
            }
        }
    }

    fn advance(&mut self, definitions: &mut dyn Definitions) {
        self.next = None;
        while let Some(record) = self.reader.next_record() {
            match record.kind {
                Kind::Call => {
                    self.next = Some((record, 1));
                    return;
                }
                Kind::Misses | Kind::Unhandled => {
                    let count = record.body.first_chunk().map_or(0, |count| u64::from_le_bytes(*count));
                    if count > 0 {
                        self.next = Some((record, count));
                        return;
                    }
                }
                Kind::Type => {
                    let mut bytes = Bytes::new(&record.body);
                    if let Some(id) = bytes.unsigned()
                        && let Some(map) = Typemap::decode(&mut bytes)
                    {
                        definitions.define_type(id, map);
                    }
                }
                Kind::Comm => {
                    if let Some(comm) = Comm::decode(&record.body) {
                        definitions.define_comm(comm);
                    }
                }
                Kind::Fortran => {
                    for (kind, id, fortran) in definition::decode_fortran(&record.body).unwrap_or_default() {
                        definitions.define_fortran(kind, id, fortran);
                    }
                }
                Kind::Names => self.names = definition::decode_texts(&record.body).unwrap_or_default(),
                Kind::End => self.ending = Some(Ending::of_record(&record.body)),
                Kind::Start | Kind::Pad | Kind::Clock => {}
            }
        }
    }
}

fn next_field(call: &mut Call) -> Option<Field<'_>> {
    let mut bytes = Bytes::new(&call.logged[call.logged_used..]);
    let before = bytes.rest().len();
    let field = Field::decode(&mut bytes);
    call.logged_used += before - bytes.rest().len();
    field
}
