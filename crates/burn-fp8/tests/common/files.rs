//! Files that tests write.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tempfile::TempDir;

/// A folder that goes when it is dropped, and a path in it.
pub fn path(name: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join(name);
    (folder, path)
}

/// A safetensors file with these tensors, and metadata where there are some.
pub fn write(path: &Path, tensors: &[(&str, Dtype, &[usize], Vec<u8>)], metadata: &[(&str, &str)]) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (*name, TensorView::new(*dtype, shape.to_vec(), bytes).expect("consistent"))
    });
    let metadata: HashMap<_, _> =
        metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let bytes = safetensors::serialize(views, Some(metadata)).expect("consistent");
    std::fs::write(path, bytes).expect("writable");
}

/// A safetensors file made of a header and data, whatever they say.
pub fn write_raw(path: &Path, header: &str, data: &[u8]) {
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&length, header.as_bytes(), data].concat()).expect("writable");
}

pub fn f32s(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Numbers that are no scale.
pub const NO_SCALES: [f32; 5] = [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-40];
