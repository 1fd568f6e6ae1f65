//! `/snapshots` and what is below it: a node's side of a snapshot of its cluster. None of it waits for the gate: it tells of no state but to
//! whoever may read the directory.

use crate::driver::Turn;
use crate::inbox::{Item, Phase};
use crate::ingress::report::{json, look};
use crate::ingress::{Answered, Ingress, Refusal};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response};
use mainstay_process::blocking::NotBlocked;
use mainstay_process::event::{BlockEvent, Event};
use mainstay_process::snapshot::{Missed, PartState};
use mainstay_types::snapshot::SnapshotId;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Between two looks at whether the service has ended.
const END_LOOKED_FOR_EVERY: Duration = Duration::from_millis(5);

/// A path below `/snapshots`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// How far this node is.
    State(SnapshotId),
    /// The bytes of its part.
    Data(SnapshotId),
    /// To block for it (`POST`), or what this node has still to do (`GET`).
    Block(SnapshotId),
    /// To cut.
    Cut(SnapshotId),
    /// To stay blocked for as long again.
    Renew(SnapshotId),
    /// To go on.
    Release(SnapshotId),
    /// To stop at the cut.
    Stop(SnapshotId),
}

impl Asked {
    pub(super) fn of(path: &str) -> Option<Self> {
        let named = path.strip_prefix("/snapshots/")?;
        let Some((id, what)) = named.split_once('/') else { return named.parse().ok().map(Self::State) };
        let asked = match what {
            "data" => Self::Data,
            "block" => Self::Block,
            "cut" => Self::Cut,
            "renew" => Self::Renew,
            "release" => Self::Release,
            "stop" => Self::Stop,
            _ => return None,
        };
        id.parse().ok().map(asked)
    }

    /// The method that it takes; either of two if it is the one that is given.
    pub(super) fn method(self, given: &Method) -> Method {
        match self {
            Self::State(_) | Self::Data(_) => Method::GET,
            Self::Block(_) if given == Method::GET => Method::GET,
            Self::Block(_) | Self::Cut(_) | Self::Renew(_) | Self::Release(_) | Self::Stop(_) => Method::POST,
        }
    }
}

impl Ingress {
    /// Begins a snapshot at this node.
    pub(super) async fn begin_snapshot(&self) -> Answered {
        let next = look(&self.shared, |core| core.process.next_snapshot()).await;
        match next? {
            Ok(snapshot) => {
                self.shared.push(Item::Event(Event::TakeSnapshot { snapshot }), Turn::AtOnce)?;
                Ok(json(202, &serde_json::json!({ "snapshot": snapshot.to_string() })))
            }
            Err(why) => Err(missed(why)),
        }
    }

    /// Blocks this node for a snapshot that it names.
    pub(super) async fn begin_block(&self) -> Answered {
        let next = look(&self.shared, |core| core.process.next_snapshot()).await;
        self.block(next?.map_err(missed)?).await
    }

    pub(super) async fn snapshot(&self, asked: Asked, method: &Method) -> Answered {
        match asked {
            Asked::State(snapshot) => self.part_state(snapshot).await,
            Asked::Data(snapshot) => self.part_data(snapshot).await,
            Asked::Block(snapshot) if method == Method::GET => self.block_report(snapshot).await,
            Asked::Block(snapshot) => self.block(snapshot).await,
            Asked::Cut(snapshot) => self.ask_blocked(snapshot, Event::TakeSnapshot { snapshot }, false).await,
            Asked::Renew(snapshot) => {
                let renew = BlockEvent::Renew { snapshot };
                self.ask_blocked(snapshot, Event::Block(renew), false).await
            }
            Asked::Release(snapshot) => {
                let release = BlockEvent::Release { snapshot };
                self.ask_blocked(snapshot, Event::Block(release), false).await
            }
            Asked::Stop(snapshot) => {
                let stop = BlockEvent::StopHere { snapshot };
                self.ask_blocked(snapshot, Event::Block(stop), true).await?;
                self.stopped().await
            }
        }
    }

    async fn block(&self, snapshot: SnapshotId) -> Answered {
        let may_block = look(&self.shared, move |core| core.process.may_block(snapshot)).await;
        match may_block? {
            Ok(()) => {
                self.shared.push(Item::Event(Event::Block(BlockEvent::Begin { snapshot })), Turn::AtOnce)?;
                Ok(json(202, &serde_json::json!({ "snapshot": snapshot.to_string() })))
            }
            Err(NotBlocked::Missed(why)) => Err(missed(why)),
            Err(why) => Err(Refusal::NotBlocked { why }),
        }
    }

