//! What all benchmarks are told, and how each goes through its figures.

use crate::arenas;
use crate::machine::{self, StolenTime};
use crate::report::Report;
use crate::scratch::Scratch;
use std::io;
use std::path::{Path, PathBuf};

/// How to run, whatever is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the scratch directory is made: on the disk to be measured.
    pub directory: PathBuf,
    /// Answer within 40 seconds, with fewer samples.
    pub quick: bool,
    /// Only the figures whose name contains this; all when empty.
    pub only: String,
}

/// What every figure of a benchmark is measured in.
pub(crate) struct Setting<'a, T: ?Sized> {
    /// The scratch directory.
    pub(crate) directory: &'a Path,
    pub(crate) quick: bool,
    /// What this benchmark alone is told.
    pub(crate) given: &'a T,
    progress: &'a dyn Fn(&str),
}

/// One figure, or a few that are measured together.
pub(crate) struct Part<T: ?Sized, E> {
    pub(crate) name: &'static str,
    pub(crate) measure: fn(&Setting<'_, T>, &mut Report) -> Result<(), E>,
}

impl<T: ?Sized> Setting<'_, T> {
    /// One of two values: for the short form, for the long one.
    pub(crate) fn choose<V>(&self, quick: V, full: V) -> V {
        if self.quick { quick } else { full }
    }

    /// Says what comes next, within a part that takes long.
    pub(crate) fn say(&self, next: &str) {
        (self.progress)(next);
    }
}

/// Measures the parts that were asked for; `progress` is told what comes next.
///
/// # Errors
/// The first part's that fails, and those of making the scratch directory; it is removed all the same.
pub(crate) fn run<T: ?Sized, E: From<io::Error>>(
    bench: &'static str,
    options: &Options,
    given: &T,
    parts: &[Part<T, E>],
    progress: &dyn Fn(&str),
) -> Result<Report, E> {
    arenas::one_for_each_thread();
    let scratch = Scratch::create(&options.directory)?;
    let mut report = Report {
        bench,
        machine: machine::describe(scratch.path()),
        quick: options.quick,
        modelled: "nothing",
        figures: Vec::new(),
        tables: Vec::new(),
        targets: Vec::new(),
    };
    let setting = Setting { directory: scratch.path(), quick: options.quick, given, progress };
    for part in parts.iter().filter(|part| part.name.contains(&options.only)) {
        progress(part.name);
        let (before, first) = (StolenTime::read(), report.figures.len());
        (part.measure)(&setting, &mut report)?;
        if let Some(percent) =
            before.zip(StolenTime::read()).and_then(|(before, now)| now.percent_since(before))
        {
            let note = format!("the host took {percent:.1} % of the processors' time meanwhile (steal)");
            report.figures[first..].iter_mut().for_each(|figure| figure.notes.push(note.clone()));
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn only_the_parts_that_were_asked_for_are_measured_and_nothing_is_left_behind() {
        let parts = ["ping-pong", "pipeline"].map(|name| Part::<u32, io::Error> {
            name,
            measure: |setting, report| {
                assert!(setting.directory.is_dir());
                report.modelled = if *setting.given == 7 { "seven" } else { "another" };
                Ok(())
            },
        });
        let folder = Scratch::create(&std::env::temp_dir()).expect("a folder");
        let options = Options { directory: folder.path().to_owned(), quick: true, only: "pipe".to_owned() };
        let said = RefCell::new(Vec::new());
        let report = run("test", &options, &7, &parts, &|next| said.borrow_mut().push(next.to_owned()));
        assert_eq!(report.expect("nothing fails").modelled, "seven");
        assert_eq!(*said.borrow(), ["pipeline"]);
        assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count(), 0);
    }
}
