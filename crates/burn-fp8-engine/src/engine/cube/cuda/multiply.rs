//! A product of two matrices, or a batch of them, as one call of cuBLASLt.

use burn::tensor::{DType, FloatDType, Shape, Slice, TensorMetadata};
use burn_cubecl::CubeRuntime;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::cubecl::zspace::{metadata::Metadata, strides};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_fp8_core::{Fp8Format, Layouts, PADDING};
use burn_fp8_cublaslt::BlockScale;

use super::buffer::{device_of, words};
use super::launch::{Call, describe, launch};
use super::problem::{block_scale, plan_of};
use crate::engine::backend::Fp8Engine;
use crate::engine::capability::Fallback;
use crate::engine::codes::Codes;
use crate::engine::cube::tensor::{number, output, run as run_kernel};
use crate::engine::launch::{Launched, note};
use crate::engine::matrix::{Matrix, MatrixOf, Scales};
use crate::engine::portable::epilogue::reciprocal;
use crate::engine::problem::{Problem, shape_of};
use crate::engine::product::{Added, EpilogueOf, Operand, OutputType, Product, ProductOf, Run};
use crate::engine::request::{Request, Wanted};

type CodesOf<R> = Codes<CubeTensor<R>, CubeTensor<R>>;

/// The product `[M, K] · [K, N]`, and what ran it is noted. `None` where there are no tensor cores.
///
/// cuBLASLt reads `[M, K] · [N, K]ᵀ`, K and N padded to multiples of 16, and M to one of 4 for blocks of 128. Codes that do not lie so are decoded and
/// quantized again, one pass each; a trace tells. Rows of the output are as long as N padded; the tensor returned leaves the padding out.
///
/// # Errors
/// As [`launch`].
pub(in crate::engine::cube) fn multiply<B, R: CubeRuntime>(
    [lhs, rhs]: [&MatrixOf<B>; 2],
    epilogue: &EpilogueOf<B>,
    run: &Run,
) -> Option<Result<ProductOf<B>, Fallback>>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    if lhs.shape().num_dims() > 2 {
        return multiply_each::<B, R>([lhs, rhs], epilogue, run);
    }
    let (lines_a, lines_b) = (lhs.row_by_row::<B>(false), rhs.row_by_row::<B>(true));
    let (Codes::Bytes(like)
    | Codes::Packed(like, _)
    | Codes::Padded(like, _)
    | Codes::Values(like)) = lines_a.clone();
    let device = device_of(&like)?;
    let (client, _) = device;
    let problem = Problem::new::<B>([lhs, rhs], epilogue, run.fast_accumulation);
    let plan = plan_of(&problem);
    let [m, n, _] = problem.shape;
    let [padded_m, padded_n, padded_k] =
        [plan.shape.m, plan.shape.n, plan.shape.k].map(|size| size as usize);
    let size = match &epilogue.output {
        OutputType::Float(dtype) => DType::from(*dtype).size(),
        OutputType::Fp8 { .. } => 1,
    };
    let d = client.empty(padded_m * padded_n * size);
    let amax = epilogue.amax.then(|| client.create_from_slice(&0f32.to_ne_bytes()));
    let bias = epilogue.bias.clone().map(|bias| repeat_last::<B, R>(bias, padded_n));
    let (a, pass_a) = padded::<B, R>(lines_a, lhs.format, [padded_m, padded_k]);
    let (b, pass_b) = padded::<B, R>(lines_b, rhs.format, [padded_n, padded_k]);
    let call = Call {
        inverse_scale_d: match &epilogue.output {
            OutputType::Fp8 { scale, .. } => {
                let inverse = reciprocal::<B>(scale.clone());
                Some(super::buffer::on_device(client, &inverse))
            }
            OutputType::Float(_) => None,
        },
        amax_d: amax.clone(),
        bias: bias.map(|bias| words(&bias)),
        added: epilogue.added.clone().map(|Added { c, beta }| {
            let c = B::float_transpose(repeat_last::<B, R>(c, padded_m));
            let c = into_contiguous(B::float_transpose(repeat_last::<B, R>(c, padded_n)));
            (words(&c), beta)
        }),
        ..Call::new(a, b, d.clone())
    };
    let call = match (&lhs.scales, &rhs.scales) {
        (Scales::One(of_a), Scales::One(of_b)) => call.scaled(client, [of_a, of_b]),
        (of_a, of_b) => {
            let of_b = of_b.clone().transpose::<B>();
            let is_grid = matches!(plan.scales, burn_fp8_cublaslt::Scales::Blocks { .. });
            let scale_a = Some(arranged::<B, R>(of_a.clone(), padded_m, is_grid));
            let scale_b = Some(arranged::<B, R>(of_b, padded_n, is_grid));
            Call { scale_a, scale_b, ..call }
        }
    };
    let launched = match launch(device, plan, call) {
        Ok(launched) => launched,
        Err(fallback) => return Some(Err(fallback)),
    };
    note(&run.note, || {
        let mut algorithm = describe(&launched);
        if pass_a || pass_b {
            algorithm += "; operands padded by passes of their own";
        }
        Launched::Native { algorithm }
    });

    let tensor = |dtype, shape, strides| {
        let meta = Metadata::new(shape, strides);
        CubeTensor::new(like.client.clone(), d, meta, like.device.clone(), dtype)
    };
    let result = match &epilogue.output {
        OutputType::Float(dtype) => {
            let (shape, strides) = (Shape::new([m, n]), strides![padded_n, 1]);
            Operand::Float(tensor(DType::from(*dtype), shape, strides))
        }
        OutputType::Fp8 { format, scale } => {
            let words = tensor(DType::I32, Shape::new([m * padded_n / 4]), strides![1]);
            let codes = Codes::Packed(words, Shape::new([m, padded_n]));
            let codes = without_padding::<B, R>(codes, n, *format);
            Operand::Matrix(Matrix::new(codes, Scales::One(scale.clone()), *format))
        }
    };
    Some(Ok(Product { result, amax: amax.map(|amax| number(&like, amax)) }))
}

