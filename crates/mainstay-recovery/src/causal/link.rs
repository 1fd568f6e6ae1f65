//! What a node knows of one peer: its lives, how far its checkpoint reaches, and how far either has taken the other's log.

use mainstay_types::id::{DeliveryIndex, Incarnation, NodeId};

/// How many ended lives of a peer are remembered at most. A determinant that is older still than so many crashes of its owner
/// is in flight nowhere.
const LIVES_MAX: usize = 64;

/// One peer, as seen here.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) peer: NodeId,
    /// The life that it was last connected in.
    pub(super) incarnation: Option<Incarnation>,
    pub(super) connected: bool,
    /// It has not said yet how far its present life recovered.
    pub(super) recovering: bool,
    /// Lives that began by a recovery, and the last delivery recovered; those that say less than a later one are left out.
    pub(super) recoveries: Vec<(Incarnation, DeliveryIndex)>,
    /// Its durable checkpoint holds its deliveries up to this.
    pub(super) covered: DeliveryIndex,
    /// It knows its own deliveries up to this to be stable.
    pub(super) stable: DeliveryIndex,

    /// Positions of this node's log: the peer said that it has taken so much.
    pub(super) held: u64,
    /// ... the last batch of this session ended here.
    pub(super) announced: u64,
    /// ... behind here is what this session has not looked at.
    pub(super) scanned: u64,
    /// ... no batch of any session with this life went further.
    pub(super) announced_max: u64,

    /// Positions of the peer's log: taken here.
    pub(super) taken: u64,
    /// ... of which the peer has been told in this session.
    pub(super) told: u64,
    /// ... some batch of this session ended here: what is behind `taken` was left untaken, and must be told again before any
    /// message of the peer can be delivered.
    pub(super) seen: u64,
    /// The last batch was left untaken until some peer announces something; then this one is asked to tell it again.
    pub(super) refused: bool,
    /// It was asked to tell again what is behind `taken`, and has not answered yet.
    pub(super) asked_again: bool,
    /// The peer has been told of this node's checkpoint up to here in this session.
    pub(super) covered_told: DeliveryIndex,
}

/// What a determinant that is not known here yet is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is part of its owner's history, or will be.
    Valid,
    /// Nobody needs it any more.
    Covered,
    /// Whether it is depends on how far its owner recovers.
    Pending,
    /// Its owner went on without it.
    Lost,
}

impl Link {
    pub(super) fn new(peer: NodeId) -> Self {
        Self {
            peer,
            incarnation: None,
            connected: false,
            recovering: false,
            recoveries: Vec::new(),
            covered: DeliveryIndex(0),
            stable: DeliveryIndex(0),
            held: 0,
            announced: 0,
            scanned: 0,
            announced_max: 0,
            taken: 0,
            told: 0,
            seen: 0,
            refused: false,
            asked_again: false,
            covered_told: DeliveryIndex(0),
        }
    }

    /// What the peer's delivery `index` of the life `incarnation` is worth, if it is not known here.
    ///
    /// Once this node has answered a recovering peer's collecting, it must not come to depend on a delivery of the peer's
    /// that it did not tell: the peer may go on without it. So such a delivery is pending until the peer says how far it
    /// came.
    pub(super) fn standing(&self, incarnation: Incarnation, index: DeliveryIndex) -> Standing {
        if index <= self.covered {
            return Standing::Covered;
        }
        if self.recoveries.iter().any(|&(began, last)| began > incarnation && index > last) {
            return Standing::Lost;
        }
        match self.incarnation {
            Some(present) if incarnation > present => Standing::Pending,
            Some(present) if incarnation < present && self.recovering => Standing::Pending,
            _ => Standing::Valid,
        }
    }

    /// A session with the peer's life `incarnation` begins. Returns whether that is another life than before.
    pub(super) fn connect(&mut self, incarnation: Incarnation) -> bool {
        let another = self.incarnation != Some(incarnation);
        if another {
            self.incarnation = Some(incarnation);
            self.recovering = true;
            (self.held, self.announced_max, self.taken) = (0, 0, 0);
            // A life that lost its tail gives indices again: what it then calls stable counts anew.
            self.stable = DeliveryIndex(0);
        }
        self.connected = true;
        (self.announced, self.scanned) = (self.held, self.held);
        self.told = 0;
        self.seen = self.taken;
        self.covered_told = DeliveryIndex(0);
        (self.refused, self.asked_again) = (false, false);
        another
    }

    /// The peer's life `incarnation` began with delivery `last` recovered.
    pub(super) fn recovered(&mut self, incarnation: Incarnation, last: DeliveryIndex) {
        if self.recoveries.iter().any(|&(began, _)| began >= incarnation) {
            return;
        }
        self.recoveries.retain(|&(_, earlier)| earlier < last);
        self.recoveries.push((incarnation, last));
        if self.recoveries.len() > LIVES_MAX {
            self.recoveries.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_lifes_delivery_is_pending_until_its_owner_says_how_far_it_came() {
        let mut link = Link::new(NodeId(1));
        let (first, second, third) = (Incarnation(1), Incarnation(2), Incarnation(3));
        assert_eq!(link.standing(first, DeliveryIndex(7)), Standing::Valid);
        assert!(link.connect(first));
        link.recovered(first, DeliveryIndex(0));
        link.recovering = false;
        assert_eq!(link.standing(first, DeliveryIndex(7)), Standing::Valid);
        assert_eq!(link.standing(second, DeliveryIndex(7)), Standing::Pending);
        assert!(link.connect(second));
        assert_eq!(link.standing(first, DeliveryIndex(7)), Standing::Pending);
        assert_eq!(link.standing(second, DeliveryIndex(7)), Standing::Valid);
        link.recovered(second, DeliveryIndex(6));
        assert_eq!(link.standing(first, DeliveryIndex(7)), Standing::Lost);
        assert_eq!(link.standing(first, DeliveryIndex(6)), Standing::Pending);
        link.recovering = false;
        assert_eq!(link.standing(first, DeliveryIndex(6)), Standing::Valid);
        assert_eq!(link.standing(first, DeliveryIndex(7)), Standing::Lost);
        assert_eq!(link.standing(second, DeliveryIndex(7)), Standing::Valid);
        link.covered = DeliveryIndex(6);
        assert_eq!(link.standing(first, DeliveryIndex(6)), Standing::Covered);
        assert!(link.connect(third));
        link.recovered(third, DeliveryIndex(9));
        link.recovering = false;
        assert_eq!(link.standing(first, DeliveryIndex(8)), Standing::Lost);
        assert_eq!(link.standing(second, DeliveryIndex(9)), Standing::Valid);
        assert_eq!(link.standing(second, DeliveryIndex(10)), Standing::Lost);
    }

    #[test]
    fn ends_of_lives_that_say_less_than_a_later_one_are_left_out() {
        let mut link = Link::new(NodeId(1));
        for life in 1..=100 {
            link.recovered(Incarnation(life), DeliveryIndex(5));
        }
        assert_eq!(link.recoveries, [(Incarnation(100), DeliveryIndex(5))]);
        for life in 101..=300 {
            link.recovered(Incarnation(life), DeliveryIndex(life));
        }
        assert_eq!(link.recoveries.len(), LIVES_MAX);
        // A repeated announcement changes nothing.
        link.recovered(Incarnation(300), DeliveryIndex(300));
        assert_eq!(link.recoveries.last(), Some(&(Incarnation(300), DeliveryIndex(300))));
    }
}
