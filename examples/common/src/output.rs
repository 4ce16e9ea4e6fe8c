//! What programs print and write.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

/// Prints to stdout. Not `print!`, which panics where the reader of a pipe has gone: that is no error here.
///
/// # Errors
/// Where stdout cannot be written for another reason.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to stdout"),
    }
}

/// A table in one of comfy-table's presets: numbers on the right, what is in the columns `left` on the left.
pub fn table<const N: usize>(
    preset: &str,
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    left: &[usize],
) -> Table {
    let mut table = Table::new();
    table.load_preset(preset).set_header(header).add_rows(rows);
    for (_, column) in
        table.column_iter_mut().enumerate().filter(|(index, _)| !left.contains(index))
    {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Writes a file as a whole: a killed process leaves the old one or the new one. What is there and no file, `/dev/stdout` or a pipe, takes what it is given, and
/// where a link leads to a file, that is replaced.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let write = || match place(path)? {
        Some(place) => {
            let new = beside(&place);
            let written = fs::write(&new, content).and_then(|()| fs::rename(&new, &place));
            written.inspect_err(|_| drop(fs::remove_file(&new)))
        }
        None => fs::write(path, content),
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Whether [`write()`] will find a place for the file: asked before long work, not after it. Makes the folder.
pub fn check_place(path: &Path) -> Result<()> {
    let check = || match place(path)? {
        Some(place) => {
            let new = beside(&place);
            let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty());
            let made = folder.map_or(Ok(()), fs::create_dir_all);
            made.and_then(|()| fs::write(&new, "")).and_then(|()| fs::remove_file(&new))
        }
        None => Ok(()),
    };
    check().with_context(|| format!("cannot write {}", path.display()))
}

/// Where a file is, or will be; none where there is something that is no file.
fn place(path: &Path) -> io::Result<Option<PathBuf>> {
    match fs::metadata(path) {
        Ok(kind) if kind.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(kind) if kind.is_file() => fs::canonicalize(path).map(Some),
        Ok(_) => Ok(None),
        Err(_) => Ok(Some(path.into())),
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    new.into()
}

/// Writes a file of JSON as [`write()`] does.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<()> {
    write(path, serde_json::to_string_pretty(value)? + "\n")
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;
    use std::thread;

    use super::*;

    /// Pipes and links stay what they are, and take what is written.
    #[test]
    fn what_is_no_file_is_not_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        assert!(Command::new("mkfifo").arg(at("pipe")).status().expect("mkfifo").success());
        let pipe = at("pipe");
        let reader = thread::spawn(move || fs::read_to_string(pipe));
        check_place(&at("pipe")).expect("it can be written to");
        write(&at("pipe"), "through it").expect("written");
        assert_eq!(reader.join().expect("ran").expect("read"), "through it");

        fs::write(at("file"), "old").expect("written");
        symlink("file", at("link")).expect("made");
        check_place(&at("link")).expect("it can be written to");
        write(&at("link"), "new").expect("written");
        assert!(fs::symlink_metadata(at("link")).expect("there").is_symlink());
        assert_eq!(fs::read_to_string(at("file")).expect("there"), "new");

        fs::create_dir(at("folder")).expect("made");
        for result in [check_place(&at("folder")), write(&at("folder"), "")] {
            assert!(format!("{:#}", result.expect_err("a folder")).contains("cannot write"));
        }
        assert_eq!(fs::read_dir(folder.path()).expect("there").count(), 4, "nothing beside");
    }

    #[test]
    fn a_place_in_a_new_folder_is_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new/newer/result");
        check_place(&path).expect("a place");
        assert!(path.parent().is_some_and(Path::exists) && !path.exists());
        write(&path, "result").expect("written");
        check_place(Path::new("a-result-without-a-folder")).expect("here");
        let error = check_place(&path.join("result")).expect_err("it lies in a file");
        assert!(error.to_string().contains("new/newer/result/result"), "{error}");
    }
}
