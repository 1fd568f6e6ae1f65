//! The machines of Mainstay under one made clock and one seed, with an oracle beside them.

#![forbid(unsafe_code)]

pub mod campaign;
mod checkpoints;
mod clients;
mod cluster;
pub mod cuts;
mod disk;
mod dying;
pub mod exercise;
pub mod exercise_of_nodes;
mod group;
mod journal_world;
mod ledger;
mod model;
mod oracle;
mod order;
mod plan;
mod properties;
mod quiet;
pub mod random;
mod reach;
mod receivers;
mod region;
mod replica;
mod ring;
pub mod run;
mod service;
mod story;
mod subject;
mod trace;
mod under_way;
mod world;
