//! Golden files: tensors that other libraries have computed, and beside them what they are.

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

/// The folder of all golden files, for a test program that was carried to a machine without the repository.
const FOLDER: &str = "BURN_FP8_GOLDEN";

/// A safetensors file and the JSON beside it.
pub struct Golden {
    bytes: Vec<u8>,
    description: Value,
}

impl Golden {
    /// Reads `name.safetensors` and `name.json` in `tests/golden` of the package that lies at `package`, its `CARGO_MANIFEST_DIR`; of
    /// burn-fp8-core, where files lie that several packages need; or in the folder that the environment variable `BURN_FP8_GOLDEN` names.
    pub fn read(package: &str, name: &str) -> Self {
        let own = Path::new(package).join("tests/golden");
        let folder = match std::env::var_os(FOLDER) {
            Some(folder) => PathBuf::from(folder),
            None if own.join(format!("{name}.json")).exists() => own,
            None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../burn-fp8-core/tests/golden"),
        };
        Self::of_folder(&folder, name)
    }

    /// Reads `name.safetensors` and `name.json` in a folder.
    pub fn of_folder(folder: &Path, name: &str) -> Self {
        let read = |extension| {
            let path = folder.join(format!("{name}.{extension}"));
            std::fs::read(&path).unwrap_or_else(|error| {
                panic!(
                    "{}: {error}; golden files are committed, {FOLDER} overrides their folder",
                    path.display()
                )
            })
        };
        let description = serde_json::from_slice(&read("json")).expect("the description is JSON");
        Self { bytes: read("safetensors"), description }
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).expect("a golden file is one of safetensors")
    }

    /// The cases in a list of the description.
    pub fn cases(&self, list: &str) -> &[Value] {
        self.description[list].as_array().expect("a list of cases")
    }

    /// The names of the cases in a list.
    pub fn case_names(&self, list: &str) -> Vec<String> {
        let cases = self.cases(list);
        cases.iter().map(|case| case["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// The names of all tensors.
    pub fn names(&self) -> Vec<String> {
        self.tensors().names().into_iter().map(String::from).collect()
    }

    /// Whether there is a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors().tensor(name).is_ok()
    }

    /// Type, shape and bytes of a tensor.
    pub fn tensor(&self, name: &str) -> (Dtype, Vec<usize>, Vec<u8>) {
        let file = self.tensors();
        let view = file.tensor(name).unwrap_or_else(|_| panic!("golden {name} is missing"));
        (view.dtype(), view.shape().to_vec(), view.data().to_vec())
    }

    /// The shape of a tensor.
    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.tensor(name).1
    }

    /// The bytes of a tensor.
    pub fn u8s(&self, name: &str) -> Vec<u8> {
        self.tensor(name).2
    }

    /// A tensor's elements of two bytes.
    pub fn u16s(&self, name: &str) -> Vec<u16> {
        self.u8s(name).as_chunks().0.iter().map(|b| u16::from_le_bytes(*b)).collect()
    }

    /// A tensor's elements of four bytes.
    pub fn u32s(&self, name: &str) -> Vec<u32> {
        self.u8s(name).as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    /// A tensor's elements of f32.
    pub fn f32s(&self, name: &str) -> Vec<f32> {
        self.u32s(name).into_iter().map(f32::from_bits).collect()
    }
}
