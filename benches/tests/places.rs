//! Where a result cannot be written, that is told before it is measured.

use examples_common::testing::Program;

#[test]
fn places_are_checked_before_the_measurement() {
    let bench = Program::new(env!("CARGO_BIN_EXE_burn-fp8-bench"));
    bench.write("file", "");
    // It has one line on stderr, and nothing on stdout.
    let arguments = "--only slices --elements 1024 --json file/result";
    bench.fails(arguments, &["cannot write file/result"]);
}
