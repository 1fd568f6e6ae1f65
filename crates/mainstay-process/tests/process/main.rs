//! The process, stepped by hand: no port, no disk, no clock but the test's.

mod cluster;
mod cluster_scenarios;
mod full_disk;
mod keeper;
mod kept;
mod line;
mod newest;
mod output_commit;
mod recovery;
mod support;
mod upgrade;
