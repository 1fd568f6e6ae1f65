//! Clients' steps, what is looked at behind every step of a node, and the end.

use super::roles::known_view;
use super::world::{Next, World};
use crate::group::setup::BEAT_NS;
use crate::properties::region_roles_decide::restricts;
use crate::properties::{Property, Violation, one_side_serves, region_bounded, rejoins};
use crate::region::clients::{Scene, SimClient};
use crate::region::oracle::{Inspected, Watched};
use mainstay_region::region::{Phase, Region};
use mainstay_replica::definition::RegionId;
use mainstay_replica::effect::Effect;
use mainstay_types::view::ViewId;

/// How long after the last fault all must be in one view that serves, and all clients have been served, in beats.
const COMES_TOGETHER_BEATS: u64 = 300;

impl World {
    /// The region that a client is at home in.
    pub(crate) fn region_of(&self, client: usize) -> RegionId {
        RegionId(u16::try_from(client % self.setup.regions.len() + 1).expect("regions are few"))
    }

    pub(crate) fn with_client(
        &mut self,
        at: usize,
        act: impl FnOnce(&mut SimClient, &mut Scene<'_>) -> Result<(), Violation>,
    ) {
        let region = self.region_of(at);
        let mut scene = Scene {
            now: self.now_ns,
            healed: !self.faulty,
            clients: self.clients.len() as u64,
            random: &mut self.random,
            oracle: self.oracles.get_mut(&region).expect("each region has one"),
            reached: &mut self.reached,
            trace: &mut self.trace,
            asks: Vec::new(),
        };
        let ended = act(&mut self.clients[at], &mut scene);
        let asks = std::mem::take(&mut scene.asks);
        self.found(ended);
        for ask in asks {
            self.asked(at, ask);
        }
    }

    /// Looks at a node behind one of its steps.
    pub(crate) fn look(
        &mut self,
        at: usize,
        said: Option<(RegionId, (ViewId, bool))>,
        ticked: bool,
        out: &[Effect],
    ) -> Result<(), Violation> {
        let now_ns = self.now_ns;
        let node = &mut self.nodes[at];
        let Some(running) = &node.running else { return Ok(()) };
        let number = u8::try_from(at).expect("few machines");
        for (id, definition, region) in running.regions() {
            let oracle = self.oracles.get_mut(&id).expect("each region has one");
            let watched = node.watched.entry(id);
            let watched = watched.or_insert_with(|| Watched::new(definition.shards));
            let appended = out.iter().filter_map(|effect| match effect {
                Effect::Append { region, bytes, .. } if *region == id => Some(bytes.as_slice()),
                _ => None,
            });
            let appended = appended.collect();
            let served = node.served.get(&id).copied();
            let reported = served.filter(|(_, stopped)| *stopped).map(|(view, _)| view);
            let said_in = said.filter(|(region, _)| *region == id).map(|(_, said_in)| said_in);
            let requirement = &self.setup.regions[usize::from(id.0) - 1].requirement;
            let view = known_view(&self.decided, running, region.standing());
            let lacks_role = view.filter(|view| restricts(view, requirement)).map(|view| (view, requirement));
            let inspected = Inspected { number, region, watched, reported, appended, lacks_role };
            oracle.stepped(inspected, said_in)?;
            if region.phase() == Phase::Serving {
                self.definitions.served(id, region.standing(), definition)?;
                node.served.insert(id, (region.standing(), false));
            } else if served.is_some_and(|(view, _)| view == region.standing()) {
                node.served.insert(id, (region.standing(), true));
            }
            if ticked && region.phase() == Phase::Serving {
                for shard in 0..definition.shards {
                    region_bounded::check(&region.sizes(shard))?;
                }
            }
        }
        let group = running.group();
        let view = group.record().view_id();
        if !group.serves(node.clock.shows(now_ns)) {
            return Ok(());
        }
        let one = (group.member_id().expect("who serves is a member"), view);
        for other in &self.nodes {
            let Some(running) = &other.running else { continue };
            let group = running.group();
            let id = group.record().view_id();
            if id != view
                && group.serves(other.clock.shows(now_ns))
                && let Some(member) = group.member_id()
            {
                one_side_serves::check(one, (member, id))?;
            }
        }
        Ok(())
    }

    /// All are up and reach each other: they have to come together in one view, and all clients have to be served.
    pub(crate) fn judge(&mut self) {
        if self.views.waits_for_lost(self.cluster) {
            self.trace_line(format_args!("the newest view waits for stores that were lost before"));
            self.over = true;
            return;
        }
        let newest = self.newest_view();
        let mut outside = Vec::new();
        for node in &self.nodes {
            let now = node.clock.shows(self.now_ns);
            let together = node.running.as_ref().is_some_and(|running| {
                running.serves(now)
                    && newest.as_ref().is_none_or(|view| view.id == running.group().record().view_id())
            });
            if !together {
                let explained = node.running.as_ref().map_or_else(
                    || "down".to_owned(),
                    |running| {
                        let regions: Vec<_> = running
                            .regions()
                            .map(|(id, _, region)| format!("{id} {:?} {}", region.phase(), region.standing()))
                            .collect();
                        format!("{} {regions:?}", running.explain(now))
                    },
                );
                outside.push(format!("{}: {explained}", node.address));
            }
        }
        let passed = self.now_ns.saturating_sub(self.setup.faults_end_ns);
        let wished = self.nodes.iter().any(|node| !node.wishes.is_empty());
        if outside.is_empty() && !wished && self.clients.iter().all(SimClient::at_rest) && self.copies_level()
        {
            self.over = true;
            let ended = self.end();
            return self.found(ended);
        }
        if passed <= COMES_TOGETHER_BEATS * BEAT_NS {
            return self.schedule(BEAT_NS, Next::Judge);
        }
        let seconds = passed / 1_000_000_000;
        let mut stuck: Vec<String> = self.clients.iter().map(SimClient::stuck).collect();
        stuck.extend(wished.then(|| "a pattern that was asked for is not in effect".to_owned()));
        let violation = if outside.is_empty() || outside.len() == self.nodes.len() {
            let who = if outside.is_empty() { "not all clients are" } else { "nobody is" };
            let (outside, stuck) = (outside.join("; "), stuck.join(", "));
            let what = format!("{seconds} s after all faults ended {who} served: {outside}; clients {stuck}");
            Violation::new(Property::Progress, what)
        } else {
            rejoins::violated(seconds, &outside)
        };
        self.found(Err(violation));
    }

    fn copies(&self, id: RegionId) -> Vec<&Region> {
        let running = self.nodes.iter().filter_map(|node| node.running.as_ref());
        running
            .filter_map(|node| node.regions().find(|(other, _, _)| *other == id))
            .map(|found| found.2)
            .collect()
    }

    fn copies_level(&self) -> bool {
        self.oracles.keys().all(|&id| {
            let copies = self.copies(id);
            let shards = self.setup.regions[usize::from(id.0) - 1].shards;
            (0..shards).all(|shard| {
                let at = |region: &&Region| region.state(shard).at;
                let pending = |region: &&Region| {
                    region.log(shard).last().is_some_and(|(end, _)| end > region.state(shard).at.counter)
                };
                let first = copies.first().map(at);
                !copies.iter().any(pending) && copies.iter().all(|copy| Some(at(copy)) == first)
            })
        })
    }

    fn end(&mut self) -> Result<(), Violation> {
        let now_ns = self.now_ns;
        for id in self.oracles.keys().copied().collect::<Vec<_>>() {
            let running = self.nodes.iter().filter_map(|node| node.running.as_ref());
            let copies = running.flat_map(|node| node.regions()).filter(|(other, _, _)| *other == id);
            let copies: Vec<&Region> = copies.map(|(_, _, region)| region).collect();
            self.oracles.get_mut(&id).expect("it is there").end(&copies, &mut self.trace, now_ns)?;
        }
        Ok(())
    }
}
