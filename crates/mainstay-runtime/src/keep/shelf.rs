//! What a region keeps of one process: reading it, and changing it as its owner.

use super::{Owner, Trouble};
use mainstay_region_client::{Batch, Client, Operation, Outcome, WriteError};
use mainstay_types::id::Lsn;
use mainstay_types::operation::Version;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Bytes of the log in one piece. Small, since each addition copies a piece at every copy of the region; not too small, since a recovery reads piece
/// by piece.
pub(super) const PIECE_BYTES: u64 = 64 << 10;

/// Bytes of the log in one write, at most.
pub(super) const WRITE_BYTES_MAX: usize = 512 << 10;

/// Bytes of a checkpoint's file under one key.
pub(super) const CHUNK_BYTES: u64 = 256 << 10;

/// Keys removed in one write.
const REMOVED_MAX: u64 = 256;

/// A checkpoint in the region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct KeptCheckpoint {
    pub(super) lsn: u64,
    /// Length of its file, in bytes.
    pub(super) bytes: u64,
}

impl KeptCheckpoint {
    pub(super) fn chunks(self) -> u64 {
        self.bytes.div_ceil(CHUNK_BYTES)
    }
}

/// What is to be removed, because nothing needs it any more.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Surplus {
    /// Pieces of the log, from and to.
    pub(super) pieces: (u64, u64),
    pub(super) checkpoints: Vec<KeptCheckpoint>,
}

/// What there is besides the log.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// Where the log begins: where a piece does. What is before the page of the checkpoint has no meaning.
    pub(super) log_from: u64,
    /// With which a recovery begins.
    pub(super) checkpoint: Option<KeptCheckpoint>,
    /// One that is being written: known here so that somebody removes it.
    pub(super) begun: Option<KeptCheckpoint>,
    pub(super) surplus: Option<Surplus>,
}

/// Of one process, for who owns it.
pub(super) struct Shelf {
    pub(super) client: Client,
    name: String,
    pub(super) owner: Option<Owner>,
    owner_version: Option<Version>,
    pub(super) manifest: Manifest,
    manifest_version: Option<Version>,
    /// The log is there up to here.
    pub(super) end: Lsn,
    /// Of the piece of `end`; `None`: it is not there.
    piece_version: Option<Version>,
    /// Whether the last write may or may not have been done: all versions are read again before the next.
    unsure: bool,
}

impl Shelf {
    /// Reads what there is.
    pub(super) fn find(client: Client, name: &str) -> Result<Self, Trouble> {
        let mut shelf = Self {
            client,
            name: name.to_owned(),
            owner: None,
            owner_version: None,
            manifest: Manifest::default(),
            manifest_version: None,
            end: Lsn::ZERO,
            piece_version: None,
            unsure: false,
        };
        let found: Option<(Owner, Version)> = shelf.read_json("owner")?;
        (shelf.owner, shelf.owner_version) = found.unzip();
        shelf.read_manifest()?;
        Ok(shelf)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    fn key(&self, what: &str) -> Vec<u8> {
        format!("keep/{{{}}}/{what}", self.name).into_bytes()
    }

    fn piece_key(&self, piece: u64) -> Vec<u8> {
        self.key(&format!("log/{piece:012x}"))
    }

    fn chunk_key(&self, checkpoint: KeptCheckpoint, chunk: u64) -> Vec<u8> {
        self.key(&format!("checkpoint/{:016x}/{chunk:08x}", checkpoint.lsn))
    }

    fn get(&mut self, key: &[u8]) -> Result<Option<(Vec<u8>, Version)>, Trouble> {
        let found = self.client.get(key).map_err(|error| Trouble::Unreached(error.to_string()))?;
        Ok(found.map(|value| (value.bytes, value.version)))
    }

    fn read_json<T: DeserializeOwned>(&mut self, what: &str) -> Result<Option<(T, Version)>, Trouble> {
        let key = self.key(what);
        let Some((bytes, version)) = self.get(&key)? else { return Ok(None) };
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok(Some((value, version))),
            Err(_) => Err(Trouble::Foreign { key: String::from_utf8_lossy(&key).into_owned() }),
        }
    }

    fn read_manifest(&mut self) -> Result<(), Trouble> {
        let found: Option<(Manifest, Version)> = self.read_json("manifest")?;
        let (manifest, version) = found.unzip();
        (self.manifest, self.manifest_version) = (manifest.unwrap_or_default(), version);
        Ok(())
    }

