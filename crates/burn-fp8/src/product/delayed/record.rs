//! The state of delayed scaling as data: exported, saved, loaded, carried in an optimizer's record.

use std::collections::HashMap;
use std::path::Path;

use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::Backend;
use burn_fp8_core::{AmaxHistory, Operand};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};

use super::site::SiteState;
use super::slot::Slot;
use super::state::DelayedState;
use crate::error::Fp8Error;
use crate::file;

/// The largest file read, in bytes: some 80,000 products with histories of 1024 steps.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The most sites loaded.
const MAX_SITES: usize = 1 << 20;

const FORMAT: &str = "burn-fp8 delayed state";
const VERSION: &str = "1";

/// What a [`DelayedState`] holds: the histories of every site, in the order of their products in a pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelayedRecord {
    /// The sites.
    pub sites: Vec<SiteRecord>,
}

/// The histories of one product.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SiteRecord {
    /// How many tracked products come before it in a pass.
    pub index: usize,
    /// The dimension that its forward product sums over.
    pub k: usize,
    /// The columns of its output.
    pub n: usize,
    /// The amaxes of its input.
    pub input: AmaxHistory,
    /// The amaxes of its weight.
    pub weight: AmaxHistory,
    /// The amaxes of the gradient of its output.
    pub output_grad: AmaxHistory,
}

impl SiteRecord {
    /// The history of one operand.
    pub fn history(&self, operand: Operand) -> &AmaxHistory {
        match operand {
            Operand::Input => &self.input,
            Operand::Weight => &self.weight,
            Operand::OutputGrad => &self.output_grad,
        }
    }
}

impl SiteState {
    fn from_record(record: SiteRecord, epoch: u64) -> Self {
        let SiteRecord { index: _, k, n, input, weight, output_grad } = record;
        let history_length = input.entries().len();
        let slots = [input, weight, output_grad].map(Slot::from_history);
        Self { k, n, epoch, slots, history_length, weight: None }
    }

    fn export(&self, index: usize) -> SiteRecord {
        let [input, weight, output_grad] = core::array::from_fn(|i| self.slots[i].export());
        SiteRecord { index, k: self.k, n: self.n, input, weight, output_grad }
    }
}

impl DelayedState {
    /// What the state holds now, without what running steps have deposited. Waits for the device where histories lie there.
    pub fn export(&self) -> DelayedRecord {
        let state = self.lock();
        let sites = state.sites.iter().map(|(index, site)| site.export(*index));
        DelayedRecord { sites: sites.collect() }
    }

    /// Replaces what the state holds. Amaxes of products that have run already are dropped.
    pub fn import(&self, record: DelayedRecord) {
        self.clear();
        let mut state = self.lock();
        for site in record.sites {
            state.epochs += 1;
            let epoch = state.epochs;
            state.sites.insert(site.index, SiteState::from_record(site, epoch));
        }
    }

    /// Writes the state to a safetensors file, whole or not at all.
    ///
    /// # Errors
    /// [`Fp8Error::Io`] where the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Fp8Error> {
        self.export().save(path)
    }

    /// Replaces what the state holds by what [`save`](Self::save) has written.
    ///
    /// # Errors
    /// As [`DelayedRecord::load`]; the state is then what it was.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<(), Fp8Error> {
        self.import(DelayedRecord::load(path)?);
        Ok(())
    }
}

