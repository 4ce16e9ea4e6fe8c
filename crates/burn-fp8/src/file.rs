//! Files: read within limits, written whole or not at all.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Error, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use burn_fp8_core::text::shown;
use safetensors::tensor::{Metadata, TensorView};
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use crate::Fp8Error;

/// The largest file of weights that is read, in bytes.
pub(crate) const MAX_WEIGHTS: u64 = 1 << 36;

/// The longest header of a safetensors file that is written or read, in bytes: parsing it takes many times its memory. A tensor takes some 130 bytes of
/// it: all 58 × 256 experts of DeepSeek-V3, three matrices each with their scales, would take 12 MB in one file.
const MAX_HEADER: u64 = 1 << 24;

/// Reads a regular file of at most `limit` bytes.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Vec<u8>, Fp8Error> {
    let mut bytes = Vec::new();
    read_on(&mut open(path)?, path, &mut bytes, limit + 1)?;
    if bytes.len() as u64 > limit {
        return Err(Fp8Error::TooLarge { path: path.into(), limit });
    }
    Ok(bytes)
}

/// Opens a regular file. Other kinds are refused before that: to open a pipe waits for its other end.
fn open(path: &Path) -> Result<File, Fp8Error> {
    let io = |reason| Fp8Error::Io { action: "read", path: path.into(), reason };
    require_regular(path).map_err(io)?;
    File::open(path).map_err(io)
}

fn require_regular(path: &Path) -> io::Result<()> {
    match fs::metadata(path)?.is_file() {
        true => Ok(()),
        false => {
            let reason = "it is a folder, a pipe or a device; give a regular file";
            Err(Error::new(ErrorKind::InvalidInput, reason))
        }
    }
}

/// Reads on until there are `length` bytes, or the file ends. Bounded while reading: the file may grow meanwhile.
fn read_on(file: &mut File, path: &Path, bytes: &mut Vec<u8>, length: u64) -> Result<(), Fp8Error> {
    let read = file.take(length - bytes.len() as u64).read_to_end(bytes);
    read.map(drop).map_err(|reason| Fp8Error::Io { action: "read", path: path.into(), reason })
}

/// A safetensors file.
pub(crate) struct Tensors {
    bytes: Vec<u8>,
    /// Where the data of the tensors begin.
    data: usize,
    metadata: Metadata,
}

impl Tensors {
    /// Reads a file of at most `limit` bytes, unless its first bytes show that it is none, or one with a header beyond [`MAX_HEADER`]: such files may
    /// be huge.
    pub(crate) fn read(path: &Path, limit: u64) -> Result<Self, Fp8Error> {
        let invalid = |reason| Fp8Error::InvalidState { path: path.into(), reason };
        let mut file = open(path)?;
        let size = file.metadata().map_or(u64::MAX, |metadata| metadata.len());
        let mut bytes = Vec::new();
        read_on(&mut file, path, &mut bytes, 9)?;
        let header = bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        // The length of the header, then the header, a JSON object.
        let header = header.filter(|length| length.saturating_add(8) <= size);
        let Some(header) = header.filter(|_| bytes.get(8) == Some(&b'{')) else {
            return Err(invalid("not a complete safetensors file (no header at its start)".into()));
        };
        if header > MAX_HEADER {
            let reason = "more than any file of its kind";
            return Err(invalid(format!(
                "its header has {header} bytes of at most {MAX_HEADER}, {reason}"
            )));
        }
        if size > limit {
            return Err(Fp8Error::TooLarge { path: path.into(), limit });
        }
        read_on(&mut file, path, &mut bytes, size)?;
        let damaged = |error: SafeTensorError| {
            format!("not a complete safetensors file ({})", shown(&error.to_string(), MAX_TEXT))
        };
        let (header, metadata) =
            SafeTensors::read_metadata(&bytes).map_err(|e| invalid(damaged(e)))?;
        Ok(Self { bytes, data: header + 8, metadata })
    }

