//! The state of delayed scaling as data: exported, saved, loaded, carried in an optimizer's record.

use std::collections::HashMap;
use std::path::Path;

use burn_fp8_core::text::shown;
use burn_fp8_core::{AmaxHistory, Gemm, Operand};
use safetensors::Dtype;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use super::place::Place;
use super::site::SiteState;
use super::slot::Slot;
use super::state::DelayedState;
use crate::Fp8Error;
use crate::file;
use crate::file::{MAX_TEXT, Tensors, f32s, little_endian, unexpected};
use crate::weights::{self, WeightId};

/// The largest file read, in bytes: it has room for histories of 1024 steps of more products than a header has room for, which is some 50,000.
const MAX_FILE_BYTES: u64 = 1 << 30;

const WHAT: &str = "state of delayed scaling";
const FORMAT: &str = "burn-fp8 delayed state";
const VERSION: &str = "1";

/// What a [`DelayedState`] holds: the histories of every site, in the order of their products in a pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DelayedRecord {
    /// The sites, in ascending order of their indexes, each of which occurs once.
    #[serde(deserialize_with = "in_order")]
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
    /// What it is known by; its index, where that is not told.
    #[serde(default)]
    pub known_by: Option<KnownBy>,
    /// The amaxes of its input.
    pub input: AmaxHistory,
    /// The amaxes of its weight.
    pub weight: AmaxHistory,
    /// The amaxes of the gradient of its output.
    pub output_grad: AmaxHistory,
}

/// The weight of a product, and what came right before it. Weights are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownBy {
    /// Its weight, where a parameter is multiplied.
    pub weight: Option<usize>,
    /// The weight of the last product before it that has one.
    pub after: Option<usize>,
    /// How many products there are from that one on, or from the beginning.
    pub offset: usize,
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
    /// `weights` finds the parameter of a number.
    fn from_record(
        record: SiteRecord,
        epoch: u64,
        now: u64,
        mut weights: impl FnMut(usize) -> WeightId,
    ) -> Self {
        let SiteRecord { index, k, n, known_by, input, weight, output_grad } = record;
        let slots = [input, weight, output_grad].map(Slot::from_history);
        let mut site = Self::new(Gemm::matrix(0, n, k), index, epoch, slots, now);
        if let Some(KnownBy { weight, after, offset }) = known_by {
            site.weight = weight.map(&mut weights);
            site.place = Some(Place { after: after.map(weights), offset, index });
        }
        site
    }

    /// `number` numbers parameters.
    fn export(&self, mut number: impl FnMut(WeightId) -> usize) -> SiteRecord {
        let [input, weight, output_grad] = core::array::from_fn(|i| self.slots[i].export());
        let known_by = self.place.map(|Place { after, offset, .. }| KnownBy {
            weight: self.weight.map(&mut number),
            after: after.map(number),
            offset,
        });
        SiteRecord { index: self.index, k: self.k, n: self.n, known_by, input, weight, output_grad }
    }
}

impl DelayedState {
    /// What the state holds now, without what running steps have deposited. Waits for the device where histories lie there.
    pub fn export(&self) -> DelayedRecord {
        let state = self.lock();
        let mut numbers = HashMap::new();
        let mut number = |weight| {
            let next = numbers.len();
            *numbers.entry(weight).or_insert(next)
        };
        DelayedRecord { sites: state.sites.iter().map(|site| site.export(&mut number)).collect() }
    }

    /// Replaces what the state holds. Amaxes of products that have run already are dropped.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where sites are not in ascending order, or one occurs twice; the state is then what it was.
    pub fn import(&self, record: DelayedRecord) -> Result<(), Fp8Error> {
        record.check()?;
        let mut state = self.lock();
        state.clear();
        let mut numbered = HashMap::new();
        for site in record.sites {
            state.epochs += 1;
            let weight = |number| *numbered.entry(number).or_insert_with(weights::loaded);
            let site = SiteState::from_record(site, state.epochs, state.now, weight);
            state.sites.push(site);
        }
        Ok(())
    }

    /// Writes the state to a safetensors file, whole or not at all.
    ///
    /// # Errors
    /// As [`DelayedRecord::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Fp8Error> {
        self.export().save(path)
    }

    /// Replaces what the state holds by what [`save`](Self::save) has written.
    ///
    /// # Errors
    /// As [`DelayedRecord::load`]; the state is then what it was.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<(), Fp8Error> {
        self.import(DelayedRecord::load(path)?)
    }
}

