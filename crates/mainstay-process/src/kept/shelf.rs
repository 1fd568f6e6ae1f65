//! What a region keeps of one process: reading it, and changing it as its owner.
//!
//! ```text
//!   log:   [ pieces of start 3 ........ )[ of start 4 . )[ of start 7, the owner ............. end)  part of a record … to)
//!          ^ log_from: the page of the checkpoint
//! ```
//! Each start writes pieces of its own, from where the one before ended: what a start has left that never came to its end is in nobody's way. What
//! nothing needs any more is first named in the manifest as surplus, then removed.

use super::manifest::{
    End, KeptCheckpoint, Manifest, Sizes, Stock, Stretch, Whole, stock_of, stock_of_checkpoint,
};
use super::{Change, Owner, Start, Store, Trouble, Wrote};
use mainstay_types::id::Lsn;
use mainstay_types::operation::Version;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Keys removed in one write.
const REMOVED_MAX: u64 = 256;

/// Begins each value that is not bytes of the log or of a checkpoint; the last byte is the format.
const MAGIC: &[u8; 8] = b"MSTKEEP1";

/// Of one process, for who owns it.
pub struct Shelf<S> {
    store: S,
    name: String,
    pub(super) sizes: Sizes,
    pub(super) owner: Option<Owner>,
    owner_version: Option<Version>,
    /// Where there is no owner: the start that left.
    pub(super) left: Option<Start>,
    pub(super) manifest: Manifest,
    manifest_version: Option<Version>,
    end: Option<End>,
    end_version: Option<Version>,
    /// What writes may have come to whose answer was not heard: so far, and to these.
    tried_end: Option<End>,
    tried_manifests: Vec<Manifest>,
    /// Whether a write may or may not have been done: all versions are read again before the next.
    unsure: bool,
    /// How often the region has said that this process is the owner.
    confirmations: u64,
}

/// What a write relies on besides the owner.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Relies {
    Owner,
    End,
    Manifest,
    Both,
}

impl<S: Store> Shelf<S> {
    /// Reads what there is.
    ///
    /// # Errors
    /// [`Trouble`].
    pub fn find(store: S, name: &str, sizes: Sizes) -> Result<Self, Trouble> {
        let mut shelf = Self {
            store,
            name: name.to_owned(),
            sizes,
            owner: None,
            owner_version: None,
            left: None,
            manifest: Manifest::default(),
            manifest_version: None,
            end: None,
            end_version: None,
            tried_end: None,
            tried_manifests: Vec::new(),
            unsure: false,
            confirmations: 0,
        };
        shelf.read_owner()?;
        shelf.read_rest()?;
        Ok(shelf)
    }

    pub(super) fn read_owner(&mut self) -> Result<(), Trouble> {
        (self.owner, self.owner_version) = self.read("owner")?.unzip();
        self.left = if self.owner.is_none() { self.read("left")?.map(|(left, _)| left) } else { None };
        Ok(())
    }

    /// Whose log it is.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The region.
    pub fn store(&self) -> &S {
        &self.store
    }

    pub(super) fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    /// Up to where the region has the log.
    pub fn end(&self) -> Lsn {
        self.end.map_or(Lsn::ZERO, |end| end.end)
    }

    /// Up to where this start has given it bytes; not below [`Self::end`].
    pub(super) fn written(&self) -> Lsn {
        self.end.map_or(Lsn::ZERO, |end| end.to)
    }

    /// Whether there is all that a recovery needs.
    pub(super) fn is_whole(&self) -> bool {
        self.manifest.whole.is_some()
    }

    /// Whether no further stretch is to be listed.
    pub(super) fn is_full(&self) -> bool {
        let whole = self.manifest.whole.as_ref();
        whole.is_some_and(|whole| whole.stretches.len() >= self.sizes.stretches_max)
    }

    /// Whether a recovery from here begins no later than one from a directory with `checkpoint`, or none, that needs the log `from` there.
    pub(super) fn has_no_more_than(&self, checkpoint: Option<KeptCheckpoint>, from: Lsn) -> bool {
        let lsn = |of: Option<KeptCheckpoint>| of.map(|of| of.lsn);
        self.manifest.whole.as_ref().is_none_or(|whole| {
            lsn(checkpoint) >= lsn(whole.checkpoint) && (checkpoint.is_some() || from <= whole.log_from)
        })
    }

