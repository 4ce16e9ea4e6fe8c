//! What runs on a GPU host, on hosts that are made up: what it finds missing, what it runs, and how it ends.
#![cfg(target_os = "linux")]

mod checks;
mod host;
mod running;
