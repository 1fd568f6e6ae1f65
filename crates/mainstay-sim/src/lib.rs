//! The machines of Mainstay under one made clock and one seed, with an oracle beside them.

#![forbid(unsafe_code)]

mod checkpoints;
mod clients;
mod cluster;
pub mod cuts;
mod disk;
mod dying;
mod journal_world;
mod ledger;
mod model;
mod oracle;
mod order;
mod properties;
mod random;
mod reach;
mod receivers;
mod ring;
pub mod run;
mod service;
mod trace;
mod under_way;
mod world;