    pub(super) fn confirmations(&self) -> u64 {
        self.confirmations
    }

    pub(super) fn start(&self) -> Start {
        self.owner.as_ref().expect("who changes something is the owner").start
    }

    fn key(&self, what: &str) -> Vec<u8> {
        format!("keep/{{{}}}/{what}", self.name).into_bytes()
    }

    fn piece_key(&self, start: Start, piece: u64) -> Vec<u8> {
        self.key(&format!("{start}/log/{piece:012x}"))
    }

    fn chunk_key(&self, of: KeptCheckpoint, chunk: u64) -> Vec<u8> {
        self.key(&format!("{}/checkpoint/{:016x}/{chunk:08x}", of.start, of.lsn.0))
    }

    fn read<T: DeserializeOwned>(&mut self, what: &str) -> Result<Option<(T, Version)>, Trouble> {
        let key = self.key(what);
        let Some((bytes, version)) = self.store.get(&key)? else { return Ok(None) };
        let value = bytes.strip_prefix(MAGIC).and_then(|bytes| postcard::from_bytes(bytes).ok());
        let foreign = || Trouble::Foreign { key: String::from_utf8_lossy(&key).into_owned() };
        value.map(|value| Some((value, version))).ok_or_else(foreign)
    }

    fn put<T: Serialize>(&self, what: &str, value: &T) -> Change {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(postcard::to_allocvec(value).expect("it is plain data"));
        Change::Put { key: self.key(what), value: bytes }
    }

    /// Believed by nobody but the owner: it may change meanwhile.
    pub(super) fn read_rest(&mut self) -> Result<(), Trouble> {
        let manifest = self.read::<Manifest>("manifest")?;
        self.manifest_version = manifest.as_ref().map(|(_, version)| *version);
        self.manifest = manifest.map(|(manifest, _)| manifest).unwrap_or_default();
        (self.end, self.end_version) = self.read("end")?.unzip();
        (self.tried_end, self.unsure) = (None, false);
        self.tried_manifests.clear();
        Ok(())
    }

    /// Makes `owner` the owner in the place of the one that is known. From then on nothing of the earlier one's is done; what it did until then, and it
    /// does not rely on, is to be read again. `false`: something else is there than is known, and nothing was done.
    pub(super) fn own(&mut self, owner: Owner, relies: Relies) -> Result<bool, Trouble> {
        let watched = self.watched(relies);
        let change = self.put("owner", &owner);
        let version = match self.store.write(watched, vec![change]) {
            Ok(Wrote::Done(version)) => version,
            // An attempt before may have done it, or this one.
            other => match (self.read::<Owner>("owner")?, other) {
                (Some((found, version)), _) if found == owner => version,
                (_, Err(error)) => return Err(error.into()),
                _ => return Ok(false),
            },
        };
        (self.owner, self.owner_version) = (Some(owner), Some(version));
        self.confirmations += 1;
        Ok(true)
    }

    /// Removes the owner's entry and the end, and names all that was kept as surplus, if nothing of that has changed: nobody is filled from it any
    /// more, whatever becomes of the next start. Whether it is done; if not, everything was read again.
    pub(super) fn disown(&mut self) -> Result<bool, Trouble> {
        let (start, mut manifest) = (self.start(), self.manifest.clone());
        self.discard_whole(&mut manifest);
        manifest.surplus.extend(manifest.begun.take());
        let [owner, end] = ["owner", "end"].map(|what| self.key(what));
        let watched = self.watched(Relies::Both);
        let removed = [owner, end].map(|key| Change::Remove { key });
        let put = [self.put("manifest", &manifest), self.put("left", &start)];
        if let Wrote::Done(_) = self.store.write(watched, removed.into_iter().chain(put).collect())? {
            return Ok(true);
        }
        let before = self.owner.clone();
        self.read_owner()?;
        self.read_rest()?;
        match &self.owner {
            None if self.left == Some(start) => Ok(true),
            None => Err(Trouble::Lost),
            found if *found == before => Ok(false),
            Some(found) => Err(Trouble::Taken(found.clone())),
        }
    }

