//! One FP8 product with everything that the hardware fuses into it.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, Tensor, TensorPrimitive};
use burn_fp8_core::sums::{SplitK, Sums};
use burn_fp8_core::{Fp8Format, Gemm, GemmRole, ProductKind};

use super::handle::{Fp8Tensor, Shown};
use super::options::{ScaledMatmulOptions, ScaledMatrix, ScaledOutput};
use crate::Fp8Error;
use crate::config;
use crate::engine::Graph;
use crate::engine::portable::codes;
use crate::engine::{
    Added, Epilogue, Execution, Manner, Matrix, Operand, OutputType, Product, Requirements, Run,
    Scalar, Target, WHOLE, blocks_of, check as check_product, has_tensor_cores_for, multiply,
};
use crate::host::primitive;
use crate::report::{self, Pending, PendingOperand, PendingRan, new_note};

/// The largest scale of an FP8 output: that of its reciprocal, which the product is multiplied by, is still a normal f32.
const MAX_OUTPUT_SCALE: f32 = f32::from_bits((126 + 127) << 23);

/// Multiplies two FP8 tensors: `a` `[M, K]` times `b` `[K, N]`, with what [`ScaledMatmulOptions`] asks for in the same pass.
///
/// ```text
/// d    = activation((codes of a · codes of b) × (scale of a × scale of b) + beta × C + bias)     in f32
/// amax = max |d|
/// D    = d rounded to F32, BF16, F16; or the codes of d × (1 / output scale), clamped to the largest number
/// ```
///
/// The low-level peer of PyTorch's `torch._scaled_mm` and XLA's `__cublas$lt$matmul$f8`. Emulated on every backend: sums are f32, or those that
/// [`Fp8Config::sums`](crate::Fp8Config::sums) names.
///
/// **Scales.** Both operands have one scale; or one for each row of `a` and each column of `b`; or scales of blocks: 1×32 times 32×1 (MXFP8), 1×128 or 128×128
/// times 128×1 or 128×128, but not 128×128 on both sides. Those of MXFP8 are powers of two. Operands with several scales give float output. Matrix units of CPUs run
/// such products, and tensor cores where [`Fp8Config::native_blocks`](crate::Fp8Config::native_blocks) asks for it.
///
/// **Layout.** The tensor cores of Ada and Hopper read both operands along K: `a` row by row, `b` column by column, which is the
/// [`transpose`](Fp8Tensor::transpose) of a tensor `[N, K]` (PyTorch: `_scaled_mm(a, b.t())`). Other layouts give the same result, at the price
/// of moving the codes of that operand once each time.
///
/// **Numbers.** NaN codes, and a NaN scale on the device, give NaN. An infinite code of E5M2, or a sum beyond f32, gives an infinity or NaN in
/// float output and ± the largest number or NaN in FP8 output. Emulated, ReLU and GELU keep NaN and GELU of -inf is NaN; what becomes of NaN in
/// the epilogues of cuBLASLt is not documented.
///
/// **Configuration.** The product runs whatever filter and recipe are ambient, and in [`high_precision`](crate::high_precision) too: its operands are
/// FP8 already. [`Execution`] holds. It is one product in a [`trace`](crate::trace), of the kind [`ProductKind::ScaledMatmul`]. The result is a
/// constant of the graph of Autodiff.
///
/// # Errors
/// [`Fp8Error::Invalid`], with the remedy, for all that cuBLASLt would refuse, on every backend, so that what is emulated runs on the GPU too: inner
/// dimensions that differ, an empty operand, two operands of E5M2, and what [`ScaledMatmulOptions`] lists; operands, C, bias on several devices; a C or bias
/// with a gradient; a beta that is not finite; a host scale of the output outside of [2^-126, 2^126]; and a split of K that cannot be ([`ScaledMatmulOptions::with_split_k`]).
/// [`Fp8Error::NativeUnavailable`] where [`Execution::Native`] is asked for and not available, or cuBLASLt has no algorithm for the product; it
/// says which.
///
/// # Panics
/// Where [`Execution::Native`] is asked for, and a matrix unit of the CPU finds that scales of blocks which are powers of two lie too far apart for it.
///
/// [`Execution`]: crate::Execution
/// [`Execution::Native`]: crate::Execution::Native
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::{Distribution, FloatDType, Tensor};
/// use burn_fp8::{Activation, Fp8Format, Fp8Tensor, ScaledMatmulOptions, scaled_matmul};
///
/// let device = Default::default();
/// let random = |shape| Tensor::<Flex, 2>::random(shape, Distribution::Default, &device);
/// let a = Fp8Tensor::quantize(random([16, 32]), Fp8Format::E4M3);
/// let weight = Fp8Tensor::quantize(random([64, 32]), Fp8Format::E4M3); // [N, K]
/// let bias = Tensor::<Flex, 1>::ones([64], &device).cast(FloatDType::BF16);
///
/// let y = scaled_matmul(&a, &weight.transpose(), &ScaledMatmulOptions::default())?.into_float();
/// assert_eq!(y.dims(), [16, 64]);
///
/// // FP8 out, for the next product, with bias, ReLU, and the amax that a better scale can be made of.
/// let options = ScaledMatmulOptions::fp8(Fp8Format::E4M3, 0.25)
///     .with_bias(bias)
///     .with_activation(Activation::Relu)
///     .with_amax();
/// let output = scaled_matmul(&a, &weight.transpose(), &options)?;
/// let amax = output.amax.clone().expect("asked for").into_scalar();
/// let d = output.into_fp8();
/// assert!(amax > 1.0 && (d.dequantize().max().into_scalar() - amax).abs() <= amax / 16.0);
/// # Ok::<(), burn_fp8::Fp8Error>(())
/// ```
pub fn scaled_matmul<B: Graph>(
    a: &Fp8Tensor<B, 2>,
    b: &Fp8Tensor<B, 2>,
    options: &ScaledMatmulOptions<B>,
) -> Result<ScaledOutput<B>, Fp8Error> {
    let gemm = check(a, b, options).map_err(invalid)?;
    let device = a.device();
    let mut manner = config::current().config.manner();
    if let Some(split) = options.split {
        check_split([a, b], split, manner).map_err(invalid)?;
        // cuBLASLt chooses how it splits.
        manner.execution = Execution::FakeQuantized;
    }
    let matrices = [a.matrix(), b.matrix()];
    let blocks = matrices.map(|matrix| matrix.scales.block());
    let are_powers_of_two = matrices.iter().all(|matrix| matrix.scales.are_powers_of_two());
    let kind = Requirements::of_matrices(blocks, gemm.k, are_powers_of_two);
    let target = Target::of::<B>(&device, kind, manner)?;

    let note = new_note();
    let epilogue = Epilogue {
        output: options.output.clone().map(|scale| B::float_to_device(scale, &device)),
        added: options
            .c
            .clone()
            .and_then(|(c, beta)| (beta != 0.0).then(|| Added { c: primitive(c), beta })),
        bias: options.bias.clone().map(primitive),
        activation: options.activation,
        amax: options.amax,
    };
    let run = Run {
        in_bf16: false,
        any_order: true,
        target,
        fast_accumulation: options.fast_accumulation,
        sums: manner.sums,
        split: options.split,
        otherwise: manner.execution.otherwise(),
        note: note.clone(),
    };
    let reported = report::Epilogue::of(&epilogue, options.fast_accumulation);
    let [lhs, rhs] = matrices.map(|matrix| Operand::Matrix(matrix.clone()));
    check_product::<B>([&lhs, &rhs], &epilogue, &run).map_err(|fallback| {
        Fp8Error::NativeUnavailable { backend: B::name(&device), reason: fallback.to_string() }
    })?;
    let Product { result, amax } = multiply::<B>(lhs, rhs, epilogue, run);

    if let Some(note) = note {
        let operand = |(operand, dim): (&Fp8Tensor<B, 2>, usize)| {
            let (format, scales) = (operand.format(), operand.matrix().scales.clone());
            PendingOperand::new::<B>(format, operand.matrix().granularity(dim), scales, None)
        };
        report::record_with_epilogue(Some(reported), || Pending {
            kind: ProductKind::ScaledMatmul,
            role: GemmRole::Output,
            gemm,
            // The left operand is summed along its columns, the right one along its rows.
            operands: Some([(a, 1), (b, 0)].map(operand)),
            site: None,
            ran: PendingRan::noted::<B>(&note, device.clone()),
        });
    }
    let d = match result {
        Operand::Matrix(matrix) => {
            let format = matrix.format;
            let codes = matrix.codes.map(|codes| codes::compact::<B>(codes, format));
            ScaledMatrix::Fp8(Fp8Tensor::new(Matrix { codes, ..matrix }))
        }
        Operand::Float(tensor) => {
            ScaledMatrix::Float(Tensor::from_primitive(TensorPrimitive::Float(tensor)))
        }
    };
    let amax = amax.map(|amax| Tensor::from_primitive(TensorPrimitive::Float(amax)));
    Ok(ScaledOutput { d, amax })
}

