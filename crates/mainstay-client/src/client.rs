//! A client of one service: its connections and its number.

use crate::answer::Answer;
use crate::attempt::{Attempts, Headers};
use crate::error::{AddressError, CallError, RequestError};
use crate::options::Options;
use crate::thread::Thread;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex, PoisonError};

/// The longest idempotency key, in bytes.
const KEY_BYTES_MAX: usize = 255;

/// A client of one service. Cheap to clone; clones share connections and number.
#[derive(Clone, Debug)]
pub struct Client {
    attempts: Arc<Attempts>,
    place: Arc<Mutex<Place>>,
    /// `/TYPE/KEY` of the instance that is called; empty for a service of one state.
    instance: Arc<str>,
}

/// The number of the client at the service, and the next thread of it.
#[derive(Debug)]
struct Place {
    number: Option<u64>,
    next_thread: u32,
}

impl Client {
    /// A client of the service at `address` (`http://host:port`). Nothing is sent yet.
    ///
    /// # Errors
    /// [`AddressError`] when the address cannot be one.
    pub fn connect(address: &str, options: Options) -> Result<Self, AddressError> {
        Self::at(address, options, None)
    }

    /// A client that goes on under a number it was given before it was restarted. Its threads are made with
    /// [`Self::thread_at`].
    ///
    /// # Errors
    /// [`AddressError`] when the address cannot be one.
    pub fn resume(address: &str, options: Options, number: u64) -> Result<Self, AddressError> {
        Self::at(address, options, Some(number))
    }

    fn at(address: &str, options: Options, number: Option<u64>) -> Result<Self, AddressError> {
        let attempts = Arc::new(Attempts::new(address, options)?);
        let place = Arc::new(Mutex::new(Place { number, next_thread: 1 }));
        Ok(Self { attempts, place, instance: Arc::from("") })
    }

    /// The same client, of one instance at that node: calls, queries and threads go to it. A node that does not have the instance rejects them
    /// ([`CallError::Rejected`], code `other-node`), and says which one has: make a client of that node, for the number of this one means nothing there.
    #[must_use]
    pub fn instance(&self, type_name: &str, key: &str) -> Self {
        let key = utf8_percent_encode(key, NON_ALPHANUMERIC);
        Self { instance: Arc::from(format!("/{type_name}/{key}")), ..self.clone() }
    }

    /// The client's number; asks the service for one if it has none yet.
    ///
    /// # Errors
    /// [`CallError::Unavailable`] or [`CallError::Unknown`] when the deadline passes (a number that was issued and
    /// never learnt of is lost, which harms nobody); [`CallError::Rejected`].
    pub fn number(&self) -> Result<u64, CallError> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(number) = place.number {
            return Ok(number);
        }
        #[derive(serde::Deserialize)]
        struct Registered {
            client: u64,
        }
        let answer = self.attempts.until_answered("/clients", &Headers::None, b"")?;
        let registered: Registered = decode(answer)?;
        place.number = Some(registered.client);
        Ok(registered.client)
    }

    /// A new thread of this client: it makes one request at a time, and each has its number in the sequence.
    ///
    /// # Errors
    /// Those of [`Self::number`].
    pub fn thread(&self) -> Result<Thread, CallError> {
        let number = self.number()?;
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = place.next_thread;
        place.next_thread += 1;
        Ok(Thread::new(Arc::clone(&self.attempts), self.path("/call"), number, thread, 0))
    }

    /// A thread that goes on where it was before a restart: `last_sequence` is that of the last request it may have
    /// made, 0 for none.
    ///
    /// # Errors
    /// Those of [`Self::number`].
    pub fn thread_at(&self, thread: u32, last_sequence: u64) -> Result<Thread, CallError> {
        let number = self.number()?;
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        place.next_thread = place.next_thread.max(thread + 1);
        Ok(Thread::new(Arc::clone(&self.attempts), self.path("/call"), number, thread, last_sequence))
    }

    /// Makes a request that a repetition is recognised of by `key`, until the key expires.
    ///
    /// # Errors
    /// [`CallError`]; each variant says whether the request took effect.
    pub fn call_with_key<C: Serialize, A: DeserializeOwned>(
        &self,
        key: &str,
        command: &C,
    ) -> Result<A, CallError> {
        let body = serde_json::to_vec(command).map_err(RequestError::Command)?;
        decode(self.call_bytes_with_key(key, &body)?)
    }

    /// [`Self::call_with_key`] with a body that is JSON already, and the whole answer whatever its status.
    ///
    /// # Errors
    /// [`CallError`], but neither `Refused` nor `Answer`.
    pub fn call_bytes_with_key(&self, key: &str, body: &[u8]) -> Result<Answer, CallError> {
        let visible = key.bytes().all(|byte| byte.is_ascii_graphic());
        if !visible || key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(RequestError::Key { bytes: key.len() }.into());
        }
        self.attempts.until_answered(&self.path("/call"), &Headers::Key(key), body)
    }

    /// Reads. A read changes nothing, hence needs no identity.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn query<Q: Serialize, V: DeserializeOwned>(&self, question: &Q) -> Result<V, CallError> {
        let body = serde_json::to_vec(question).map_err(RequestError::Command)?;
        decode(self.attempts.until_answered(&self.path("/query"), &Headers::None, &body)?)
    }

    fn path(&self, face: &str) -> String {
        format!("{face}{}", self.instance)
    }
}

/// The value in an answer that the handler accepted.
pub(crate) fn decode<A: DeserializeOwned>(answer: Answer) -> Result<A, CallError> {
    if !answer.accepted() {
        return Err(CallError::Refused { status: answer.status, body: answer.body });
    }
    serde_json::from_slice(&answer.body).map_err(|source| CallError::Answer { source, body: answer.body })
}
