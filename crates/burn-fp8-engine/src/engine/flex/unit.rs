//! Products on the matrix unit of the CPU, over the memory of Flex.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use burn_backend::ops::{FloatTensorOps, IntTensorOps};
use burn_backend::{Bytes, DType, FloatDType, Shape, Slice, bf16, f16};
use burn_flex::{Flex, FlexDevice};
use burn_flex::{FlexTensor, Layout};
use burn_fp8_core::{Fp8Format, e8m0};
use burn_fp8_cpu::{
    self as cpu, BlockScales, Codes as Lines, Epilogue, Numbers, Output, Powers, Unit,
};

use super::memory::{elements, is_dense};
use super::pool;
use crate::engine::backend;
use crate::engine::capability::{Capability, Fallback, MatrixUnit};
use crate::engine::codes::Codes;
use crate::engine::launch::{LaunchNote, Launched, fall_back, note};
use crate::engine::matrix::{Matrix, MatrixOf, Scales};
use crate::engine::product::{
    Activation, EpilogueOf, Operand, OutputType, Product, ProductOf, Run, Target,
};
use crate::engine::scalar::Scalar;

/// What the unit of this CPU can do. Asked for each product.
pub(super) fn capability() -> Capability {
    static PORTABLE: OnceLock<String> = OnceLock::new();
    static UNITS: [OnceLock<Arc<MatrixUnit>>; 2] = [const { OnceLock::new() }; 2];
    // Without asking Linux for AMX: that is for a product.
    let unit = match Unit::try_expected() {
        Ok(unit) => unit,
        Err(error) => {
            return Capability::Unusable { reason: format!("BURN_FP8_CPU_UNIT: {error}").into() };
        }
    };
    let index = match unit {
        Unit::Portable => {
            let reason = || format!("no matrix unit ({})", Unit::why_not_faster().join("; "));
            let reason = PORTABLE.get_or_init(reason).clone().into();
            return Capability::FakeQuantized { reason };
        }
        Unit::Avx512Bf16 => 0,
        Unit::AmxBf16 => 1,
    };
    let describe = || {
        let passed_over = Unit::why_not_faster();
        Arc::new(MatrixUnit { name: unit.title(), cpu: cpu::cpu_name(), passed_over })
    };
    Capability::MatrixUnit(UNITS[index].get_or_init(describe).clone())
}

/// What runs a product now: in f32 where Linux has refused the unit that was expected.
pub(super) fn launched(unit: Unit) -> Launched {
    match unit {
        Unit::Portable => Launched::FakeQuantized,
        unit => Launched::MatrixUnit(unit.title()),
    }
}

