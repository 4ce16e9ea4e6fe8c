//! Which products run in FP8.

use core::fmt;
use std::sync::{Mutex, PoisonError};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{Gains, Gemm, ProductKind};

/// Chooses, by shape alone, the products that run in FP8; with [`gains`](Self::gains), also by whether their gradients are asked for.
///
/// The default takes a product if M, N and K are each at least 16 and one operand is a plain matrix: 2-D, or with leading dimensions of
/// size 1. So it takes linear layers and 2-D products. It leaves attention scores and products of a matrix and a vector alone.
///
/// **It does not know what a product is for.** Numerical code that multiplies matrices, yours or Burn's (`linalg::lu` and `linalg::det` from 256 rows on,
/// `Tensor::cov`), runs in FP8 too, with an error of some percent where f32 has 1e-6. Run it in `burn_fp8::high_precision`, or take
/// [`linear_only`](Self::linear_only).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Filter {
    /// The smallest M taken.
    pub min_m: usize,
    /// The smallest N taken.
    pub min_n: usize,
    /// The smallest K taken.
    pub min_k: usize,
    /// Whether products of two batches of matrices are taken, such as attention scores.
    pub batched: bool,
    /// Whether plain matrix products are taken, besides linear layers.
    pub matmul: bool,
    /// Weights whose products are not taken: [`except`](Self::except).
    #[serde(deserialize_with = "kept", skip_serializing_if = "<[_]>::is_empty")]
    pub except: &'static [NamedWeight],
    /// How fast FP8 is by shape, where only products are taken that it makes faster: `Fp8Config::measured` of burn-fp8. None by default:
    /// then the same products run in FP8 on every machine.
    #[serde(deserialize_with = "kept_gains", skip_serializing_if = "Option::is_none")]
    pub gains: Option<&'static Gains>,
}

/// A weight of a model: a layer by its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedWeight {
    /// Its path in the model: `blocks.0.mlp.weight`.
    pub path: String,
    /// What names it among parameters, also in records: Burn's `ParamId`.
    pub id: u64,
    /// K and N of its forward product.
    pub shape: [usize; 2],
}

impl Default for Filter {
    fn default() -> Self {
        Self {
            min_m: 16,
            min_n: 16,
            min_k: 16,
            batched: false,
            matmul: true,
            except: &[],
            gains: None,
        }
    }
}

/// More than a process has models and machines.
const MOST_KEPT: usize = 1024;

/// More of them than a process keeps.
#[derive(Debug, thiserror::Error)]
#[error("filters of a process have at most {MOST_KEPT} different {0}")]
struct TooMany(&'static str);

/// What filters hold that is more than plain numbers: so a [`Filter`] stays one to copy. Equal ones are kept once, until the process ends.
struct Table<T: 'static> {
    kept: Mutex<Vec<&'static T>>,
    name: &'static str,
}

impl<T: PartialEq> Table<T> {
    const fn new(name: &'static str) -> Self {
        Self { kept: Mutex::new(vec![]), name }
    }

    fn keep(&self, value: T) -> Result<&'static T, TooMany> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kept) = kept.iter().find(|kept| ***kept == value) {
            return Ok(kept);
        }
        if kept.len() == MOST_KEPT {
            return Err(TooMany(self.name));
        }
        kept.push(Box::leak(Box::new(value)));
        Ok(kept[kept.len() - 1])
    }
}

static WEIGHTS: Table<Vec<NamedWeight>> = Table::new("lists of excepted weights");
static GAINS: Table<Gains> = Table::new("tables of gains");

fn kept<'de, D: Deserializer<'de>>(deserializer: D) -> Result<&'static [NamedWeight], D::Error> {
    let weights = WEIGHTS.keep(Vec::deserialize(deserializer)?).map_err(D::Error::custom)?;
    Ok(weights)
}

fn kept_gains<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'static Gains>, D::Error> {
    let gains = Option::deserialize(deserializer)?;
    gains.map(|gains| GAINS.keep(gains)).transpose().map_err(D::Error::custom)
}

impl Filter {
    /// Takes every product that is not empty, batched ones too.
    pub const fn every_matmul() -> Self {
        Self { min_m: 1, min_n: 1, min_k: 1, batched: true, matmul: true, except: &[], gains: None }
    }

    /// Takes linear layers whose dimensions are at least 16 and leaves plain matrix products alone.
    pub const fn linear_only() -> Self {
        Self {
            min_m: 16,
            min_n: 16,
            min_k: 16,
            batched: false,
            matmul: false,
            except: &[],
            gains: None,
        }
    }

    /// The same filter with other smallest dimensions M, N and K.
    pub const fn with_min_sizes(self, m: usize, n: usize, k: usize) -> Self {
        Self { min_m: m, min_n: n, min_k: k, ..self }
    }

