//! All parameters of a model by name, as a safetensors file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// The names and shapes of all float parameters, in the order of the model.
pub fn shapes<B: Backend, M: Module<B>>(model: &M) -> Vec<(String, Vec<usize>)> {
    let mut collect = Collect { path: vec![], found: |_: TensorData| (), values: vec![] };
    model.visit(&mut collect);
    collect.values.into_iter().map(|(name, shape, ())| (name, shape)).collect()
}

/// Writes all float parameters as F32, FP8 state of layers among them, and returns the CRC-32 of the file. Equal weights give equal bytes.
pub fn save<B: Backend, M: Module<B>>(model: &M, path: &Path) -> Result<u32> {
    let bytes = |data: TensorData| data.convert::<f32>().as_bytes().to_vec();
    let mut collect = Collect { path: vec![], found: bytes, values: vec![] };
    model.visit(&mut collect);
    let views = collect.values.iter().map(|(name, shape, bytes)| {
        Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes)?))
    });
    let views = views.collect::<Result<BTreeMap<_, _>>>()?;
    let file = safetensors::serialize(views, None)?;
    examples_common::write(path, &file)?;
    Ok(crc32fast::hash(&file))
}

/// Reads what [`save`] wrote into a model of the same shape. Without the CRC-32 that [`save`] returned, a changed weight goes unseen.
///
/// # Errors
/// Where the file cannot be read, is damaged, is larger than such a model's can be, or holds other parameters; names it.
pub fn load<B: Backend, M: Module<B>>(model: M, path: &Path, crc32: Option<u32>) -> Result<M> {
    let read = || -> Result<M> {
        let expected = shapes::<B, M>(&model);
        let elements: usize =
            expected.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
        // The names and offsets of the header take far less than 1 KiB a tensor.
        let limit = 4 * elements as u64 + 1024 * (1 + expected.len() as u64);
        let mut bytes = vec![];
        File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
        ensure!(
            bytes.len() as u64 <= limit,
            "is larger than the {limit} bytes that this model can take"
        );
        let file = SafeTensors::deserialize(&bytes)
            .map_err(|error| anyhow!("no intact safetensors file: {error}"))?;
        let mut values = vec![];
        for (name, shape) in &expected {
            let tensor = file.tensor(name).map_err(|_| anyhow!("has no tensor {name}"))?;
            if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
                bail!(
                    "{name} is {:?} {:?} instead of F32 {shape:?}",
                    tensor.dtype(),
                    tensor.shape()
                );
            }
            let (numbers, _) = tensor.data().as_chunks();
            values.push(numbers.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect());
        }
        // Last: what is wrong with the structure says more than a checksum does.
        let found = crc32fast::hash(&bytes);
        if let Some(crc32) = crc32.filter(|crc32| *crc32 != found) {
            bail!("is damaged: its CRC-32 is {found}, but was {crc32} when the run ended");
        }
        Ok(model.map(&mut Fill(values.into_iter())))
    };
    read().with_context(|| format!("weights {}", path.display()))
}

struct Collect<F, T> {
    path: Vec<String>,
    found: F,
    values: Vec<(String, Vec<usize>, T)>,
}

impl<B: Backend, T, F: Fn(TensorData) -> T> ModuleVisitor<B> for Collect<F, T> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let tensor = param.val();
        let shape = tensor.dims().to_vec();
        self.values.push((self.path.join("."), shape, (self.found)(tensor.into_data())));
    }
}

/// The numbers of each parameter, in the order of the model.
struct Fill(std::vec::IntoIter<Vec<f32>>);

impl<B: Backend> ModuleMapper<B> for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        let values = self.0.next().expect("a model is mapped as it is visited");
        param.map(|old| Tensor::from_data(TensorData::new(values, old.dims()), &old.device()))
    }
}
