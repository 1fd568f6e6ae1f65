//! What a node does for clients that speak the region's own messages: it tells them how it stands, gives them numbers, and hands on what they say.

use super::Node;
use bytes::Bytes;
use mainstay_region::conversation::{Hello, Standing, ToClient, ToServer};
use mainstay_region::limits::Limits;
use mainstay_region::message::Message;
use mainstay_replica::event::Event;
use mainstay_types::id::ClientId;
use mainstay_types::time::Time;

impl Node {
    pub(super) fn native_opened(&mut self, now: Time, connection: u64) {
        self.tell_standing(now, connection);
    }

    pub(super) fn native_closed(&mut self, now: Time, connection: u64) {
        self.gateway.other_closed(connection);
        if let Some(client) = self.natives.closed(connection) {
            self.step(now, Event::Disconnected { client });
        }
    }

    /// Whether the number that a connection claims was given to anybody.
    pub(super) fn known(&mut self, now: Time, connection: u64, number: ClientId, given: bool) {
        if self.natives.get_mut(connection).is_none_or(|native| native.claimed != Some(number)) {
            return;
        }
        if !given {
            // A region forgets clients by their numbers: one with a number far ahead of the others would take them along.
            let reason = format!("client number {number} was given to nobody");
            self.natives.take_unproven(connection);
            return self.natives.refuse(connection, reason);
        }
        if let Some(former) = self.natives.named(connection, number) {
            self.tell(now, Event::Disconnected { client: former });
        }
        for frame in self.natives.take_unproven(connection) {
            match ToServer::parse(&frame, &Limits::default()) {
                Ok(ToServer::Message(message)) => self.native_message(now, connection, message, &frame),
                other => unreachable!("a message was kept: {other:?}"),
            }
        }
    }

    pub(super) fn native_frames(&mut self, now: Time, connection: u64, frames: Vec<Bytes>) {
        let limits = Limits::default();
        for frame in frames {
            if self.natives.get_mut(connection).is_none() {
                break;
            }
            match ToServer::parse(&frame, &limits) {
                Ok(ToServer::Named(number)) => {
                    self.natives.claims(connection, number);
                    self.gateway.know_number(now, connection, number, &mut self.asked);
                    // Who it is counts for what it says next.
                    self.perform(now);
                }
                Ok(ToServer::AskNumber) => {
                    self.gateway.number_for(now, connection, &mut self.asked);
                }
                Ok(ToServer::AskStanding) => self.tell_standing(now, connection),
                Ok(ToServer::Message(message)) => self.native_message(now, connection, message, &frame),
                Err(error) => {
                    self.natives.refuse(connection, error.to_string());
                    break;
                }
            }
        }
        self.perform(now);
    }

    fn native_message(&mut self, now: Time, connection: u64, message: Message, frame: &[u8]) {
        let Some(native) = self.natives.get_mut(connection) else { return };
        if native.claimed.is_some() {
            return self.natives.keep_unproven(connection, frame);
        }
        let Some(client) = native.number else {
            return self.natives.refuse(connection, "a client says its number first".to_owned());
        };
        if message.body.operation().is_some_and(|id| id.client != client) {
            return self.natives.refuse(connection, format!("the operation is not client {client}'s"));
        }
        match native.region {
            // As if it was lost on the way: it is sent again.
            Some(_) if self.store.is_behind() => {}
            Some(region) => {
                self.tell(now, Event::Asked { client, region, message });
            }
            // It learns its region when it is told that this node serves.
            None => self.tell_standing(now, connection),
        }
    }

    /// Every client is told of the view that begins.
    pub(super) fn tell_all_standing(&mut self, now: Time) {
        for connection in self.natives.connections() {
            self.tell_standing(now, connection);
        }
    }

    fn tell_standing(&mut self, now: Time, connection: u64) {
        let Some(native) = self.natives.get_mut(connection) else { return };
        let Hello { cluster: meant, region: name } = native.hello.clone();
        let region = self.replica.named(&name);
        native.region = region;
        let not_serving = || ToClient::NotServing { explanation: crate::status::explain(&self.replica, now) };
        let Some(cluster) = self.replica.cluster() else {
            return self.natives.say(connection, &not_serving());
        };
        if meant.is_some_and(|meant| meant != cluster) {
            let reason = format!("this node is of group {cluster}, and another one is meant");
            return self.natives.refuse(connection, reason);
        }
        let definition = self.replica.regions().find(|(id, _, _)| Some(*id) == region);
        let frame = match (self.replica.view(), definition) {
            (Some(view), Some((_, definition, _))) if self.replica.serves(now) => {
                ToClient::Standing(Standing {
                    cluster,
                    shards: definition.shards,
                    acknowledgement: definition.acknowledgement(),
                    pattern: definition.pattern,
                    view: view.clone(),
                })
            }
            (Some(_), None) if self.replica.serves(now) => {
                let reason = self.no_region(&name);
                return self.natives.refuse(connection, reason);
            }
            _ => not_serving(),
        };
        let restriction = match &frame {
            ToClient::Standing(_) => region.and_then(|region| self.replica.restriction(region)),
            _ => None,
        };
        self.natives.say(connection, &frame);
        if let Some(without) = restriction {
            let (view, reads) = (without.view, without.refuses_reads());
            let explanation = format!("region `{name}`: {without}");
            self.natives.say(connection, &ToClient::Restricted { view, reads, explanation });
        }
    }
}
