//! One safetensors file: its header, read, and the ranges of its tensors, checked.

use std::fmt;
use std::path::Path;

use super::dtype::Dtype;
use super::header::{Described, MAX_TENSORS, Named};
use super::source::Source;
use crate::error::CheckpointError;
use crate::text;

/// The most bytes of headers of all files of a checkpoint: safetensors' own limit for one.
const MAX_HEADERS: u64 = 100_000_000;

/// A tensor of a checkpoint, without its data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The name.
    pub name: String,
    /// The type of elements.
    pub dtype: Dtype,
    /// The sizes.
    pub shape: Vec<usize>,
    /// The bytes in the file.
    pub bytes: u64,
}

impl fmt::Display for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, dtype, shape, bytes } = self;
        write!(f, "{}: {dtype} {shape:?}; {bytes} bytes", text::name(name))
    }
}

/// A tensor of a file, whose range lies in the file and has the bytes of its shape.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) info: TensorInfo,
    /// Where its data begin, from the start of the file.
    pub(crate) begin: u64,
}

impl Entry {
    fn end(&self) -> u64 {
        self.begin + self.info.bytes
    }
}

/// A file and what its header says.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) source: Source,
    /// By name.
    pub(crate) entries: Vec<Entry>,
    /// The bytes of the header.
    pub(crate) header: u64,
}

const AGAIN: &str = "the file is damaged, cut off or newer than this reader: fetch it again";

impl Shard {
    /// Reads and checks the header: its length, its JSON, and the ranges of its tensors against the length of the file. Headers of files before it had so
    /// many bytes.
    pub(crate) fn open(path: &Path, before: u64) -> Result<Self, CheckpointError> {
        let source = Source::open(path)?;
        let error =
            |found: String, expected: String| CheckpointError::file(path, found, expected, AGAIN);
        if source.length < 8 {
            let expected = "a safetensors file, which begins with 8 bytes, the header's length";
            return Err(error(format!("{} bytes", source.length), expected.into()));
        }
        let mut length = [0; 8];
        source.read_at(&mut length, 0)?;
        let header = u64::from_le_bytes(length);
        let found = match before {
            0 => format!("a header of {header} bytes"),
            _ => format!("a header of {header} bytes, after those of other files, {before} bytes"),
        };
        if before.saturating_add(header) > MAX_HEADERS {
            let expected = format!("at most {MAX_HEADERS} in all files of a checkpoint");
            return Err(CheckpointError::file(path, found, expected, TOO_LARGE));
        }
        if header > source.length - 8 {
            let expected = format!("at most {}, the rest of the file", source.length - 8);
            return Err(error(found, expected));
        }
        let mut json = vec![0; header as usize];
        source.read_at(&mut json, 8)?;
        let described = parse(path, &json)?;
        drop(json);
        let entries = check(path, described, 8 + header, source.length)?;
        Ok(Self { source, entries, header })
    }
}

const TOO_LARGE: &str =
    "DeepSeek-V3 has 92 thousand tensors: fetch this one anew, from where you trust it";

/// That files have more tensors than are read.
pub(crate) fn too_many(path: &Path, tensors: usize) -> CheckpointError {
    let (found, expected) =
        (format!("{tensors} tensors"), format!("at most {MAX_TENSORS} in a checkpoint"));
    CheckpointError::file(path, found, expected, TOO_LARGE)
}

fn parse(path: &Path, json: &[u8]) -> Result<Vec<(String, Described)>, CheckpointError> {
    const EXPECTED: &str =
        "a JSON object with dtype, shape and data_offsets of each tensor, as safetensors has it";
    if json.first() != Some(&b'{') {
        let start = String::from_utf8_lossy(&json[..json.len().min(16)]);
        let found = format!("a header that begins with \"{}\", not {{", text::text(&start));
        return Err(CheckpointError::file(path, found, EXPECTED, AGAIN));
    }
    let header: Named<Described> = serde_json::from_slice(json).map_err(|error| {
        let found = format!("a header that cannot be read ({})", text::reason(error));
        CheckpointError::file(path, found, EXPECTED, AGAIN)
    })?;
    match header.count > MAX_TENSORS {
        true => Err(too_many(path, header.count)),
        false => Ok(header.values),
    }
}

/// Checks what a header describes against the bytes of data, from `begin` to `end` of the file, and sorts tensors by their names.
///
/// A hole between tensors, or data after the last one, is an error, although every tensor could be read: safetensors itself refuses such files, so that
/// no other reader takes them, and what the bytes hold, no header says.
fn check(
    path: &Path,
    tensors: Vec<(String, Described)>,
    begin: u64,
    end: u64,
) -> Result<Vec<Entry>, CheckpointError> {
    let tensors = tensors.into_iter();
    let checked = tensors.map(|(name, tensor)| check_one(path, name, tensor, begin, end));
    let mut entries = checked.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by(|a, b| a.info.name.cmp(&b.info.name));
    if let Some([a, b]) = entries.array_windows().find(|[a, b]| a.info.name == b.info.name) {
        let range = |entry: &Entry| format!("{} to {}", entry.begin - begin, entry.end() - begin);
        let found = format!("it twice in the header, with the bytes {} and {}", range(a), range(b));
        return Err(CheckpointError::tensor(path, &a.info.name, found, "it once", AGAIN));
    }
    let mut by_place: Vec<_> = entries.iter().collect();
    by_place.sort_by_key(|entry| (entry.begin, entry.info.bytes));
    let mut place = begin;
    for entry in by_place {
        if entry.begin != place {
            let kind = match entry.begin < place {
                true => {
                    format!("{} bytes that belong to the tensor before it", place - entry.begin)
                }
                false => format!("a hole of {} bytes before it", entry.begin - place),
            };
            let found = format!("{kind}: its data begin at {}", entry.begin - begin);
            let expected = format!("a begin at {}, where the tensor before it ends", place - begin);
            return Err(CheckpointError::tensor(path, &entry.info.name, found, expected, AGAIN));
        }
        place = entry.end();
    }
    match place == end {
        true => Ok(entries),
        false => {
            let found = format!("{} bytes of data", end - begin);
            let expected = format!("{}, the end of the last tensor", place - begin);
            Err(CheckpointError::file(path, found, expected, AGAIN))
        }
    }
}

fn check_one(
    path: &Path,
    name: String,
    tensor: Described,
    data: u64,
    file: u64,
) -> Result<Entry, CheckpointError> {
    let Described { dtype, shape, range: (begin, end) } = tensor;
    let shape = shape.0;
    let error = |found: String, expected: String| {
        Err(CheckpointError::tensor(path, &name, found, expected, AGAIN))
    };
    let offsets = || format!("data_offsets [{begin}, {end}]");
    if begin > end {
        return error(offsets(), "an end that is not before the begin".into());
    }
    let Some(bytes) = dtype.bytes_of(&shape) else {
        let found = format!("{dtype} {shape:?}");
        return error(found, "a whole number of bytes that 64 bits count".into());
    };
    if end - begin != bytes {
        let found = format!("{}, {} bytes", offsets(), end - begin);
        return error(found, format!("{bytes} bytes, those of {dtype} {shape:?}"));
    }
    if end > file - data {
        let expected = format!("no more than the {} bytes of data that the file has", file - data);
        return error(offsets(), expected);
    }
    Ok(Entry { info: TensorInfo { name, dtype, shape, bytes }, begin: data + begin })
}