    /// The same filter, taking products of two batches of matrices or not.
    pub const fn with_batched(self, batched: bool) -> Self {
        Self { batched, ..self }
    }

    /// The same filter, which leaves the products of these weights in high precision, too: `Fp8Config::except` of burn-fp8 finds them by
    /// the names of their layers.
    ///
    /// An FP8 layer knows its own weight, and goes by its `id`. So does a matrix product whose weight is known: `Fp8Config::except` of burn-fp8 says where. Any other knows K and N only: it
    /// is left alone, and its gradients with it, where **any** excepted weight has both.
    ///
    /// # Panics
    /// If filters of this process have 1,024 other lists of weights: each is kept until it ends.
    pub fn except(self, weights: impl IntoIterator<Item = NamedWeight>) -> Self {
        let weights = self.except.iter().cloned().chain(weights).collect();
        let except = WEIGHTS.keep(weights).unwrap_or_else(|error| panic!("{error}"));
        Self { except, ..self }
    }

    /// Whether a layer is in high precision that knows the `id` of its weight.
    pub fn excepts(&self, id: u64) -> bool {
        self.except.iter().any(|weight| weight.id == id)
    }

    /// Whether a product that belongs to this forward product may be taken as far as [`except`](Self::except) goes: by the `id` of its weight where that is
    /// known, else by its shape.
    ///
    /// # Errors
    /// [`Rejection::Excepted`].
    pub fn check_weight(&self, forward: Gemm, id: Option<u64>) -> Result<(), Rejection> {
        let shape = [forward.k, forward.n];
        let is_its = |weight: &&NamedWeight| match id {
            Some(id) => weight.id == id,
            None => forward.plain_operand && weight.shape == shape,
        };
        match self.except.iter().find(is_its) {
            Some(weight) => Err(Rejection::Excepted(weight)),
            None => Ok(()),
        }
    }

    /// The same filter, which takes only products that are faster in FP8, as was measured.
    ///
    /// # Panics
    /// If filters of this process have 1,024 other tables: each is kept until it ends.
    pub fn with_gains(self, gains: Gains) -> Self {
        let gains = GAINS.keep(gains).unwrap_or_else(|error| panic!("{error}"));
        Self { gains: Some(gains), ..self }
    }

    /// Whether FP8 makes a product faster that belongs to this forward product, with its gradients or alone, as far as was measured: batches of
    /// matrices were not.
    ///
    /// # Errors
    /// [`Rejection::NoGain`].
    pub fn check_gain(&self, forward: Gemm, with_gradients: bool) -> Result<(), Rejection> {
        let gains = self.gains.filter(|_| forward.plain_operand);
        match gains.map(|gains| gains.of(forward, with_gradients)) {
            Some(percent) if percent < Gains::LEAST => Err(Rejection::NoGain { percent }),
            _ => Ok(()),
        }
    }

    /// Whether a product of this kind and shape is taken, else why not. Asks nothing of its weight, nor what FP8 gains.
    ///
    /// # Errors
    /// The first rule that the product breaks.
    pub fn check(&self, kind: ProductKind, gemm: Gemm) -> Result<(), Rejection> {
        if kind != ProductKind::Linear && !self.matmul {
            return Err(Rejection::LinearOnly);
        }
        if !gemm.plain_operand && !self.batched {
            return Err(Rejection::Batched);
        }
        if gemm.batch == 0 {
            return Err(Rejection::Empty);
        }
        // An empty product has nothing to quantize, whatever the minimum.
        for (dimension, size, minimum) in
            [('M', gemm.m, self.min_m), ('N', gemm.n, self.min_n), ('K', gemm.k, self.min_k)]
        {
            if size == 0 {
                return Err(Rejection::Empty);
            }
            if size < minimum {
                return Err(Rejection::TooSmall { dimension, size, minimum });
            }
        }
        Ok(())
    }
}

