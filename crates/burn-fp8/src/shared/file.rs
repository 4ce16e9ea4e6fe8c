//! Files: read within limits, written whole or not at all.

use std::io::ErrorKind;
use std::path::Path;

use burn_fp8_checkpoint::{read_file, write_file};

use crate::Fp8Error;

/// Reads a regular file of at most `limit` bytes.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Fp8Error> {
    read_file(path, limit).map_err(|reason| match reason.kind() {
        ErrorKind::FileTooLarge => Fp8Error::TooLarge { path: path.into(), limit },
        _ => Fp8Error::Io { action: "read", path: path.into(), reason },
    })
}

/// Writes a file: what was there before is replaced by the whole file or stays.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Fp8Error> {
    write_file(path, bytes).map_err(|reason| Fp8Error::Io {
        action: "write",
        path: path.into(),
        reason,
    })
}