impl DelayedRecord {
    /// Writes a safetensors file, whole or not at all: `site.0.input`, `site.0.weight`, `site.0.output_grad`, …, f32, one
    /// entry for each step of the history.
    ///
    /// # Errors
    /// [`Fp8Error::Io`] where the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Fp8Error> {
        file::write(path.as_ref(), &self.to_bytes())
    }

    /// Reads what [`save`](Self::save) has written, at most 1 GiB.
    ///
    /// # Errors
    /// [`Fp8Error::Io`] where the file cannot be read, [`Fp8Error::TooLarge`], and [`Fp8Error::InvalidState`], which tells what is
    /// wrong, where it is damaged or something else.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Fp8Error> {
        let path = path.as_ref();
        let bytes = file::read_safetensors(path, MAX_FILE_BYTES)?;
        Self::from_bytes(&bytes)
            .map_err(|reason| Fp8Error::InvalidState { path: path.into(), reason })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut tensors: Vec<(String, [usize; 1], Vec<u8>)> = vec![];
        for site in &self.sites {
            for operand in Operand::ALL {
                let entries = site.history(operand).entries();
                let bytes = entries.iter().flat_map(|amax| amax.to_le_bytes()).collect();
                tensors.push((name(site.index, operand), [entries.len()], bytes));
            }
        }
        let views = tensors.iter().map(|(name, shape, bytes)| {
            let view = TensorView::new(Dtype::F32, shape.to_vec(), bytes);
            (name, view.expect("the bytes are those of the shape"))
        });
        let shapes: Vec<_> = self.sites.iter().map(|site| [site.index, site.k, site.n]).collect();
        let shapes = serde_json::to_string(&shapes).expect("integers always serialize");
        let metadata = HashMap::from([
            ("format".to_string(), FORMAT.to_string()),
            ("version".to_string(), VERSION.to_string()),
            ("sites".to_string(), shapes),
        ]);
        safetensors::serialize(views, Some(metadata))
            .expect("names, shapes and bytes are consistent")
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let invalid = |error| format!("not a complete safetensors file ({error})");
        let tensors = SafeTensors::deserialize(bytes).map_err(invalid)?;
        let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(invalid)?;
        let metadata = metadata.metadata().as_ref();
        let entry = |key| {
            metadata
                .and_then(|metadata| metadata.get(key))
                .ok_or_else(|| format!("its metadata has no `{key}`; it is no {FORMAT}"))
        };
        match (entry("format")?.as_str(), entry("version")?.as_str()) {
            (FORMAT, VERSION) => {}
            (FORMAT, version) => {
                return Err(format!("it has version {version}; this burn-fp8 reads {VERSION}"));
            }
            (format, _) => return Err(format!("it holds `{format}`, not a {FORMAT}")),
        }
        let shapes: Vec<[usize; 3]> = serde_json::from_str(entry("sites")?)
            .map_err(|error| format!("`sites` of its metadata: {error}"))?;
        if shapes.len() > MAX_SITES {
            return Err(format!("it has {} sites; at most {MAX_SITES} are read", shapes.len()));
        }
        if tensors.len() != 3 * shapes.len() {
            return Err(format!("{} tensors for {} sites", tensors.len(), shapes.len()));
        }
        let history = |index, operand| history(&tensors, &name(index, operand));
        if !shapes.is_sorted_by(|a, b| a[0] < b[0]) {
            return Err("`sites` of its metadata is not in order".into());
        }
        let sites = shapes.into_iter().map(|[index, k, n]| {
            Ok(SiteRecord {
                index,
                k,
                n,
                input: history(index, Operand::Input)?,
                weight: history(index, Operand::Weight)?,
                output_grad: history(index, Operand::OutputGrad)?,
            })
        });
        Ok(Self { sites: sites.collect::<Result<_, String>>()? })
    }
}

fn name(index: usize, operand: Operand) -> String {
    format!("site.{index}.{operand}")
}

fn history(tensors: &SafeTensors, name: &str) -> Result<AmaxHistory, String> {
    let view = tensors.tensor(name).map_err(|_| format!("it has no `{name}`"))?;
    if view.dtype() != Dtype::F32 || view.shape().len() != 1 {
        return Err(format!("`{name}` is {:?} {:?}, not F32 [steps]", view.dtype(), view.shape()));
    }
    let bytes = view.data().chunks_exact(4);
    let entries = bytes.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    AmaxHistory::from_entries(entries).ok_or_else(|| {
        format!("`{name}` is empty, too long, or holds something that is no finite magnitude")
    })
}

impl<B: Backend> Record<B> for DelayedRecord {
    type Item<S: PrecisionSettings> = Self;

    fn into_item<S: PrecisionSettings>(self) -> Self::Item<S> {
        self
    }

    fn from_item<S: PrecisionSettings>(item: Self::Item<S>, _device: &B::Device) -> Self {
        item
    }
}