/// The products `[…, M, K] · […, K, N]` of a batch, with one scale for each operand, as one call. What quantizes has padded their matrices; those of an operand
/// that do not lie equally far apart, as some that products share, are copied: a trace tells. Rows of the output are as long as N padded, as those of one product.
fn multiply_each<B, R: CubeRuntime>(
    [lhs, rhs]: [&MatrixOf<B>; 2],
    epilogue: &EpilogueOf<B>,
    run: &Run,
) -> Option<Result<ProductOf<B>, Fallback>>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let (Some(Codes::Padded(a, _)), Some(Codes::Padded(b, _))) = (&lhs.codes, &rhs.transposed)
    else {
        return Some(Err(Fallback::Batched));
    };
    let (Scales::One(of_a), Scales::One(of_b), OutputType::Float(dtype)) =
        (&lhs.scales, &rhs.scales, &epilogue.output)
    else {
        return Some(Err(Fallback::Batched));
    };
    let device = device_of(a)?;
    let (client, _) = device;
    let shape = shape_of([lhs.shape(), rhs.shape()]);
    let batch = &shape[..shape.num_dims() - 2];
    let mut plan = plan_of(&Problem::new::<B>([lhs, rhs], epilogue, run.fast_accumulation));
    let [m, n, k] = [plan.shape.m, plan.shape.n, plan.shape.k].map(|size| size as usize);
    let a = Each::new::<B>(a.clone(), batch, [m, k]);
    let b = Each::new::<B>(b.clone(), batch, [n, k]);
    (plan.a.ld, plan.b.ld) = (a.ld, b.ld);
    (plan.batch.a, plan.batch.b) = (a.stride, b.stride);
    let dtype = DType::from(*dtype);
    let count: usize = batch.iter().product();
    let d = client.empty(count * m * n * dtype.size());
    let [codes_a, codes_b] = [&a, &b].map(|each| each.words.handle.clone());
    let call = Call::new(codes_a, codes_b, d.clone()).scaled(client, [of_a, of_b]);
    let launched = match launch(device, plan, call) {
        Ok(launched) => launched,
        Err(fallback) => return Some(Err(fallback)),
    };
    note(&run.note, || {
        let mut algorithm = describe(&launched);
        let unpadded = [m, shape[batch.len() + 1], lhs.shape()[batch.len() + 1]];
        if unpadded.iter().any(|size| !size.is_multiple_of(PADDING)) || a.copied || b.copied {
            algorithm += "; matrices padded or copied by passes of their own";
        }
        Launched::Native { algorithm }
    });
    let padded = output(&a.words, d, Shape::from([batch, &[m, n]].concat()), dtype);
    let meta = Metadata::new(shape, padded.meta.strides.clone());
    let result = CubeTensor::new(padded.client, padded.handle, meta, padded.device, dtype);
    Some(Ok(Product { result: Operand::Float(result), amax: None }))
}

/// The matrices of a batch in memory, as cuBLASLt takes them: in elements.
struct Each<R: CubeRuntime> {
    words: CubeTensor<R>,
    /// From one row to the next.
    ld: u64,
    /// From one matrix to the next.
    stride: u64,
    /// Whether that took a copy.
    copied: bool,
}

