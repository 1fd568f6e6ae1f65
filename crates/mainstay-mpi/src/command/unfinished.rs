//! Which ranks did not end as they should, which of them to look at first, and how.

use super::stat::RankStat;
use crate::ending::Cause;
use crate::format::stop_reason;
use crate::payload::Payload;
use std::path::Path;

/// How a rank did not end well, those first that tell most about why a job died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It ended itself: `MPI_Abort`, an exit status, no `MPI_Finalize`.
    Itself,
    /// It was cut off between two calls: a crash, or the launcher killed it there.
    BetweenCalls,
    /// MPI, or a signal's handler, ended it in a call.
    ByMpi,
    /// It was cut off in a call: it waited, most often for one that was dead.
    InCall,
}

/// What is wrong with the end of a rank, if anything is, as far as its log knows.
#[must_use]
pub fn fault(stat: &RankStat) -> Option<Fault> {
    match (stat.ended || stat.left.is_some(), stat.cut_in.is_some()) {
        // How a log ended that is damaged now is not known.
        _ if stat.damage.is_some()
            || stat.stopped.is_some()
            || stat.ended && stat.ending.is_clean()
            || left_well(stat) =>
        {
            None
        }
        (true, false) => Some(Fault::Itself),
        (true, true) => Some(Fault::ByMpi),
        (false, false) => Some(Fault::BetweenCalls),
        (false, true) => Some(Fault::InCall),
    }
}

/// The ranks whose end tells most about why a job died, and how they ended; `None` if all ended well.
#[must_use]
pub fn suspects(stats: &[RankStat]) -> Option<(Fault, Vec<u32>)> {
    let worst = stats.iter().filter_map(fault).min()?;
    let ranks = stats.iter().filter(|stat| fault(stat) == Some(worst)).map(|stat| stat.rank);
    Some((worst, ranks.collect()))
}

/// How a rank's log ends, in words.
#[must_use]
pub fn end_text(stat: &RankStat) -> String {
    if let Some(damage) = &stat.damage {
        return damage.to_string();
    }
    let end = match stat.stopped {
        Some(errno) => format!("recording stopped after call {}: {}", stat.calls, stop_reason(errno)),
        None => end_of_process(stat),
    };
    let end = match stat.not_kept {
        0 => end,
        calls => format!("{end}; {calls} calls before its end are not kept: not replayable"),
    };
    if stat.unhandled.is_empty() {
        return end;
    }
    let names: Vec<String> = stat.unhandled.iter().map(|(name, count)| format!("{count} {name}")).collect();
    format!("{end}; not replayable: {}", names.join(", "))
}

/// Whether it called `_exit` with status 0 once MPI was finalized, as runtimes do that skip what runs at an end.
fn left_well(stat: &RankStat) -> bool {
    let finalized = stat.last_call.as_ref().is_some_and(|(name, _)| name == "MPI_Finalize");
    !stat.ended && stat.left.is_some_and(|status| status & 0xff == 0) && finalized
}

fn end_of_process(stat: &RankStat) -> String {
    let how = match (stat.ended, stat.left) {
        (true, _) if stat.ending.is_clean() => return "ended".to_owned(),
        _ if left_well(stat) => return "ended, with _exit".to_owned(),
        (true, _) => stat.ending.text(),
        (false, Some(status)) => format!("_exit with status {}", status & 0xff),
        (false, None) => "cut off".to_owned(),
    };
    let place = match (&stat.cut_in, &stat.last_call) {
        _ if stat.ending.cause == Cause::Finalized => String::new(),
        (Some((name, call)), _) => format!(" in {name}, call {call}"),
        (None, Some((name, call))) => format!(" after {name}, call {call}"),
        (None, None) => format!(" after call {}", stat.calls),
    };
    format!("{how}{place}")
}

/// The command line that runs a rank again in a debugger; `None` if that cannot be had of it.
#[must_use]
pub fn replay_command(folder: &Path, stat: &RankStat) -> Option<String> {
    let (rank, run) = (stat.rank, shell_word(&folder.display().to_string()));
    if stat.not_kept > 0 || !stat.unhandled.is_empty() {
        return None;
    }
    match stat.payload {
        Payload::Receiver => Some(format!("mainstay mpi replay --rank {rank} --gdb {run}")),
        Payload::Sender => {
            let bundle = shell_word(&format!("{}-rank-{rank}", folder.display()));
            Some(format!(
                "mainstay mpi extract --rank {rank} --output {bundle} {run} && mainstay mpi replay --gdb {bundle}"
            ))
        }
        Payload::None => None,
    }
}

/// A word as a shell is to be given it.
fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=+:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::Ending;

    fn ended(rank: u32, cause: Cause, status: i32) -> RankStat {
        let ending = Ending { cause, status, within: None };
        let last_call = Some(("MPI_Barrier".to_owned(), 9));
        RankStat { rank, ended: true, ending, last_call, ..RankStat::default() }
    }

    fn cut(rank: u32, cut_in: Option<(&str, u64)>) -> RankStat {
        let cut_in = cut_in.map(|(name, call)| (name.to_owned(), call));
        RankStat { ended: false, ending: Ending::default(), cut_in, ..ended(rank, Cause::Unknown, 0) }
    }

    #[test]
    fn who_ended_itself_is_looked_at_before_who_was_ended() {
        let waits = cut(0, Some(("MPI_Recv", 10)));
        let fine = ended(1, Cause::Finalized, 0);
        let crashed = cut(2, None);
        let aborted = ended(3, Cause::Abort, 7);
        let left = RankStat { left: Some(-1), ..cut(4, None) };
        assert_eq!(suspects(std::slice::from_ref(&fine)), None);
        assert_eq!(suspects(&[waits.clone(), fine.clone()]), Some((Fault::InCall, vec![0])));
        let with_crash = [waits.clone(), fine.clone(), crashed.clone()];
        assert_eq!(suspects(&with_crash), Some((Fault::BetweenCalls, vec![2])));
        let all = [waits, fine, crashed, aborted, left];
        assert_eq!(suspects(&all), Some((Fault::Itself, vec![3, 4])));
        let texts: Vec<String> = all.iter().map(end_text).collect();
        assert_eq!(
            texts,
            [
                "cut off in MPI_Recv, call 10",
                "ended",
                "cut off after MPI_Barrier, call 9",
                "MPI_Abort with code 7 after MPI_Barrier, call 9",
                "_exit with status 255 after MPI_Barrier, call 9",
            ]
        );
    }

    #[test]
    fn the_command_can_be_given_to_a_shell() {
        let command = replay_command(Path::new("it's here"), &cut(2, None)).expect("a command");
        assert_eq!(command, r"mainstay mpi replay --rank 2 --gdb 'it'\''s here'");
        let sent = RankStat { payload: Payload::Sender, ..cut(2, None) };
        let command = replay_command(Path::new("run-7"), &sent).expect("a command");
        assert_eq!(
            command,
            "mainstay mpi extract --rank 2 --output run-7-rank-2 run-7 && mainstay mpi replay --gdb run-7-rank-2"
        );
        let partly = RankStat { not_kept: 1, ..cut(2, None) };
        assert_eq!(replay_command(Path::new("run-7"), &partly), None);
    }
}