    /// Makes `owner` the owner in the place of the one that is known. From then on nothing of the earlier one's is done; what it did until then is
    /// read again.
    pub(super) fn own(&mut self, owner: Owner) -> Result<(), Trouble> {
        let key = self.key("owner");
        let [before, after] = [self.owner.as_ref(), Some(&owner)]
            .map(|owner| owner.map(|owner| serde_json::to_vec(owner).expect("it is plain data")));
        match self.client.compare_and_set(&key, before.as_deref(), after.as_deref()) {
            Ok(written) if written.outcome != Outcome::Differs => {
                (self.owner, self.owner_version) = (Some(owner), Some(written.version));
            }
            Ok(_)
            | Err(WriteError::Unknown { .. } | WriteError::Obsolete { .. } | WriteError::Evicted { .. }) => {
                // An attempt before may have done it.
                match self.read_json::<Owner>("owner")? {
                    Some((found, version)) if found == owner => {
                        (self.owner, self.owner_version) = (Some(owner), Some(version));
                    }
                    Some((found, _)) if Some(&found) != self.owner.as_ref() => {
                        return Err(Trouble::Taken(found));
                    }
                    None if self.owner.is_some() => return Err(Trouble::Lost),
                    _ => return Err(Trouble::Unreached("the owner could not be changed".to_owned())),
                }
            }
            Err(error) => return Err(trouble(&error)),
        }
        self.read_manifest()
    }

    /// Whether this process is still the owner, asked of the region from now on.
    pub(super) fn look(&mut self) -> Result<(), Trouble> {
        match self.read_json::<Owner>("owner")? {
            Some((found, version)) if Some(&found) == self.owner.as_ref() => {
                self.owner_version = Some(version);
                Ok(())
            }
            Some((found, _)) => Err(Trouble::Taken(found)),
            None => Err(Trouble::Lost),
        }
    }

    /// Does `steps` if this process is still the owner and `watched` has its version; `None` if not, with everything read again.
    fn write(
        &mut self,
        watched: Option<(Vec<u8>, Option<Version>)>,
        steps: Vec<Operation>,
    ) -> Result<Option<Version>, Trouble> {
        if self.unsure {
            self.reread()?;
            return Ok(None);
        }
        let owner = (self.key("owner"), self.owner_version);
        let watched = std::iter::once(owner).chain(watched).collect();
        match self.client.call(Operation::Batch(Batch { watched, steps })) {
            Ok(written) if written.outcome == Outcome::Differs => {
                self.unsure = true;
                self.reread()?;
                Ok(None)
            }
            Ok(written) => match written.outcome {
                Outcome::TooLong(too_long) => Err(Trouble::Refused(too_long.to_string())),
                _ => Ok(Some(written.version)),
            },
            Err(error) => {
                self.unsure = true;
                Err(trouble(&error))
            }
        }
    }

    /// Finds out what the last writes came to.
    fn reread(&mut self) -> Result<(), Trouble> {
        self.look()?;
        self.read_manifest()?;
        self.find_end(self.end)?;
        self.unsure = false;
        Ok(())
    }

    /// Follows the log from `from` on, which it is known to reach, to its end.
    fn find_end(&mut self, from: Lsn) -> Result<(), Trouble> {
        let mut piece = from.0 / PIECE_BYTES;
        loop {
            let found = self.get(&self.piece_key(piece))?;
            let bytes = found.as_ref().map_or(0, |(bytes, _)| bytes.len() as u64);
            self.end = self.end.max(Lsn(piece * PIECE_BYTES + bytes));
            self.piece_version = found.map(|(_, version)| version);
            if bytes < PIECE_BYTES {
                return Ok(());
            }
            piece += 1;
        }
    }

    /// Finds the end of the log, without reading all of it. Only the owner may believe what it finds.
    pub(super) fn find_log(&mut self) -> Result<(), Trouble> {
        let first = self.manifest.log_from / PIECE_BYTES;
        // Pieces follow each other: the last one is found by halving.
        let (mut there, mut missing) = (first, first + 1);
        while self.get(&self.piece_key(missing))?.is_some() {
            let step = 2 * (missing - first);
            (there, missing) = (missing, first + step);
        }
        while missing - there > 1 {
            let middle = there + (missing - there) / 2;
            match self.get(&self.piece_key(middle))? {
                Some(_) => there = middle,
                None => missing = middle,
            }
        }
        self.end = Lsn(self.manifest.log_from.max(there * PIECE_BYTES));
        self.find_end(self.end)
    }

    /// Whether there is all that a recovery needs.
    pub(super) fn is_begun(&self) -> bool {
        self.manifest_version.is_some()
    }

    /// Becomes the owner where nobody was, with an empty log.
    pub(super) fn own_new(&mut self, owner: Owner) -> Result<(), Trouble> {
        let [key, manifest] = [self.key("owner"), self.key("manifest")];
        let put =
            |key: &[u8], value: Vec<u8>| Operation::Put { key: key.into(), value: value.as_slice().into() };
        let steps = vec![
            put(&key, serde_json::to_vec(&owner).expect("it is plain data")),
            put(&manifest, serde_json::to_vec(&Manifest::default()).expect("it is plain data")),
        ];
        let watched = vec![(key, None), (manifest, None)];
        let written = self.client.call(Operation::Batch(Batch { watched, steps }));
        if let Err(error @ (WriteError::NotSent { .. } | WriteError::RoleMissing { .. })) = &written {
            return Err(trouble(error));
        }
        // Also if it is not known what came of it.
        self.owner = Some(owner);
        self.look()?;
        self.read_manifest()
    }