/// Multiplies two matrices of the same rank, whose leading dimensions broadcast.
///
/// Scales of whole lines along K are applied to the result. Other ones in f32 are applied to the sums over blocks of K. A code times a power of two
/// is a bf16 number, as long as the power is not too small: the largest power of an operand is applied to the result, so that those of its blocks are 1
/// and less.
pub(super) fn multiply(
    lhs: MatrixOf<Flex>,
    rhs: MatrixOf<Flex>,
    epilogue: EpilogueOf<Flex>,
    run: Run,
) -> ProductOf<Flex> {
    let [a, b] = [&lhs, &rhs].map(Matrices::new);
    if lhs.is_constant_along(1) && rhs.is_constant_along(0) {
        let batch = a.broadcast_batch(&b);
        let [starts_a, starts_b] = [&a, &b].map(|matrices| matrices.starts(&batch));
        let lines = [a.codes(&starts_a), b.codes(&starts_b)];
        return match (lhs.scales, rhs.scales) {
            (Scales::One(lhs), Scales::One(rhs)) => {
                let [lhs, rhs] = [lhs, rhs].map(Scalar::read::<Flex>);
                launch(lines, batch, cpu::OperandScales::Tensor { lhs, rhs }, epilogue, &run)
            }
            (lhs, rhs) => {
                let count: usize = batch.iter().product();
                let lhs = broadcast(lhs, &batch, count * a.shape[0]);
                let rhs = broadcast(rhs, &batch, count * b.shape[1]);
                let scales = cpu::OperandScales::Rows { lhs: &lhs, rhs: &rhs };
                launch(lines, batch, scales, epilogue, &run)
            }
        };
    }
    let batch = a.broadcast_batch(&b);
    if !batch.is_empty() {
        return one_by_one([lhs, rhs], batch, epilogue, run);
    }
    let (start_a, start_b) = ([a.start], [b.start]);
    let lines = [a.codes(&start_a), b.codes(&start_b)];
    if !(lhs.scales.are_powers_of_two() && rhs.scales.are_powers_of_two()) {
        let [of_a, of_b] = [&lhs, &rhs].map(grid);
        let blocks = [&lhs, &rhs].map(block_of);
        let [a, b] = lines;
        let a = a.with_scales(BlockScales { scales: &of_a, block: blocks[0] });
        let b = b.with_scales(BlockScales { scales: &of_b, block: blocks[1] });
        let scales = cpu::OperandScales::Tensor { lhs: 1.0, rhs: 1.0 };
        return launch([a, b], vec![], scales, epilogue, &run);
    }
    let mut of_blocks = [&lhs, &rhs].map(Exponents::new);
    let are_exact = |of_blocks: &[Exponents; 2], [a, b]: [Fp8Format; 2]| {
        Powers::are_exact((a, of_blocks[0].lowest()), (b, of_blocks[1].lowest()))
    };
    let formats = [lhs.format, rhs.format];
    if !are_exact(&of_blocks, formats) {
        for (of_blocks, matrix) in of_blocks.iter_mut().zip([&lhs, &rhs]) {
            of_blocks.ignore_empty(matrix);
        }
    }
    if !are_exact(&of_blocks, formats) {
        fall_back(Fallback::BlocksTooFarApart, run.otherwise, &run.note);
        let run = Run { target: Target::Emulation(None), note: None, ..run };
        let [lhs, rhs] = [lhs, rhs].map(Operand::Matrix);
        return backend::multiply::<Flex>(lhs, rhs, epilogue, run);
    }
    let [of_a, of_b] = of_blocks.each_ref().map(Exponents::relative);
    let [lhs_factor, rhs_factor] = of_blocks.each_ref().map(Exponents::factor);
    let blocks = [&lhs, &rhs].map(block_of);
    let [a, b] = lines;
    let a = a.with_powers(Powers { exponents: &of_a, block: blocks[0] });
    let b = b.with_powers(Powers { exponents: &of_b, block: blocks[1] });
    let scales = cpu::OperandScales::Tensor { lhs: lhs_factor, rhs: rhs_factor };
    launch([a, b], vec![], scales, epilogue, &run)
}

/// The products of a batch of matrices whose scales are those of blocks along what is summed, each by itself.
fn one_by_one(
    operands: [MatrixOf<Flex>; 2],
    batch: Vec<usize>,
    epilogue: EpilogueOf<Flex>,
    run: Run,
) -> ProductOf<Flex> {
    let is_float = matches!(epilogue.output, OutputType::Float(_));
    assert!(is_float && !epilogue.amax, "a product in FP8, or with its amax, is of two matrices");
    let count: usize = batch.iter().product();
    let mut ran = None;
    let product = |index: usize| {
        let [lhs, rhs] = operands.each_ref().map(|matrix| one_of(matrix, &batch, index));
        let note = LaunchNote::default();
        let own = Run { note: Some(note.clone()), ..run.clone() };
        let result = multiply(lhs, rhs, epilogue.clone(), own).result.into_float();
        let is_unit = |ran: &Result<Launched, String>| matches!(ran, Ok(Launched::MatrixUnit(_)));
        // One that a unit has not taken is told of all.
        if ran.as_ref().is_none_or(is_unit) {
            ran = note.get().cloned();
        }
        result
    };
    let [m, n] = [0, 1].map(|side| {
        let shape = operands[side].shape();
        shape[shape.num_dims() - 2 + side]
    });
    let shape = Shape::from([batch.clone(), vec![m, n]].concat());
    let result = match (count, &epilogue.output) {
        (0, OutputType::Float(dtype)) => Flex::float_zeros(shape, &FlexDevice, *dtype),
        _ => Flex::float_reshape(Flex::float_cat((0..count).map(product).collect(), 0), shape),
    };
    if let (Some(note), Some(ran)) = (&run.note, ran) {
        let _ = note.set(ran);
    }
    Product { result: Operand::Float(result), amax: None }
}

