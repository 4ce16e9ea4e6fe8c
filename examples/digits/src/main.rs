//! `digits --help` tells.

use std::process::ExitCode;

// All is in the library: it is compiled while the crates that it needs still are, and only the program has to wait for them.
fn main() -> ExitCode {
    digits::main()
}