    /// Names as surplus what `manifest` has as whole.
    fn discard_whole(&self, manifest: &mut Manifest) {
        let Some(before) = manifest.whole.take() else { return };
        manifest.surplus.extend(before.checkpoint.map(stock_of_checkpoint));
        let last = before.stretches.len().saturating_sub(1);
        for (place, stretch) in before.stretches.iter().enumerate() {
            let to = if place == last { self.written() } else { stretch.to };
            manifest.surplus.extend(stock_of(stretch, to, self.sizes));
        }
    }

    /// Says in the owner's entry that its next life has begun.
    pub(super) fn enter_life(&mut self, life: u64) -> Result<(), Trouble> {
        let owner = self.owner.clone().expect("who keeps is the owner");
        loop {
            // Asked again after an answer that was not heard: who else would have written just this?
            match self.read::<Owner>("owner")? {
                Some((found, version)) if found.start == owner.start => {
                    (self.owner, self.owner_version) = (Some(found), Some(version));
                }
                Some((found, _)) => return Err(Trouble::Taken(found)),
                None => return Err(Trouble::Lost),
            }
            if self.own(Owner { life, ..owner.clone() }, Relies::Owner)? {
                return Ok(());
            }
        }
    }

    /// Whether this process is still the owner, asked of the region from now on.
    pub(super) fn confirm(&mut self) -> Result<(), Trouble> {
        match self.read::<Owner>("owner")? {
            Some((found, version)) if Some(&found) == self.owner.as_ref() => {
                self.owner_version = Some(version);
                self.confirmations += 1;
                Ok(())
            }
            Some((found, _)) => Err(Trouble::Taken(found)),
            None => Err(Trouble::Lost),
        }
    }

    /// The same, and whether the region has what it had acknowledged.
    pub(super) fn look(&mut self) -> Result<(), Trouble> {
        self.confirm()?;
        let found: Option<(End, Version)> = self.read("end")?;
        let (end, version) = found.unzip();
        let is_mine = |end: &End| Some(end.start) == self.owner.as_ref().map(|owner| owner.start);
        let came_to = |found: End| {
            let known = self.end.filter(is_mine);
            self.tried_end
                .is_some_and(|tried| is_mine(&found) && found.to <= tried.to && found.end <= tried.end)
                && known.is_none_or(|known| known.end <= found.end && known.to <= found.to)
        };
        if end != self.end && !end.is_some_and(came_to) {
            return Err(Trouble::Lost);
        }
        (self.end, self.end_version) = (end, version);
        Ok(())
    }

    /// Finds out what the last writes came to.
    fn reread(&mut self) -> Result<(), Trouble> {
        self.look()?;
        let (manifest, version) = self.read::<Manifest>("manifest")?.unzip();
        let manifest = manifest.unwrap_or_default();
        if manifest != self.manifest && !self.tried_manifests.contains(&manifest) {
            return Err(Trouble::Lost);
        }
        (self.manifest, self.manifest_version) = (manifest, version);
        self.unsure = false;
        Ok(())
    }

    fn watched(&self, relies: Relies) -> Vec<(Vec<u8>, Option<Version>)> {
        let mut watched = vec![(self.key("owner"), self.owner_version)];
        if matches!(relies, Relies::End | Relies::Both) {
            watched.push((self.key("end"), self.end_version));
        }
        if matches!(relies, Relies::Manifest | Relies::Both) {
            watched.push((self.key("manifest"), self.manifest_version));
        }
        watched
    }

    /// Does `changes` if this process is still the owner and what else they rely on has its version; `None` if not, with everything read again.
    fn write(&mut self, relies: Relies, changes: Vec<Change>) -> Result<Option<Version>, Trouble> {
        if self.unsure {
            self.reread()?;
            return Ok(None);
        }
        match self.store.write(self.watched(relies), changes) {
            Ok(Wrote::Done(version)) => {
                self.confirmations += 1;
                Ok(Some(version))
            }
            Ok(Wrote::Differs) => {
                self.unsure = true;
                self.reread()?;
                Ok(None)
            }
            Err(error) => {
                self.unsure = true;
                Err(error.into())
            }
        }
    }