/// The matrix that a product of a batch of this shape takes.
fn one_of(matrix: &MatrixOf<Flex>, batch: &[usize], index: usize) -> MatrixOf<Flex> {
    let mut places = vec![0..0; batch.len()];
    let mut rest = index;
    for ((place, size), own) in places.iter_mut().zip(batch).zip(matrix.shape().iter()).rev() {
        let here = if *own == 1 { 0 } else { rest % size };
        *place = here..here + 1;
        rest /= size;
    }
    let slices: Vec<_> = places.into_iter().map(Slice::from).collect();
    let codes = |codes: &Codes<FlexTensor, FlexTensor>| {
        let Codes::Bytes(codes) = codes else { unreachable!("Flex holds one byte a code") };
        let shape = Shape::from(codes.layout().shape()[batch.len()..].to_vec());
        Codes::Bytes(Flex::int_reshape(Flex::int_slice(codes.clone(), &slices), shape))
    };
    Matrix {
        codes: matrix.codes.as_ref().map(codes),
        transposed: matrix.transposed.as_ref().map(codes),
        values: None,
        scales: match matrix.scales.clone() {
            Scales::Grid { scales, block, kind } => {
                let shape = Shape::from(scales.layout().shape()[batch.len()..].to_vec());
                let scales = Flex::float_reshape(Flex::float_slice(scales, &slices), shape);
                Scales::Grid { scales, block, kind }
            }
            one => one,
        },
        format: matrix.format,
        amax: None,
    }
}

/// Runs a product with its epilogue.
fn launch(
    [a, b]: [Lines<'_>; 2],
    batch: Vec<usize>,
    scales: cpu::OperandScales<'_>,
    epilogue: EpilogueOf<Flex>,
    run: &Run,
) -> ProductOf<Flex> {
    let unit = Unit::current();
    note(&run.note, || launched(unit));
    let bias = epilogue.bias.map(|bias| Flex::float_cast(bias, FloatDType::F32).to_contiguous());
    let of_unit = Epilogue {
        scales,
        bias: bias.as_ref().map(|bias| elements::<f32>(bias, bias.layout())),
        activation: match epilogue.activation {
            Activation::None => cpu::Activation::None,
            Activation::Relu => cpu::Activation::Relu,
            Activation::Gelu => cpu::Activation::Gelu,
        },
    };
    let mut shape = batch;
    shape.extend([a.shape()[0], b.shape()[1]]);
    let shape = Shape::from(shape);
    let mut amax = 0.0;
    let mut multiply = |output: Output<'_>| match epilogue.amax {
        true => amax = cpu::matmul_with_amax(unit, a, b, &of_unit, output),
        false => cpu::matmul(unit, a, b, &of_unit, output),
    };
    let result = match epilogue.output {
        OutputType::Float(dtype) => Operand::Float(float(shape, dtype.into(), multiply)),
        OutputType::Fp8 { format, scale } => {
            let factor = 1.0 / scale.clone().read::<Flex>();
            let codes = pool::tensor(Layout::contiguous(shape), |codes: &mut [u8]| {
                multiply(Output::Fp8 { codes, format, factor });
            });
            Operand::Matrix(Matrix::new(Codes::Bytes(codes), Scales::One(scale), format))
        }
    };
    let amax = epilogue.amax.then(|| {
        let layout = Layout::contiguous(Shape::new([1]));
        FlexTensor::new(Bytes::from_elems(vec![amax]), layout, DType::F32)
    });
    Product { result, amax }
}

