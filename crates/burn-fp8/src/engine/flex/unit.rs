//! Products on the matrix unit of the CPU, over the memory of Flex.

use std::sync::{Arc, OnceLock};

use burn::backend::Flex;
use burn::tensor::ops::FloatTensorOps;
use burn::tensor::{Bytes, DType, FloatDType, Shape, bf16, f16};
use burn_flex::{FlexTensor, Layout};
use burn_fp8_core::Fp8Format;
use burn_fp8_cpu::{self as cpu, Codes, Epilogue, Output, Scales, Unit};

use super::memory::elements;
use super::pool;
use crate::engine::capability::{Capability, MatrixUnit};
use crate::engine::codes::CodesPrimitive;
use crate::engine::launch::{Launched, note};
use crate::engine::scaled::{
    Activation, OutputType, ScaledOperand, ScaledProduct, ScaledRequest, ScaledValues,
};
use crate::engine::unit::{UnitOperand, UnitOptions, UnitScale};

/// What the unit of this CPU can do. Asked for each product.
pub(super) fn capability() -> Capability {
    static PORTABLE: OnceLock<String> = OnceLock::new();
    static UNITS: [OnceLock<Arc<MatrixUnit>>; 2] = [const { OnceLock::new() }; 2];
    // Without asking Linux for AMX: that is for a product.
    let unit = Unit::expected();
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
        Arc::new(MatrixUnit { name: name(unit), cpu: cpu::cpu_name(), passed_over })
    };
    Capability::MatrixUnit(UNITS[index].get_or_init(describe).clone())
}

/// What runs a product now: in f32 where Linux has refused the unit that was expected.
pub(super) fn launched(unit: Unit) -> Launched {
    match unit {
        Unit::Portable => Launched::FakeQuantized,
        unit => Launched::MatrixUnit(name(unit)),
    }
}

/// Whether there is a unit. The first call chooses it.
pub(super) fn is_there() -> bool {
    Unit::current() != Unit::Portable
}

fn name(unit: Unit) -> &'static str {
    match unit {
        Unit::AmxBf16 => "AMX-BF16",
        Unit::Avx512Bf16 => "AVX512-BF16",
        Unit::Portable => "f32",
    }
}

/// Multiplies two operands of the same rank, whose leading dimensions broadcast.
pub(super) fn matmul(
    lhs: UnitOperand<Flex>,
    rhs: UnitOperand<Flex>,
    options: UnitOptions,
) -> FlexTensor {
    let unit = Unit::current();
    note(&options.note, || launched(unit));
    let [a, b] = [lhs.codes, rhs.codes].map(Matrices::new);
    let batch = a.broadcast_batch(&b);
    let scales = Batched::new(lhs.scale, rhs.scale, &batch);
    let epilogue = Epilogue { scales: scales.as_ref(), ..Epilogue::scaled(1.0, 1.0) };
    let [starts_a, starts_b] = [&a, &b].map(|matrices| matrices.starts(&batch));
    let [codes_a, codes_b] = [a.codes(&starts_a), b.codes(&starts_b)];
    let mut shape = batch;
    shape.extend([codes_a.shape()[0], codes_b.shape()[1]]);
    float(Shape::from(shape), options.dtype, |output| {
        cpu::matmul(unit, codes_a, codes_b, &epilogue, output);
    })
}

/// `a` `[M, K]` times the transpose of `b_t` `[N, K]`, with the epilogue that is asked for.
pub(super) fn scaled_matmul(
    a: ScaledOperand<Flex>,
    b_t: ScaledOperand<Flex>,
    request: ScaledRequest<Flex>,
) -> ScaledProduct<Flex> {
    let unit = Unit::current();
    note(&request.note, || launched(unit));
    let bias = request.bias.map(|bias| {
        let bias = Flex::float_cast(bias, FloatDType::F32);
        bias.to_contiguous()
    });
    let (lhs, rhs) = (a.scale.read(), b_t.scale.read());
    let epilogue = Epilogue {
        bias: bias.as_ref().map(|bias| elements::<f32>(bias, bias.layout())),
        activation: match request.activation {
            Activation::None => cpu::Activation::None,
            Activation::Relu => cpu::Activation::Relu,
            Activation::Gelu => cpu::Activation::Gelu,
        },
        ..Epilogue::scaled(lhs, rhs)
    };
    let [a, b] = [a.codes, b_t.codes].map(Matrices::new);
    let (start_a, start_b) = ([a.start], [b.start]);
    let (codes_a, codes_b) = (a.codes(&start_a), b.codes(&start_b));
    let shape = Shape::new([codes_a.shape()[0], codes_b.shape()[0]]);
    let mut amax = 0.0;
    let mut run = |output: Output<'_>| {
        let rhs = codes_b.transpose();
        amax = match request.amax {
            true => cpu::matmul_with_amax(unit, codes_a, rhs, &epilogue, output),
            false => {
                cpu::matmul(unit, codes_a, rhs, &epilogue, output);
                0.0
            }
        };
    };
    let values = match request.output {
        OutputType::Float(dtype) => ScaledValues::Float(float(shape, dtype.into(), run)),
        OutputType::Fp8 { format, scale } => {
            let factor = 1.0 / scale.read();
            let codes = pool::tensor(Layout::contiguous(shape), |codes: &mut [u8]| {
                run(Output::Fp8 { codes, format, factor });
            });
            ScaledValues::Codes(CodesPrimitive::Bytes(codes, format))
        }
    };
    let amax = request.amax.then(|| {
        let layout = Layout::contiguous(Shape::new([1]));
        FlexTensor::new(Bytes::from_elems(vec![amax]), layout, DType::F32)
    });
    ScaledProduct { values, amax }
}

