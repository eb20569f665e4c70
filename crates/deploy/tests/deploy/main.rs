//! Networked runs without a network: crashes at every storage step, every fault of a network, every
//! lie of a server, all in one thread and repeatable.

mod attack;
mod budget;
mod consent;
mod crashes;
mod exchange;
mod faults;
mod files;
mod harness;
mod malicious_clients;
mod malicious_server;
mod records;
mod several;
mod shapes;
mod stale_state;
mod streams;
