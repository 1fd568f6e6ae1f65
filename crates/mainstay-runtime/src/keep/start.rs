//! A start at level peers: who owns the log, an empty directory is filled, and the region is given what it lacks.

use super::keeper::Keep;
use super::shelf::{CHUNK_BYTES, KeptCheckpoint, Manifest, PIECE_BYTES, Shelf, WRITE_BYTES_MAX};
use super::{KeepError, KeepSettings, KeptStart, NotKept, Owner, Trouble};
use crate::settings::Settings;
use mainstay_disk::fill::{Empty, make_or_lock};
use mainstay_disk::open::OpenDisk;
use mainstay_disk::replace::replace;
use mainstay_journal::fill::{FillError, Filling, Origin, read_bytes};
use mainstay_journal::geometry::Geometry;
use mainstay_journal::reader::ReadError;
use mainstay_journal::storage::Storage;
use mainstay_process::checkpoint::{final_name, parse_name};
use mainstay_region_client::{Client, Settings as Patience, TlsClient};
use mainstay_types::id::{Generation, Lsn, StoreId};
use mainstay_types::level::Level;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long one question to the region may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// The file in a directory.
const NOTE: &str = "keep";

/// The starts of this directory that may be the owner.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Note {
    /// The last one.
    start: String,
    /// The one that was the owner before it: the last one may not have become it.
    before: String,
}

impl Note {
    fn read(directory: &Path) -> Result<Self, KeepError> {
        let path = directory.join(NOTE);
        let read = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        };
        read.map_err(|source| KeepError::File { path, source })
    }

    /// Past a sync, in the place of the one before.
    fn write(&self, directory: &Path) -> Result<(), KeepError> {
        let bytes = serde_json::to_vec(self).expect("it is plain data");
        replace(directory, NOTE, &bytes)
            .map_err(|source| KeepError::File { path: directory.join(NOTE), source })
    }

    fn has(&self, start: &str) -> bool {
        !start.is_empty() && (start == self.start || start == self.before)
    }
}

/// What a start does about the owner that it found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// Keep this directory's log from now on: the region has nothing of it.
    Begin,
    /// Go on with this directory.
    GoOn,
    /// Fill this directory.
    Fill,
}

fn judge(
    name: &str,
    found: Option<&Owner>,
    note: &Note,
    has_journal: bool,
    anew: bool,
) -> Result<Verdict, KeepError> {
    match found {
        None if has_journal && *note != Note::default() && !anew => {
            Err(KeepError::RegionLost { name: name.to_owned() })
        }
        None => Ok(Verdict::Begin),
        // What an earlier attempt at filling this one has left does not take it from a later owner.
        Some(found) if !has_journal && (*note == Note::default() || note.has(&found.start)) => {
            Ok(Verdict::Fill)
        }
        Some(found) if note.has(&found.start) => Ok(Verdict::GoOn),
        Some(found) => Err(KeepError::Elsewhere { name: name.to_owned(), by: found.clone() }),
    }
}

/// A region that is there, before the directory is opened.
pub(crate) struct Prepared {
    shelf: Shelf,
    filled_to: Option<Lsn>,
}

impl Prepared {
    /// Whether the directory has been filled.
    pub(crate) fn has_filled(&self) -> bool {
        self.filled_to.is_some()
    }
}

