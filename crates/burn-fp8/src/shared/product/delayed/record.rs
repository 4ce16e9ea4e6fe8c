//! The state of delayed scaling as data: exported, saved, loaded, carried in an optimizer's record.

use std::collections::HashMap;
use std::path::Path;

use burn_fp8_core::text::shown;
use burn_fp8_core::{AmaxHistory, Gemm};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use super::place::Place;
use super::site::SiteState;
use super::slot::Slot;
use super::state::DelayedState;
use crate::Fp8Error;
use crate::file;
use crate::weights::{self, WeightId};

/// The largest file read, in bytes: it has room for histories of 1024 steps of some 25,000 products.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The most characters of what is wrong with JSON that an error repeats.
const MAX_MESSAGE: usize = 200;

const WHAT: &str = "state of delayed scaling";

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

    /// Writes the state to a JSON file, whole or not at all.
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
    /// Writes the record as JSON to a file, whole or not at all.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where sites are not in ascending order, or one occurs twice; [`Fp8Error::Io`] where the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Fp8Error> {
        self.check()?;
        let json = serde_json::to_vec(self).expect("numbers and names always serialize");
        file::write(path.as_ref(), &json)
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
        let json = file::read(path, MAX_FILE_BYTES)?;
        serde_json::from_slice(&json).map_err(|error| {
            let reason = format!("it is no {WHAT} ({})", shown(&error.to_string(), MAX_MESSAGE));
            Fp8Error::InvalidState { path: path.into(), reason }
        })
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
