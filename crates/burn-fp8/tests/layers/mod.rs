//! FP8 layers: what they compute, their state, which is combined by maximum and never added up unseen, their records, and Burn's `Learner`.

mod attention;
mod attention_golden;
mod balls;
mod cache;
mod learner;
mod models;
mod pointwise;
mod records;
mod saved;
mod standing;
mod state;
