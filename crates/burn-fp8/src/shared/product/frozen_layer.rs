//! A frozen layer: its forward pass, and its weight on the host.

use burn_backend::{DType, FloatDType, TensorMetadata, tensor::FloatTensor};
use burn_fp8_checkpoint::{
    Activations, CheckpointError, QuantizedLinear, Scales as PublishedScales,
};
use burn_fp8_core::{Fp8Format, Gemm, GemmRole, Precision, ProductKind};

use super::activation::{ActivationScale, InputScale};
use super::frozen::{self, FrozenOptions};
use super::plan::{Product, fitting_linear_gemm};
use super::{Held, run};
use crate::Fp8Error;
use crate::config::{self, Fp8Config};
use crate::engine::tensor::{add_bias, join, reshape};
use crate::engine::{
    Capability, Execution, Fallback, Fp8Engine, Graph, MatrixOf, Requirements, Target, check_scale,
    multiply_high, without_graph,
};
use crate::host;
use crate::report::{HighPrecision, PendingOperand, record_high_precision};

/// `x` `[…, K]`, f32, f16 or bf16, times a weight `[K, N]`, plus `bias` `[N]`: `[…, N]` of the type of `x`. Inputs of other types are multiplied in high
/// precision. A trace calls it `kind`. `laid_out` gives the weight with its codes row by row, or column by column.
pub(crate) fn forward<B: Graph>(
    kind: ProductKind,
    x: FloatTensor<B>,
    weight: MatrixOf<B>,
    bias: Option<FloatTensor<B>>,
    input: impl Into<InputScale>,
    laid_out: impl FnOnce(bool) -> MatrixOf<B>,
) -> FloatTensor<B> {
    let [k, n] = weight.shape().dims();
    let (dtype, mut shape, device) = (x.dtype(), x.shape(), host::float_device::<B>(&x));
    let last = shape.num_dims() - 1;
    assert!(
        shape[last] == k,
        "a FrozenLinear of {k} inputs and {n} outputs takes […, {k}], not {:?}",
        shape.as_slice()
    );
    let m = shape.num_elements() / k;
    shape[last] = n;
    if m == 0 {
        // No bias: CubeCL does not broadcast it over no rows.
        return B::float_zeros(shape, &device, dtype.into());
    }
    let (x, gemm) = (join::<B>(x), Gemm::matrix(m, n, k));
    let bias = bias.map(|bias| B::float_cast(bias, dtype.into()));
    let output = match options::<B>(kind, dtype, gemm, &device, &weight, input.into()) {
        Some(options) => {
            // Tensor cores and slices read both operands along K.
            let weight = laid_out(B::FP8_ON_HOST || options.target == Target::TensorCores);
            run::frozen::<B>(x, weight, bias, &options)
        }
        None => {
            let weight = B::float_cast(B::fp8_dequantize(weight), dtype.into());
            add_bias::<B>(multiply_high::<B>(x, weight), bias)
        }
    };
    reshape::<B>(output, shape)
}

/// What the input of a product with quantized weights is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputNumbers {
    /// Numbers of the user.
    AsTheyAre,
    /// Those of a quantized tensor: they are not rounded a second time.
    Quantized,
}

/// `x` `[…, K]` times a weight that a user has quantized, plus `bias` `[N]`. The input is quantized where the configuration would quantize those of a product of
/// numbers, as its recipe says; elsewhere it stays as it is.
pub(crate) fn by_quantized<B: Graph>(
    kind: ProductKind,
    (x, input): (FloatTensor<B>, InputNumbers),
    weight: Held<B>,
    bias: Option<FloatTensor<B>>,
) -> FloatTensor<B> {
    let matrix = weight.get();
    let gemm = fitting_linear_gemm(&[x.shape(), matrix.shape()]);
    let recipe = config::current().config.recipe;
    let scale = match Product::would_run(kind, gemm, [x.dtype(); 2]) {
        Ok(())
            if recipe.products.of(GemmRole::Output) == Precision::Fp8
                && input == InputNumbers::AsTheyAre =>
        {
            let scale = InputScale::from(recipe);
            match matrix.format {
                Fp8Format::E4M3 => scale,
                // Hardware does not multiply E5M2 by E5M2.
                Fp8Format::E5M2 => InputScale { format: Fp8Format::E4M3, ..scale },
            }
        }
        _ => ActivationScale::Unquantized.into(),
    };
    if B::is_tracked(&x) {
        Product::skip_site(gemm, None);
    }
    forward::<B>(kind, x, matrix, bias, scale, |of_transpose| weight.laid_out(of_transpose))
}