/// The shape of the product, or why cuBLASLt has no such one.
///
/// By the table of FP8 types in NVIDIA's documentation of `cublasLtMatmul`.
fn check<B: Graph>(
    a: &Fp8Tensor<B, 2>,
    b: &Fp8Tensor<B, 2>,
    options: &ScaledMatmulOptions<B>,
) -> Result<Gemm, String> {
    let ([m, k], [b_k, n]) = (a.dims(), b.dims());
    if k != b_k {
        return Err(format!(
            "[{m}, {k}] times [{b_k}, {n}]: the inner dimensions {k} and {b_k} differ; a weight [N, K] goes in as \
             weight.transpose()"
        ));
    }
    if [m, n, k].contains(&0) {
        return Err(format!("[{m}, {k}] times [{k}, {n}]: an operand has no elements"));
    }
    let device = a.device();
    if b.device() != device {
        return Err(format!(
            "the operands are on different devices, {device:?} and {:?}; use to_device",
            b.device()
        ));
    }
    let in_blocks = check_blocks([a, b], k)?;
    if in_blocks && matches!(options.output, OutputType::Fp8 { .. }) {
        return Err(
            "operands with several scales give no FP8 output: take float output, and quantize that"
                .into(),
        );
    }
    let formats = [a.format(), b.format()];
    if formats == [Fp8Format::E5M2; 2] {
        return Err(
            "E5M2 times E5M2: tensor cores have no such product; quantize one operand to E4M3"
                .into(),
        );
    }
    check_output::<B>(&options.output, formats, &device)?;
    if options.amax && matches!(options.output, OutputType::Float(_)) {
        return Err(
            "amax comes with FP8 output only; with float output take it from the result: d.abs().max()".into()
        );
    }
    let same_shape = |what, found: &[usize], needed: &[usize]| match found == needed {
        true => Ok(()),
        false => Err(format!("{what} is {found:?}; it must be {needed:?}")),
    };
    if let Some((c, beta)) = &options.c {
        same_shape("C", &c.dims(), &[m, n])?;
        if !beta.is_finite() {
            return Err(format!("beta is {beta}; it must be finite"));
        }
        check_addend::<B, 2>("C", c, types_of_c(&options.output), &device)?;
    }
    if let Some(bias) = &options.bias {
        same_shape("the bias", &bias.dims(), &[n])?;
        let of_c = options.c.as_ref().map(|(c, _)| c.dtype());
        check_addend::<B, 1>("the bias", bias, &types_of_bias(&options.output, of_c), &device)?;
    }
    Ok(Gemm::matrix(m, n, k))
}

