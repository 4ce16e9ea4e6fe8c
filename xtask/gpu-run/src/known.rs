//! Failures whose cause is known, by what they print.

/// A failure that others have had.
struct Known {
    /// All of them are in one log.
    marks: &'static [&'static str],
    /// What the report says.
    cause: &'static str,
}

/// The first that fits is taken.
const KNOWN: [Known; 4] = [
    Known {
        marks: &["CUDA_ERROR_UNSUPPORTED_PTX_VERSION"],
        cause: "NVRTC is newer than the driver, which does not load its PTX",
    },
    // CubeCL then looks for memory that it never got, and panics as below: https://github.com/tracel-ai/cubecl/issues/1401,
    // comment of 2026-07-18.
    Known { marks: &["CUDA_ERROR_OUT_OF_MEMORY"], cause: "the device has no memory left" },
    Known { marks: &["can't allocate buffer of size"], cause: "the device has no memory left" },
    Known {
        marks: &["couldn't find resource for that handle", "Memory page ", " doesn't exist"],
        cause: "upstream, CubeCL 0.10 looks for memory under an old number: tracel-ai/cubecl issue 1401",
    },
];

/// The cause of a failure, if its log shows one that is known.
pub fn cause(log: &str) -> Option<&'static str> {
    let known = KNOWN.iter().find(|known| known.marks.iter().all(|mark| log.contains(mark)));
    known.map(|known| known.cause)
}

#[cfg(test)]
mod tests {
    use super::cause;

    /// As the issue quotes it.
    const STALE_PAGE: &str = "thread 'DSD-0-0' panicked at cubecl-cuda-0.10.0/src/compute/stream.rs:101:\n\
        called `Result::unwrap()` on an `Err` value:\n\
        couldn't find resource for that handle: Memory page 0 doesn't exist\n";

    #[test]
    fn a_stale_page_is_upstream() {
        assert!(cause(STALE_PAGE).unwrap().contains("issue 1401"));
        assert_eq!(cause("thread 'main' panicked at tests/gpu/main.rs:1:\nleft: 1"), None);
    }

    /// What follows from a device without memory is no bug of CubeCL's.
    #[test]
    fn a_stale_page_after_the_last_memory_is_not() {
        let log = format!("can't allocate buffer of size: 17179869184\n{STALE_PAGE}");
        assert_eq!(cause(&log), Some("the device has no memory left"));
    }

    #[test]
    fn an_nvrtc_that_is_too_new_is_named() {
        let log = "Unable to load the PTX: DriverError(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, \"the \
            provided PTX was compiled with an unsupported toolchain.\")";
        assert!(cause(log).unwrap().starts_with("NVRTC is newer"));
    }
}
