//! What the program does, and what is told of what it did.

mod compare;
mod errors;
#[cfg(feature = "mpi")]
mod peers;
mod results;
mod resume;
mod training;

use examples_common::testing::Program;

fn char_lm() -> Program {
    Program::new(env!("CARGO_BIN_EXE_char-lm"))
}
