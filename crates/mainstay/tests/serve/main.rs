//! Services and nodes against real clients, receivers and kills.

mod contract;
mod crash;
mod messages;
mod ports;
mod shop_on_two_nodes;
mod stopped_peer;
mod support;
mod unreadable;