/// Finds the region, and fills an empty directory from it; nothing at other levels.
pub(crate) fn prepare(settings: &Settings) -> Result<Option<Prepared>, KeepError> {
    let keep = match (&settings.keep, settings.process.level) {
        (Some(keep), Level::Peers) => keep,
        (None, level) if level != Level::Peers => return Ok(None),
        _ => return Err(KeepError::LevelAndRegion),
    };
    if !(1..=200).contains(&keep.name.len()) || keep.name.contains(['{', '}']) {
        return Err(KeepError::Name { name: keep.name.clone() });
    }
    let tls = keep.tls.as_ref().map(TlsClient::load).transpose()?;
    let patience = Patience { deadline: ANSWER_MAX, tls, ..Patience::default() };
    let client = Client::connect(&keep.servers, &keep.region, patience)?;
    let trouble = |trouble| KeepError::Trouble { name: keep.name.clone(), trouble };
    let mut shelf = Shelf::find(client, &keep.name).map_err(trouble)?;
    let mut filled_to = None;
    if let Some(mut empty) = make_or_lock(&settings.directory, &settings.disk)? {
        let note = Note::read(&settings.directory)?;
        let unbegun = shelf.owner.is_some() && !shelf.is_begun();
        if unbegun && !keep.anew {
            return Err(KeepError::Unbegun { name: keep.name.clone() });
        }
        let verdict = judge(&keep.name, shelf.owner.as_ref(), &note, false, keep.anew)?;
        if verdict == Verdict::Fill && !unbegun {
            let before = shelf.owner.clone().expect("there is something to fill it from");
            // Before anything is read: nothing is added to it any more.
            take(&mut shelf, &settings.directory, before, keep, false)?;
            filled_to = Some(fill(&mut shelf, &mut empty)?);
        }
    }
    Ok(Some(Prepared { shelf, filled_to }))
}

/// Becomes the owner by a new start, noted first.
fn take(
    shelf: &mut Shelf,
    directory: &Path,
    as_owner: Owner,
    keep: &KeepSettings,
    fresh: bool,
) -> Result<(), KeepError> {
    let note = Note::read(directory)?;
    let before = shelf.owner.as_ref().map_or(note.start, |owner| owner.start.clone());
    let start = format!("{:016x}", fastrand::u64(..));
    Note { start: start.clone(), before }.write(directory)?;
    let owner = Owner { start, ..as_owner };
    match if fresh { shelf.own_new(owner) } else { shelf.own(owner) } {
        Ok(()) => Ok(()),
        Err(Trouble::Taken(by)) => Err(KeepError::Elsewhere { name: keep.name.clone(), by }),
        Err(trouble) => Err(KeepError::Trouble { name: keep.name.clone(), trouble }),
    }
}

/// Makes the directory what the region has. Until this is done it holds no journal.
fn fill(shelf: &mut Shelf, empty: &mut Empty) -> Result<Lsn, KeepError> {
    let name = shelf.name().to_owned();
    let in_trouble = |trouble| KeepError::Trouble { name: name.clone(), trouble };
    let in_fill = |source| KeepError::Fill { name: name.clone(), source };
    let in_storage = |error| in_fill(FillError::Storage(error));
    let owner = shelf.owner.clone().expect("it has just been taken");
    let Owner { page_bytes, pages, segment_pages, .. } = owner;
    let geometry = Geometry { page_bytes, pages, segment_pages };
    let foreign = || in_trouble(Trouble::Foreign { key: format!("keep/{{{name}}}/owner") });
    let store = parse_store(&owner.store).ok_or_else(foreign)?;
    if !geometry.is_valid() {
        return Err(foreign());
    }
    let storage = &mut empty.storage;
    for file in storage.list().map_err(in_storage)? {
        if file.name.starts_with("checkpoint-") {
            storage.remove(&file.name).map_err(in_storage)?;
        }
    }
    let checkpoint = shelf.manifest.checkpoint;
    if let Some(of) = checkpoint {
        let file = final_name(Lsn(of.lsn));
        storage.create(&file, 0).map_err(in_storage)?;
        let mut bytes = 0;
        for chunk in 0..of.chunks() {
            let part = shelf.chunk(of, chunk).map_err(in_trouble)?;
            storage.write(&file, bytes, &part).map_err(in_storage)?;
            bytes += part.len() as u64;
        }
        if bytes != of.bytes {
            let (lsn, expected) = (Lsn(of.lsn), of.bytes);
            return Err(KeepError::Checkpoint { name: name.clone(), lsn, bytes, expected });
        }
        storage.sync(&file).map_err(in_storage)?;
        storage.sync_directory().map_err(in_storage)?;
    }
    let first = checkpoint.map_or(Lsn::ZERO, |of| geometry.page_start(geometry.page_of(Lsn(of.lsn))));
    let origin = Origin { store, geometry, generation: Generation(owner.life), first };
    let mut filling = Filling::begin(storage, origin).map_err(in_fill)?;
    let mut piece = shelf.manifest.log_from / PIECE_BYTES;
    loop {
        let bytes = shelf.piece(piece).map_err(in_trouble)?;
        let start = piece * PIECE_BYTES;
        let skipped = usize::try_from(first.0.saturating_sub(start)).unwrap_or(usize::MAX).min(bytes.len());
        filling.put(&bytes[skipped..]).map_err(in_fill)?;
        if (bytes.len() as u64) < PIECE_BYTES {
            return filling.finish().map_err(in_fill);
        }
        piece += 1;
    }
}

