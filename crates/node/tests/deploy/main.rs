//! Networked runs without a network: crashes at every storage step, every fault of a network, every
//! lie of a server, all in one thread and repeatable.

mod attack;
mod budget;
mod consent;
mod copies;
mod crashes;
mod faults;
mod files;
mod hostile;
mod lies;
mod records;
mod several;
mod shapes;
mod streams;
mod world;
