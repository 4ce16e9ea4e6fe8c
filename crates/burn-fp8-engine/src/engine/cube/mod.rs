//! CUDA, ROCm, and Wgpu with its variants Vulkan, Metal and WebGpu: quantization in kernels of CubeCL, products on tensor cores
//! where CUDA has them.

mod capability;
#[cfg(feature = "cuda")]
mod cuda;
mod tensor;

use burn::tensor::backend::DeviceOps;
use burn::tensor::ops::{FloatTensor, FloatTensorOps};
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_cubecl::cubecl::server::ComputeServer;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fp8_core::sums::Accumulator;
use burn_fp8_core::{Fp8Format, Layouts, PADDING};
use burn_fp8_kernels::{self as kernels, NonFinite, Outputs};

use super::backend::{self, Fp8Engine, Untracked};
use super::capability::{Capability, Fallback};
use super::codes::Codes;
use super::launch::{Launched, fall_back, note};
use super::matrix::{Matrix, MatrixOf, ScaleKind, Scales, WHOLE, swapped};
use super::portable::{self, grid::Grid};
use super::problem::{Problem, shape_of};
use super::product::{EpilogueOf, Operand, OperandOf, ProductOf, Run, Target};
use super::request::{Request, RequestOf, ScaleRule, Wanted};
use super::scalar::Scalar;
use super::sums;
use super::tensor::matrix_shape;
#[doc(hidden)]
pub use capability::{K_WITHOUT_ALGORITHM, Pretend, pretend_tensor_cores};
use tensor::{number, output, rule, run as run_kernel, scalar, unwrap};

impl<R, F, I, B> Untracked for CubeBackend<R, F, I, B>
where
    R: CubeRuntime,
    R::Server: ComputeServer,
    R::Device: DeviceOps,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
}