    /// The names of all tensors.
    pub(crate) fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// A tensor, if it is there.
    pub(crate) fn get(&self, name: &str) -> Option<TensorView<'_>> {
        let info = self.metadata.info(name)?;
        let data = &self.bytes[self.data..][info.data_offsets.0..info.data_offsets.1];
        let view = TensorView::new(info.dtype, info.shape.clone(), data);
        Some(view.expect("offsets and shapes were checked when the file was read"))
    }
}

/// Writes a safetensors file that [`Tensors::read`] takes, whole or not at all. `what` it is, an error says.
pub(crate) fn write_safetensors<'a>(
    path: &Path,
    what: &'static str,
    tensors: impl IntoIterator<Item = (&'a str, Dtype, Vec<usize>, &'a [u8])>,
    metadata: &[(&str, &str)],
) -> Result<(), Fp8Error> {
    let invalid = |reason: String| Fp8Error::Invalid { what, reason };
    let mut views = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        if name == "__metadata__" {
            return Err(invalid("`__metadata__` is no name for a tensor: safetensors files have their metadata there".into()));
        }
        views.push((
            name,
            TensorView::new(dtype, shape, bytes).expect("the bytes are those of the shape"),
        ));
    }
    let metadata: HashMap<_, _> =
        metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let bytes = safetensors::serialize(views, Some(metadata));
    let bytes = bytes.expect("names, shapes and bytes are consistent");
    let header = bytes.first_chunk().map_or(0, |length| u64::from_le_bytes(*length));
    if header > MAX_HEADER {
        return Err(invalid(format!(
            "names and shapes take {header} bytes of at most {MAX_HEADER}; write several files, or shorter names"
        )));
    }
    write(path, &bytes)
}

/// Writes a file beside its place and moves it there: what was there before is replaced by the whole file or stays. A link stays one: what it leads to is replaced.
/// What is no regular file is refused: a file in its place would be its end.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), Fp8Error> {
    let io = |reason| Fp8Error::Io { action: "write", path: path.into(), reason };
    let place = place(path).map_err(io)?;
    let name = place
        .file_name()
        .ok_or_else(|| io(Error::new(ErrorKind::InvalidInput, "this is no name of a file")))?;
    // A name of its own for every writer.
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let write = WRITES.fetch_add(1, Ordering::Relaxed);
    let mut beside = name.to_os_string();
    beside.push(format!(".{}-{write}.partial", std::process::id()));
    let beside: PathBuf = place.with_file_name(beside);
    let written = File::create_new(&beside)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&beside, &place));
    written.map_err(|reason| {
        let _ = fs::remove_file(&beside);
        io(reason)
    })
}

/// Where a file of this path lies, or will lie.
fn place(path: &Path) -> io::Result<PathBuf> {
    match fs::symlink_metadata(path) {
        Err(reason) if reason.kind() == ErrorKind::NotFound => return Ok(path.into()),
        Err(reason) => return Err(reason),
        Ok(_) => require_regular(path)?,
    }
    fs::canonicalize(path)
}

/// Numbers as a safetensors file holds them.
pub(crate) fn little_endian(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Says what a tensor of a file is, and what it should be.
pub(crate) fn unexpected(key: &str, view: &TensorView, expected: &str) -> String {
    const DIMENSIONS: usize = 8;
    let (dtype, shape) = (view.dtype(), view.shape());
    let key = name(key);
    match shape.len() {
        0..=DIMENSIONS => format!("{key} is {dtype:?} {shape:?}, not {expected}"),
        len => format!("{key} is {dtype:?} of {len} dimensions, not {expected}"),
    }
}

/// The most characters of a text of a file, other than a name, that an error repeats.
pub(crate) const MAX_TEXT: usize = 200;

/// The most characters of a name of a file that an error repeats.
pub(crate) const MAX_NAME: usize = 80;

/// A name of a file as an error repeats it.
pub(crate) fn name(name: &str) -> String {
    format!("`{}`", shown(name, MAX_NAME))
}

/// The first names of a file, and how many more there are.
pub(crate) fn some_names(names: impl IntoIterator<Item = String>) -> String {
    const SHOWN: usize = 10;
    let mut names = names.into_iter();
    let shown: Vec<_> = names.by_ref().take(SHOWN).map(|text| name(&text)).collect();
    match names.count() {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
