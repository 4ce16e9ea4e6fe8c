//! Checkpoints of the libraries that write them, malformed ones, and made-up ones.

mod bad;
mod common;
mod damage;
mod declared;
mod goldens;
mod hostile;
mod shards;
mod undeclared;
mod write;
