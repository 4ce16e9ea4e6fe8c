//! Files: read within limits, written whole or not at all.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::error::Fp8Error;

/// The largest file of weights that is read, in bytes.
pub(crate) const MAX_WEIGHTS: u64 = 1 << 36;

/// Reads a file of at most `limit` bytes.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Fp8Error> {
    // Bounded while reading: devices and pipes do not tell their size.
    let bytes = read_up_to(path, limit + 1)?;
    if bytes.len() as u64 > limit {
        return Err(Fp8Error::TooLarge { path: path.into(), limit });
    }
    Ok(bytes)
}

/// Reads a safetensors file of at most `limit` bytes, unless its first bytes show that it is none: such files may be huge.
pub(crate) fn read_safetensors(path: &Path, limit: u64) -> Result<Vec<u8>, Fp8Error> {
    let head = read_up_to(path, 9)?;
    let length = head.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    let size = fs::metadata(path).map(|metadata| metadata.len()).unwrap_or(u64::MAX);
    // The length of the header, then the header, a JSON object.
    let fits = length.is_some_and(|length| length.saturating_add(8) <= size);
    if !fits || head.get(8) != Some(&b'{') {
        let reason = "not a complete safetensors file (no header at its start)".into();
        return Err(Fp8Error::InvalidState { path: path.into(), reason });
    }
    read(path, limit)
}

fn read_up_to(path: &Path, bytes: u64) -> Result<Vec<u8>, Fp8Error> {
    let io = |reason| Fp8Error::Io { action: "read", path: path.into(), reason };
    let mut start = Vec::new();
    File::open(path).map_err(io)?.take(bytes).read_to_end(&mut start).map_err(io)?;
    Ok(start)
}

/// Writes a file beside its place and moves it there: what was there before is replaced by the whole file or stays.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Fp8Error> {
    let io = |reason| Fp8Error::Io { action: "write", path: path.into(), reason };
    let name = path.file_name().ok_or_else(|| {
        io(std::io::Error::new(std::io::ErrorKind::InvalidInput, "this is no name of a file"))
    })?;
    // A name of its own for every writer.
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let write = WRITES.fetch_add(1, Ordering::Relaxed);
    let mut beside = name.to_os_string();
    beside.push(format!(".{}-{write}.partial", std::process::id()));
    let beside: PathBuf = path.with_file_name(beside);
    let written = File::create_new(&beside)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&beside, path));
    written.map_err(|reason| {
        let _ = fs::remove_file(&beside);
        io(reason)
    })
}

/// Numbers as a safetensors file holds them.
pub(crate) fn little_endian(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// F32 `[len]`, if it is there.
pub(crate) fn numbers(
    tensors: &SafeTensors,
    key: &str,
    len: usize,
) -> Result<Option<Vec<f32>>, String> {
    of_shapes(tensors, key, &[&[len]], &format!("F32 [{len}]"))
}

/// One number: F32 `[1]`, or without dimensions, as other programs write it; if it is there.
pub(crate) fn number(tensors: &SafeTensors, key: &str) -> Result<Option<f32>, String> {
    let number = of_shapes(tensors, key, &[&[1], &[]], "F32 [1] or []")?;
    Ok(number.map(|number| number[0]))
}

fn of_shapes(
    tensors: &SafeTensors,
    key: &str,
    shapes: &[&[usize]],
    expected: &str,
) -> Result<Option<Vec<f32>>, String> {
    let Ok(view) = tensors.tensor(key) else {
        return Ok(None);
    };
    if view.dtype() != Dtype::F32 || !shapes.contains(&view.shape()) {
        return Err(unexpected(key, &view, expected));
    }
    let bytes = view.data().chunks_exact(4);
    Ok(Some(bytes.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()))
}

/// Says what a tensor of a file is, and what it should be.
pub(crate) fn unexpected(key: &str, view: &TensorView, expected: &str) -> String {
    format!("`{key}` is {:?} {:?}, not {expected}", view.dtype(), view.shape())
}
