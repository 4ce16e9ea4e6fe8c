//! Where a result cannot be written, that is told before it is measured.

use examples_common::testing::Program;

#[test]
fn places_are_checked_before_the_measurement() {
    for path in [env!("CARGO_BIN_EXE_break-even"), env!("CARGO_BIN_EXE_memory")] {
        let program = Program::new(path);
        program.write("file", "");
        // It has one line on stderr, and nothing on stdout.
        program.fails("--picture file/picture.svg", &["cannot write file/picture.svg"]);
    }
    let bench = Program::new(env!("CARGO_BIN_EXE_burn-fp8-bench"));
    bench.write("file", "");
    for flag in ["--json", "--picture"] {
        bench.fails(
            &format!("--only slices --elements 1024 {flag} file/result"),
            &["cannot write file/result"],
        );
    }
}