impl<R, F, I, B> Fp8Engine for CubeBackend<R, F, I, B>
where
    R: CubeRuntime,
    R::Server: ComputeServer,
    R::Device: DeviceOps,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
    const FP8_KERNELS: bool = true;

    fn fp8_capability(device: &Self::Device, problem: Option<&Problem>) -> Capability {
        let lacks = problem.and_then(|problem| capability::check::<R>(device, problem).err());
        match lacks {
            Some(fallback) => Capability::FakeQuantized { reason: fallback.to_string().into() },
            None => capability::of::<R>(device),
        }
    }

    fn fp8_quantize(tensor: FloatTensor<Self>, request: RequestOf<Self>) -> MatrixOf<Self> {
        match (request.block, request.wanted) {
            (WHOLE, Wanted::Lines(layouts)) => lines(tensor, request, layouts),
            (WHOLE, Wanted::Batch(layouts)) => lines_of_each::<Self, R>(tensor, request, layouts),
            (WHOLE, _) => with_one_scale(tensor, request),
            (_, Wanted::Lines(layouts)) => {
                let rows = layouts.rows().then(|| in_blocks(tensor.clone(), &request));
                let transposed = layouts.transposed().then(|| {
                    let [rows, columns] = request.block;
                    let request = Request { block: [columns, rows], ..request };
                    in_blocks(Self::float_transpose(tensor), &request).transpose::<Self>()
                });
                match (rows, transposed) {
                    (Some(rows), Some(columns)) => {
                        Matrix { transposed: columns.transposed, ..rows }
                    }
                    (rows, columns) => rows.or(columns).expect("some layout is wanted"),
                }
            }
            _ => in_blocks(tensor, &request),
        }
    }

    fn fp8_dequantize(matrix: MatrixOf<Self>) -> FloatTensor<Self> {
        let codes = match (&matrix.values, &matrix.codes) {
            (None, Some(codes)) => codes,
            (None, None) => {
                return Self::float_transpose(Self::fp8_dequantize(matrix.transpose::<Self>()));
            }
            _ => return backend::dequantize::<Self>(matrix),
        };
        match (codes, &matrix.scales) {
            (Codes::Packed(words, shape), Scales::One(Scalar::Host(1.0)))
                if shape.num_elements() > 0 =>
            {
                decode(words.clone(), shape.clone(), matrix.format)
            }
            (Codes::Padded(words, shape), Scales::One(Scalar::Host(1.0))) => {
                let mut padded = words.shape();
                let last = padded.num_dims() - 1;
                padded[last] *= 4;
                let values = decode(words.clone(), padded, matrix.format);
                portable::codes::without_padding::<Self>(values, shape)
            }
            (Codes::Packed(words, shape), Scales::Grid { scales, block, .. })
                if shape.num_elements() > 0 =>
            {
                let [words, scales] = [words, scales].map(|x| into_contiguous(x.clone()));
                let codes = kernels::BlockCodes {
                    codes: &words.handle,
                    scales: &scales.handle,
                    shape,
                    block: clamped(*block, shape),
                    format: matrix.format,
                };
                let values = unwrap(kernels::dequantize_blocks(&words.client, &codes));
                output(&words, values, shape.clone(), DType::F32)
            }
            _ => backend::dequantize::<Self>(matrix),
        }
    }

    fn fp8_multiply(
        lhs: OperandOf<Self>,
        rhs: OperandOf<Self>,
        epilogue: EpilogueOf<Self>,
        run: Run,
    ) -> ProductOf<Self> {
        let (Operand::Matrix(lhs), Operand::Matrix(rhs), Target::TensorCores) =
            (&lhs, &rhs, &run.target)
        else {
            return emulate::<Self, R>(lhs, rhs, epilogue, run);
        };
        match on_tensor_cores::<Self, R>([lhs, rhs], &epilogue, &run) {
            Ok(Some(product)) => return product,
            // A test without tensor cores runs the rest of the native path.
            Ok(None) => {}
            Err(fallback) => fall_back(fallback, run.otherwise, &run.note),
        }
        let [lhs, rhs] = [lhs, rhs].map(|matrix| Operand::Matrix(matrix.clone()));
        let Run { sums, fast_accumulation, .. } = run;
        emulate::<Self, R>(lhs, rhs, epilogue, Run { sums, fast_accumulation, ..Run::emulated() })
    }

    fn fp8_rescale(
        product: FloatTensor<Self>,
        scales: [Scales<FloatTensor<Self>>; 2],
    ) -> FloatTensor<Self> {
        let [Scales::One(lhs), Scales::One(rhs)] = &scales else {
            return portable::rescale::<Self>(product, scales);
        };
        if product.shape().num_elements() == 0 {
            return product;
        }
        let like = product.clone();
        let scales = [lhs, rhs].map(scalar);
        let rescaled =
            run_kernel(product, |input| kernels::rescale(&like.client, input, scales.each_ref()));
        output(&like, rescaled, like.shape(), DType::F32)
    }

    fn fp8_amax(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        let like = tensor.clone();
        let amax =
            run_kernel(tensor, |input| kernels::amax(&like.client, input, NonFinite::Propagated));
        number(&like, amax)
    }
}

/// In f32 as every backend does; with the sums of tensor cores in a kernel, where scales are those of whole lines.
fn emulate<B, R: CubeRuntime>(
    lhs: OperandOf<B>,
    rhs: OperandOf<B>,
    epilogue: EpilogueOf<B>,
    run: Run,
) -> ProductOf<B>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    if let (Operand::Matrix(lhs), Operand::Matrix(rhs), None) = (&lhs, &rhs, &epilogue.added)
        && let Some(accumulator) = run.sums.accumulator()
        && let Some(sums) = with_sums::<B, R>([lhs, rhs], accumulator, &run)
    {
        note(&run.note, || sums::launched([lhs, rhs], &run));
        let product = B::fp8_rescale(sums, [lhs.scales.clone(), rhs.scales.clone()]);
        return backend::finish::<B>(product, epilogue);
    }
    backend::multiply::<B>(lhs, rhs, epilogue, run)
}

