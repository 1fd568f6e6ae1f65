//! Drives the real binary, as a user does: one program of tests, one file per command.

mod arbiter;
mod bad_input;
mod bench;
mod cert;
mod demo;
mod full_disk;
mod harness;
mod hosts;
mod journal;
mod keep;
mod mpi;
mod mpi_damage;
mod nodes;
mod outputs;
mod places;
mod redis_clients;
mod region;
mod resp;
mod roles;
mod serve;
mod sim;
mod snapshot;
mod subscribing;
mod topology;
mod transport;
