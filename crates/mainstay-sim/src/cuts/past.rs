//! The recordings of all nodes as one history: merged by the machine's clock, and what each node's disk held at every moment.

use super::RecordedNode;
use super::replayed::Replayed;
use mainstay_disk::recording::{Entry, Recording, RecordingError};
use mainstay_process::acknowledgement::Acknowledgement;
use std::path::PathBuf;
use std::vec;

/// The entries of several nodes, in the order of their times.
pub(super) struct Merged(Vec<Source>);

/// The recordings of one node, one behind the other.
struct Source {
    left: vec::IntoIter<PathBuf>,
    open: Option<Recording>,
    next: Option<Next>,
}

struct Next {
    stamp_ns: u64,
    entry: Entry,
    /// Whether it is the first of its recording.
    begins: bool,
}

impl Source {
    fn read(&mut self) -> Result<Option<Next>, RecordingError> {
        loop {
            let mut begins = false;
            if self.open.is_none() {
                let Some(path) = self.left.next() else { return Ok(None) };
                self.open = Some(Recording::open(&path)?);
                begins = true;
            }
            let open = self.open.as_mut().expect("it was just opened");
            match open.next_entry()? {
                Some(entry) => return Ok(Some(Next { stamp_ns: open.stamp_ns(), entry, begins })),
                None => self.open = None,
            }
        }
    }
}

impl Merged {
    pub(super) fn open(nodes: &[RecordedNode]) -> Result<Self, RecordingError> {
        let sources = nodes.iter().map(|node| {
            let mut source = Source { left: node.recordings.clone().into_iter(), open: None, next: None };
            source.next = source.read()?;
            Ok(source)
        });
        sources.collect::<Result<_, _>>().map(Self)
    }

    /// The next entry: whose, whether it is the first of a recording, and what.
    pub(super) fn next(&mut self) -> Result<Option<(usize, bool, Entry)>, RecordingError> {
        let waiting = |(node, source): (usize, &Source)| Some((source.next.as_ref()?.stamp_ns, node));
        let Some((_, node)) = self.0.iter().enumerate().filter_map(waiting).min() else { return Ok(None) };
        let source = &mut self.0[node];
        let following = source.read()?;
        let Next { entry, begins, .. } =
            std::mem::replace(&mut source.next, following).expect("it was just seen");
        Ok(Some((node, begins, entry)))
    }
}

/// What one node's disk held, and what the node had acknowledged.
pub(super) struct Past {
    pub(super) disk: Replayed,
    /// The disk of a recording whose beginning is being read: what was found there, file by file.
    found: Option<Replayed>,
    pub(super) acknowledged: Vec<Acknowledgement>,
    seed: u64,
}

impl Past {
    pub(super) fn new(seed: u64) -> Self {
        Self { disk: Replayed::new(seed), found: None, acknowledged: Vec::new(), seed }
    }

    /// Takes the node's next entry; says whether it is a point to cut at.
    pub(super) fn take(&mut self, begins: bool, entry: Entry) -> bool {
        if begins {
            self.found = Some(Replayed::new(self.seed));
        }
        if let Some(found) = &mut self.found {
            if matches!(entry, Entry::Life { .. } | Entry::WholeFile { .. }) {
                return found.take(entry);
            }
            // Up to here nothing was changed, so that a cut would have left what the recording before ended with.
            self.disk = self.found.take().expect("it was just seen");
        }
        if let Entry::Acknowledged { tag } = &entry
            && let Ok(read) = serde_json::from_slice::<Acknowledgement>(tag)
            && read.identity.is_some()
        {
            self.acknowledged.push(read);
        }
        self.disk.take(entry)
    }
}
