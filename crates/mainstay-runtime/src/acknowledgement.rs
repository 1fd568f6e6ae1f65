//! What is kept of a request until its answer has left and is written into the power-loss recording.

use mainstay_process::acknowledgement::Acknowledgement;
use mainstay_process::event::Identity;
use mainstay_process::handler::Answer;

/// What is kept of a request until it is answered.
#[derive(Clone, Debug)]
pub(crate) struct Noted {
    identity: Identity,
    request: Vec<u8>,
}

impl Noted {
    pub(crate) fn new(identity: &Identity, request: &[u8]) -> Box<Self> {
        Box::new(Self { identity: identity.clone(), request: request.to_vec() })
    }

    /// The bytes of the recording's entry for `answer`.
    pub(crate) fn answered(self, answer: &Answer) -> Vec<u8> {
        let acknowledgement = Acknowledgement::new(&self.identity, &self.request, answer);
        serde_json::to_vec(&acknowledgement).expect("text and numbers are JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::id::{ClientId, Sequence, ThreadId};

    #[test]
    fn every_kind_of_identity_reads_back() {
        let client = Identity::Client { client: ClientId(1), thread: ThreadId(2), sequence: Sequence(3) };
        for identity in [Identity::None, Identity::Key(b"k-1".to_vec()), client] {
            let answer = Answer { status: 200, body: b"7".to_vec() };
            let written = Noted::new(&identity, b"{}").answered(&answer);
            let read: Acknowledgement = serde_json::from_slice(&written).expect("it was just written");
            assert_eq!(read, Acknowledgement::new(&identity, b"{}", &answer));
        }
    }
}