impl<R: CubeRuntime> Each<R> {
    /// Words of codes `[…, R, C / 4]`, whose leading dimensions broadcast to `batch`: copied where their matrices do not lie equally far apart. Products read so
    /// many rows at least, of so many codes.
    fn new<B>(words: CubeTensor<R>, batch: &[usize], [least, codes]: [usize; 2]) -> Self
    where
        B: Fp8Engine<IntTensorPrimitive = CubeTensor<R>>,
    {
        let [rows, columns] = [0, 1].map(|dim| words.shape()[batch.len() + dim]);
        assert!(rows >= least && 4 * columns == codes, "codes that are not padded");
        let words = B::int_expand(words, Shape::from([batch, &[rows, columns]].concat()));
        let distance = |words: &CubeTensor<R>| {
            let strides = words.meta.strides();
            let each: Vec<_> =
                batch.iter().zip(strides.iter()).filter(|(size, _)| **size > 1).collect();
            let apart = each.windows(2).all(|pair| *pair[0].1 == pair[1].0 * pair[1].1);
            (apart && strides[batch.len() + 1] == 1).then(|| each.last().map_or(0, |last| *last.1))
        };
        let (words, stride, copied) = match distance(&words) {
            Some(stride) => (words, stride, false),
            None => {
                let words = into_contiguous(words);
                let stride = distance(&words).expect("a contiguous tensor");
                (words, stride, true)
            }
        };
        let [ld, stride] = [words.meta.strides()[batch.len()], stride].map(|size| 4 * size as u64);
        Self { words, ld, stride, copied }
    }
}

/// Codes row by row, of at least so many rows, and of so many columns; and whether that took a pass over them.
fn padded<B, R: CubeRuntime>(
    codes: CodesOf<R>,
    format: Fp8Format,
    shape: [usize; 2],
) -> (Handle, bool)
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    match codes {
        Codes::Padded(codes, _) => {
            let [rows, of_row] = codes.shape().dims();
            assert!(rows >= shape[0] && 4 * of_row == shape[1], "codes that are not padded");
            (words(&codes), false)
        }
        Codes::Bytes(codes) if codes.shape().dims() == shape => (words(&codes), false),
        Codes::Packed(codes, lines) if lines.dims() == shape => (words(&codes), false),
        codes => {
            // Codes are values that quantize to themselves.
            let scales = Scales::One(1f32.into());
            let values = B::fp8_dequantize(Matrix::new(codes, scales, format));
            let values = repeat_last::<B, R>(values, shape[0]);
            let wanted = Wanted::Lines(Layouts::Rows);
            match B::fp8_quantize(values, Request::exact(format, wanted)).codes {
                Some(Codes::Padded(codes, _)) => (words(&codes), true),
                _ => unreachable!("kernels lay out what they are asked for"),
            }
        }
    }
}

/// The scales of an operand of so many rows once it is padded: those of blocks as [`BlockScale`] has them, one for each row as a vector.
fn arranged<B, R: CubeRuntime>(scales: Scales<CubeTensor<R>>, rows: usize, is_grid: bool) -> Handle
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let Scales::Grid { scales, block, .. } = scales else {
        unreachable!("the rules of products let both operands have several scales, or neither");
    };
    let [_, blocks] = scales.shape().dims();
    match block_scale(block) {
        _ if !is_grid => words(&filled_up::<B, R>(scales, [rows, 1])),
        BlockScale::Row32 => {
            let client = scales.client.clone();
            run_kernel(scales, |scales| burn_fp8_kernels::tile_e8m0(&client, scales))
        }
        BlockScale::Row128 => words(&B::float_transpose(filled_up::<B, R>(scales, [rows, blocks]))),
        BlockScale::Square128 => {
            let shape = [rows.div_ceil(128), blocks.next_multiple_of(4)];
            words(&filled_up::<B, R>(scales, shape))
        }
    }
}

/// An f32 matrix with zeros behind the rows and columns that there are.
fn filled_up<B, R: CubeRuntime>(matrix: CubeTensor<R>, shape: [usize; 2]) -> CubeTensor<R>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>>,
{
    let [rows, columns] = matrix.shape().dims();
    if [rows, columns] == shape {
        return matrix;
    }
    let zeros = B::float_zeros(Shape::new(shape), &B::float_device(&matrix), FloatDType::F32);
    B::float_slice_assign(zeros, &[Slice::from(0..rows), Slice::from(0..columns)], matrix)
}

/// Codes `[M, N padded]` without the padding of their rows.
fn without_padding<B, R: CubeRuntime>(codes: CodesOf<R>, n: usize, format: Fp8Format) -> CodesOf<R>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let [m, padded] = codes.shape().dims();
    if n == padded {
        return codes;
    }
    let values = B::fp8_dequantize(Matrix::new(codes, Scales::One(1f32.into()), format));
    let values = B::float_slice(values, &[Slice::from(0..m), Slice::from(0..n)]);
    let codes = B::fp8_quantize(values, Request::exact(format, Wanted::Codes)).codes;
    codes.expect("they were asked for")
}

/// The tensor with its last row, or element, repeated until there are so many.
///
/// Columns that pad the output then repeat its last one. Zeros would not do: times infinity they are NaN, which the amax of the output
/// takes part in.
fn repeat_last<B, R: CubeRuntime>(tensor: CubeTensor<R>, size: usize) -> CubeTensor<R>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>>,
{
    let mut shape = tensor.shape();
    let rows = shape[0];
    if rows >= size {
        return tensor;
    }
    shape[0] = size - rows;
    let last = B::float_slice(tensor.clone(), &[Slice::from(rows - 1..rows)]);
    B::float_cat(vec![tensor, B::float_expand(last, shape)], 0)
}