/// The rule of a [`Filter`] that keeps a product out of FP8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The product has no elements.
    Empty,
    /// A dimension is below the filter's minimum.
    TooSmall {
        /// `'M'`, `'N'` or `'K'`.
        dimension: char,
        /// Its size.
        size: usize,
        /// The filter's minimum.
        minimum: usize,
    },
    /// Both operands are batches of matrices.
    Batched,
    /// The filter takes linear layers only.
    LinearOnly,
    /// It has K and N of this weight, which the filter excepts.
    Excepted(&'static NamedWeight),
    /// FP8 does not make it faster.
    NoGain {
        /// The speed in FP8, in percent of that in high precision, as measured.
        percent: u32,
    },
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "empty"),
            Self::TooSmall { dimension, size, minimum } => {
                write!(f, "{dimension} = {size} < {minimum}")
            }
            Self::Batched => write!(f, "batched"),
            Self::LinearOnly => write!(f, "not a linear layer"),
            Self::Excepted(NamedWeight { path, shape: [k, n], .. }) => {
                write!(f, "excepted: K×N = {k}×{n}, as `{path}`")
            }
            Self::NoGain { percent } => {
                write!(f, "no gain: FP8 at {percent}% of its speed, as measured")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gemm(m: usize, n: usize, k: usize) -> Gemm {
        Gemm::matrix(m, n, k)
    }

    #[test]
    fn default_takes_dimensions_from_sixteen_on() {
        let check = |m, n, k| Filter::default().check(ProductKind::Matmul, gemm(m, n, k));
        assert_eq!(check(16, 16, 16), Ok(()));
        assert_eq!(check(17, 16, 17), Ok(()));
        for (m, n, k, dimension) in [(15, 16, 16, 'M'), (16, 15, 16, 'N'), (16, 16, 15, 'K')] {
            let expected = Rejection::TooSmall { dimension, size: 15, minimum: 16 };
            assert_eq!(check(m, n, k), Err(expected));
        }
    }

    #[test]
    fn empty_products_are_never_taken() {
        for g in [gemm(0, 1, 1), gemm(1, 0, 1), gemm(1, 1, 0), Gemm { batch: 0, ..gemm(1, 1, 1) }] {
            let filter = Filter::every_matmul().with_min_sizes(0, 0, 0);
            assert_eq!(filter.check(ProductKind::Linear, g), Err(Rejection::Empty));
        }
    }

    #[test]
    fn batched_and_plain_products_are_told_apart() {
        let batched = Gemm { batch: 4, plain_operand: false, ..gemm(32, 32, 32) };
        assert_eq!(Filter::default().check(ProductKind::Matmul, batched), Err(Rejection::Batched));
        assert_eq!(Filter::every_matmul().check(ProductKind::Matmul, batched), Ok(()));
        let plain = gemm(32, 32, 32);
        assert_eq!(
            Filter::linear_only().check(ProductKind::Matmul, plain),
            Err(Rejection::LinearOnly)
        );
        assert_eq!(Filter::linear_only().check(ProductKind::Linear, plain), Ok(()));
    }

    #[test]
    fn products_without_a_gain_are_left_alone() {
        let gains = Gains::new("a machine".into(), vec![16, 64], vec![104; 8], vec![105; 8]);
        let filter = Filter::default().with_gains(gains.expect("a table"));
        let gemm = gemm(32, 32, 32);
        assert_eq!(filter.check_gain(gemm, true), Ok(()));
        let rejection = Rejection::NoGain { percent: 104 };
        assert_eq!(filter.check_gain(gemm, false), Err(rejection));
        assert_eq!(rejection.to_string(), "no gain: FP8 at 104% of its speed, as measured");
        assert_eq!(Filter::default().check_gain(gemm, false), Ok(()));
        let batched = Gemm { plain_operand: false, ..gemm };
        assert_eq!(filter.check_gain(batched, false), Ok(()));
        let json = serde_json::to_string(&filter).unwrap();
        assert_eq!(serde_json::from_str::<Filter>(&json).unwrap(), filter);
        assert!(!serde_json::to_string(&Filter::default()).unwrap().contains("gains"));
    }

    #[test]
    fn excepted_weights_are_told_by_their_shape_and_by_their_id() {
        let head = NamedWeight { path: "head.weight".into(), id: u64::MAX, shape: [32, 64] };
        let filter = Filter::default().except([head.clone()]);
        assert_eq!(
            filter.check_weight(gemm(16, 64, 32), None),
            Err(Rejection::Excepted(&filter.except[0]))
        );
        for other in [gemm(16, 32, 64), Gemm { plain_operand: false, ..gemm(16, 64, 32) }] {
            assert_eq!(filter.check_weight(other, None), Ok(()));
        }
        assert_eq!(filter.check_weight(gemm(16, 64, 32), Some(7)), Ok(()));
        assert!(filter.check_weight(gemm(16, 32, 64), Some(head.id)).is_err());
        assert!(filter.excepts(head.id) && !filter.excepts(0));
        // Equal lists are kept once.
        assert!(std::ptr::eq(filter.except, Filter::every_matmul().except([head]).except));
        let json = serde_json::to_string(&filter).unwrap();
        assert_eq!(serde_json::from_str::<Filter>(&json).unwrap(), filter);
        assert!(!serde_json::to_string(&Filter::default()).unwrap().contains("except"));
    }

    #[test]
    fn a_process_keeps_a_bounded_number_of_different_values() {
        let table = Table::new("numbers");
        for round in 0..2 {
            for number in 0..MOST_KEPT {
                assert_eq!(table.keep(number).ok(), Some(&number), "{round}");
            }
        }
        let error = table.keep(MOST_KEPT).unwrap_err().to_string();
        assert_eq!(error, "filters of a process have at most 1024 different numbers");
    }
}
