//! Another pattern for a region: a client asks, and is answered when a view has it; the gateway goes by the one of the view.

use super::Node;
use crate::gateway::Place;
use crate::resp::Reply;
use mainstay_region::limits::{Limits, Times};
use mainstay_region::patterns::Pattern;
use mainstay_replica::definition::RegionId;
use mainstay_replica::event::Event;
use mainstay_replica::redefining::RedefineError;
use mainstay_types::rules::Rules;
use mainstay_types::time::Time;
use mainstay_types::view::ViewId;
use std::time::Duration;

/// Clients that wait for a pattern, at most.
const WISHES_MAX: usize = 64;

/// How long they wait.
const WISH_PATIENCE: Duration = Duration::from_secs(5);

/// Who waits.
#[derive(Debug)]
struct Wish {
    place: Place,
    region: RegionId,
    pattern: Pattern,
    since: Time,
}

/// Those who wait, the longest first.
#[derive(Debug, Default)]
pub(super) struct Wishes(Vec<Wish>);

impl Node {
    /// The gateway learns what the region is, once this node has a copy of it, and by which pattern it is written in the view that is served.
    pub(super) fn know_region(&mut self) {
        let Some((id, definition, _)) = self.replica.regions().next() else { return };
        if self.region.is_some() {
            return self.gateway.use_pattern(definition.pattern);
        }
        let config = definition.config(Limits::default(), Times::default(), Rules::KEPT);
        self.gateway.configure(config, definition.pattern);
        self.region = Some(id);
    }

    pub(super) fn redefine(&mut self, now: Time, place: Place, region: &str, pattern: Pattern) {
        let Some(id) = self.replica.named(region) else {
            let reply = Reply::Error(format!("ERR {}", self.no_region(region)));
            return self.gateway.answer(place, reply, &mut self.asked);
        };
        if self.wishes.0.len() >= WISHES_MAX {
            let reply = format!("TRYAGAIN {WISHES_MAX} clients wait for another pattern; nothing was done");
            return self.gateway.answer(place, Reply::Error(reply), &mut self.asked);
        }
        self.wishes.0.push(Wish { place, region: id, pattern, since: now });
        self.tell(now, Event::Redefine { region: id, pattern });
    }

    pub(super) fn redefined(&mut self, region: RegionId, pattern: Pattern, view: ViewId) {
        tracing::info!(%region, pattern = pattern.name(), view = view.0, "the pattern is in effect");
        let view = i64::try_from(view.0).unwrap_or(i64::MAX);
        self.answer_wishes(region, pattern, &Reply::Integer(view));
    }

    pub(super) fn not_redefined(&mut self, region: RegionId, pattern: Pattern, error: RedefineError) {
        let word = match error {
            RedefineError::NotServing => "CLUSTERDOWN",
            RedefineError::Unknown => "UNKNOWN",
            RedefineError::NoRegion { .. }
            | RedefineError::Versions
            | RedefineError::NoVote
            | RedefineError::Superseded => "ERR",
        };
        self.answer_wishes(region, pattern, &Reply::Error(format!("{word} {error}")));
    }

    fn answer_wishes(&mut self, region: RegionId, pattern: Pattern, reply: &Reply) {
        let answered = self.wishes.0.extract_if(.., |wish| wish.region == region && wish.pattern == pattern);
        for wish in answered.collect::<Vec<_>>() {
            self.gateway.answer(wish.place, reply.clone(), &mut self.asked);
        }
    }

    pub(super) fn give_up_wishes(&mut self, now: Time) {
        while self.wishes.0.first().is_some_and(|wish| now.since(wish.since) >= WISH_PATIENCE) {
            let reply = "UNKNOWN the pattern is not agreed on yet, and may be later; the status of the group says which it is";
            let place = self.wishes.0.remove(0).place;
            self.gateway.answer(place, Reply::Error(reply.to_owned()), &mut self.asked);
        }
    }
}
