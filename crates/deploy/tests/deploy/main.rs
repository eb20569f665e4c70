//! Networked runs without a network: crashes at every storage step, every fault of a network, every
//! lie of a server, all in one thread and repeatable.

mod attack;
mod books;
mod budget;
mod consent;
mod crashes;
mod downlink;
mod exchange;
mod faults;
mod files;
mod harness;
mod malicious_clients;
mod malicious_server;
mod persons;
mod records;
mod releases;
mod several;
mod shapes;
mod stale_state;
mod streams;
