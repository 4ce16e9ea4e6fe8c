//! Delayed scaling in the decorator.

mod files;
mod scales;
mod sites;
mod steps;
mod weights;