    fn try_end(&mut self, end: End) {
        let before = self.tried_end.unwrap_or(end);
        self.tried_end =
            Some(End { start: end.start, end: before.end.max(end.end), to: before.to.max(end.to) });
    }

    fn try_manifest(&mut self, manifest: &Manifest) {
        if !self.tried_manifests.contains(manifest) {
            self.tried_manifests.push(manifest.clone());
        }
    }

    fn has_manifest(&mut self, manifest: Manifest, version: Version) {
        (self.manifest, self.manifest_version) = (manifest, Some(version));
        self.tried_manifests.clear();
    }

    fn pieces(&self, start: Start, from: Lsn, begins: Lsn, bytes: &[u8]) -> Vec<Change> {
        let (mut changes, mut at, mut rest) = (Vec::new(), from, bytes);
        while !rest.is_empty() {
            let piece = at.0 / self.sizes.piece_bytes;
            let room =
                usize::try_from((piece + 1) * self.sizes.piece_bytes - at.0).expect("a piece is small");
            let (now, later) = rest.split_at(rest.len().min(room));
            let (key, value) = (self.piece_key(start, piece), now.to_vec());
            let begins_it = at.0 == (piece * self.sizes.piece_bytes).max(begins.0);
            changes.push(if begins_it { Change::Put { key, value } } else { Change::Append { key, value } });
            (at, rest) = (at.plus(now.len() as u64), later);
        }
        changes
    }

    /// Adds the next bytes of the log, [`Sizes::write_bytes_max`] at most, behind [`Self::written`]; `whole`: a record ends where they do. Done or not,
    /// [`Self::written`] says how far it is: ask again for what lies behind.
    pub(super) fn add(&mut self, bytes: &[u8], whole: bool) -> Result<(), Trouble> {
        assert!(bytes.len() as u64 <= self.sizes.write_bytes_max, "a write is limited");
        let before = self.end.expect("who adds has gone on");
        let begins = self.manifest.whole.as_ref().and_then(|whole| whole.stretches.last());
        let begins = begins.expect("who adds has gone on").from;
        let to = before.to.plus(bytes.len() as u64);
        let end = End { start: before.start, end: if whole { to } else { before.end }, to };
        let mut changes = self.pieces(before.start, before.to, begins, bytes);
        changes.push(self.put("end", &end));
        if !self.unsure {
            self.try_end(end);
        }
        if let Some(version) = self.write(Relies::End, changes)? {
            (self.end, self.end_version) = (Some(end), Some(version));
            self.tried_end = None;
        }
        Ok(())
    }

    /// Begins the stretch of this start behind what is there, which it will add to.
    pub(super) fn go_on(&mut self) -> Result<(), Trouble> {
        let start = self.start();
        while self.end.is_none_or(|end| end.start != start) {
            let before = self.end.unwrap_or(End { start, end: Lsn::ZERO, to: Lsn::ZERO });
            let mut manifest = self.manifest.clone();
            manifest.surplus.extend(manifest.begun.take());
            let whole = manifest.whole.as_mut().expect("one goes on with what is whole");
            if let Some(last) = whole.stretches.last_mut() {
                last.to = before.to;
                if last.from == before.end {
                    manifest
                        .surplus
                        .extend(stock_of(last, last.to, self.sizes).filter(|_| last.to > last.from));
                    whole.stretches.pop();
                }
            }
            let (from, piece_from) = (before.end, before.end.0 / self.sizes.piece_bytes);
            whole.stretches.push(Stretch { start, from, piece_from, to: from });
            let end = End { start, end: from, to: from };
            self.change_both(manifest, end)?;
        }
        Ok(())
    }

    fn change_both(&mut self, manifest: Manifest, end: End) -> Result<(), Trouble> {
        if !self.unsure {
            self.try_end(end);
            self.try_manifest(&manifest);
        }
        let changes = vec![self.put("manifest", &manifest), self.put("end", &end)];
        if let Some(version) = self.write(Relies::Both, changes)? {
            self.has_manifest(manifest, version);
            (self.end, self.end_version, self.tried_end) = (Some(end), Some(version), None);
        }
        Ok(())
    }

