//! What needs no device: plans and their rules, descriptors, the cache of plans, and libraries that are not there.

mod cache;
mod common;
mod descriptors;
mod missing;
mod plan;
mod rules;