/// With the directory open and locked: becomes the owner in this life, compares, gives the region what it lacks, and starts the thread that goes on
/// with it. Nothing has been answered, and no other node has heard of this life.
pub(crate) fn begin(
    prepared: Prepared,
    settings: &Settings,
    opened: &mut OpenDisk,
    acknowledged: impl Fn(Lsn, u64) + Send + 'static,
    ended: impl FnOnce(NotKept) + Send + 'static,
) -> Result<(Keep, KeptStart), KeepError> {
    let Prepared { mut shelf, filled_to } = prepared;
    let keep = settings.keep.as_ref().expect("prepared from it");
    let report = &opened.report;
    let note = Note::read(&settings.directory)?;
    let verdict = judge(&keep.name, shelf.owner.as_ref(), &note, !report.created, keep.anew)?;
    let Geometry { page_bytes, pages, segment_pages } = report.geometry;
    let (store, life) = (report.store.to_string(), report.generation.0);
    let life = life.max(shelf.owner.as_ref().map_or(0, |owner| owner.life));
    let owner = Owner { store, life, start: String::new(), page_bytes, pages, segment_pages };
    let others = |other: &&Owner| other.store != owner.store && shelf.is_begun();
    if let Some(other) = shelf.owner.as_ref().filter(others) {
        return Err(KeepError::Elsewhere { name: keep.name.clone(), by: other.clone() });
    }
    let fresh = report.created && verdict == Verdict::Begin;
    take(&mut shelf, &settings.directory, owner, keep, fresh)?;
    let in_trouble = |trouble| KeepError::Trouble { name: keep.name.clone(), trouble };
    shelf.find_log().map_err(in_trouble)?;
    if report.end < shelf.end {
        let (here, kept) = (report.end, shelf.end);
        return Err(KeepError::Behind { name: keep.name.clone(), here, kept });
    }
    give(&mut shelf, opened, report.end, keep)?;
    let nodes = shelf.client.view().map_or(0, |view| view.members.len());
    let started = Keep::start(shelf, life, acknowledged, ended)
        .map_err(|source| KeepError::File { path: settings.directory.clone(), source })?;
    Ok((started, KeptStart { filled_to, nodes }))
}

/// Gives the region the log up to `end` out of its segments, where all of it is durable.
fn give(shelf: &mut Shelf, opened: &mut OpenDisk, end: Lsn, keep: &KeepSettings) -> Result<(), KeepError> {
    let in_trouble = |trouble| KeepError::Trouble { name: keep.name.clone(), trouble };
    let add = |shelf: &mut Shelf, bytes: &[u8]| -> Result<(), KeepError> {
        let to = shelf.end.plus(bytes.len() as u64);
        while shelf.end < to {
            let done = bytes.len() - (to.0 - shelf.end.0) as usize;
            shelf.add(&bytes[done..]).map_err(in_trouble)?;
        }
        Ok(())
    };
    if shelf.is_begun() {
        return give_log(shelf, opened, end, add);
    }
    // A directory with a history of its own: all that a recovery needs is there before the region says so.
    let mut checkpoint = None;
    let geometry = opened.report.geometry;
    let mut from = Lsn::ZERO;
    if let Some((of, path)) = newest_checkpoint(opened)? {
        let file = File::open(&path).map_err(|source| KeepError::File { path: path.clone(), source })?;
        let mut bytes = Vec::new();
        for chunk in 0..of.chunks() {
            bytes.resize(
                usize::try_from(CHUNK_BYTES.min(of.bytes - chunk * CHUNK_BYTES)).expect("it is small"),
                0,
            );
            file.read_exact_at(&mut bytes, chunk * CHUNK_BYTES)
                .map_err(|source| KeepError::File { path: path.clone(), source })?;
            while !shelf.put_chunk(of, chunk, &bytes).map_err(in_trouble)? {}
        }
        checkpoint = Some(of);
        from = geometry.page_start(geometry.page_of(Lsn(of.lsn)));
    }
    let at = Lsn(from.0 - from.0 % PIECE_BYTES);
    shelf.log_is_at(at).map_err(in_trouble)?;
    let pad = usize::try_from(from.0.saturating_sub(shelf.end.0)).expect("less than a piece");
    add(shelf, &vec![0; pad])?;
    give_log(shelf, opened, end, add)?;
    let begun = |shelf: &Shelf| shelf.is_begun();
    let begin = |manifest: &mut Manifest| (manifest.log_from, manifest.checkpoint) = (at.0, checkpoint);
    shelf.change(begun, begin).map_err(in_trouble)
}