    /// Says what will be given in the place of all that is there, so that somebody removes what a crash leaves of it.
    pub(super) fn begin_giving(
        &mut self,
        checkpoint: Option<KeptCheckpoint>,
        (from, to): (Lsn, Lsn),
    ) -> Result<(), Trouble> {
        let pieces = (from.0 / self.sizes.piece_bytes, to.0.div_ceil(self.sizes.piece_bytes));
        let stock = Stock { start: self.start(), pieces, checkpoint };
        self.change(
            |manifest| manifest.begun.as_ref() == Some(&stock),
            |manifest| {
                let before = manifest.begun.replace(stock.clone());
                manifest.surplus.extend(before);
            },
        )
    }

    /// Gives a part of the log that is not there yet for anybody; `begins` is where all of it does.
    pub(super) fn give(&mut self, at: Lsn, begins: Lsn, bytes: &[u8]) -> Result<(), Trouble> {
        // Whole pieces, or the last one: asked for twice, they are the same.
        assert!(at == begins || at.0.is_multiple_of(self.sizes.piece_bytes), "a piece is given at once");
        let changes = self.pieces(self.start(), at, begins, bytes);
        while self.write(Relies::Owner, changes.clone())?.is_none() {}
        Ok(())
    }

    /// All is there: from now on a recovery begins with it.
    pub(super) fn finish_giving(
        &mut self,
        checkpoint: Option<KeptCheckpoint>,
        (from, to): (Lsn, Lsn),
    ) -> Result<(), Trouble> {
        let start = self.start();
        while self.end.is_none_or(|end| end.start != start) {
            let mut manifest = self.manifest.clone();
            self.discard_whole(&mut manifest);
            let stretch = Stretch { start, from, piece_from: from.0 / self.sizes.piece_bytes, to };
            manifest.whole = Some(Whole { checkpoint, log_from: from, stretches: vec![stretch] });
            manifest.begun = None;
            self.change_both(manifest, End { start, end: to, to })?;
        }
        Ok(())
    }

    /// Changes the manifest, until `done` finds it so.
    fn change(
        &mut self,
        done: impl Fn(&Manifest) -> bool,
        change: impl Fn(&mut Manifest),
    ) -> Result<(), Trouble> {
        while !done(&self.manifest) {
            let mut manifest = self.manifest.clone();
            change(&mut manifest);
            if !self.unsure {
                self.try_manifest(&manifest);
            }
            let put = self.put("manifest", &manifest);
            if let Some(version) = self.write(Relies::Manifest, vec![put])? {
                self.has_manifest(manifest, version);
            }
        }
        Ok(())
    }

    /// Says that a checkpoint is about to be written.
    pub(super) fn begin_checkpoint(&mut self, of: KeptCheckpoint) -> Result<(), Trouble> {
        let stock = stock_of_checkpoint(of);
        self.change(
            |manifest| manifest.begun.as_ref() == Some(&stock),
            |manifest| {
                let before = manifest.begun.replace(stock.clone()).filter(|before| *before != stock);
                manifest.surplus.extend(before);
            },
        )
    }

    /// Puts a chunk of a checkpoint that has begun.
    pub(super) fn put_chunk(
        &mut self,
        of: KeptCheckpoint,
        chunk: u64,
        bytes: &[u8],
    ) -> Result<bool, Trouble> {
        let put = Change::Put { key: self.chunk_key(of, chunk), value: bytes.to_vec() };
        Ok(self.write(Relies::Owner, vec![put])?.is_some())
    }

