//! Whether the ranges of a header are those of its tensors, one after the other to the end of the file.

use std::path::Path;

use super::dtype::Dtype;
use super::header::Described;
use crate::error::CheckpointError;
use crate::text;

/// A tensor whose range lies in the file and has the bytes of its shape.
pub(super) struct Checked {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) begin: u64,
    pub(super) bytes: u64,
}

/// Checks what a header describes against the bytes of data that follow it, and sorts tensors by their names.
///
/// A hole between tensors, or data after the last one, is an error, although every tensor could be read: safetensors itself refuses such files, so that
/// no other reader takes them, and what the bytes hold, no header says.
pub(super) fn check(
    path: &Path,
    tensors: Vec<Described>,
    data: u64,
) -> Result<Vec<Checked>, CheckpointError> {
    let checked = tensors.into_iter().map(|tensor| check_one(path, tensor, data));
    let mut tensors = checked.collect::<Result<Vec<_>, _>>()?;
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(twice) = tensors.windows(2).find(|two| two[0].name == two[1].name) {
        let (first, second) = (range(&twice[0]), range(&twice[1]));
        let found = format!("it twice in the header, with the bytes {first} and {second}");
        return Err(CheckpointError::tensor(path, &twice[0].name, found, "it once", AGAIN));
    }
    without_gaps(path, &tensors, data)?;
    Ok(tensors)
}

const AGAIN: &str = "the file is damaged: fetch it again";

fn range(tensor: &Checked) -> String {
    format!("{} to {}", tensor.begin, tensor.begin + tensor.bytes)
}

fn check_one(path: &Path, tensor: Described, data: u64) -> Result<Checked, CheckpointError> {
    let Described { name, dtype, shape, range: (begin, end) } = tensor;
    let error = |found: String, expected: String| {
        CheckpointError::tensor(path, &name, found, expected, AGAIN)
    };
    let Some(dtype) = Dtype::of_name(&dtype) else {
        let found = format!("dtype \"{}\"", text::text(&dtype));
        let expected = format!("one of {}", Dtype::names());
        let advice = "the file is damaged or newer than this reader";
        return Err(CheckpointError::tensor(path, &name, found, expected, advice));
    };
    if begin > end {
        let found = format!("data_offsets [{begin}, {end}]");
        return Err(error(found, "an end that is not before the begin".into()));
    }
    let Some(bytes) = dtype.bytes_of(&shape) else {
        let found = format!("{dtype} {shape:?}");
        return Err(error(found, "a whole number of bytes that 64 bits count".into()));
    };
    if end - begin != bytes {
        let found = format!("data_offsets [{begin}, {end}], {} bytes", end - begin);
        return Err(error(found, format!("{bytes} bytes, those of {dtype} {shape:?}")));
    }
    if end > data {
        let found = format!("data_offsets [{begin}, {end}]");
        let expected = format!("no more than the {data} bytes of data that the file has");
        return Err(error(found, expected));
    }
    Ok(Checked { name, dtype, shape, begin, bytes })
}

fn without_gaps(path: &Path, tensors: &[Checked], data: u64) -> Result<(), CheckpointError> {
    let mut by_place: Vec<_> = tensors.iter().collect();
    by_place.sort_by_key(|tensor| (tensor.begin, tensor.bytes));
    let mut end = 0;
    for tensor in by_place {
        if tensor.begin != end {
            let kind = match tensor.begin < end {
                true => format!("{} bytes that belong to the tensor before it", end - tensor.begin),
                false => format!("a hole of {} bytes before it", tensor.begin - end),
            };
            let found = format!("{kind}: its data begin at {}", tensor.begin);
            let expected = format!("a begin at {end}, where the tensor before it ends");
            return Err(CheckpointError::tensor(path, &tensor.name, found, expected, AGAIN));
        }
        end += tensor.bytes;
    }
    if end != data {
        let found = format!("{data} bytes of data");
        let expected = format!("{end}, the end of the last tensor");
        return Err(CheckpointError::file(path, found, expected, AGAIN));
    }
    Ok(())
}
