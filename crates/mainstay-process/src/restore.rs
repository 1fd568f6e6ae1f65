//! Where a replay begins: the newest checkpoint that can be used, and that knows nothing which has to be taken back.

use crate::checkpoint::{self, CheckpointError, Loaded};
use crate::config::Config;
use crate::handler::Handler;
use crate::links::Links;
use crate::record::orphaned::Orphaned;
use crate::recover::{RecoverError, Recovery};
use crate::tables::Tables;
use mainstay_journal::open::OpenReport;
use mainstay_journal::storage::Storage;
use mainstay_types::id::Lsn;

/// Where a replay begins.
pub(crate) struct Restored {
    pub(crate) from: Lsn,
    /// The version that saved the checkpoint.
    pub(crate) version: Option<u32>,
    pub(crate) tables: Tables,
    pub(crate) saved_links: Vec<u8>,
}

/// Puts `handler` into the state of the newest checkpoint at or below `at_most`; without one it stays as it is.
pub(crate) fn restore<H: Handler>(
    handler: &mut H,
    config: &Config,
    report: &OpenReport,
    storage: &mut dyn Storage,
    at_most: Lsn,
    recovery: &mut Recovery,
) -> Result<Restored, RecoverError> {
    let newest = newest_checkpoint(storage, report, at_most, &mut recovery.passed_over)?;
    begin_with(newest, handler, config, report, recovery)
}

/// The same for a checkpoint that is loaded, or for none.
pub(crate) fn begin_with<H: Handler>(
    loaded: Option<Loaded>,
    handler: &mut H,
    config: &Config,
    report: &OpenReport,
    recovery: &mut Recovery,
) -> Result<Restored, RecoverError> {
    let Some(loaded) = loaded else {
        if report.first > Lsn::ZERO {
            let passed_over = std::mem::take(&mut recovery.passed_over);
            return Err(RecoverError::NoCheckpoint { first: report.first, passed_over });
        }
        let (from, tables) = (report.first, Tables::default());
        return Ok(Restored { from, version: None, tables, saved_links: Vec::new() });
    };
    if loaded.name != config.name {
        return Err(RecoverError::NameChanged { recorded: loaded.name, now: config.name.clone() });
    }
    let restored = if loaded.version == config.version {
        handler.restore(&loaded.state)
    } else {
        handler.migrate(loaded.version, &loaded.state)
    };
    restored.map_err(|error| RecoverError::Restore { lsn: loaded.lsn, version: loaded.version, error })?;
    recovery.checkpoint = Some(loaded.lsn);
    Ok(Restored {
        from: loaded.lsn,
        version: Some(loaded.version),
        tables: loaded.tables,
        saved_links: loaded.links,
    })
}

/// The newest checkpoint at or below `at_most` that can be used; those that cannot are named in `passed_over`.
pub(crate) fn newest_checkpoint(
    storage: &mut dyn Storage,
    report: &OpenReport,
    at_most: Lsn,
    passed_over: &mut Vec<(Lsn, CheckpointError)>,
) -> Result<Option<Loaded>, RecoverError> {
    for lsn in checkpoint::positions(storage)?.into_iter().rev() {
        if lsn < report.first || lsn > at_most {
            continue;
        }
        match checkpoint::load(storage, lsn, report.store) {
            // It was published only when the journal was durable beyond it.
            Ok(loaded) if loaded.lsn == lsn && lsn > report.end => {
                return Err(RecoverError::CheckpointAhead {
                    lsn,
                    end: report.end,
                    file: checkpoint::final_name(lsn),
                });
            }
            Ok(loaded) if loaded.lsn == lsn => return Ok(Some(loaded)),
            Ok(_) => passed_over.push((lsn, CheckpointError::Damaged)),
            Err(CheckpointError::OtherVersion { found, expected }) => {
                return Err(RecoverError::CheckpointVersion {
                    file: checkpoint::final_name(lsn),
                    found,
                    expected,
                });
            }
            Err(error) => passed_over.push((lsn, error)),
        }
    }
    Ok(None)
}

/// The newest checkpoint that does not depend on what is lost, in the place of `newest`; those above it are withdrawn, lest a later
/// recovery begin with them.
pub(crate) fn behind_the_loss(
    newest: Option<Loaded>,
    orphaned: &Orphaned,
    config: &Config,
    report: &OpenReport,
    storage: &mut dyn Storage,
    recovery: &mut Recovery,
) -> Result<Option<Loaded>, RecoverError> {
    let lost = orphaned.lost;
    if config.policy.rolls_back() {
        // Its journal does not tell on what it depends through others, and its senders have dropped what it called recoverable.
        return Err(RecoverError::CannotGoBack { lost });
    }
    let mut above = Vec::new();
    let mut chosen = newest;
    while let Some(loaded) = &chosen
        && depends(loaded, orphaned, config, report)?
    {
        above.push(loaded.lsn);
        let at_most = Lsn(loaded.lsn.0.saturating_sub(1));
        chosen = newest_checkpoint(storage, report, at_most, &mut recovery.passed_over)?;
    }
    // What an older checkpoint does not know is only with the senders under a policy that journals no messages, and they have dropped it.
    let replayable = above.is_empty() || config.policy.journals_messages();
    if !replayable || chosen.is_none() && report.first > Lsn::ZERO {
        return Err(RecoverError::CannotGoBack { lost });
    }
    for lsn in above {
        checkpoint::withdraw(storage, lsn)?;
    }
    Ok(chosen)
}

fn depends(
    loaded: &Loaded,
    orphaned: &Orphaned,
    config: &Config,
    report: &OpenReport,
) -> Result<bool, RecoverError> {
    let Some(cluster) = &config.cluster else { return Ok(false) };
    let links = Links::recover(cluster, config, report, &loaded.links)?;
    Ok(links.channel.depends_on_lost(orphaned.lost, &orphaned.ends).is_some())
}