/// The sums of a product of two matrices, before scales; none of what the kernel does not take.
fn with_sums<B, R: CubeRuntime>(
    [lhs, rhs]: [&MatrixOf<B>; 2],
    accumulator: Accumulator,
    run: &Run,
) -> Option<FloatTensor<B>>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let shape = shape_of([lhs.shape(), rhs.shape()]);
    let waits = lhs.is_constant_along(1) && rhs.is_constant_along(0);
    if shape.num_dims() != 2 || !waits || run.split.is_some() {
        return None;
    }
    let [m, n] = shape.dims();
    let k = lhs.shape()[1];
    let lines = [(lhs, false, m), (rhs, true, n)].map(|(matrix, of_transpose, rows)| match matrix
        .row_by_row::<B>(of_transpose)
    {
        Codes::Packed(words, _) => Some((into_contiguous(words), rows, k, matrix.format)),
        Codes::Padded(words, _) => {
            let words = into_contiguous(words);
            let stride = 4 * words.shape()[1];
            Some((words, rows, stride, matrix.format))
        }
        Codes::Bytes(_) | Codes::Values(_) => None,
    });
    let [Some(a), Some(b)] = lines else { return None };
    let rows = [&a, &b].map(|(words, rows, stride, format)| kernels::RowCodes {
        codes: &words.handle,
        rows: *rows,
        stride: *stride,
        format: *format,
    });
    let accumulation = sums::accumulation(run);
    let sums = kernels::multiply(&a.0.client, rows, k, accumulator, accumulation).ok()?;
    Some(output(&a.0, sums, shape, DType::F32))
}

fn with_one_scale<R: CubeRuntime>(
    tensor: CubeTensor<R>,
    request: Request<CubeTensor<R>>,
) -> Matrix<CubeTensor<R>, CubeTensor<R>> {
    let Request { format, rule: scale, wanted, .. } = request;
    let like = tensor.clone();
    let shape = tensor.shape();
    let rule = rule(&like, &scale);
    let outputs = match wanted {
        Wanted::Values => Outputs::Values,
        Wanted::CodesAndValues => Outputs::CodesAndValues,
        _ => Outputs::Codes,
    };
    let quantized =
        run_kernel(tensor, |input| kernels::quantize(&like.client, input, format, &rule, outputs));
    let values = quantized.values.map(|values| output(&like, values, shape.clone(), DType::F32));
    let (codes, values) = match (quantized.codes, values) {
        (Some(words), values) => {
            let len = shape.num_elements().div_ceil(4);
            (Codes::Packed(output(&like, words, [len], DType::I32), shape), values)
        }
        (None, values) => (Codes::Values(values.expect("values were asked for")), None),
    };
    let amax = quantized.amax.map(|amax| Scalar::Device(number(&like, amax)));
    let scales = Scales::One(chosen(&like, scale, quantized.scale));
    Matrix { values, amax, ..Matrix::new(codes, scales, format) }
}

/// A matrix with one scale, laid out for tensor cores.
fn lines<R: CubeRuntime>(
    tensor: CubeTensor<R>,
    request: Request<CubeTensor<R>>,
    layouts: Layouts,
) -> Matrix<CubeTensor<R>, CubeTensor<R>> {
    let Request { format, rule: scale, .. } = request;
    let like = tensor.clone();
    let [rows, columns] = matrix_shape(&tensor);
    let rule = rule(&like, &scale);
    let matrix = run_kernel(tensor, |input| {
        kernels::quantize_matrix(&like.client, input, format, &rule, layouts)
    });
    let [padded_rows, padded_columns] = matrix.padded;
    let words = |handle, [rows, columns]: [usize; 2], shape| {
        Codes::Padded(output(&like, handle, [rows, columns / 4], DType::I32), Shape::new(shape))
    };
    Matrix {
        codes: matrix
            .rows
            .map(|handle| words(handle, [padded_rows, padded_columns], [rows, columns])),
        transposed: matrix
            .transposed
            .map(|handle| words(handle, [padded_columns, padded_rows], [columns, rows])),
        values: None,
        scales: Scales::One(chosen(&like, scale, matrix.scale)),
        format,
        amax: matrix.amax.map(|amax| Scalar::Device(number(&like, amax))),
    }
}

