//! What a log tells.

use std::path::Path;

/// What a phase has printed; nothing, if that cannot be read.
pub fn read(path: &Path) -> String {
    std::fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

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

#[cfg(test)]
mod tests {
    use super::telling;

    #[test]
    fn a_failure_is_told_by_few_lines() {
        let log = "running 2 tests\ntest a ... ok\ntest b ... FAILED\nthread 'b' panicked at x.rs:1:\nleft\n  right: 2\nerror: test\n\
            | row | MISSED |\n";
        let lines: Vec<_> = telling(log).collect();
        assert_eq!(
            lines,
            [
                "test b ... FAILED",
                "thread 'b' panicked at x.rs:1:",
                "  right: 2",
                "error: test",
                "| row | MISSED |"
            ]
        );
        assert_eq!(telling(&"error\n".repeat(30)).count(), 20);
    }
}
