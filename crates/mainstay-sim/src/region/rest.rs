//! When a world is at rest: every server in the view, every client content, every copy level, and no value there past its end.

use super::clients::SimClient;
use super::host::Host;
use super::world::{MILLISECOND, RegionWorld};
use mainstay_region::region::{Phase, Region};

impl RegionWorld {
    /// Whether nothing has to happen any more.
    pub(crate) fn at_rest(&self) -> bool {
        let serving = |host: &&Host| {
            host.region.as_ref().is_some_and(|region| {
                region.phase() == Phase::Serving && region.standing() == self.source.id()
            })
        };
        let members = self.source.view.members.len();
        let all_in = members == self.hosts.len() && self.hosts.iter().filter(serving).count() == members;
        all_in && self.clients.iter().all(SimClient::at_rest) && self.copies_level() && !self.values_overdue()
    }

    /// Values that ended a second ago are there still.
    fn values_overdue(&self) -> bool {
        let now_ms = self.now / MILLISECOND;
        let overdue = |region: &Region| {
            let mut shards = (0..self.config.shards).map(|shard| region.state(shard));
            shards.any(|state| {
                let mut ends = state.map.values().filter_map(|stored| stored.ends_at_ms);
                ends.any(|end| end + 1_000 < now_ms)
            })
        };
        self.hosts.iter().filter_map(|host| host.region.as_ref()).any(overdue)
    }

    fn copies_level(&self) -> bool {
        (0..self.config.shards).all(|shard| {
            let pending = |region: &Region| {
                region.log(shard).last().is_some_and(|(end, _)| end > region.state(shard).at.counter)
            };
            if self.hosts.iter().filter_map(|host| host.region.as_ref()).any(pending) {
                return false;
            }
            let mut at = self.hosts.iter().filter_map(|host| Some(host.region.as_ref()?.state(shard).at));
            let first = at.next();
            at.all(|other| Some(other) == first)
        })
    }

    /// What it is that does not come to rest.
    pub(crate) fn stuck(&self) -> String {
        let hosts = self.hosts.iter().map(|host| {
            let region = host.region.as_ref();
            let at = region.map(|region| (region.phase(), region.standing(), region.state(0).at));
            format!("{}: {at:?}", host.number)
        });
        let hosts: Vec<String> = hosts.collect();
        let clients: Vec<String> = self.clients.iter().map(SimClient::stuck).collect();
        format!(
            "not at rest in {}: {} ({:?}); clients {}",
            self.source.view,
            hosts.join(", "),
            self.source.doing,
            clients.join(", ")
        )
    }
}
