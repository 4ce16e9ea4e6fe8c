//! What the program does.

mod errors;
mod training;

use examples_common::testing::Program;

fn digits() -> Program {
    Program::new(env!("CARGO_BIN_EXE_digits"))
}
