//! Types around bytes: a [`Service`] as the process sees it.

use crate::migration::SavedState;
use crate::refusal::Refusal;
use crate::save;
use crate::service::Service;
use mainstay_process::handler::{Answer, Context, Handler, Outcome, RestoreError};
use mainstay_runtime::service::{Check, Unfit};
use mainstay_types::id::OutputId;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::io::{self, Write};

/// A service as a handler of bytes.
pub(crate) struct Typed<S>(pub(crate) S);

impl<S: Service> Handler for Typed<S> {
    fn handle(&mut self, body: &[u8], context: &mut Context<'_>) -> Option<Answer> {
        Some(match serde_json::from_slice(body) {
            Ok(command) => answer(&self.0.handle(command, context)),
            // Checked before it was logged: only another version of the service, with another command, comes here.
            Err(error) => of_another_version(&error),
        })
    }

    fn query(&self, body: &[u8]) -> Answer {
        match serde_json::from_slice(body) {
            Ok(query) => answer(&self.0.query(query)),
            Err(error) => of_refusal(&Refusal::new(error.to_string())),
        }
    }

    fn timer(&mut self, token: u64, context: &mut Context<'_>) {
        self.0.timer(token, context);
    }

    fn output_settled(&mut self, output: OutputId, outcome: &Outcome, context: &mut Context<'_>) {
        self.0.output_settled(output, outcome, context);
    }

    fn save(&self, into: &mut dyn Write) -> io::Result<()> {
        save::buffered(into, |into| save::write(&self.0, into))
    }

    fn save_checked(&self, into: &mut dyn Write) -> io::Result<()> {
        // Not dropped: a state may do something then, and this one never was in use.
        let read_back = |bytes: &[u8]| SavedState::new(S::VERSION, bytes).read::<S>().map(std::mem::forget);
        save::checked(into, |into| self.save(into), read_back)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), RestoreError> {
        self.0 = SavedState::new(S::VERSION, bytes).read()?;
        Ok(())
    }

    fn migrate(&mut self, version: u32, bytes: &[u8]) -> Result<(), RestoreError> {
        self.0 = S::migrate(SavedState::new(version, bytes))?;
        Ok(())
    }
}

pub(crate) fn answer<T: Serialize>(handled: &Result<T, Refusal>) -> Answer {
    match handled {
        Ok(value) => {
            let body = serde_json::to_vec(value).expect("the service's own answer can be written as JSON");
            Answer { status: 200, body }
        }
        Err(refusal) => of_refusal(refusal),
    }
}

pub(crate) fn of_refusal(refusal: &Refusal) -> Answer {
    Answer { status: refusal.status, body: refusal.body.clone() }
}

pub(crate) fn of_another_version(error: &serde_json::Error) -> Answer {
    of_refusal(&Refusal::status(422, format!("the recorded command is none of this version: {error}")))
}

/// Whether a body is a `T`.
pub(crate) fn check<T: DeserializeOwned>() -> Check {
    Box::new(|body| {
        let error = match serde_json::from_slice::<T>(body) {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        // A body of the wrong shape may also be no JSON further on; then that is what its sender has to know.
        match serde_json::from_slice::<IgnoredAny>(body) {
            Ok(_) => Err(Unfit::Content { message: error.to_string() }),
            Err(syntax) => Err(Unfit::Syntax { message: syntax.to_string() }),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_process::handler::AnyHandler;
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Add {
        #[expect(dead_code, reason = "only its presence is checked")]
        amount: i64,
    }

    /// Its form has no names: where `note` is left out, `rest` is read in its place.
    #[derive(Default, Serialize, Deserialize)]
    struct Lopsided {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        note: Option<String>,
        rest: Vec<u8>,
    }

    impl Service for Lopsided {
        const NAME: &'static str = "lopsided";
        type Command = ();
        type Answer = ();
        type Query = ();
        type View = ();

        fn handle(&mut self, (): (), _: &mut Context<'_>) -> Result<(), Refusal> {
            Ok(())
        }

        fn query(&self, (): ()) -> Result<(), Refusal> {
            Ok(())
        }
    }

    #[test]
    fn a_small_state_that_cannot_be_read_back_is_not_saved() {
        let save = |state: Lopsided| {
            let mut bytes = Vec::new();
            // As the driver has it.
            let handler: AnyHandler = Box::new(Typed(state));
            handler.save_checked(&mut bytes).map_err(|error| error.kind())
        };
        let whole = || Lopsided { note: Some("here".to_owned()), rest: vec![7; 3] };
        assert_eq!(save(whole()), Ok(()));
        assert_eq!(save(Lopsided { note: None, ..whole() }), Err(io::ErrorKind::InvalidData));
        let large = Lopsided { note: None, rest: vec![7; save::READ_BACK_BYTES_MAX] };
        assert_eq!(save(large), Ok(()), "too long to be looked at");
    }

    #[test]
    fn no_json_and_json_of_another_shape_are_told_apart() {
        let check = check::<Add>();
        assert_eq!(check(br#"{"amount": 1}"#), Ok(()));
        for syntax in ["", "{", "nul", r#"{"amount": 1} x"#, r#"{"other": 1"#] {
            assert!(matches!(check(syntax.as_bytes()), Err(Unfit::Syntax { .. })), "{syntax}");
        }
        for content in ["1", "{}", r#"{"amount": "one"}"#, r#"{"amount": 1.5}"#, "null"] {
            assert!(matches!(check(content.as_bytes()), Err(Unfit::Content { .. })), "{content}");
        }
    }
}