    /// All its chunks are there, and the log has come so far: a recovery begins with it, and needs nothing before it.
    pub(super) fn finish_checkpoint(&mut self, of: KeptCheckpoint) -> Result<(), Trouble> {
        let sizes = self.sizes;
        let log_from = self.owner.as_ref().expect("who changes something is the owner").page_start(of.lsn);
        self.change(
            |manifest| manifest.whole.as_ref().is_some_and(|whole| whole.checkpoint == Some(of)),
            |manifest| {
                let whole = manifest.whole.as_mut().expect("who keeps has begun");
                manifest.surplus.extend(whole.checkpoint.replace(of).map(stock_of_checkpoint));
                whole.log_from = log_from;
                let piece = log_from.0 / sizes.piece_bytes;
                let ends: Vec<Lsn> = whole.stretches.iter().skip(1).map(|next| next.from).collect();
                let unneeded = ends.iter().take_while(|end| **end <= log_from).count();
                for stretch in whole.stretches.drain(..unneeded) {
                    manifest.surplus.extend(stock_of(&stretch, stretch.to, sizes));
                }
                if let Some(first) = whole.stretches.first_mut().filter(|first| first.piece_from < piece) {
                    let (start, pieces) = (first.start, (first.piece_from, piece));
                    manifest.surplus.push(Stock { start, pieces, checkpoint: None });
                    first.piece_from = piece;
                }
                manifest.begun = None;
            },
        )
    }

    /// Removes some of what nothing needs any more.
    pub(super) fn remove_surplus(&mut self) -> Result<(), Trouble> {
        let Some(stock) = self.manifest.surplus.first().cloned() else { return Ok(()) };
        let mut left = stock.clone();
        let mut changes = Vec::new();
        let (from, to) = stock.pieces;
        if from < to {
            left.pieces.0 = to.min(from + REMOVED_MAX);
            let keys = (from..left.pieces.0).map(|piece| self.piece_key(stock.start, piece));
            changes.extend(keys.map(|key| Change::Remove { key }));
        } else if let Some(checkpoint) = &mut left.checkpoint {
            let from = checkpoint.chunks(self.sizes).saturating_sub(REMOVED_MAX);
            let keys = (from..checkpoint.chunks(self.sizes)).map(|chunk| self.chunk_key(*checkpoint, chunk));
            changes.extend(keys.map(|key| Change::Remove { key }));
            checkpoint.bytes = from * self.sizes.chunk_bytes;
        }
        let has_more = left.pieces.0 < left.pieces.1 || left.checkpoint.is_some_and(|left| left.bytes > 0);
        let mut manifest = self.manifest.clone();
        manifest.surplus.remove(0);
        if has_more {
            manifest.surplus.insert(0, left);
        }
        if !self.unsure {
            self.try_manifest(&manifest);
        }
        changes.push(self.put("manifest", &manifest));
        if let Some(version) = self.write(Relies::Manifest, changes)? {
            self.has_manifest(manifest, version);
        }
        Ok(())
    }

    /// Reads the log between two places, in order, a piece at most at once: `Ok(false)` if some of it is not there.
    pub(super) fn read_log<E: From<Trouble>>(
        &mut self,
        (from, to): (Lsn, Lsn),
        mut each: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let stretches = self.manifest.whole.as_ref().map_or(Vec::new(), |whole| whole.stretches.clone());
        for (place, stretch) in stretches.iter().enumerate() {
            let until = stretches.get(place + 1).map_or(to, |next| next.from).min(to);
            let mut at = stretch.from.max(from);
            while at < until {
                let piece = at.0 / self.sizes.piece_bytes;
                let begins = (piece * self.sizes.piece_bytes).max(stretch.from.0);
                let ends = ((piece + 1) * self.sizes.piece_bytes).min(until.0);
                let key = self.piece_key(stretch.start, piece);
                let found = self.store.get(&key).map_err(Trouble::from)?;
                let [skipped, end] = [at.0 - begins, ends - begins].map(|bytes| bytes as usize);
                let Some(bytes) = found.as_ref().and_then(|(bytes, _)| bytes.get(skipped..end)) else {
                    return Ok(false);
                };
                each(bytes)?;
                at = Lsn(ends);
            }
        }
        Ok(true)
    }

    /// One chunk of a checkpoint, as far as it is there.
    pub(super) fn chunk(&mut self, of: KeptCheckpoint, chunk: u64) -> Result<Vec<u8>, Trouble> {
        let key = self.chunk_key(of, chunk);
        Ok(self.store.get(&key)?.map(|(bytes, _)| bytes).unwrap_or_default())
    }
}
