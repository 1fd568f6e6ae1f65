//! Replaying: what the program hands in is compared with the log, what came out is served from it.

use crate::call::Call;
use crate::definition::{self, Comm};
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
    ended: bool,
}

/// Why a replay goes no further.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Halt {
    /// The log has no more calls.
    #[error("the log ends: {text}")]
    LogEnds {
        /// How it ended.
        text: String,
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
            Self::OtherCall { .. } | Self::OtherInput { .. } | Self::LogGoesOn { .. } => "diverged",
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
            ended: false,
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
            return Err(self.log_ends(name));
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

    /// The program ends.
    ///
    /// # Errors
    /// [`Halt::LogGoesOn`] when the log has more calls.
    pub fn finish(&mut self, definitions: &mut dyn Definitions) -> Result<(), Halt> {
        while self.next_name().is_some_and(|logged| !logged.starts_with("MPI_")) {
            self.calls += 1;
            self.advance(definitions);
        }
        match &self.next {
            None => Ok(()),
            Some((record, _)) => {
                Err(Halt::LogGoesOn { calls: self.calls, logged: self.name(record.function).to_owned() })
            }
        }
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

    fn log_ends(&self, name: &str) -> Halt {
        let tail = self.reader.tail();
        let calls = self.calls;
        let text = match (tail.stopped, tail.entered) {
            (Some((errno, _)), _) => format!(
                "recording stopped after {calls} calls: {}; the program is in {name}",
                stop_reason(errno)
            ),
            (None, Some((function, entered))) if !self.ended && entered == calls + 1 => {
                format!("the recorded rank was cut off in {}, call {entered}", self.name(function))
            }
            _ if self.ended => {
                format!("the recorded rank ended after {calls} calls; the program goes on to {name}")
            }
            _ => format!("the recorded rank was cut off after {calls} calls; the program goes on to {name}"),
        };
        Halt::LogEnds { text }
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
                Kind::End => self.ended = true,
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