/// Multiplies two matrices of numbers, rounded to bf16: on the unit, or in f32.
pub(super) fn multiply_in_bf16(
    operands: [FlexTensor; 2],
    epilogue: EpilogueOf<Flex>,
    on_unit: bool,
) -> ProductOf<Flex> {
    let unit = if on_unit { Unit::current() } else { Unit::Portable };
    let operands = operands.map(|tensor| match tensor.dtype() {
        DType::F32 | DType::BF16 => Gapless::new(tensor),
        _ => Gapless::new(Flex::float_cast(tensor, FloatDType::F32)),
    });
    let [lhs, rhs] = operands.each_ref().map(Gapless::numbers);
    let shape = Shape::from([lhs.shape()[0], rhs.shape()[1]]);
    // Anything but a float is made of f32 afterwards.
    let dtype = match epilogue.output {
        OutputType::Float(dtype) => dtype,
        OutputType::Fp8 { .. } => FloatDType::F32,
    };
    let product = float(shape, dtype.into(), |output| cpu::matmul_in_bf16(unit, lhs, rhs, output));
    backend::finish::<Flex>(product, epilogue)
}

/// A matrix whose rows or columns have no gaps.
struct Gapless {
    tensor: FlexTensor,
    /// From one row, or one column, to the next.
    stride: usize,
    transposed: bool,
}

impl Gapless {
    /// Copies it where neither do.
    fn new(tensor: FlexTensor) -> Self {
        match lines(tensor.layout()) {
            Some((stride, transposed)) => Self { tensor, stride, transposed },
            None => {
                let tensor = tensor.to_contiguous();
                Self { stride: tensor.layout().shape()[1], transposed: false, tensor }
            }
        }
    }

    fn numbers(&self) -> Numbers<'_> {
        let Self { tensor, stride, transposed } = self;
        let (layout, stride) = (tensor.layout(), *stride);
        let [rows, columns] = layout.shape().dims();
        let shape = if *transposed { [columns, rows] } else { [rows, columns] };
        let start = layout.start_offset();
        let numbers = match tensor.dtype() {
            DType::BF16 => Numbers::bf16(&tensor.storage::<bf16>()[start..], shape, stride),
            _ => Numbers::f32(&tensor.storage::<f32>()[start..], shape, stride),
        };
        if *transposed { numbers.transpose() } else { numbers }
    }
}

/// How far it is from one row to the next, or from one column to the next if that is true, of the last two dimensions. None where both have gaps.
fn lines(layout: &Layout) -> Option<(usize, bool)> {
    let rank = layout.shape().num_dims();
    let [rows, columns] = [rank - 2, rank - 1].map(|dim| layout.shape()[dim]);
    let stride = |dim: usize| usize::try_from(layout.strides()[dim]).ok();
    let [row, column] = [stride(rank - 2)?, stride(rank - 1)?];
    let in_rows = (column == 1 || columns <= 1) && (row >= columns || rows <= 1);
    let in_columns = (row == 1 || rows <= 1) && (column >= rows || columns <= 1);
    match (in_rows, in_columns) {
        (true, _) => Some((row.max(columns), false)),
        (false, true) => Some((column.max(rows), true)),
        (false, false) => None,
    }
}

/// Scales of the rows, or columns, of one matrix of `size` of them; as they lie where there are as many.
pub(super) fn line(scales: &Scales<FlexTensor>, size: usize) -> Cow<'_, [f32]> {
    match scales {
        Scales::Grid { scales, .. }
            if is_dense(scales.layout()) && scales.layout().num_elements() == size =>
        {
            elements(scales, scales.layout()).into()
        }
        other => broadcast(other.clone(), &[], size).into(),
    }
}