/// A batch of matrices with one scale, each laid out for tensor cores: a transpose is the matrix that the rows of all of them make, transposed, seen
/// as a batch.
fn lines_of_each<B, R: CubeRuntime>(
    tensor: CubeTensor<R>,
    request: Request<CubeTensor<R>>,
    layouts: Layouts,
) -> Matrix<CubeTensor<R>, CubeTensor<R>>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    let shape = tensor.shape();
    let leading = shape.num_dims() - 2;
    let mut padded = tensor;
    for dim in [leading, leading + 1] {
        let mut missing = padded.shape();
        missing[dim] = missing[dim].next_multiple_of(PADDING) - missing[dim];
        if missing[dim] > 0 {
            let dtype = padded.dtype.into();
            let zeros = B::float_zeros(missing, &B::float_device(&padded), dtype);
            padded = B::float_cat(vec![padded, zeros], dim);
        }
    }
    let [rows, columns] = [0, 1].map(|dim| padded.shape()[leading + dim]);
    let batch = &shape[..leading];
    let matrix = lines(padded, request, layouts);
    let each = |codes, wanted: Shape, shape: Vec<usize>, order: Option<Vec<usize>>| {
        let Codes::Padded(words, _) = codes else { unreachable!("they were asked for") };
        let words = B::int_reshape(words, Shape::from(shape));
        let words = match order {
            Some(order) => B::int_permute(words, &order),
            None => words,
        };
        Codes::Padded(words, wanted)
    };
    Matrix {
        codes: matrix.codes.map(|codes| {
            let of_rows = [batch, &[rows, columns / 4]].concat();
            each(codes, shape.clone(), of_rows, None)
        }),
        transposed: matrix.transposed.map(|codes| {
            let of_columns = [&[columns], batch, &[rows / 4]].concat();
            let order = (1..=leading).chain([0, leading + 1]).collect();
            each(codes, swapped(shape.clone()), of_columns, Some(order))
        }),
        ..matrix
    }
}

fn in_blocks<R: CubeRuntime>(
    tensor: CubeTensor<R>,
    request: &Request<CubeTensor<R>>,
) -> Matrix<CubeTensor<R>, CubeTensor<R>> {
    let (format, block, recipe) = (request.format, request.block, request.rule.of_blocks());
    let like = tensor.clone();
    let shape = tensor.shape();
    let quantized = run_kernel(tensor, |input| {
        let block = clamped(block, &shape);
        kernels::quantize_blocks(&like.client, input, block, format, recipe)
    });
    let grid = Grid::new(&shape, block).of_scales(&shape);
    let scales = output(&like, quantized.scales, grid, DType::F32);
    let len = shape.num_elements().div_ceil(4);
    let words = output(&like, quantized.codes, [len], DType::I32);
    let scales = Scales::Grid { scales, block, kind: ScaleKind::of(&recipe) };
    Matrix::new(Codes::Packed(words, shape), scales, format)
}

/// A block that does not reach over the end of a tensor.
fn clamped(block: [usize; 2], shape: &Shape) -> [usize; 2] {
    let rank = shape.num_dims();
    [0, 1].map(|dim| block[dim].min(shape[rank - 2 + dim].max(1)))
}

/// The numbers of packed codes, in a tensor of this shape.
fn decode<R: CubeRuntime>(words: CubeTensor<R>, shape: Shape, format: Fp8Format) -> CubeTensor<R> {
    let words = into_contiguous(words);
    let len = shape.num_elements();
    let values = kernels::dequantize(&words.client, &words.handle, len, format);
    output(&words, unwrap(values), shape, DType::F32)
}

/// The product as one call of cuBLASLt; or why there is none. `None` where a test pretends that there are tensor cores.
fn on_tensor_cores<B, R: CubeRuntime>(
    [lhs, rhs]: [&MatrixOf<B>; 2],
    epilogue: &EpilogueOf<B>,
    run: &Run,
) -> Result<Option<ProductOf<B>>, Fallback>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    #[cfg(feature = "cuda")]
    if let Some(product) = cuda::multiply::<B, R>([lhs, rhs], epilogue, run) {
        return product.map(Some);
    }
    // No other device has them: this one is said to.
    let shape = lhs.shape();
    let algorithm = capability::pretended_algorithm(shape[shape.num_dims() - 1])?;
    note(&run.note, || Launched::Native { algorithm });
    let _ = (rhs, epilogue);
    Ok(None)
}

/// The scale that a tensor was quantized with: the one given, or the one that the kernels chose.
fn chosen<R: CubeRuntime>(
    like: &CubeTensor<R>,
    rule: ScaleRule<CubeTensor<R>>,
    scale: kernels::Scalar,
) -> Scalar<CubeTensor<R>> {
    match (rule, scale) {
        (ScaleRule::Given(scale, _), _) => scale,
        (_, kernels::Scalar::Device(handle)) => Scalar::Device(number(like, handle)),
        (_, kernels::Scalar::Host(scale)) => Scalar::Host(scale),
    }
}
