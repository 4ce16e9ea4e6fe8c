//! The product of two matrices of codes, block by block.
//!
//! A result is cut into parts, one for each task. A task goes through K block by block: it packs the codes of its rows and of its columns
//! into panels of bf16, in its thread's scratch memory, and has the unit add the product of each pair of panels to its sums. What is added
//! to a sum, and in which order, depends on K alone: not on the number of threads, nor on how the result was cut.

mod scratch;
mod task;

pub(crate) use task::run;
