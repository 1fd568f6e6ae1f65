//! What receivers and senders tell each other under sender-based logging, as bytes: ORDER and ACK.
//!
//! | item | bytes | what |
//! |---|---|---|
//! | ORDER | 1 | tag: 1 |
//! | | 8 | number of the first message that the receiver of this item sent |
//! | | 4 | how many places follow: of that message and of those after it |
//! | | 32 each | places ([`Place::put`]) |
//! | ACK | 1 | tag: 2 |
//! | | 8 | every place told up to that of the message with this number is kept |
//!
//! A control message, and what rides along with a message, is any number of items, without separator.

use crate::logging::Malformed;
use mainstay_types::codec::Reader;
use mainstay_types::determinant::Place;
use mainstay_types::id::Ssn;

const ORDER: u8 = 1;
const ACK: u8 = 2;

/// Most places in one ORDER: a long history is told in several control messages of about 32 KiB.
pub(crate) const PLACES_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) enum Item<'a> {
    Order { first: Ssn, places: Places<'a> },
    Ack { ssn: Ssn },
}

/// The places of an ORDER, read where they lie.
#[derive(Clone, Debug)]
pub(crate) struct Places<'a>(Reader<'a>);

impl Places<'_> {
    pub(crate) fn count_left(&self) -> u64 {
        (self.0.rest().len() / Place::BYTES) as u64
    }
}

impl Iterator for Places<'_> {
    type Item = Place;

    fn next(&mut self) -> Option<Place> {
        Place::take(&mut self.0).ok()
    }
}

/// Reads the items of a body one after another; nothing follows an error.
#[derive(Debug)]
pub(crate) struct Items<'a>(Reader<'a>);

impl<'a> Items<'a> {
    pub(crate) fn of(body: &'a [u8]) -> Self {
        Self(Reader::new(body))
    }

    pub(crate) fn next(&mut self) -> Result<Option<Item<'a>>, Malformed> {
        if self.0.rest().is_empty() {
            return Ok(None);
        }
        match self.0.u8()? {
            ORDER => {
                let first = Ssn(self.0.u64()?);
                let count = self.0.u32()? as usize;
                let bytes = self.0.take(count.saturating_mul(Place::BYTES))?;
                Ok(Some(Item::Order { first, places: Places(Reader::new(bytes)) }))
            }
            ACK => Ok(Some(Item::Ack { ssn: Ssn(self.0.u64()?) })),
            tag => Err(Malformed::Tag { tag }),
        }
    }
}

/// Appends an ORDER, if there is a place to tell.
pub(crate) fn put_order<'a>(out: &mut Vec<u8>, first: Ssn, places: impl ExactSizeIterator<Item = &'a Place>) {
    if places.len() == 0 {
        return;
    }
    out.push(ORDER);
    out.extend_from_slice(&first.0.to_le_bytes());
    let count = u32::try_from(places.len()).expect("a history holds fewer than 2^32 messages");
    out.extend_from_slice(&count.to_le_bytes());
    places.for_each(|place| place.put(out));
}

/// Appends an ACK.
pub(crate) fn put_ack(out: &mut Vec<u8>, ssn: Ssn) {
    out.push(ACK);
    out.extend_from_slice(&ssn.0.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::id::{DeliveryIndex, Incarnation};
    use mainstay_types::time::Time;

    #[test]
    fn items_read_back_and_no_part_of_one_does() {
        let place =
            |index| Place { delivery: DeliveryIndex(index), life: Incarnation(1), now: Time(2), seed: 3 };
        let places = [place(4), place(6)];
        let mut body = Vec::new();
        put_order(&mut body, Ssn(9), places.iter());
        assert_eq!(body.len(), 1 + 8 + 4 + 2 * Place::BYTES);
        let order_ends = body.len();
        put_ack(&mut body, Ssn(5));
        let mut items = Items::of(&body);
        let Ok(Some(Item::Order { first: Ssn(9), places: read })) = items.next() else { panic!("an ORDER") };
        assert_eq!(read.collect::<Vec<_>>(), places);
        assert!(matches!(items.next(), Ok(Some(Item::Ack { ssn: Ssn(5) }))));
        assert!(matches!(items.next(), Ok(None)));

        for end in (1..body.len()).filter(|end| *end != order_ends) {
            let mut items = Items::of(&body[..end]);
            let outcome = std::iter::repeat_with(|| items.next()).find(|item| !matches!(item, Ok(Some(_))));
            assert!(matches!(outcome, Some(Err(Malformed::Truncated(_)))), "{end} bytes");
        }
        assert!(matches!(Items::of(&[3]).next(), Err(Malformed::Tag { tag: 3 })));
        let huge = [&[ORDER][..], &[0; 8], &[255; 4], &[0; 64]].concat();
        assert!(matches!(Items::of(&huge).next(), Err(Malformed::Truncated(_))));
    }
}
