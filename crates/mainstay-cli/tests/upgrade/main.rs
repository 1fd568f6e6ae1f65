//! Two versions of a service, each a binary of its own, over one directory: replay, status, migration, upgrade.
//!
//! This program is the service as well: under the name `saver-1`, `saver-2`, … it is that version of it, and runs the tests
//! under its own. So the tests start, kill and replace real binaries, whose command line is that of every service.

mod check;
mod cluster;
mod exchange;
mod instances;
mod replay;
mod saver;
mod served;
mod status;

use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = saver::run_if_named_so() {
        return code;
    }
    let trials = [
        check::trials(),
        cluster::trials(),
        exchange::trials(),
        instances::trials(),
        replay::trials(),
        status::trials(),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials.into_iter().flatten().collect()).exit_code()
}

/// A test by its name.
fn trial(name: &'static str, test: fn()) -> Trial {
    Trial::test(name, move || {
        test();
        Ok::<(), Failed>(())
    })
}