/// Scales of the rows, or columns, of a batch of matrices with `size` of them together.
fn broadcast(scales: Scales<FlexTensor>, batch: &[usize], size: usize) -> Vec<f32> {
    let scales = match scales {
        Scales::One(scale) => return vec![scale.read::<Flex>(); size],
        Scales::Grid { scales, .. } => scales,
    };
    let shape = scales.layout().shape();
    let mut full = batch.to_vec();
    full.extend(shape.iter().skip(shape.num_dims() - 2));
    let scales = match *shape == Shape::from(full.clone()) {
        true => scales,
        false => Flex::float_expand(scales, Shape::from(full)),
    };
    let scales = scales.to_contiguous();
    let scales = elements::<f32>(&scales, scales.layout());
    // A block may hold a whole matrix.
    let each = size / scales.len();
    scales.iter().flat_map(|scale| core::iter::repeat_n(*scale, each)).collect()
}

/// Scales of blocks, block by block.
fn grid(matrix: &MatrixOf<Flex>) -> Vec<f32> {
    match &matrix.scales {
        Scales::One(scale) => vec![scale.clone().read::<Flex>()],
        Scales::Grid { scales, .. } => {
            let scales = scales.to_contiguous();
            elements::<f32>(&scales, scales.layout()).to_vec()
        }
    }
}

/// Rows and columns of a block of a matrix; one that reaches its end ends on the next multiple of 32, which a unit wants.
fn block_of(matrix: &MatrixOf<Flex>) -> [usize; 2] {
    let (shape, block) = (matrix.shape(), matrix.scales.block());
    [0, 1].map(|dim| match block[dim] >= shape[dim] {
        true => shape[dim].next_multiple_of(32),
        false => block[dim],
    })
}

/// The powers of two of the blocks of a matrix.
struct Exponents {
    of_blocks: Vec<i16>,
    largest: i16,
}

impl Exponents {
    fn new(matrix: &MatrixOf<Flex>) -> Self {
        let exponent = |scale: f32| {
            debug_assert!(e8m0::encode(scale).is_some_and(|byte| byte != e8m0::NAN), "{scale:e}");
            // Of 2^-127, which is no normal f32, too.
            (scale.to_bits() >> 23) as i16 - 127
        };
        let of_blocks: Vec<i16> = grid(matrix).into_iter().map(exponent).collect();
        let largest = of_blocks.iter().copied().max().unwrap_or(0);
        Self { of_blocks, largest }
    }

    /// The lowest exponent in relation to the largest.
    fn lowest(&self) -> i16 {
        self.of_blocks.iter().copied().min().unwrap_or(self.largest) - self.largest
    }

    /// Gives blocks without a finite number but zeros, whose scale says nothing, that of the largest other one: NaN and infinities stay what they are.
    fn ignore_empty(&mut self, matrix: &MatrixOf<Flex>) {
        let Codes::Bytes(codes) = matrix.row_by_row::<Flex>(false) else {
            unreachable!("Flex holds one byte a code");
        };
        let codes = codes.to_contiguous();
        let columns = codes.layout().shape()[1];
        let [rows_of_block, columns_of_block] = block_of(matrix);
        let across = columns.div_ceil(columns_of_block);
        let format = matrix.format;
        let says_nothing =
            |code: &u8| code & 0x7F == 0 || format.is_nan(*code) || format.is_infinite(*code);
        let mut is_empty = vec![true; self.of_blocks.len()];
        for (row, codes) in elements::<u8>(&codes, codes.layout()).chunks_exact(columns).enumerate()
        {
            let is_empty = &mut is_empty[row / rows_of_block * across..][..across];
            for (codes, is_empty) in codes.chunks(columns_of_block).zip(is_empty) {
                *is_empty &= codes.iter().all(says_nothing);
            }
        }
        let others = self.of_blocks.iter().zip(&is_empty).filter(|(_, empty)| !**empty);
        self.largest = others.map(|(exponent, _)| *exponent).max().unwrap_or(0);
        for (exponent, is_empty) in self.of_blocks.iter_mut().zip(is_empty) {
            if is_empty {
                *exponent = self.largest;
            }
        }
    }

