//! Who waits for which reply.

use crate::acknowledgement::Noted;
use crate::mailbox::ReplyTo;
use mainstay_process::effect::Reply;
use mainstay_process::event::ReplyToken;

/// What is said to whoever waits.
#[derive(Debug)]
pub(crate) enum Said {
    /// The process replied.
    Reply(Reply),
    /// The process gave itself up before it replied: the request may be in the journal or not.
    OutcomeUnknown,
}

/// A table of waiting senders. A token names a place and how often it has been used, so that a reply can never reach
/// the next one in the same place.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Place {
    uses: u32,
    waiting: Option<ReplyTo>,
    noted: Option<Box<Noted>>,
}

impl Replies {
    /// Makes a token for `waiting`.
    pub(crate) fn expect(&mut self, waiting: ReplyTo) -> ReplyToken {
        self.expect_noted(waiting, None)
    }

    /// [`Self::expect`], keeping what a recording wants to know of the request.
    pub(crate) fn expect_noted(&mut self, waiting: ReplyTo, noted: Option<Box<Noted>>) -> ReplyToken {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            u32::try_from(self.places.len() - 1).expect("requests in flight are limited far below 2^32")
        });
        let place = &mut self.places[index as usize];
        place.uses = place.uses.wrapping_add(1);
        place.waiting = Some(waiting);
        place.noted = noted;
        ReplyToken(u64::from(place.uses) << 32 | u64::from(index))
    }

    /// Sends what is said to the one who waits for `token`; false if nobody does any more.
    pub(crate) fn say(&mut self, token: ReplyToken, said: Said) -> bool {
        let index = u32::try_from(token.0 & u64::from(u32::MAX)).expect("masked to 32 bits");
        let place = &mut self.places[index as usize];
        if u64::from(place.uses) != token.0 >> 32 {
            return false;
        }
        let Some(waiting) = place.waiting.take() else { return false };
        self.free.push(index);
        waiting.say(said);
        true
    }

    /// Takes what was kept of the request; `None` if nothing was.
    pub(crate) fn take_noted(&mut self, token: ReplyToken) -> Option<Box<Noted>> {
        let index = usize::try_from(token.0 & u64::from(u32::MAX)).expect("masked to 32 bits");
        let place = self.places.get_mut(index)?;
        if u64::from(place.uses) == token.0 >> 32 { place.noted.take() } else { None }
    }

    /// Tells everyone that the outcome is unknown; returns how many.
    pub(crate) fn give_up(&mut self) -> usize {
        let mut told = 0;
        for waiting in self.places.drain(..).filter_map(|place| place.waiting) {
            waiting.say(Said::OutcomeUnknown);
            told += 1;
        }
        self.free.clear();
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tokio::sync::oneshot::channel;

    #[test]
    fn a_late_reply_never_reaches_the_next_in_the_same_place() {
        let mut replies = Replies::default();
        let (first, mut first_hears) = channel();
        let (second, mut second_hears) = channel();
        let old = replies.expect(ReplyTo::here(first, &Arc::default()));
        assert!(replies.say(old, Said::Reply(Reply::KeyReused)));
        let new = replies.expect(ReplyTo::here(second, &Arc::default()));
        assert_ne!(old, new);
        assert!(!replies.say(old, Said::Reply(Reply::Evicted)));
        assert!(second_hears.try_recv().is_err());
        assert!(matches!(first_hears.try_recv(), Ok(Said::Reply(Reply::KeyReused))));
    }

    #[test]
    fn giving_up_tells_everyone_once() {
        let mut replies = Replies::default();
        let (sender, mut hears) = channel();
        replies.expect(ReplyTo::here(sender, &Arc::default()));
        assert_eq!(replies.give_up(), 1);
        assert!(matches!(hears.try_recv(), Ok(Said::OutcomeUnknown)));
        assert_eq!(replies.give_up(), 0);
    }
}
