//! Golden files, and checkpoints made by the `safetensors` crate, which the code under test does not use.

use std::fs;
use std::path::{Path, PathBuf};

use burn_fp8_checkpoint::Checkpoint;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

pub const GOLDENS: [&str; 8] = [
    "ct_tensor_static",
    "ct_channel_dynamic",
    "ct_block",
    "ct_mxfp8",
    "fp8_block",
    "fp8_block_ue8m0",
    "fp8_tensor_static",
    "modelopt",
];

/// Why a checkpoint cannot be opened.
pub fn refusal(path: impl AsRef<Path>) -> String {
    Checkpoint::open(path).map(drop).unwrap_err().to_string()
}

/// Asserts that a message has all of these words.
pub fn assert_says(message: impl ToString, words: &[&str]) {
    let message = message.to_string();
    for word in words {
        assert!(message.contains(word), "no {word} in {message}");
    }
}

/// The folder of a golden checkpoint.
pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A tensor to be written: name, type, shape, bytes.
pub type Tensor = (String, Dtype, Vec<usize>, Vec<u8>);

/// All tensors of a safetensors file.
pub fn tensors(path: &Path) -> Vec<Tensor> {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let owned = |(name, view): (String, TensorView<'_>)| {
        (name, view.dtype(), view.shape().to_vec(), view.data().to_vec())
    };
    file.tensors().into_iter().map(owned).collect()
}

/// Writes tensors to a safetensors file.
pub fn write_tensors(path: &Path, tensors: &[Tensor]) {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// A folder with a configuration and tensors.
pub fn folder(config: &str, tensors: &[Tensor]) -> TempDir {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("config.json"), config).unwrap();
    write_tensors(&folder.path().join("model.safetensors"), tensors);
    folder
}

/// An F8_E4M3 weight of codes 0x38, which is 1.
pub fn ones(name: &str, shape: [usize; 2]) -> Tensor {
    (name.into(), Dtype::F8_E4M3, shape.into(), vec![0x38; shape[0] * shape[1]])
}

/// An F32 tensor.
pub fn f32s(name: &str, shape: &[usize], values: &[f32]) -> Tensor {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    (name.into(), Dtype::F32, shape.into(), bytes)
}

/// The numbers of F32 bytes.
pub fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}