/// The product of two matrices that a user has quantized, neither empty. A constant of the graph.
pub(crate) fn of_quantized<B: Graph>(
    lhs: Held<B>,
    rhs: Held<B>,
    dtype: FloatDType,
) -> FloatTensor<B> {
    let (lhs, weight) = (lhs.get(), rhs.get());
    let ([m, k], [_, n]) = (lhs.shape().dims(), weight.shape().dims());
    let (gemm, device) = (Gemm::matrix(m, n, k), lhs.device::<B>());
    let config = config::current().config;
    if !config.enabled {
        let (kind, reason) = (ProductKind::Matmul, HighPrecision::Off);
        record_high_precision(kind, GemmRole::Output, gemm, reason);
        let [lhs, rhs] =
            [lhs, weight].map(|matrix| B::float_cast(B::fp8_dequantize(matrix), dtype));
        return multiply_high::<B>(lhs, rhs);
    }
    let blocks = [lhs.scales.block(), weight.scales.block()];
    let powers = lhs.scales.are_powers_of_two() && weight.scales.are_powers_of_two();
    let target =
        Target::of::<B>(&device, Requirements::of_matrices(blocks, k, powers), config.manner());
    let target = match target.unwrap_or_else(|error| panic!("{error}")) {
        Target::TensorCores if [lhs.format, weight.format] == [Fp8Format::E5M2; 2] => {
            assert!(
                config.execution != Execution::Native,
                "tensor cores do not multiply E5M2 by E5M2, {m}×{k} by {k}×{n}: quantize one of them to E4M3, or leave Execution::Native"
            );
            let reason = "tensor cores do not multiply E5M2 by E5M2";
            Target::Emulation(Some(Fallback::NoAlgorithm(reason.into())))
        }
        target => target,
    };
    let options = FrozenOptions {
        kind: ProductKind::Matmul,
        input: ActivationScale::Unquantized.into(),
        granularity: weight.granularity(0),
        accumulation: config.accumulation.output,
        manner: config.manner(),
        target,
    };
    let of_lhs = PendingOperand::new::<B>(lhs.format, lhs.granularity(1), lhs.scales.clone(), None);
    let along_k = B::FP8_ON_HOST || options.target == Target::TensorCores;
    let operands = [lhs.laid_out::<B>(false), rhs.laid_out(along_k)].map(without_graph::<B>);
    let product = frozen::of_codes::<B::Inner>(operands, of_lhs, (None, dtype), &options);
    B::constant(product)
}

/// How a product with a frozen weight is run, or none where it is in high precision.
fn options<B: Fp8Engine>(
    kind: ProductKind,
    dtype: DType,
    gemm: Gemm,
    device: &B::Device,
    weight: &MatrixOf<B>,
    input: InputScale,
) -> Option<FrozenOptions> {
    let config = config::current().config;
    let in_fp8 = match dtype {
        _ if !config.enabled => Err(HighPrecision::Off),
        DType::F32 | DType::F16 | DType::BF16 | DType::Flex32 => match input.activation {
            ActivationScale::Unquantized => Err(HighPrecision::WeightOnly),
            _ => Ok(()),
        },
        dtype => Err(HighPrecision::Dtype(dtype)),
    };
    if let Err(reason) = in_fp8 {
        record_high_precision(kind, GemmRole::Output, gemm, reason);
        if reason != HighPrecision::WeightOnly {
            return None;
        }
    }
    let target =
        target::<B>(&config, gemm, device, weight, input).unwrap_or_else(|error| panic!("{error}"));
    let (granularity, accumulation) = (weight.granularity(0), config.accumulation.output);
    let manner = config.manner();
    Some(FrozenOptions { kind, input, granularity, target, manner, accumulation })
}

/// Where a product with a frozen weight runs, or why it cannot run where the configuration wants it.
pub(crate) fn target<B: Fp8Engine>(
    config: &Fp8Config,
    gemm: Gemm,
    device: &B::Device,
    weight: &MatrixOf<B>,
    InputScale { activation, recipe, .. }: InputScale,
) -> Result<Target, Fp8Error> {
    let scales = &weight.scales;
    let are_powers_of_two = recipe.has_powers_of_two() && scales.are_powers_of_two();
    let kind =
        Requirements::of_matrices([activation.block(), scales.block()], gemm.k, are_powers_of_two);
    match activation {
        ActivationScale::Unquantized => Ok(Target::Emulation(None)),
        _ => Target::of::<B>(device, kind, config.manner()),
    }
}