    async fn block_report(&self, snapshot: SnapshotId) -> Answered {
        let report = look(&self.shared, move |core| core.process.block_report(snapshot)).await;
        let report = report?.ok_or(Refusal::StandsAlone)?;
        Ok(json(200, &serde_json::to_value(report).expect("names and numbers are JSON")))
    }

    /// Waits for the end of this service, which lingers for a moment to say so.
    async fn stopped(&self) -> Answered {
        while self.shared.phase() != Phase::Ended {
            tokio::time::sleep(END_LOOKED_FOR_EVERY).await;
        }
        match self.shared.sealed.load(Ordering::Acquire) {
            true => Ok(json(200, &serde_json::json!({ "stopped": true }))),
            false => Err(Refusal::OutcomeUnknown),
        }
    }

    async fn ask_blocked(&self, snapshot: SnapshotId, event: Event, needs_part: bool) -> Answered {
        let fits = look(&self.shared, move |core| {
            let process = &core.process;
            process.is_blocked_for(snapshot) && (!needs_part || process.part_of(snapshot) == PartState::Final)
        });
        if !fits.await? {
            return Err(Refusal::NotBlockedFor { snapshot });
        }
        self.shared.push(Item::Event(event), Turn::AtOnce)?;
        Ok(json(202, &serde_json::json!({ "snapshot": snapshot.to_string() })))
    }

    async fn part_state(&self, snapshot: SnapshotId) -> Answered {
        let looked = look(&self.shared, move |core| {
            let node = core.process.config().cluster.as_ref().map(|cluster| cluster.me);
            (node, core.process.part_of(snapshot))
        })
        .await;
        let (node, part) = looked?;
        let node = node.ok_or(Refusal::StandsAlone)?;
        let mut body = serde_json::to_value(part).expect("names are JSON");
        body["node"] = node.0.into();
        body["snapshot"] = snapshot.to_string().into();
        Ok(json(200, &body))
    }

    async fn part_data(&self, snapshot: SnapshotId) -> Answered {
        let looked =
            look(&self.shared, move |core| (core.process.part_of(snapshot), core.part_file(snapshot))).await;
        let (part, file) = looked?;
        if part != PartState::Final {
            return Err(Refusal::NoSuchPart);
        }
        // Read as a whole: a part is as large as the state, which memory holds anyway.
        let read = tokio::task::spawn_blocking(move || std::fs::read(file)).await;
        let bytes = read.map_err(|_| Refusal::NoSuchPart)?.map_err(|_| Refusal::NoSuchPart)?;
        let mut response = Response::new(Full::new(Bytes::from(bytes)));
        let octets = HeaderValue::from_static("application/octet-stream");
        response.headers_mut().insert(CONTENT_TYPE, octets);
        Ok(response)
    }
}

fn missed(why: Missed) -> Refusal {
    match why {
        Missed::Recovering => Refusal::Recovering,
        Missed::Stopping => Refusal::Stopping,
        Missed::StandsAlone => Refusal::StandsAlone,
        Missed::Poisoned => Refusal::Poisoned,
        Missed::Disk => Refusal::DiskFull,
        // What a snapshot under way comes to, never one that would begin.
        Missed::Crashed | Missed::Superseded => Refusal::OutcomeUnknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poisoned_journal_is_not_called_a_full_disk() {
        assert_eq!(missed(Missed::Poisoned).code(), "poisoned");
        assert_eq!(missed(Missed::Disk).code(), "unavailable-disk-full");
    }

    #[test]
    fn paths_below_snapshots_are_read() {
        let id: SnapshotId = "3-1-2".parse().expect("three numbers");
        assert_eq!(Asked::of("/snapshots/3-1-2"), Some(Asked::State(id)));
        assert_eq!(Asked::of("/snapshots/3-1-2/data"), Some(Asked::Data(id)));
        assert_eq!(Asked::of("/snapshots/3-1-2/block"), Some(Asked::Block(id)));
        assert_eq!(Asked::Block(id).method(&Method::DELETE), Method::POST);
        for bad in ["/snapshots", "/snapshots/", "/snapshots/3", "/snapshots/3-1-2/other", "/snapshots//data"]
        {
            assert_eq!(Asked::of(bad), None, "{bad}");
        }
    }
}