    /// Says where the log begins, which the region does not know yet, and finds what an earlier attempt has left of it.
    pub(super) fn log_is_at(&mut self, at: Lsn) -> Result<(), Trouble> {
        self.end = at;
        self.find_end(at)
    }

    /// One piece of the log, as far as it goes.
    pub(super) fn piece(&mut self, piece: u64) -> Result<Vec<u8>, Trouble> {
        Ok(self.get(&self.piece_key(piece))?.map(|(bytes, _)| bytes).unwrap_or_default())
    }

    /// One chunk of a checkpoint.
    pub(super) fn chunk(&mut self, of: KeptCheckpoint, chunk: u64) -> Result<Vec<u8>, Trouble> {
        Ok(self.get(&self.chunk_key(of, chunk))?.map(|(bytes, _)| bytes).unwrap_or_default())
    }

    /// Adds the next bytes of the log, [`WRITE_BYTES_MAX`] at most, behind what is there. Done or not, [`Self::end`] says how far it is: ask again
    /// for what lies behind.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        let bytes = &bytes[..bytes.len().min(WRITE_BYTES_MAX)];
        let (first, filled) = (self.end.0 / PIECE_BYTES, self.end.0 % PIECE_BYTES);
        let room = usize::try_from(PIECE_BYTES - filled).expect("a piece is small");
        let (head, rest) = bytes.split_at(bytes.len().min(room));
        let key = self.piece_key(first);
        let mut steps = vec![match self.piece_version {
            Some(_) => Operation::Append { key: key.as_slice().into(), value: head.into() },
            None => Operation::Put { key: key.as_slice().into(), value: head.into() },
        }];
        let whole = usize::try_from(PIECE_BYTES).expect("a piece is small");
        for (piece, bytes) in (first + 1..).zip(rest.chunks(whole)) {
            steps.push(Operation::Put { key: self.piece_key(piece).as_slice().into(), value: bytes.into() });
        }
        let watched = (key, self.piece_version);
        if let Some(version) = self.write(Some(watched), steps)? {
            self.end = self.end.plus(bytes.len() as u64);
            self.piece_version = (!self.end.0.is_multiple_of(PIECE_BYTES)).then_some(version);
        }
        Ok(())
    }

    /// Changes the manifest, until `done` finds it so.
    pub(super) fn change(
        &mut self,
        done: impl Fn(&Self) -> bool,
        change: impl Fn(&mut Manifest),
    ) -> Result<(), Trouble> {
        while !done(self) {
            let mut manifest = self.manifest.clone();
            change(&mut manifest);
            let bytes = serde_json::to_vec(&manifest).expect("it is plain data");
            let key = self.key("manifest");
            let put = Operation::Put { key: key.as_slice().into(), value: bytes.as_slice().into() };
            if let Some(version) = self.write(Some((key, self.manifest_version)), vec![put])? {
                (self.manifest, self.manifest_version) = (manifest, Some(version));
            }
        }
        Ok(())
    }

    /// Puts a chunk of a checkpoint that the manifest has as begun.
    pub(super) fn put_chunk(
        &mut self,
        of: KeptCheckpoint,
        chunk: u64,
        bytes: &[u8],
    ) -> Result<bool, Trouble> {
        let key = self.chunk_key(of, chunk);
        let put = Operation::Put { key: key.as_slice().into(), value: bytes.into() };
        Ok(self.write(None, vec![put])?.is_some())
    }

    /// Removes some of what nothing needs any more; whether there is more.
    pub(super) fn remove_surplus(&mut self) -> Result<bool, Trouble> {
        let Some(mut left) = self.manifest.surplus.clone() else { return Ok(false) };
        let mut keys = Vec::new();
        let (from, to) = left.pieces;
        if from < to {
            left.pieces.0 = to.min(from + REMOVED_MAX);
            keys.extend((from..left.pieces.0).map(|piece| self.piece_key(piece)));
        } else if let Some(checkpoint) = left.checkpoints.last_mut() {
            let from = checkpoint.chunks().saturating_sub(REMOVED_MAX);
            keys.extend((from..checkpoint.chunks()).map(|chunk| self.chunk_key(*checkpoint, chunk)));
            checkpoint.bytes = from * CHUNK_BYTES;
            if from == 0 {
                left.checkpoints.pop();
            }
        }
        if !keys.is_empty() {
            let remove = |key: Vec<u8>| Operation::Remove { key: key.as_slice().into() };
            if self.write(None, keys.into_iter().map(remove).collect())?.is_none() {
                return Ok(true);
            }
        }
        let left = (left.pieces.0 < left.pieces.1 || !left.checkpoints.is_empty()).then_some(left);
        self.change(|shelf| shelf.manifest.surplus == left, |manifest| manifest.surplus.clone_from(&left))?;
        Ok(left.is_some())
    }
}

fn trouble(error: &WriteError) -> Trouble {
    match error {
        WriteError::TooLong(too_long) => Trouble::Refused(too_long.to_string()),
        error => Trouble::Unreached(error.to_string()),
    }
}
