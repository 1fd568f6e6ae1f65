//! The other nodes, as this one speaks to them and hears them: which connection of whom counts, and who is not heard at all.

use crate::head::Head;
use crate::links::Links;
use mainstay_replica::message::Message;
use mainstay_types::id::StoreId;
use mainstay_types::view::Address;
use std::collections::{BTreeSet, HashMap};

/// Who speaks: another directory at the same address is another one, whose lives are counted anew.
type Who = (Address, StoreId);

/// Life and number of a connection: of one speaker only the highest is heard, so that what it says comes in order or not at all.
type At = (u64, u64);

/// Speakers whose last connection is remembered after it has ended. Beyond, all such are forgotten.
const ENDED_MAX: usize = 1024;

/// The other nodes.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) links: Links,
    /// Connections from them.
    heard: HashMap<u64, (Who, At)>,
    newest: HashMap<Who, At>,
    /// Who is neither heard nor told anything.
    cut: BTreeSet<Address>,
    /// Nobody is.
    apart: bool,
}

impl Peers {
    pub(crate) fn new(links: Links) -> Self {
        Self { links, heard: HashMap::new(), newest: HashMap::new(), cut: BTreeSet::new(), apart: false }
    }

    /// A node has connected.
    pub(crate) fn opened(&mut self, link: u64, head: &Head) {
        let (who, at) = ((head.address, head.store), (head.life, head.connection));
        let newest = self.newest.entry(who).or_default();
        *newest = at.max(*newest);
        self.heard.insert(link, (who, at));
    }

    /// A connection is gone.
    pub(crate) fn closed(&mut self, link: u64) {
        self.heard.remove(&link);
        if self.newest.len() > self.heard.len() + ENDED_MAX {
            let speaking: BTreeSet<Who> = self.heard.values().map(|(who, _)| *who).collect();
            self.newest.retain(|who, _| speaking.contains(who));
        }
    }

    /// Who speaks on that connection, if it is heard.
    pub(crate) fn hears(&self, link: u64) -> Option<Address> {
        let (who, at) = self.heard.get(&link)?;
        let counts = self.newest.get(who) == Some(at) && self.speaks_with(who.0);
        counts.then_some(who.0)
    }

    /// Sends a message at the end of this step.
    pub(crate) fn send(&mut self, to: Address, message: &Message) {
        if self.speaks_with(to) {
            self.links.send(to, |out| message.put(out));
        }
    }

    fn speaks_with(&self, other: Address) -> bool {
        !self.apart && !self.cut.contains(&other)
    }

    /// Neither hears nor tells these anything, from now on; the others again.
    pub(crate) fn cut(&mut self, off: BTreeSet<Address>) {
        self.cut = off;
    }

    /// Whether this node keeps to itself, so that the others go on without it.
    pub(crate) fn keep_apart(&mut self, apart: bool) {
        self.apart = apart;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delay::Way;
    use crate::secure::Security;
    use std::time::Duration;

    fn peers() -> Peers {
        let (inputs, _) = tokio::sync::mpsc::channel(1);
        Peers::new(Links::new(head(9, 1, 1), inputs, Way::of(Duration::ZERO), Security::Plain))
    }

    fn head(store: u8, life: u64, connection: u64) -> Head {
        let address = Address::v4([127, 0, 0, 1], 7171);
        Head { cluster: None, store: StoreId([store; 16]), address, life, connection }
    }

    #[test]
    fn of_one_speaker_the_newest_connection_is_heard() {
        let mut peers = peers();
        peers.opened(1, &head(1, 5, 2));
        peers.opened(2, &head(1, 5, 3));
        // Its head came late.
        peers.opened(3, &head(1, 4, 9));
        assert_eq!([1, 2, 3].map(|link| peers.hears(link).is_some()), [false, true, false]);
        peers.closed(2);
        assert_eq!(peers.hears(1), None, "what it says is older than what was heard");
        peers.keep_apart(true);
        peers.opened(4, &head(1, 6, 1));
        assert_eq!(peers.hears(4), None);
        peers.keep_apart(false);
        assert!(peers.hears(4).is_some());
    }

    /// It was passed over, because the store before it had come to a later life.
    #[test]
    fn a_store_in_the_place_of_another_one_is_heard_though_its_lives_begin_anew() {
        let mut peers = peers();
        peers.opened(1, &head(1, 5, 2));
        peers.closed(1);
        peers.opened(2, &head(2, 1, 1));
        assert!(peers.hears(2).is_some());
    }

    #[test]
    fn speakers_that_were_made_up_are_forgotten_and_those_that_speak_are_not() {
        let mut peers = peers();
        peers.opened(0, &head(1, 1, 7));
        for made_up in 1..=2 * ENDED_MAX as u64 {
            let address = Address::v4([127, 0, 0, 1], u16::try_from(made_up).expect("it is small"));
            peers.opened(made_up, &Head { address, ..head(2, 1, 1) });
            peers.closed(made_up);
        }
        assert!(peers.newest.len() <= 2 + ENDED_MAX, "{}", peers.newest.len());
        peers.opened(9999, &head(1, 1, 6));
        assert_eq!(peers.hears(9999), None);
    }
}
