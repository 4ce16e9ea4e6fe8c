//! Every kernel on the host, with every unit and every set of vector instructions that the machine has: against definitions in f64, golden data of
//! other libraries, and crates that do the same.

mod amx;
mod attention;
mod bf16;
mod block_scales;
mod blocks;
mod columns;
mod common;
mod conversions;
mod decoder;
mod epilogue;
mod errors;
mod exact;
mod moments;
mod norm;
mod pointwise;
mod rows;
mod shapes;
mod softmax;
mod special;
mod stress;
mod sums;
mod threads;
mod token;
mod units;
