//! `POST /snapshots`, `GET /snapshots/{id}` and `GET /snapshots/{id}/data`: a node's side of a snapshot of its cluster. None of it waits
//! for the gate: it tells of no state but to whoever may read the directory.

use crate::driver::Turn;
use crate::inbox::Item;
use crate::ingress::report::{json, look};
use crate::ingress::{Answered, Ingress, Refusal};
use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use mainstay_process::event::Event;
use mainstay_process::handler::Handler;
use mainstay_process::snapshot::{Missed, PartState};
use mainstay_types::snapshot::SnapshotId;

/// A path below `/snapshots`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// How far this node is.
    State(SnapshotId),
    /// The bytes of its part.
    Data(SnapshotId),
}

impl Asked {
    pub(super) fn of(path: &str) -> Option<Self> {
        let named = path.strip_prefix("/snapshots/")?;
        match named.strip_suffix("/data") {
            Some(id) => id.parse().ok().map(Self::Data),
            None => named.parse().ok().map(Self::State),
        }
    }
}

impl<H: Handler + Send + 'static> Ingress<H> {
    /// Begins a snapshot at this node.
    pub(super) async fn begin_snapshot(&self) -> Answered {
        let next = look(&self.shared, |core| core.process.next_snapshot()).await;
        match next.ok_or(Refusal::Recovering)? {
            Ok(snapshot) => {
                self.shared.push(Item::Event(Event::TakeSnapshot { snapshot }), Turn::AtOnce)?;
                Ok(json(202, &serde_json::json!({ "snapshot": snapshot.to_string() })))
            }
            Err(Missed::Recovering) => Err(Refusal::Recovering),
            Err(Missed::Stopping) => Err(Refusal::Stopping),
            Err(Missed::StandsAlone) => Err(Refusal::StandsAlone),
            Err(Missed::Disk | Missed::Crashed | Missed::Superseded) => Err(Refusal::DiskFull),
        }
    }

    pub(super) async fn snapshot(&self, asked: Asked) -> Answered {
        match asked {
            Asked::State(snapshot) => self.part_state(snapshot).await,
            Asked::Data(snapshot) => self.part_data(snapshot).await,
        }
    }

    async fn part_state(&self, snapshot: SnapshotId) -> Answered {
        let looked = look(&self.shared, move |core| {
            let node = core.process.config().cluster.as_ref().map(|cluster| cluster.me);
            (node, core.process.part_of(snapshot))
        })
        .await;
        let (node, part) = looked.ok_or(Refusal::Recovering)?;
        let node = node.ok_or(Refusal::StandsAlone)?;
        let mut body = serde_json::to_value(part).expect("names are JSON");
        body["node"] = node.0.into();
        body["snapshot"] = snapshot.to_string().into();
        Ok(json(200, &body))
    }

    async fn part_data(&self, snapshot: SnapshotId) -> Answered {
        let looked =
            look(&self.shared, move |core| (core.process.part_of(snapshot), core.part_file(snapshot))).await;
        let (part, file) = looked.ok_or(Refusal::Recovering)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_below_snapshots_are_read() {
        let id: SnapshotId = "3-1-2".parse().expect("three numbers");
        assert_eq!(Asked::of("/snapshots/3-1-2"), Some(Asked::State(id)));
        assert_eq!(Asked::of("/snapshots/3-1-2/data"), Some(Asked::Data(id)));
        for bad in ["/snapshots", "/snapshots/", "/snapshots/3", "/snapshots/3-1-2/other", "/snapshots//data"]
        {
            assert_eq!(Asked::of(bad), None, "{bad}");
        }
    }
}
