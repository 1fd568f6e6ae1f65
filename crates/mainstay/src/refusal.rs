//! A handler's no.

use serde::Serialize;

/// A refusal is an answer like any other: recorded, and given again to a repetition. Changes that the handler made to its
/// state before refusing stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

/// The status of a refusal that says none: the request is well formed, and the state forbids it.
const STATUS_DEFAULT: u16 = 400;

impl Refusal {
    /// Status 400 and the body `{"error": "refused", "message": …}`.
    #[must_use]
    pub fn new(message: impl AsRef<str>) -> Self {
        Self::status(STATUS_DEFAULT, message)
    }

    /// An HTTP status of 400 to 599 and the body `{"error": "refused", "message": …}`.
    ///
    /// # Panics
    /// When the status is not one of a refusal: a bug in the service.
    #[must_use]
    pub fn status(status: u16, message: impl AsRef<str>) -> Self {
        Self::json(status, &serde_json::json!({ "error": "refused", "message": message.as_ref() }))
    }

    /// An HTTP status of 400 to 599 and a body of the service's own.
    ///
    /// # Panics
    /// When the status is not one of a refusal, or the body cannot be written as JSON: bugs in the service.
    #[must_use]
    pub fn json(status: u16, body: &impl Serialize) -> Self {
        assert!((400..600).contains(&status), "a refusal has a status of 400 to 599, not {status}");
        let body = serde_json::to_vec(body).expect("the service's own refusal can be written as JSON");
        Self { status, body }
    }
}

impl From<&str> for Refusal {
    fn from(message: &str) -> Self {
        Self::new(message)
    }
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self::new(message)
    }
}