/// Whether a product has several scales for each operand, else one; or why there is none of such two operands.
fn check_blocks<B: Backend>([a, b]: [&Fp8Tensor<B, 2>; 2], k: usize) -> Result<bool, String> {
    let blocks = [a, b].map(|operand| operand.matrix().scales.block());
    let Some(of_operands) = blocks_of(blocks, k) else { return Ok(false) };
    let shown = |operand: &Fp8Tensor<B, 2>| match operand.block() {
        Some(block) => format!("a scale for each block {}", Shown(block)),
        None => "one scale".into(),
    };
    if blocks.contains(&WHOLE) {
        return Err(format!(
            "the left operand has {}, the right one {}: both have one scale, or both have several",
            shown(a),
            shown(b)
        ));
    }
    // Blocks of 32 or 128 that hold all of a row are rows, too.
    let is_row = |[across, along]: [usize; 2]| across == 1 && along >= k;
    match has_tensor_cores_for(of_operands) || of_operands.into_iter().all(is_row) {
        true => Ok(true),
        false => {
            let [of_a, of_b] = [a, b].map(|operand| Shown(operand.block().expect("several")));
            Err(format!(
                "blocks {of_a} of the left operand, {of_b} of the right one [K, N]: possible are rows times columns (1×K and K×1), 1×32 times 32×1, and \
                 1×128 or 128×128 times 128×1 or 128×128, but not 128×128 on both sides"
            ))
        }
    }
}

