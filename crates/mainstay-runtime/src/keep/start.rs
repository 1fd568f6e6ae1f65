//! A start at level peers, in its order.

use super::region::Region;
use super::thread::Keep;
use super::{KeepError, KeepSettings, KeepWay, KeptStart, NotKept};
use crate::settings::Settings;
use mainstay_disk::file_storage::FileStorage;
use mainstay_disk::fill::make_or_lock;
use mainstay_disk::open::OpenDisk;
use mainstay_process::kept::KeptError;
use mainstay_process::kept::attach::{Directory, Wish};
use mainstay_process::kept::keeper::{Acknowledged, Keeper};
use mainstay_process::kept::manifest::Sizes;
use mainstay_process::kept::note::{NOTE_FILE, Note};
use mainstay_process::kept::shelf::Shelf;
use mainstay_region_client::{Client, Settings as Patience, TlsClient};
use mainstay_types::id::Lsn;
use mainstay_types::level::Level;
use std::time::Duration;

/// How long one question to the region may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A region that is there, before the directory is opened.
pub(crate) struct Prepared {
    shelf: Shelf<Region>,
    filled_to: Option<Lsn>,
}

impl Prepared {
    /// Whether the directory has been filled.
    pub(crate) fn has_filled(&self) -> bool {
        self.filled_to.is_some()
    }
}

fn wish<'a>(keep: &'a KeepSettings, settings: &Settings) -> Wish<'a> {
    let (new, anew) = (keep.way == KeepWay::New, keep.way == KeepWay::Anew);
    let striped = !settings.disk.stripes.is_empty();
    Wish { region: &keep.region, new, anew, striped, drawn: fastrand::u64(..) }
}

/// Finds the region, and fills an empty directory from it; at other levels only refuses a directory that is kept.
pub(crate) fn prepare(settings: &Settings) -> Result<Option<Prepared>, KeepError> {
    let is_peers = settings.process.level == Level::Peers;
    let keep = match &settings.keep {
        Some(keep) if is_peers != (keep.way == KeepWay::Leave) => keep,
        None if !is_peers => return refuse_kept(settings).map(|()| None),
        _ => return Err(KeepError::LevelAndRegion),
    };
    let name = &keep.name;
    if !(1..=200).contains(&name.len()) || name.contains(|c: char| matches!(c, '{' | '}') || c.is_control()) {
        return Err(KeepError::Name { name: name.clone() });
    }
    let tls = keep.tls.as_ref().map(TlsClient::load).transpose()?;
    let patience = Patience { deadline: ANSWER_MAX, tls, ..Patience::default() };
    let client = Client::connect(&keep.servers, &keep.region, patience)?;
    let in_trouble = |trouble| KeptError::Trouble { name: name.clone(), trouble };
    let mut shelf = Shelf::find(Region(client), name, Sizes::default()).map_err(in_trouble)?;
    let mut filled_to = None;
    if let Some(mut empty) = make_or_lock(&settings.directory, &settings.disk)? {
        if keep.way == KeepWay::Leave {
            shelf.refuse_leaving_empty(&mut empty.storage)?;
        } else {
            filled_to = shelf.fill_empty(&mut empty.storage, wish(keep, settings))?;
        }
    }
    Ok(Some(Prepared { shelf, filled_to }))
}

fn refuse_kept(settings: &Settings) -> Result<(), KeepError> {
    let path = &settings.directory;
    if path.join(NOTE_FILE).exists()
        && let Some(note) = Note::read(&mut FileStorage::new(path))?
    {
        return Err(KeepError::Needed { path: path.clone(), note });
    }
    Ok(())
}

/// With the directory open and locked: becomes the owner in this life, and starts the thread that goes on with it. Nothing has been answered, and no
/// other node has heard of this life. Nothing is started for a directory that leaves level peers.
pub(crate) fn begin(
    prepared: Prepared,
    settings: &Settings,
    opened: &mut OpenDisk,
    acknowledged: impl Fn(Acknowledged) + Send + 'static,
    ended: impl FnOnce(NotKept) + Send + 'static,
) -> Result<Option<(Keep, KeptStart)>, KeepError> {
    let Prepared { mut shelf, filled_to } = prepared;
    let keep = settings.keep.as_ref().expect("prepared from it");
    let catalog = opened.disk.catalog();
    let mut directory = Directory { storage: &mut opened.storage, catalog: &catalog, report: &opened.report };
    if keep.way == KeepWay::Leave {
        shelf.leave(&mut directory, wish(keep, settings))?;
        return Ok(None);
    }
    shelf.attach(&mut directory, wish(keep, settings))?;
    let nodes = shelf.store().nodes();
    let started = Keep::start(Keeper::new(shelf), opened.storage.clone(), acknowledged, ended);
    Ok(Some((started.map_err(KeepError::Thread)?, KeptStart { filled_to, nodes })))
}
