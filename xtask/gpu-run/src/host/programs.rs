//! Whether this machine's C library can load the programs of an archive.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::host::search::Search;
use crate::process;

/// Asks the loader, by ldd, for everything that lies in `bin/`.
pub fn check(search: &mut Search, archive: &Path) {
    let Ok(entries) = fs::read_dir(archive.join("bin")) else { return };
    let mut programs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    programs.sort();
    let mut command = Command::new("ldd");
    command.args(programs);
    let Ok(output) = process::output(&mut command, Duration::from_secs(60)) else {
        search.note("no ldd: it was not checked that the programs can be loaded");
        return;
    };
    let unresolved = unresolved(&output.text);
    if !unresolved.is_empty() {
        search.need(
            "a newer C library",
            format!(
                "the programs cannot be loaded: {}; use a newer Linux, or build there: cargo xtask gpu",
                unresolved.join("; ")
            ),
        );
    }
}

/// The lines of ldd that name what is not there, each once.
fn unresolved(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> =
        text.lines().filter(|line| line.contains("not found")).map(str::trim).collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use super::unresolved;

    #[test]
    fn what_the_loader_does_not_find_is_named_once() {
        let text = "/a/bin/x: /lib/libc.so.6: version `GLIBC_2.34' not found (required by /a/bin/x)\n\
            \tlibm.so.6 => /lib/libm.so.6 (0x00007f)\n\
            \tlibgcc_s.so.1 => not found\n\
            /a/bin/y:\n\
            \tlibgcc_s.so.1 => not found\n";
        assert_eq!(
            unresolved(text),
            [
                "/a/bin/x: /lib/libc.so.6: version `GLIBC_2.34' not found (required by /a/bin/x)",
                "libgcc_s.so.1 => not found"
            ]
        );
    }
}