fn give_log(
    shelf: &mut Shelf,
    opened: &mut OpenDisk,
    end: Lsn,
    add: impl Fn(&mut Shelf, &[u8]) -> Result<(), KeepError>,
) -> Result<(), KeepError> {
    let stretch = (shelf.end, end);
    read_bytes(&mut opened.storage, &opened.disk.catalog(), stretch, WRITE_BYTES_MAX, |bytes| {
        add(shelf, bytes)
    })
}

/// The newest checkpoint of the directory, with its file.
fn newest_checkpoint(opened: &mut OpenDisk) -> Result<Option<(KeptCheckpoint, PathBuf)>, KeepError> {
    let files = opened.storage.list().map_err(ReadError::from)?;
    let checkpoints = files.iter().filter_map(|file| Some((parse_name(&file.name)?, file)));
    let newest = checkpoints.max_by_key(|(lsn, _)| *lsn);
    let path = |name: &str| opened.storage.path(name);
    Ok(newest.map(|(lsn, file)| (KeptCheckpoint { lsn: lsn.0, bytes: file.bytes }, path(&file.name))))
}

/// As it is displayed.
fn parse_store(text: &str) -> Option<StoreId> {
    let mut store = [0; 16];
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    for (place, byte) in store.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(StoreId(store))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(start: &str) -> Owner {
        let start = start.to_owned();
        Owner { store: "aa".to_owned(), life: 5, start, page_bytes: 4096, pages: 3, segment_pages: 4 }
    }

    #[test]
    fn only_the_last_start_goes_on_and_only_an_empty_directory_is_filled() {
        let note = Note { start: "last".to_owned(), before: "before".to_owned() };
        let judged = |found: Option<&Owner>, note: &Note, has_journal, anew| {
            judge("shop", found, note, has_journal, anew)
        };
        let none = Note::default();
        assert_eq!(judged(None, &none, false, false).expect("all is new"), Verdict::Begin);
        assert_eq!(judged(None, &none, true, false).expect("it was never kept"), Verdict::Begin);
        assert!(matches!(judged(None, &note, true, false), Err(KeepError::RegionLost { .. })));
        assert_eq!(judged(None, &note, true, true).expect("told to"), Verdict::Begin);
        assert_eq!(judged(None, &note, false, false).expect("it never came to be"), Verdict::Begin);
        for ours in ["last", "before"] {
            assert_eq!(judged(Some(&owner(ours)), &note, true, false).expect("ours"), Verdict::GoOn);
        }
        for (note, anew) in [(&note, false), (&note, true), (&none, false), (&none, true)] {
            let refused = judged(Some(&owner("other")), note, true, anew);
            assert!(matches!(refused, Err(KeepError::Elsewhere { .. })), "a journal is never given up");
        }
        assert_eq!(judged(Some(&owner("other")), &none, false, false).expect("empty"), Verdict::Fill);
        assert_eq!(judged(Some(&owner("last")), &note, false, false).expect("half filled"), Verdict::Fill);
        let late = judged(Some(&owner("other")), &note, false, false);
        assert!(matches!(late, Err(KeepError::Elsewhere { .. })), "half filled, and the owner has changed");
    }

    #[test]
    fn a_store_is_read_as_it_is_shown() {
        let store = StoreId([0x5a, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(parse_store(&store.to_string()), Some(store));
        assert_eq!([parse_store(""), parse_store(&"x".repeat(32))], [None, None]);
    }
}
