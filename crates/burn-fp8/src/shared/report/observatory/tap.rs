//! What a product tells the observatory.

use core::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn_backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn_fp8_core::sums::{Accumulations, Sums};
use burn_fp8_core::{Gemm, GemmRole, Operand, Recipe};
use burn_fp8_report::log::{MAX_TEXT, SiteEntry};
use burn_fp8_report::sample::{OperandSample, lines_of, product, sizes, sums};

use super::read;
use crate::engine::ScalarOf;

/// How an operand was quantized.
pub(crate) struct Quantization<B: Backend> {
    /// Its scale; `None` where rows have scales of their own.
    pub(crate) scale: Option<ScalarOf<B>>,
    /// Its amax, where it was measured.
    pub(crate) amax: Option<ScalarOf<B>>,
}

/// A product of a sampled step: where it, and later its backward pass, leave what they see.
#[derive(Clone)]
pub(crate) struct Tap {
    gemm: Gemm,
    max_elements: usize,
    /// Cards whose sums are measured, and how each product accumulates.
    sums: (Vec<Sums>, Accumulations),
    sample: Arc<Mutex<Sample>>,
}

/// What is known of a product; the operands until its step ends.
struct Sample {
    is_open: bool,
    entry: SiteEntry,
    operands: [Option<OperandSample>; 3],
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").field("gemm", &self.gemm).finish_non_exhaustive()
    }
}

impl Tap {
    pub(super) fn new(
        [step, site]: [u64; 2],
        max_elements: usize,
        mut name: String,
        kind: String,
        gemm: Gemm,
        sums: (Vec<Sums>, Accumulations),
    ) -> Self {
        name.truncate(name.floor_char_boundary(MAX_TEXT));
        let entry = SiteEntry {
            step,
            site,
            name,
            kind,
            gemm: gemm.into(),
            recipe: String::new(),
            operands: Default::default(),
            products: Default::default(),
        };
        let sample = Sample { is_open: true, entry, operands: [None, None, None] };
        Self { gemm, max_elements, sums, sample: Arc::new(Mutex::new(sample)) }
    }

    /// Ends the sampling, and tells what was seen; `None` where nothing was.
    pub(super) fn close(&self) -> Option<SiteEntry> {
        let mut sample = self.sample();
        sample.is_open = false;
        sample.operands = [None, None, None];
        let entry = sample.entry.clone();
        (!entry.recipe.is_empty()).then_some(entry)
    }

    fn sample(&self) -> MutexGuard<'_, Sample> {
        self.sample.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees operands, those that are quantized, and measures those of `roles` that are complete with them and run in FP8.
    ///
    /// Waits for the device.
    pub(crate) fn see<B: Backend>(
        &self,
        seen: impl IntoIterator<Item = (Operand, FloatTensor<B>, Option<Quantization<B>>)>,
        roles: &[GemmRole],
        recipe: &Recipe,
    ) {
        let Gemm { m, n, k, .. } = self.gemm;
        let mut sample = self.sample();
        if !sample.is_open || m * n * k == 0 {
            return;
        }
        let take = sizes([m, n, k], self.max_elements);
        let mut new = Vec::new();
        for (operand, tensor, quantization) in seen {
            let Some(Quantization { scale, amax }) = quantization else { continue };
            let [rows, columns] = match operand {
                Operand::Input => [take[0], take[2]],
                Operand::Weight => [take[2], take[1]],
                Operand::OutputGrad => [take[0], take[1]],
            };
            let matrix = read::matrix::<B>(&tensor, self.gemm, [rows, columns]);
            let finite = matrix.values().iter().filter(|x| x.is_finite());
            let largest = finite.fold(0f32, |largest, x| largest.max(x.abs()));
            let operand_sample = OperandSample {
                matrix,
                elements: tensor.shape().num_elements() as u64,
                format: recipe.formats.of(operand),
                scale: scale.map(ScalarOf::<B>::read::<B>),
                // That of a layer is not finite where the tensor is not; nobody measures it where rows have scales of their own.
                amax: Some(amax.map_or_else(|| read::amax::<B>(&tensor), ScalarOf::<B>::read::<B>))
                    .filter(|amax| amax.is_finite())
                    .unwrap_or(largest),
            };
            let first = GemmRole::ALL.into_iter().find(|role| role.operands().contains(&operand));
            let lines = lines_of(first.expect("every operand is in two products"), operand);
            let stats = operand_sample.stats(operand, lines, *recipe);
            sample.entry.operands.set(operand, stats);
            sample.operands[operand as usize] = Some(operand_sample);
            new.push(operand);
        }
        if sample.entry.recipe.is_empty() && !new.is_empty() {
            sample.entry.recipe = recipe.to_string();
        }
        for &role in roles {
            let [lhs, rhs] = role.operands();
            let [left, right] =
                [lhs, rhs].map(|operand| sample.operands[operand as usize].as_ref());
            if let (Some(left), Some(right)) = (left, right)
                && recipe.products.in_fp8(role)
            {
                let mut stats = product(role, [left, right], *recipe);
                let (cards, accumulation) = &self.sums;
                stats.sums = sums(role, [left, right], *recipe, accumulation.of(role), cards);
                sample.entry.products.set(role, stats);
            }
        }
        let is_measured = |role: &GemmRole| sample.entry.products.of(*role).is_some();
        if roles.iter().all(|role| *role != GemmRole::Output && is_measured(role)) {
            sample.operands = [None, None, None];
        }
    }
}
