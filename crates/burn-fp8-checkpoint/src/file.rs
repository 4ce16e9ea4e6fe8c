//! Single files: tensors without a configuration, and bytes that are read within limits and written whole.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Error, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::CheckpointError;
use crate::files::Tensors;
use crate::layer::PlainTensor;
use crate::safetensors::{Dtype, TensorInfo, open_regular};
use crate::write::{Part, header, of_name};

/// A safetensors file that stands for itself, such as one of adapters. Opening reads its header; a tensor is read when it is asked for.
#[derive(Debug)]
pub struct TensorFile(Tensors);

impl TensorFile {
    /// Opens a file and checks its header.
    ///
    /// # Errors
    /// [`CheckpointError`] where the file cannot be read, or is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CheckpointError> {
        Tensors::of_file(path.as_ref()).map(Self)
    }

    /// The tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.0.ids().map(|id| self.0.info(id))
    }

    /// Reads a tensor; none where the file has none of this name.
    ///
    /// # Errors
    /// [`CheckpointError`] where its bytes cannot be had.
    pub fn tensor(&self, name: &str) -> Result<Option<PlainTensor>, CheckpointError> {
        self.0.find(name).map(|id| self.0.plain(id)).transpose()
    }

    /// Writes a file of these tensors, each with its little-endian bytes, row by row; whole or not at all.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`] where two tensors have one name, or the bytes of one are not those of its type and shape; [`CheckpointError::Io`] where the file cannot be written.
    pub fn write<'a>(
        path: impl AsRef<Path>,
        tensors: impl IntoIterator<Item = (&'a str, Dtype, &'a [usize], &'a [u8])>,
    ) -> Result<(), CheckpointError> {
        let (mut parts, mut names) = (vec![], BTreeSet::from(["__metadata__"]));
        for (name, dtype, shape, bytes) in tensors {
            if !names.insert(name) {
                let expected = "a name of its own, which is not safetensors' metadata's";
                return Err(CheckpointError::invalid(of_name(name), "it twice", expected));
            }
            parts.push(Part::new(name, dtype, shape, bytes)?);
        }
        let mut bytes = header(&mut parts);
        parts.iter().for_each(|part| bytes.extend_from_slice(part.bytes()));
        let path = path.as_ref();
        write_file(path, &bytes).map_err(|reason| CheckpointError::write(path, reason))
    }
}

/// Reads a regular file. Of other kinds, to open a pipe would wait for its other end.
///
/// # Errors
/// [`ErrorKind::FileTooLarge`] where it has more bytes than `limit`, [`ErrorKind::InvalidInput`] where it is a folder, a pipe or a device; and what the system says.
pub fn read_file(path: impl AsRef<Path>, limit: u64) -> io::Result<Vec<u8>> {
    let (file, _) = open_regular(path.as_ref())?;
    let mut bytes = Vec::new();
    // Bounded while reading: the file may grow meanwhile.
    match file.take(limit.saturating_add(1)).read_to_end(&mut bytes)? as u64 > limit {
        true => Err(Error::new(ErrorKind::FileTooLarge, format!("more than {limit} bytes"))),
        false => Ok(bytes),
    }
}

/// Writes a file beside its place and moves it there: what was there before is replaced by the whole file or stays. A link stays one: what it leads to is replaced.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] where a folder, a pipe or a device is there: a file in its place would be its end; and what the system says.
pub fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
    let place = place(path.as_ref())?;
    let name = place
        .file_name()
        .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "this is no name of a file"))?;
    // A name of its own for every writer.
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let write = WRITES.fetch_add(1, Ordering::Relaxed);
    let mut beside = name.to_os_string();
    beside.push(format!(".{}-{write}.partial", std::process::id()));
    let beside = place.with_file_name(beside);
    let written = File::create_new(&beside)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&beside, &place));
    written.inspect_err(|_| drop(fs::remove_file(&beside)))
}

/// Where a file of this path lies, or will lie.
fn place(path: &Path) -> io::Result<PathBuf> {
    match fs::symlink_metadata(path) {
        Err(reason) if reason.kind() == ErrorKind::NotFound => return Ok(path.into()),
        Err(reason) => return Err(reason),
        Ok(_) => open_regular(path)?,
    };
    fs::canonicalize(path)
}
