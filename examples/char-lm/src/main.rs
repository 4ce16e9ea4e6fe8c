//! `char-lm --help` tells.

use std::process::ExitCode;

fn main() -> ExitCode {
    char_lm::main()
}
