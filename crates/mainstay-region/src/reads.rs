//! Reads: at the stamper all that was acknowledged before, at any copy what is stable there.
//!
//! A read at the stamper waits until everything is stable that was stamped before it came and may touch its keys: what the stamper has accepted
//! may have been acknowledged to its client by the others, without the stamper knowing. It is answered under the lease alone: without one,
//! another member may already stamp in its place (a stamper that was paused does not know).

use crate::blob::Blob;
use crate::effect::Effect;
use crate::limits::CLOCK_DRIFT_PPM_MAX;
use crate::message::{Body, Found, Freshness, Limit, Party, Query, Refusal};
use crate::region::Region;
use crate::state::Stored;
use mainstay_types::id::ClientId;
use mainstay_types::rules::Rule;
use mainstay_types::time::Time;
use std::ops::Bound;

/// A read that waits until `barrier` is stable.
#[derive(Clone, Debug)]
pub(crate) struct WaitingRead {
    client: ClientId,
    request: u64,
    query: Query,
    barrier: u64,
}

impl Region {
    #[expect(clippy::too_many_arguments, reason = "a read's parts")]
    pub(crate) fn read(
        &mut self,
        now: Time,
        client: ClientId,
        shard: u16,
        request: u64,
        query: Query,
        freshness: Freshness,
        out: &mut Vec<Effect>,
    ) {
        let party = Party::Client(client);
        let refuse = |refusal| Body::Answer { request, found: Err(refusal) };
        if freshness == Freshness::Any {
            let found = Ok(self.find(shard, &query, self.age_ns(now, shard)));
            return self.send(shard, party, Body::Answer { request, found }, out);
        }
        if !self.stamps(shard) {
            return self.send(shard, party, refuse(Refusal::NotStamper), out);
        }
        if self.stamping(shard).waiting() >= self.config.limits.waiting_max {
            return self.send(shard, party, refuse(Refusal::Busy(Limit::Waiting)), out);
        }
        self.expire(now, shard, out);
        let (copy, stamping) = (self.shard(shard), self.stamping(shard));
        let unknown = !stamping.grants.is_empty() || !copy.hold_back.is_empty();
        let barrier = match &query {
            _ if unknown => stamping.stamped,
            Query::Get { key } => copy.touched(key),
            Query::Scan { .. } | Query::Keys { .. } => copy.log.end(),
        };
        self.stamping_mut(shard).reads.push(WaitingRead { client, request, query, barrier });
        self.answer_reads(now, shard, out);
    }

    /// A stamper without a lease may have been replaced since it ran out.
    fn age_ns(&self, now: Time, shard: u16) -> Option<u64> {
        let leased = Some(self.lease_until).filter(|&until| until > Time::EPOCH);
        let fresh_at = if self.stamps(shard) { leased } else { self.shard(shard).fresh_at };
        fresh_at.map(|at| {
            let shown = u64::try_from(now.since(at).as_nanos()).unwrap_or(u64::MAX / 2);
            // A slow clock shows less than has passed; twice the drift is above that.
            shown.saturating_add(shown.div_ceil(1_000_000 / (2 * CLOCK_DRIFT_PPM_MAX)))
        })
    }

    /// Answers the reads that need not wait any more.
    pub(crate) fn answer_reads(&mut self, now: Time, shard: u16, out: &mut Vec<Effect>) {
        let reads = std::mem::take(&mut self.stamping_mut(shard).reads);
        let stable = self.shard(shard).stable;
        let leased = now < self.lease_until || !self.config.rules.keep(Rule::ReadUnderLease);
        let mut waiting = Vec::new();
        for read in reads {
            let request = read.request;
            let found = if !leased {
                Err(Refusal::NoLease)
            } else if read.barrier <= stable {
                Ok(self.find(shard, &read.query, Some(0)))
            } else if !self.config.rules.keep(Rule::ReadStable) {
                Ok(self.find_dirty(shard, &read.query))
            } else {
                waiting.push(read);
                continue;
            };
            self.send(shard, Party::Client(read.client), Body::Answer { request, found }, out);
        }
        self.stamping_mut(shard).reads = waiting;
    }

    fn find(&self, shard: u16, query: &Query, age_ns: Option<u64>) -> Found {
        let state = &self.shard(shard).state;
        let mut limit = self.config.limits.scan_entries_max;
        let scan = |prefix: &[u8], after: &Option<Vec<u8>>, limit: usize| -> Vec<(&Blob, &Stored)> {
            let from = match after {
                Some(after) if after.as_slice() >= prefix => Bound::Excluded(after.as_slice()),
                _ => Bound::Included(prefix),
            };
            let behind = state.map.range::<[u8], _>((from, Bound::Unbounded));
            let entries = behind.take_while(|(key, _)| key.starts_with(prefix)).take(limit + 1);
            entries.map(|(key, kept)| (key, &**kept)).collect()
        };
        let mut entries = match query {
            Query::Get { key } => {
                let found = state.map.get_key_value(key.as_slice());
                found.map(|(key, kept)| (key, &**kept)).into_iter().collect()
            }
            Query::Scan { prefix, after } => scan(prefix, after, limit),
            Query::Keys { prefix, after, entries_max } => {
                limit = limit.min(usize::try_from(*entries_max).unwrap_or(usize::MAX));
                scan(prefix, after, limit)
            }
        };
        let more = entries.len() > limit;
        entries.truncate(limit);
        let keys_alone = matches!(query, Query::Keys { .. });
        let told = |stored: &Stored| match keys_alone {
            true => Stored { value: Blob::default(), ..*stored },
            false => stored.clone(),
        };
        let entries = entries.into_iter().map(|(key, stored)| (key.clone(), told(stored))).collect();
        Found { entries, more, keys: state.map.len() as u64, at: state.at, age_ns, digest: state.digest }
    }

    /// What a broken stamper would answer: what it has accepted, stable or not.
    fn find_dirty(&self, shard: u16, query: &Query) -> Found {
        let mut found = self.find(shard, query, Some(0));
        if let Query::Get { key } = query {
            let version = found.at;
            let stored = self.shard(shard).latest(key).map(|held| Stored {
                value: held.bytes.clone(),
                ends_at_ms: held.ends_at_ms,
                version,
            });
            found.entries = stored.map(|stored| (Blob::from(key.as_slice()), stored)).into_iter().collect();
        }
        found
    }
}