impl DelayedRecord {
    /// Writes a safetensors file, whole or not at all: `site.0.input`, `site.0.weight`, `site.0.output_grad`, …, f32, one
    /// entry for each step of the history.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where sites are not in ascending order, one occurs twice, or there are too many to be read again (some 50,000);
    /// [`Fp8Error::Io`] where the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Fp8Error> {
        self.check()?;
        let mut tensors = vec![];
        for site in &self.sites {
            for operand in Operand::ALL {
                let entries = site.history(operand).entries();
                tensors.push((name(site.index, operand), entries.len(), little_endian(entries)));
            }
        }
        let tensors = tensors
            .iter()
            .map(|(name, steps, bytes)| (&name[..], Dtype::F32, vec![*steps], &bytes[..]));
        let shapes: Vec<_> = self.sites.iter().map(|site| [site.index, site.k, site.n]).collect();
        let shapes = serde_json::to_string(&shapes).expect("integers always serialize");
        let known: Vec<_> = self.sites.iter().map(|site| site.known_by).collect();
        let known = serde_json::to_string(&known).expect("integers always serialize");
        let metadata = [
            ("format", FORMAT),
            ("version", VERSION),
            ("sites", shapes.as_str()),
            ("known_by", known.as_str()),
        ];
        file::write_safetensors(path.as_ref(), WHAT, tensors, &metadata)
    }

    fn check(&self) -> Result<(), Fp8Error> {
        check_order(&self.sites).map_err(|reason| Fp8Error::Invalid { what: WHAT, reason })
    }

    /// Reads what [`save`](Self::save) has written, at most 1 GiB.
    ///
    /// # Errors
    /// [`Fp8Error::Io`] where the file cannot be read or is no regular one, [`Fp8Error::TooLarge`], and [`Fp8Error::InvalidState`], which tells what is
    /// wrong, where it is damaged or something else.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Fp8Error> {
        let path = path.as_ref();
        let tensors = Tensors::read(path, MAX_FILE_BYTES)?;
        Self::from_tensors(&tensors)
            .map_err(|reason| Fp8Error::InvalidState { path: path.into(), reason })
    }

    fn from_tensors(tensors: &Tensors) -> Result<Self, String> {
        let entry = |key| {
            let missing = || format!("its metadata has no `{key}`; it is no {FORMAT}");
            tensors.entry(key).ok_or_else(missing)
        };
        match entry("format")? {
            FORMAT => tensors.check_version(VERSION)?,
            format => return Err(format!("it holds {}, not a {FORMAT}", file::name(format))),
        }
        let shapes: Vec<[usize; 3]> = serde_json::from_str(entry("sites")?)
            .map_err(|error| error.to_string())
            .map_err(|error| format!("`sites` of its metadata: {}", shown(&error, MAX_TEXT)))?;
        let count = tensors.names().len();
        if count != 3 * shapes.len() {
            return Err(format!("{count} tensors for {} sites", shapes.len()));
        }
        let known_by: Vec<Option<KnownBy>> = match tensors.entry("known_by") {
            None => vec![None; shapes.len()],
            Some(known_by) => serde_json::from_str(known_by)
                .map_err(|error| shown(&error.to_string(), MAX_TEXT).to_string())
                .map_err(|error| format!("`known_by` of its metadata: {error}"))?,
        };
        if known_by.len() != shapes.len() {
            let (known_by, sites) = (known_by.len(), shapes.len());
            return Err(format!(
                "`known_by` of its metadata tells of {known_by} sites, of {sites}"
            ));
        }
        let history = |index, operand| history(tensors, &name(index, operand));
        let sites = shapes.into_iter().zip(known_by).map(|([index, k, n], known_by)| {
            Ok(SiteRecord {
                index,
                k,
                n,
                known_by,
                input: history(index, Operand::Input)?,
                weight: history(index, Operand::Weight)?,
                output_grad: history(index, Operand::OutputGrad)?,
            })
        });
        let sites = sites.collect::<Result<Vec<_>, String>>()?;
        check_order(&sites).map_err(|reason| format!("`sites` of its metadata: {reason}"))?;
        Ok(Self { sites })
    }
}

/// Sites whose indexes ascend.
fn in_order<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SiteRecord>, D::Error> {
    let sites = Vec::deserialize(deserializer)?;
    check_order(&sites).map_err(D::Error::custom)?;
    Ok(sites)
}

fn check_order(sites: &[SiteRecord]) -> Result<(), String> {
    match sites.windows(2).map(|pair| [pair[0].index, pair[1].index]).find(|[a, b]| a >= b) {
        None => Ok(()),
        Some([a, b]) if a == b => Err(format!("site {a} occurs twice; an index has one site")),
        Some([a, b]) => Err(format!("site {b} comes after site {a}; indexes ascend")),
    }
}

fn name(index: usize, operand: Operand) -> String {
    format!("site.{index}.{operand}")
}

fn history(tensors: &Tensors, name: &str) -> Result<AmaxHistory, String> {
    let view = tensors.get(name).ok_or_else(|| format!("it has no `{name}`"))?;
    if view.dtype() != Dtype::F32 || view.shape().len() != 1 {
        return Err(unexpected(name, &view, "F32 [steps]"));
    }
    AmaxHistory::from_entries(f32s(&view)).ok_or_else(|| {
        format!("`{name}` is empty, too long, or holds something that is no finite magnitude")
    })
}