/// The most parts of K.
const MAX_SPLITS: usize = 1024;

/// Whether a product can be split so, else why not.
fn check_split<B: Backend>(
    [a, b]: [&Fp8Tensor<B, 2>; 2],
    split: SplitK,
    manner: Manner,
) -> Result<(), String> {
    if !(1..=MAX_SPLITS).contains(&split.splits) {
        return Err(format!("{} parts of K: 1 to {MAX_SPLITS} are possible", split.splits));
    }
    if manner.sums == Sums::F32 {
        return Err(
            "K is split with the sums of tensor cores: choose some by Fp8Config::with_sums".into(),
        );
    }
    if manner.execution == Execution::Native {
        return Err("cuBLASLt chooses itself how it splits K: a split of one's own is emulated, by Execution::Auto".into());
    }
    match a.matrix().is_constant_along(1) && b.matrix().is_constant_along(0) {
        true => Ok(()),
        false => Err("products with several scales along K are not split".into()),
    }
}

fn check_output<B: Backend>(
    output: &OutputType<B::FloatTensorPrimitive>,
    formats: [Fp8Format; 2],
    device: &B::Device,
) -> Result<(), String> {
    match output {
        OutputType::Float(dtype @ (FloatDType::F32 | FloatDType::BF16 | FloatDType::F16)) => {
            match B::supports_dtype(device, (*dtype).into()) {
                true => Ok(()),
                false => Err(format!("the device {device:?} has no {dtype:?}; ask for F32 output")),
            }
        }
        OutputType::Float(dtype) => {
            Err(format!("{dtype:?} output: F32, BF16, F16 and FP8 are possible"))
        }
        OutputType::Fp8 { format: Fp8Format::E5M2, .. } if formats == [Fp8Format::E4M3; 2] => {
            Err("E4M3 times E4M3 gives no E5M2 output: take E4M3, or quantize one operand to E5M2"
                .into())
        }
        OutputType::Fp8 { scale, .. } => {
            scale.check_scale("the scale of the output")?;
            match scale {
                Scalar::Host(scale) if *scale > MAX_OUTPUT_SCALE => {
                    Err(format!("the scale of the output is {scale:e}; it must be at most 2^126"))
                }
                _ => Ok(()),
            }
        }
    }
}

/// Which types of C cuBLASLt has for an output.
const fn types_of_c<F>(output: &OutputType<F>) -> &'static [DType] {
    match output {
        OutputType::Float(FloatDType::F32) => &[DType::F32],
        OutputType::Float(FloatDType::F16) => &[DType::F16],
        OutputType::Float(_) => &[DType::BF16],
        OutputType::Fp8 { .. } => &[DType::BF16, DType::F16],
    }
}

/// Which types of a bias: with FP8 output that of C.
fn types_of_bias<F>(output: &OutputType<F>, of_c: Option<DType>) -> Vec<DType> {
    match (output, of_c) {
        (OutputType::Float(FloatDType::F16), _) => vec![DType::F16],
        (OutputType::Float(_), _) => vec![DType::BF16],
        (OutputType::Fp8 { .. }, Some(of_c)) => vec![of_c],
        (OutputType::Fp8 { .. }, None) => vec![DType::BF16, DType::F16],
    }
}

/// Whether something of one of these types, without a gradient, is on the device.
fn check_addend<B: Graph, const D: usize>(
    what: &str,
    tensor: &Tensor<B, D>,
    allowed: &[DType],
    device: &B::Device,
) -> Result<(), String> {
    // F32 stands for a type that the device has not got.
    let mut possible: Vec<_> = allowed
        .iter()
        .map(|dtype| if B::supports_dtype(device, *dtype) { *dtype } else { DType::F32 })
        .collect();
    possible.dedup();
    if !possible.contains(&tensor.dtype()) {
        return Err(format!(
            "{what} is {:?}; with this output it must be of one of {possible:?}: use cast(…)",
            tensor.dtype()
        ));
    }
    if tensor.device() != *device {
        return Err(format!("{what} is on {:?}, the operands are on {device:?}", tensor.device()));
    }
    if B::is_tracked(&primitive(tensor.clone())) {
        return Err(format!(
            "{what} has a gradient, which would end here; take it from model.valid(), or use \
             detach().set_require_grad(false)"
        ));
    }
    Ok(())
}

fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "scaled_matmul", reason }
}
