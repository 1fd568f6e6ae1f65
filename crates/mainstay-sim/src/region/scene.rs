//! The steps of clients in this world, and what comes of them.

use super::clients::{Ask, Scene, SimClient};
use super::world::RegionWorld;
use crate::properties::Violation;
use mainstay_region::message::{Message, Party};
use mainstay_types::id::ClientId;
use mainstay_types::view::{MemberId, View};

impl RegionWorld {
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
                Ask::View => {
                    let view = self.source.view.clone();
                    self.tell_view(at, view);
                }
            }
        }
        Ok(())
    }
}