/// A contiguous tensor of F32, BF16 or F16, filled by `run`.
pub(super) fn float(shape: Shape, dtype: DType, run: impl FnOnce(Output<'_>)) -> FlexTensor {
    let layout = Layout::contiguous(shape);
    match dtype {
        DType::BF16 => pool::tensor(layout, |y: &mut [bf16]| run(Output::Bf16(y))),
        DType::F16 => pool::tensor(layout, |y: &mut [f16]| run(Output::F16(y))),
        DType::F32 | DType::Flex32 => pool::tensor(layout, |y: &mut [f32]| run(Output::F32(y))),
        dtype => unreachable!("a product of type {dtype:?} is not in FP8"),
    }
}

/// Matrices of codes in the memory of a tensor `[…, R, C]`.
pub(super) struct Matrices {
    tensor: FlexTensor,
    format: Fp8Format,
    /// The leading dimensions and their strides.
    batch: Vec<(usize, usize)>,
    pub(super) start: usize,
    pub(super) shape: [usize; 2],
    /// From one row, or one column, to the next.
    stride: usize,
    transposed: bool,
}

impl Matrices {
    /// Copies the codes where neither rows nor columns lie without gaps.
    pub(super) fn new(codes: CodesPrimitive<Flex>) -> Self {
        let CodesPrimitive::Bytes(tensor, format) = codes else {
            unreachable!("Flex holds one byte a code");
        };
        match Self::borrow(&tensor, format) {
            Some(matrices) => matrices,
            None => Self::borrow(&tensor.to_contiguous(), format).expect("rows without gaps"),
        }
    }

    fn borrow(tensor: &FlexTensor, format: Fp8Format) -> Option<Self> {
        let layout = tensor.layout();
        let strides: Option<Vec<usize>> =
            layout.strides().iter().map(|stride| usize::try_from(*stride).ok()).collect();
        let sizes = layout.shape().iter().copied();
        let mut batch: Vec<(usize, usize)> = sizes.zip(strides?).collect();
        let (columns, column_stride) = batch.pop()?;
        let (rows, row_stride) = batch.pop()?;
        let in_rows = (column_stride == 1 || columns <= 1) && (row_stride >= columns || rows <= 1);
        let in_columns = (row_stride == 1 || rows <= 1) && (column_stride >= rows || columns <= 1);
        let (stride, transposed) = match (in_rows, in_columns) {
            (true, _) => (row_stride.max(columns), false),
            (false, true) => (column_stride.max(rows), true),
            (false, false) => return None,
        };
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

    pub(super) fn codes<'a>(&'a self, starts: &'a [usize]) -> Codes<'a> {
        let [rows, columns] = self.shape;
        let lines = if self.transposed { [columns, rows] } else { [rows, columns] };
        let codes = Codes::strided(self.tensor.storage::<u8>(), self.format, lines, self.stride);
        let codes = if self.transposed { codes.transpose() } else { codes };
        codes.starting_at(starts)
    }
}

/// The scales of both operands, in memory.
enum Batched {
    Tensor(f32, f32),
    Rows(Box<[FlexTensor; 2]>),
}

impl Batched {
    fn new(lhs: UnitScale<Flex>, rhs: UnitScale<Flex>, batch: &[usize]) -> Self {
        match (lhs, rhs) {
            (UnitScale::Tensor(lhs), UnitScale::Tensor(rhs)) => {
                Self::Tensor(lhs.read(), rhs.read())
            }
            (UnitScale::Rows(lhs), UnitScale::Rows(rhs)) => {
                let scales = [lhs, rhs].map(|scales| {
                    let shape = scales.layout().shape();
                    let rank = shape.num_dims();
                    let own: usize = shape.iter().take(rank - 2).product();
                    if own == 1 || own == batch.iter().product::<usize>() {
                        return scales.to_contiguous();
                    }
                    let mut full = batch.to_vec();
                    full.extend(shape.iter().skip(rank - 2));
                    let expanded = Flex::float_expand(scales, Shape::from(full));
                    expanded.to_contiguous()
                });
                Self::Rows(Box::new(scales))
            }
            _ => unreachable!("both operands have scales of one kind, and blocks go another way"),
        }
    }

    fn as_ref(&self) -> Scales<'_> {
        match self {
            Self::Tensor(lhs, rhs) => Scales::Tensor { lhs: *lhs, rhs: *rhs },
            Self::Rows(scales) => {
                let [lhs, rhs] = scales.each_ref().map(|x| elements::<f32>(x, x.layout()));
                Scales::Rows { lhs, rhs }
            }
        }
    }
}