/// A weight on the host: `[d_output, d_input]` as checkpoints have it, or its transpose.
pub(crate) struct HostWeight {
    pub(crate) shape: [usize; 2],
    pub(crate) codes: Vec<u8>,
    pub(crate) scales: Vec<f32>,
    /// `[⌈rows / rows of a block⌉, ⌈columns / columns of a block⌉]`.
    pub(crate) grid: [usize; 2],
    /// Rows and columns that share a scale, or none where all do.
    pub(crate) block: Option<[usize; 2]>,
}

impl HostWeight {
    /// That of a layer of a checkpoint, `[d_output, d_input]`, for inputs that are scaled as it declares.
    pub(crate) fn of(layer: QuantizedLinear) -> Self {
        let (shape, scales) = (layer.shape(), layer.scales());
        let (grid, [outputs, inputs]) = (scales.grid(), scales.block());
        // Tensor cores want several scales, or one for each block of 128, of both operands.
        let in_blocks = matches!(layer.activations(), Activations::Blocks { .. } | Activations::Mx);
        let block = match scales.values() {
            [scale] if !in_blocks && check_scale("weight_scale", *scale).is_ok() => None,
            _ if grid[1] == 1 && !in_blocks => Some([outputs, usize::MAX]),
            _ => Some([outputs, inputs]),
        };
        let scales = scales.values().to_vec();
        Self { shape, scales, grid, block, codes: layer.into_codes() }
    }

    pub(crate) fn transpose(self) -> Self {
        let swap = |[rows, columns]: [usize; 2]| [columns, rows];
        Self {
            shape: swap(self.shape),
            codes: transpose(&self.codes, self.shape),
            scales: transpose(&self.scales, self.grid),
            grid: swap(self.grid),
            block: self.block.map(swap),
        }
    }

    /// The layer as checkpoints hold it; the weight is `[d_output, d_input]`.
    pub(crate) fn publish(
        self,
        bias: Option<Vec<f32>>,
        activation: ActivationScale,
    ) -> Result<QuantizedLinear, CheckpointError> {
        let shape = self.shape;
        let block = self.block.map_or(shape, |block| [0, 1].map(|dim| block[dim].min(shape[dim])));
        let scales = PublishedScales::new(shape, block, self.scales)?;
        QuantizedLinear::new(shape, self.codes, scales, bias, activation.into())
    }
}

/// Whether products with inputs that are scaled so take a weight column by column on this device, as checkpoints have it.
pub(crate) fn takes_columns<B: Fp8Engine>(device: &B::Device, activation: ActivationScale) -> bool {
    let is_quantized = activation != ActivationScale::Unquantized;
    B::FP8_ON_HOST
        || is_quantized && matches!(B::fp8_capability(device, None), Capability::Native(_))
}

/// The transpose of a matrix, in squares that fit into the first-level cache.
fn transpose<T: Copy + Default>(values: &[T], [rows, columns]: [usize; 2]) -> Vec<T> {
    const SIDE: usize = 64;
    let mut transposed = vec![T::default(); values.len()];
    for first in (0..rows).step_by(SIDE) {
        for from in (0..columns).step_by(SIDE) {
            for row in first..rows.min(first + SIDE) {
                for column in from..columns.min(from + SIDE) {
                    transposed[column * rows + row] = values[row * columns + column];
                }
            }
        }
    }
    transposed
}

/// Whether a weight can be of this shape, else why not.
pub(crate) fn check_shape([d_input, d_output]: [usize; 2]) -> Result<(), String> {
    match d_input > 0 && d_output > 0 {
        true => Ok(()),
        false => Err(format!("the weight [{d_input}, {d_output}] has no elements")),
    }
}

/// Whether weight and bias have a finite element each, else which one has not.
pub(crate) fn check_finite(
    [d_input, d_output]: [usize; 2],
    codes: &[u8],
    bias: Option<&[f32]>,
) -> Result<(), String> {
    const REMEDY: &str = "all are NaN or infinite; the model that it comes from has diverged, or its file is damaged";
    if codes.iter().all(|code| Fp8Format::E4M3.decode(*code).is_nan()) {
        return Err(format!(
            "no element of the weight [{d_input}, {d_output}] is finite: {REMEDY}"
        ));
    }
    if bias.is_some_and(|bias| !bias.is_empty() && !bias.iter().any(|b| b.is_finite())) {
        return Err(format!("no element of the bias [{d_output}] is finite: {REMEDY}"));
    }
    Ok(())
}