    /// Exponents in relation to the largest.
    fn relative(&self) -> Vec<i16> {
        self.of_blocks.iter().map(|exponent| exponent - self.largest).collect()
    }

    /// The power of the largest one.
    fn factor(&self) -> f32 {
        e8m0::decode((self.largest + 127) as u8)
    }
}

/// A contiguous tensor of F32, BF16 or F16, filled by `run`.
fn float(shape: Shape, dtype: DType, run: impl FnOnce(Output<'_>)) -> FlexTensor {
    let layout = Layout::contiguous(shape);
    match dtype {
        DType::BF16 => pool::tensor(layout, |y: &mut [bf16]| run(Output::Bf16(y))),
        DType::F16 => pool::tensor(layout, |y: &mut [f16]| run(Output::F16(y))),
        DType::F32 | DType::Flex32 => pool::tensor(layout, |y: &mut [f32]| run(Output::F32(y))),
        dtype => unreachable!("a product of type {dtype:?} is not in FP8"),
    }
}

/// Matrices of codes in the memory of a tensor `[…, R, C]`.
struct Matrices {
    tensor: FlexTensor,
    format: Fp8Format,
    /// The leading dimensions and their strides.
    batch: Vec<(usize, usize)>,
    start: usize,
    shape: [usize; 2],
    /// From one row, or one column, to the next.
    stride: usize,
    transposed: bool,
}

impl Matrices {
    /// Copies the codes where neither rows nor columns lie without gaps.
    fn new(matrix: &MatrixOf<Flex>) -> Self {
        let tensor = match (&matrix.codes, &matrix.transposed) {
            (Some(Codes::Bytes(codes)), _) => codes.clone(),
            (None, Some(Codes::Bytes(codes))) => {
                let rank = codes.layout().shape().num_dims();
                codes.transpose(rank - 2, rank - 1)
            }
            _ => unreachable!("Flex holds one byte a code"),
        };
        match Self::borrow(&tensor, matrix.format) {
            Some(matrices) => matrices,
            None => {
                Self::borrow(&tensor.to_contiguous(), matrix.format).expect("rows without gaps")
            }
        }
    }

    fn borrow(tensor: &FlexTensor, format: Fp8Format) -> Option<Self> {
        let layout = tensor.layout();
        let strides: Option<Vec<usize>> =
            layout.strides().iter().map(|stride| usize::try_from(*stride).ok()).collect();
        let sizes = layout.shape().iter().copied();
        let mut batch: Vec<(usize, usize)> = sizes.zip(strides?).collect();
        let (columns, _) = batch.pop()?;
        let (rows, _) = batch.pop()?;
        let (stride, transposed) = lines(layout)?;
        Some(Self {
            format,
            batch,
            start: layout.start_offset(),
            shape: [rows, columns],
            stride,
            transposed,
            tensor: tensor.clone(),
        })
    }

    /// The leading dimensions of the product.
    fn broadcast_batch(&self, other: &Self) -> Vec<usize> {
        let sizes = self.batch.iter().zip(&other.batch);
        sizes.map(|((a, _), (b, _))| if *a == 1 { *b } else { *a }).collect()
    }

    /// Where each matrix of a batch of this shape begins, relative to nothing: in the memory of the tensor.
    fn starts(&self, batch: &[usize]) -> Vec<usize> {
        let mut starts = vec![self.start];
        for (size, (own, stride)) in batch.iter().zip(&self.batch) {
            let stride = if *own == 1 { 0 } else { *stride };
            starts = starts
                .iter()
                .flat_map(|start| (0..*size).map(move |index| start + index * stride))
                .collect();
        }
        starts
    }

    fn codes<'a>(&'a self, starts: &'a [usize]) -> Lines<'a> {
        let [rows, columns] = self.shape;
        let lines = if self.transposed { [columns, rows] } else { [rows, columns] };
        let codes = Lines::strided(self.tensor.storage::<u8>(), self.format, lines, self.stride);
        let codes = if self.transposed { codes.transpose() } else { codes };
        codes.starting_at(starts)
    }
}

#[cfg(test)]
mod tests {
    use burn_backend::{TensorData, ops::FloatTensorOps};
    use burn_fp8_core::Recipe;

    use super::*;
    use crate::engine::backend::Fp8Engine;
    use crate::engine::launch::Otherwise;
    use crate::engine::request::{Request, ScaleRule, Wanted};

    fn quantized<const D: usize>(
        x: &[f32],
        shape: [usize; D],
        block: [usize; 2],
        recipe: Recipe,
    ) -> MatrixOf<Flex> {
        let data = TensorData::new(x.to_vec(), shape);
        let tensor = Flex::float_from_data(data, &Default::default());
        let (rule, wanted) = (ScaleRule::Current(recipe), Wanted::Codes);
        let request = Request { block, format: Fp8Format::E4M3, rule, wanted };
        Flex::fp8_quantize(tensor, request)
    }

    fn read(tensor: FlexTensor) -> Vec<f32> {
        crate::engine::tensor::read::<Flex>(tensor)
    }

    /// Magnitudes from 2^-12 to 2^12 in blocks of their own, and a block of zeros.
    fn values(count: usize) -> Vec<f32> {
        let value = |index: usize| match index / 40 % 7 {
            6 => 0.0,
            size => ((index * 37 % 101) as f32 - 50.0) * 2f32.powi(4 * size as i32 - 12),
        };
        (0..count).map(value).collect()
    }

    fn run(a: MatrixOf<Flex>, b: MatrixOf<Flex>, otherwise: Otherwise) -> (Vec<f32>, Launched) {
        let note = LaunchNote::default();
        let (target, to) = (Target::MatrixUnit, Some(note.clone()));
        let run = Run { target, otherwise, any_order: false, note: to, ..Run::emulated() };
        let [a, b] = [a, b].map(Operand::Matrix);
        let output = Flex::fp8_multiply(a, b, EpilogueOf::<Flex>::float(FloatDType::F32), run);
        let launched = note.get().expect("noted").clone().expect("it ran");
        (read(output.result.into_float()), launched)
    }

    /// `[m, k]` times `[k, n]` of what the codes stand for, in f64.
    fn exact(a: &MatrixOf<Flex>, b: &MatrixOf<Flex>, [m, k, n]: [usize; 3]) -> Vec<f64> {
        let [a, b] = [a, b].map(|codes| read(Flex::fp8_dequantize(codes.clone())));
        let sum = |row: usize, column: usize| {
            (0..k).map(|i| f64::from(a[row * k + i]) * f64::from(b[i * n + column])).sum()
        };
        (0..m * n).map(|at| sum(at / n, at % n)).collect()
    }

    #[test]
    fn scales_of_blocks_are_part_of_the_product() {
        let [m, k, n] = [35, 270, 40];
        let divided = Recipe::blockwise().with_power_of_two(false);
        for (recipe, of_a, of_b) in [
            (Recipe::mxfp8(), [1, 32], [32, 1]),
            (Recipe::blockwise(), [1, 128], [128, 128]),
            (divided, [1, 128], [128, 128]),
            (divided, [128, 128], [128, 1]),
        ] {
            let a = quantized(&values(m * k), [m, k], of_a, recipe);
            let b = quantized(&values(k * n), [k, n], of_b, recipe);
            let expected = exact(&a, &b, [m, k, n]);
            let largest = expected.iter().fold(0f64, |largest, y| largest.max(y.abs()));
            let (output, ran) = run(a, b, Otherwise::Refuse);
            assert_eq!(ran, launched(Unit::current()));
            for (y, expected) in output.iter().zip(&expected) {
                assert!((f64::from(*y) - expected).abs() <= 1e-6 * largest, "{y} {expected}");
            }
        }
    }

    /// Each of a batch as it is alone; one whose powers a unit has no numbers for is told of all.
    #[test]
    fn a_batch_in_blocks_is_multiplied_one_by_one() {
        let [m, k, n, count] = [5, 70, 6, 3];
        let (mut x, w) = (values(count * m * k), values(k * n));
        let of = |x: &[f32], from: usize| {
            let x = &x[from * m * k..][..m * k];
            let a = quantized(x, [m, k], [1, 32], Recipe::mxfp8());
            (a, quantized(&w, [k, n], [32, 1], Recipe::mxfp8()))
        };
        let batch = |x: &[f32]| {
            let a = quantized(x, [count, m, k], [1, 32], Recipe::mxfp8());
            (a, quantized(&w, [1, k, n], [32, 1], Recipe::mxfp8()))
        };
        let alone = |x: &[f32]| -> Vec<f32> {
            (0..count)
                .flat_map(|index| {
                    let (a, b) = of(x, index);
                    run(a, b, Otherwise::Emulate).0
                })
                .collect()
        };
        let (a, b) = batch(&x);
        let (output, ran) = run(a, b, Otherwise::Refuse);
        assert_eq!((output, ran), (alone(&x), launched(Unit::current())));
        x[m * k..][..32].fill(1e30);
        x[m * k + 32..][..32].fill(3e-30);
        let (a, b) = batch(&x);
        let (output, ran) = run(a, b, Otherwise::Emulate);
        assert_eq!((output, ran), (alone(&x), Launched::Fallback(Fallback::BlocksTooFarApart)));
    }

    /// Powers that a bf16 unit has no numbers for are multiplied in f32, or refused.
    #[test]
    fn powers_too_far_apart_are_told() {
        let [m, k, n] = [2, 64, 3];
        let mut x = vec![1e30f32; m * k];
        x[..32].fill(3e-30);
        let w = vec![1.0; k * n];
        let operands = || {
            let a = quantized(&x, [m, k], [1, 32], Recipe::mxfp8());
            (a, quantized(&w, [k, n], [32, 1], Recipe::mxfp8()))
        };
        let (a, b) = operands();
        let expected = exact(&a, &b, [m, k, n]);
        let (output, ran) = run(a, b, Otherwise::Emulate);
        assert_eq!(ran, Launched::Fallback(Fallback::BlocksTooFarApart));
        assert!(output.iter().zip(&expected).all(|(y, e)| (f64::from(*y) / e - 1.0).abs() < 1e-6));
        let refused = std::panic::catch_unwind(|| {
            let (a, b) = operands();
            run(a, b, Otherwise::Refuse)
        });
        let message = refused.expect_err("refused").downcast::<String>().expect("words");
        assert!(message.contains("Execution::Native") && message.contains("further apart"));
        // A block of zeros has the lowest scale there is, and does not count.
        x[..32].fill(0.0);
        let a = quantized(&x, [m, k], [1, 32], Recipe::mxfp8());
        let b = quantized(&w, [k, n], [32, 1], Recipe::mxfp8());
        let (output, ran) = run(a, b, Otherwise::Refuse);
        assert_eq!(ran, launched(Unit::current()));
        assert!(output[0] > 3e31 && output[n] > 6e31, "{output:?}");
        // Nor does one of NaN, which stays visible.
        x[..32].fill(f32::NAN);
        let a = quantized(&x, [m, k], [1, 32], Recipe::mxfp8());
        let b = quantized(&w, [k, n], [32, 1], Recipe::mxfp8());
        let (output, ran) = run(a, b, Otherwise::Refuse);
        assert_eq!(ran, launched(Unit::current()));
        assert!(output[0].is_nan() && output[n] > 6e31, "{output:?}");
    }
}
