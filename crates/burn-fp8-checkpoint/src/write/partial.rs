//! Files that get their names only when they are whole.

use std::fs::{self, File};
use std::io::{BufWriter, Error, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::CheckpointError;

/// A file under another name. Unless it is given its own, it is removed.
pub(super) struct Partial {
    path: PathBuf,
    beside: PathBuf,
    is_placed: bool,
}

impl Partial {
    /// Writes pieces one after the other, beside `path`, until they are on the disk.
    pub(super) fn write<'a>(
        path: PathBuf,
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Self, CheckpointError> {
        // A name of its own for every writer.
        static WRITES: AtomicU64 = AtomicU64::new(0);
        let write = WRITES.fetch_add(1, Ordering::Relaxed);
        let mut beside = path.clone().into_os_string();
        beside.push(format!(".{}-{write}.partial", std::process::id()));
        let file = File::create_new(&beside).map_err(|e| CheckpointError::write(&path, e))?;
        let partial = Self { path, beside: beside.into(), is_placed: false };
        let mut file = BufWriter::new(file);
        let mut written = pieces.into_iter().try_for_each(|piece| file.write_all(piece));
        written = written.and_then(|()| file.into_inner().map_err(Error::from)?.sync_all());
        written.map_err(|reason| CheckpointError::write(&partial.path, reason))?;
        Ok(partial)
    }

    /// Gives it its name.
    pub(super) fn place(mut self) -> Result<(), CheckpointError> {
        fs::rename(&self.beside, &self.path)
            .map_err(|reason| CheckpointError::write(&self.path, reason))?;
        self.is_placed = true;
        Ok(())
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = fs::remove_file(&self.beside);
        }
    }
}

/// Waits until names of files in a folder are on the disk, where the system can do that.
pub(super) fn sync_folder(folder: &Path) {
    // A system that cannot has its own ways; the files themselves are written.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::Partial;

    #[test]
    fn a_file_without_its_name_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let files = || fs::read_dir(folder.path()).unwrap().count();
        let path = folder.path().join("a");
        let partial = Partial::write(path.clone(), [&b"12"[..], b"3"]).unwrap();
        assert!(!path.exists());
        assert_eq!(files(), 1);
        drop(partial);
        assert_eq!(files(), 0);

        Partial::write(path.clone(), [&b"12"[..], b"3"]).unwrap().place().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"123");
        assert_eq!(files(), 1);

        // A folder cannot be replaced by a file.
        let taken = folder.path().join("b");
        fs::create_dir(&taken).unwrap();
        assert!(Partial::write(taken, [&b"1"[..]]).unwrap().place().is_err());
        assert_eq!(files(), 2);
    }
}
