//! What a log tells.

/// The lines that say most of a failure, twenty at most; all of the log is in the folder.
pub fn telling(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| is_telling(line)).take(20)
}

fn is_telling(line: &str) -> bool {
    ["error", "ERROR", "  "].iter().any(|begin| line.starts_with(begin))
        || (line.starts_with("test ") && line.contains(" FAILED"))
        || (line.starts_with("thread ") && line.contains(" panicked"))
        || line.contains("MISSED")
        || line.contains("TOO LARGE")
}

/// Failures whose cause is known: what is all in one log, and what the report says. The first that fits is taken.
const KNOWN: [(&[&str], &str); 6] = [
    (
        &["version `GLIBC_", "not found"],
        "the programs need a newer C library; use a newer Linux, or build there: cargo xtask gpu",
    ),
    (
        &["Unable to dynamically load the \"cuda\""],
        "there is no libcuda.so.1, the NVIDIA driver's; in a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ),
    (
        &["CUDA_ERROR_UNSUPPORTED_PTX_VERSION"],
        "NVRTC is newer than the driver, which does not load its PTX",
    ),
    // CubeCL then looks for memory that it never got, and panics as below: https://github.com/tracel-ai/cubecl/issues/1401,
    // comment of 2026-07-18.
    (&["CUDA_ERROR_OUT_OF_MEMORY"], "the device has no memory left"),
    (&["can't allocate buffer of size"], "the device has no memory left"),
    (
        &["couldn't find resource for that handle", "Memory page ", " doesn't exist"],
        "upstream, CubeCL 0.10 looks for memory under an old number: tracel-ai/cubecl issue 1401",
    ),
];

/// The cause of a failure, if its log shows one that is known.
pub fn cause(log: &str) -> Option<&'static str> {
    let known = KNOWN.iter().find(|(marks, _)| marks.iter().all(|mark| log.contains(mark)));
    known.map(|(_, cause)| *cause)
}

/// The line in which compute-sanitizer says that it cannot work here: a container may not allow it, and it knows certain devices only.
pub fn refusal(text: &str) -> Option<&str> {
    let marks = ["internal sanitizer error", "unable to", "not supported", "no attachable process"];
    text.lines().find(|line| {
        let line = line.to_lowercase();
        line.starts_with("=========") && marks.iter().any(|mark| line.contains(mark))
    })
}

#[cfg(test)]
mod tests {
    use super::{cause, refusal, telling};

    #[test]
    fn a_failure_is_told_by_few_lines() {
        let log = "running 2 tests\ntest a ... ok\ntest b ... FAILED\nthread 'b' panicked at x.rs:1:\nleft\n  right: 2\nerror: test\n\
            | row | MISSED |\n";
        let lines: Vec<_> = telling(log).collect();
        let told =
            ["test b ... FAILED", "thread 'b' panicked at x.rs:1:", "  right: 2", "error: test"];
        assert_eq!(lines, [&told[..], &["| row | MISSED |"]].concat());
        assert_eq!(telling(&"error\n".repeat(30)).count(), 20);
    }

    /// As the issue quotes it.
    const STALE_PAGE: &str = "thread 'DSD-0-0' panicked at cubecl-cuda-0.10.0/src/compute/stream.rs:101:\n\
        called `Result::unwrap()` on an `Err` value:\n\
        couldn't find resource for that handle: Memory page 0 doesn't exist\n";

    /// What follows from a device without memory is no bug of CubeCL's.
    #[test]
    fn a_stale_page_is_upstream_unless_there_was_no_memory() {
        assert!(cause(STALE_PAGE).unwrap().contains("issue 1401"));
        let log = format!("can't allocate buffer of size: 17179869184\n{STALE_PAGE}");
        assert_eq!(cause(&log), Some("the device has no memory left"));
        assert_eq!(cause("thread 'main' panicked at tests/gpu/main.rs:1:\nleft: 1"), None);
    }

    #[test]
    fn what_is_too_new_or_too_old_is_named() {
        let log = "Unable to load the PTX: DriverError(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, \"the \
            provided PTX was compiled with an unsupported toolchain.\")";
        assert!(cause(log).unwrap().starts_with("NVRTC is newer"));
        let log = "/a/bin/x: /lib/libc.so.6: version `GLIBC_2.38' not found (required by /a/bin/x)";
        assert!(cause(log).unwrap().contains("newer C library"));
    }

    #[test]
    fn a_sanitizer_that_cannot_work_says_so() {
        let line = "========= Error: Target application terminated before first instrumented API call, unable to attach";
        assert_eq!(refusal(&format!("something\n{line}\nmore")), Some(line));
        assert_eq!(refusal("========= ERROR SUMMARY: 0 errors\nunable to\n"), None);
    }
}
