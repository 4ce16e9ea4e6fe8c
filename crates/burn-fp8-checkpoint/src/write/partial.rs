//! A folder that gets its name only when it is whole.

use std::fs::{self, File};
use std::io::{self, BufWriter, Error, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::error::CheckpointError;

pub(super) const MODEL: &str = "model.safetensors";
pub(super) const CONFIG: &str = "config.json";

/// A folder beside the one that is to be. Unless it gets its name, it is removed.
pub(super) struct Partial<'a> {
    folder: PathBuf,
    beside: PathBuf,
    /// Those that are written.
    files: Vec<&'a str>,
}

impl<'a> Partial<'a> {
    /// Makes an empty folder in place of one that an interrupted write left. `folder` must be new or empty.
    pub(super) fn new(folder: &Path, files: Vec<&'a str>) -> Result<Self, CheckpointError> {
        // The folder itself, where the path is a link to it or relative.
        let folder = fs::canonicalize(folder).unwrap_or_else(|_| folder.into());
        let error = |reason| CheckpointError::write(&folder, reason);
        let Some((parent, name)) = folder.parent().zip(folder.file_name()) else {
            return Err(error(Error::new(ErrorKind::InvalidInput, "it has no name")));
        };
        match fs::read_dir(&folder).map(|mut files| files.next()) {
            Ok(None) => (),
            Ok(Some(file)) => {
                let reason = "it is there already; give a folder that is new or empty";
                let reason = Error::new(ErrorKind::AlreadyExists, reason);
                return Err(CheckpointError::write(&file.map_err(error)?.path(), reason));
            }
            Err(reason) if reason.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(parent).map_err(error)?;
            }
            Err(reason) => return Err(error(reason)),
        }
        let mut beside = name.to_os_string();
        beside.push(".partial");
        let partial = Self { beside: folder.with_file_name(beside), folder, files };
        let made = partial.clear().and_then(|()| fs::create_dir(&partial.beside));
        made.map_err(|reason| CheckpointError::write(&partial.beside, reason))?;
        Ok(partial)
    }

    /// Where it is until it gets its name.
    pub(super) fn path(&self) -> &Path {
        &self.beside
    }

    /// Writes pieces to a file, one after the other, until they are on the disk. The rest of its length is zeros, which take no place on most disks.
    pub(super) fn write<'b>(
        &self,
        file: &str,
        length: usize,
        pieces: impl IntoIterator<Item = &'b [u8]>,
    ) -> Result<(), CheckpointError> {
        let path = self.beside.join(file);
        let write = || {
            let file = File::create(&path)?;
            file.set_len(length as u64)?;
            let mut file = BufWriter::new(file);
            pieces.into_iter().try_for_each(|piece| file.write_all(piece))?;
            file.into_inner().map_err(Error::from)?.sync_all()
        };
        write().map_err(|reason| CheckpointError::write(&path, reason))
    }

    /// Gives it its name.
    pub(super) fn place(self) -> Result<(), CheckpointError> {
        sync(&self.beside);
        fs::rename(&self.beside, &self.folder)
            .map_err(|reason| CheckpointError::write(&self.folder, reason))?;
        if let Some(parent) = self.folder.parent() {
            sync(parent);
        }
        Ok(())
    }

    /// Removes it and the files that are written here, no others.
    fn clear(&self) -> io::Result<()> {
        match fs::symlink_metadata(&self.beside) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Ok(kind) if kind.is_dir() => (),
            _ => return Err(Error::new(ErrorKind::AlreadyExists, "it is no folder; remove it")),
        }
        for file in &self.files {
            match fs::remove_file(self.beside.join(file)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => (),
            }
        }
        fs::remove_dir(&self.beside)
    }
}

impl Drop for Partial<'_> {
    fn drop(&mut self) {
        let _ = self.clear();
    }
}

/// Waits until names of files in a folder are on the disk, where the system can do that.
fn sync(folder: &Path) {
    // A system that cannot has its own ways; the files themselves are written.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
}
