//! The steps of clients in this world, and what comes of them; checkpoints.

use super::clients::{Ask, Scene, SimClient};
use super::world::RegionWorld;
use crate::properties::Violation;
use crate::reach::Reach;
use mainstay_region::effect::Event;
use mainstay_region::message::{Body, Limit, Message, Party, Refusal};
use mainstay_types::id::ClientId;
use mainstay_types::view::{MemberId, View};

impl RegionWorld {
    /// Now and then a copy is told that its journal has grown.
    pub(crate) fn checkpoint(&mut self, at: usize) -> Result<(), Violation> {
        let can = self.hosts[at].region.as_ref().is_some_and(mainstay_region::region::Region::can_checkpoint);
        if can && self.random.chance(60) {
            self.hosts[at].mark();
            return self.step(at, Event::Checkpoint);
        }
        Ok(())
    }

    /// The journal is trimmed, more or less, or the disk does not come to it.
    pub(crate) fn trim(&mut self, at: usize) {
        if self.random.chance(800) {
            self.hosts[at].trim(&mut self.random);
            self.hit(Reach::Trim);
        }
    }

    /// Counts what is rare to be said.
    pub(crate) fn count(&mut self, body: &Body) {
        let reach = match body {
            Body::Acknowledged(done) if done.iter().any(|done| done.duplicate) => Reach::AnsweredFromTable,
            Body::Refused { refusal: Refusal::Busy(Limit::LogBytes), .. } => Reach::LogBytesFull,
            Body::Refused { refusal: Refusal::Busy(_), .. } => Reach::BusyRegion,
            Body::Has { .. } => Reach::PayloadFoundForGrant,
            Body::Forwarded { retry: true, .. } => Reach::RetriedElsewhere,
            Body::Answer { found: Err(Refusal::NoLease), .. } => Reach::ReadRefusedWithoutLease,
            _ => return,
        };
        self.hit(reach);
    }

    pub(crate) fn client_tick(&mut self, at: usize) -> Result<(), Violation> {
        self.with_client(at, SimClient::tick)
    }

    pub(crate) fn client_learns(&mut self, at: usize, view: &View) -> Result<(), Violation> {
        self.with_client(at, |client, scene| client.learns(view, scene))
    }

    pub(crate) fn client_hears(
        &mut self,
        at: usize,
        client: ClientId,
        member: MemberId,
        message: Message,
    ) -> Result<(), Violation> {
        if !self.clients[at].has(client) {
            return Ok(());
        }
        self.with_client(at, |client, scene| client.hears(member, message, scene))
    }

    fn with_client(
        &mut self,
        at: usize,
        act: impl FnOnce(&mut SimClient, &mut Scene<'_>) -> Result<(), Violation>,
    ) -> Result<(), Violation> {
        let mut scene = Scene {
            now: self.now,
            healed: self.healed(),
            clients: self.clients.len() as u64,
            random: &mut self.random,
            oracle: &mut self.oracle,
            reached: &mut self.reached,
            trace: &mut self.trace,
            asks: Vec::new(),
        };
        act(&mut self.clients[at], &mut scene)?;
        for ask in scene.asks {
            match ask {
                Ask::Send(client, to, message) => {
                    self.send(Party::Client(client), Party::Member(to), *message);
                }
                Ask::Gone(client) => self.breaks_off(client),
                Ask::View => {
                    let view = self.source.view.clone();
                    self.tell_view(at, view);
                }
            }
        }
        Ok(())
    }
}
