//! Flex: quantization over its memory, one byte an element for codes, products on the matrix unit of the CPU.

#[doc(hidden)]
pub mod memory;
#[doc(hidden)]
pub mod pool;
mod quantize;
mod unit;

use burn_backend::{Bytes, DType, FloatDType, Shape, TensorData, bf16, f16, ops::FloatTensorOps};
use burn_flex::Flex;
use burn_flex::{FlexTensor, Layout};
use burn_fp8_core::scale;
use burn_fp8_core::sums::Sums;
use burn_fp8_cpu::slice::{self, blocks};
use burn_fp8_cpu::{Rows, matmul_block_codes, matmul_codes, matmul_rows};

use super::backend::{self, Fp8Engine, Untracked};
use super::capability::Capability;
use super::codes::Codes;
use super::launch::{Launched, note};
use super::matrix::{MatrixOf, Scales};
use super::portable;
use super::problem::Problem;
use super::product::{Epilogue, EpilogueOf, Operand, OperandOf, ProductOf, Run, Target};
use super::request::RequestOf;
use super::scalar::Scalar;
use crate::engine::leaf::Leaf;
use memory::{dense, elements, is_plain};

impl Untracked for Flex {}

impl Fp8Engine for Flex {
    const FP8_ON_HOST: bool = true;

    fn fp8_codes(codes: &FlexTensor) -> Option<&[u8]> {
        // The memory may be that of more rows.
        is_plain(codes.layout()).then(|| elements(codes, codes.layout()))
    }

    fn fp8_memory(tensor: &FlexTensor) -> Option<Leaf> {
        let layout = tensor.layout();
        Some(Leaf::memory(&tensor.data_arc(), layout.start_offset(), layout.is_contiguous()))
    }

    fn fp8_capability(_device: &Self::Device, _problem: Option<&Problem>) -> Capability {
        unit::capability()
    }

    fn fp8_quantize(tensor: FlexTensor, request: RequestOf<Self>) -> MatrixOf<Self> {
        match tensor.dtype() {
            DType::F32 => quantize::quantize::<f32>(tensor, request),
            DType::F16 => quantize::quantize::<f16>(tensor, request),
            DType::BF16 => quantize::quantize::<bf16>(tensor, request),
            _ => Self::fp8_quantize(Self::float_cast(tensor, FloatDType::F32), request),
        }
    }

    fn fp8_dequantize(matrix: MatrixOf<Self>) -> FlexTensor {
        quantize::dequantize(&matrix).unwrap_or_else(|| backend::dequantize::<Self>(matrix))
    }

    fn fp8_multiply(
        lhs: OperandOf<Self>,
        rhs: OperandOf<Self>,
        epilogue: EpilogueOf<Self>,
        run: Run,
    ) -> ProductOf<Self> {
        match (lhs, rhs, &run.target) {
            (lhs @ Operand::Matrix(_), rhs @ Operand::Matrix(_), _) if run.sums != Sums::F32 => {
                backend::multiply::<Self>(lhs, rhs, epilogue, run)
            }
            (Operand::Matrix(lhs), Operand::Matrix(rhs), Target::MatrixUnit) => {
                match epilogue.added {
                    None => unit::multiply(lhs, rhs, epilogue, run),
                    Some(_) => {
                        let product =
                            unit::multiply(lhs, rhs, Epilogue::float(FloatDType::F32), run);
                        backend::finish::<Self>(product.result.into_float(), epilogue)
                    }
                }
            }
            (lhs, Operand::Matrix(rhs), _) if rhs.values.is_none() => {
                match multiply_codes(&lhs, &rhs, run.any_order) {
                    Some(product) => {
                        note(&run.note, || match run.target {
                            Target::Emulation(Some(fallback)) => Launched::Fallback(fallback),
                            _ => Launched::FakeQuantized,
                        });
                        backend::finish::<Self>(product, epilogue)
                    }
                    None => backend::multiply::<Self>(lhs, Operand::Matrix(rhs), epilogue, run),
                }
            }
            (Operand::Float(lhs), Operand::Float(rhs), target)
                if run.in_bf16 && lhs.layout().shape().num_dims() == 2 =>
            {
                unit::multiply_in_bf16([lhs, rhs], epilogue, *target == Target::MatrixUnit)
            }
            (Operand::Float(lhs), Operand::Float(rhs), _) if !run.in_bf16 => {
                match multiply_halves(&lhs, &rhs) {
                    Some(product) => backend::finish::<Self>(product, epilogue),
                    None => {
                        let [lhs, rhs] = [lhs, rhs].map(Operand::Float);
                        backend::multiply::<Self>(lhs, rhs, epilogue, run)
                    }
                }
            }
            (lhs, rhs, _) => backend::multiply::<Self>(lhs, rhs, epilogue, run),
        }
    }

    fn fp8_rescale(mut product: FlexTensor, scales: [Scales<FlexTensor>; 2]) -> FlexTensor {
        let [lhs, rhs] = match (scales, product.dtype()) {
            // Reading a scale from a tensor costs nothing here.
            ([Scales::One(lhs), Scales::One(rhs)], DType::F32) => {
                [lhs, rhs].map(Scalar::read::<Self>)
            }
            (scales, DType::F32) if product.layout().shape().num_dims() == 2 => {
                return rescale_rows(product, scales);
            }
            (scales, _) => return portable::rescale::<Self>(product, scales),
        };
        let [first, second] = scale::of_product(lhs, rhs);
        if let Some(values) = product.try_storage_mut::<f32>() {
            for factor in [first, second].into_iter().filter(|factor| *factor != 1.0) {
                slice::scale_in_place(values, factor);
            }
            return product;
        }
        // Shared, as decoded operands are with the memory kept for the next ones.
        let (tensor, layout) = dense(product);
        let x = elements::<f32>(&tensor, &layout);
        pool::tensor(layout.clone(), |values: &mut [f32]| {
            slice::scale(x, first, values);
            if second != 1.0 {
                slice::scale_in_place(values, second);
            }
        })
    }

    fn fp8_amax(tensor: FlexTensor) -> FlexTensor {
        let (tensor, layout) = dense(tensor);
        let amax = match tensor.dtype() {
            DType::F32 => slice::amax(elements::<f32>(&tensor, &layout)),
            DType::F16 => slice::amax(elements::<f16>(&tensor, &layout)),
            DType::BF16 => slice::amax(elements::<bf16>(&tensor, &layout)),
            _ => return portable::scale::amax_with_non_finite::<Self>(tensor),
        };
        FlexTensor::from_data(TensorData::new(vec![amax.with_non_finite()], [1]))
    }
}

/// Multiplies a matrix by scales of its rows and of its columns, or by one for all of them.
fn rescale_rows(product: FlexTensor, scales: [Scales<FlexTensor>; 2]) -> FlexTensor {
    let shape = product.layout().shape().clone();
    let [rows, columns] = [0, 1].map(|dim| unit::line(&scales[dim], shape[dim]));
    let mut product = match is_plain(product.layout()) {
        // Not `to_contiguous`, which shares the memory: it could not be written to.
        true => product,
        false => product.to_contiguous(),
    };
    if let Some(values) = product.try_storage_mut::<f32>()
        && values.len() == shape.num_elements()
    {
        blocks::scale_lines_in_place(values, &rows, &columns);
        return product;
    }
    let mut values = elements::<f32>(&product, product.layout()).to_vec();
    blocks::scale_lines_in_place(&mut values, &rows, &columns);
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(shape), DType::F32)
}

/// Multiplies f32 by numbers `[K, N]` of two bytes whose columns lie one after the other, converted on the way. Nothing where they do not.
fn multiply_halves(lhs: &FlexTensor, rhs: &FlexTensor) -> Option<FlexTensor> {
    let layout = rhs.layout();
    let [m, k] = lhs.layout().shape().as_slice().try_into().ok()?;
    let lies_so = lhs.dtype() == DType::F32
        && layout.start_offset() == 0
        && layout.strides() == [1, k as isize];
    let n = if lies_so { layout.shape()[1] } else { return None };
    let columns = Layout::contiguous(Shape::new([n, k]));
    match rhs.dtype() {
        DType::BF16 => {
            let columns = Rows::Bf16(elements::<bf16>(rhs, &columns));
            Some(multiply_columns(lhs, columns, [m, k, n]))
        }
        DType::F16 => {
            let columns = Rows::F16(elements::<f16>(rhs, &columns));
            Some(multiply_columns(lhs, columns, [m, k, n]))
        }
        _ => None,
    }
}

/// Multiplies by a matrix `[K, N]` whose columns lie one after the other.
fn multiply_columns(lhs: &FlexTensor, columns: Rows<'_>, [m, k, n]: [usize; 3]) -> FlexTensor {
    let lhs = lhs.to_contiguous();
    let x = elements::<f32>(&lhs, lhs.layout());
    pool::tensor(Layout::contiguous(Shape::new([m, n])), |y: &mut [f32]| {
        matmul_rows(x, columns, [m, k, n], y);
    })
}

/// Rows of the left operand up to which decoding scaled blocks while multiplying is faster than decoding before: each row reads all codes of a
/// block again, from the cache.
const ROWS: usize = 16;

/// Multiplies by codes `[K, N]` as they lie, row by row or column by column, decoded on the way, which needs no room for them. Of few rows that is several
/// times as fast as decoding a weight first, at 256 rows of the benchmark `serving` about as fast. Nothing where they lie otherwise, nor column by column where
/// the order of sums is to be that of [`FloatTensorOps::float_matmul`].
fn multiply_codes<'a>(
    lhs: &OperandOf<Flex>,
    rhs: &'a MatrixOf<Flex>,
    any_order: bool,
) -> Option<FlexTensor> {
    let shape = match lhs {
        Operand::Matrix(matrix) => matrix.shape(),
        Operand::Float(tensor) => tensor.layout().shape().clone(),
    };
    if shape.num_dims() != 2 {
        return None;
    }
    let waits = rhs.is_constant_along(0) && portable::is_constant::<Flex>(lhs, 1);
    let ([m, k], [_, n]) = (shape.dims(), rhs.shape().dims());
    let plain = |codes: &'a Option<Codes<_, FlexTensor>>| match codes {
        Some(Codes::Bytes(codes)) => Flex::fp8_codes(codes),
        _ => None,
    };
    if any_order && let Some(codes) = plain(&rhs.transposed) {
        let format = rhs.format;
        return Some(match &rhs.scales {
            of_rhs if waits => {
                let (x, of_lhs) = backend::split::<Flex>(lhs.clone());
                let product = multiply_columns(&x, Rows::Codes(codes, format), [m, k, n]);
                Flex::fp8_rescale(product, [of_lhs, of_rhs.clone()])
            }
            Scales::Grid { scales, block, .. } => {
                let block = [1, 0].map(|dim| block[dim].min([k, n][dim]));
                let scales = Flex::float_transpose(scales.clone()).to_contiguous();
                let scales = elements::<f32>(&scales, scales.layout());
                let columns = Rows::Blocks { codes, format, block, scales };
                multiply_columns(&dequantized(lhs), columns, [m, k, n])
            }
            Scales::One(_) => return None,
        });
    }
    let codes = plain(&rhs.codes)?;
    let output = Layout::contiguous(Shape::new([m, n]));
    match &rhs.scales {
        of_rhs if waits => {
            let (x, of_lhs) = backend::split::<Flex>(lhs.clone());
            let x = x.to_contiguous();
            let x = elements::<f32>(&x, x.layout());
            let product = pool::tensor(output, |y: &mut [f32]| {
                matmul_codes(x, codes, [m, k, n], rhs.format, y);
            });
            Some(Flex::fp8_rescale(product, [of_lhs, of_rhs.clone()]))
        }
        Scales::Grid { scales, block, .. } if m <= ROWS => {
            let [x, scales] = [&dequantized(lhs), scales].map(FlexTensor::to_contiguous);
            let [x, scales] = [&x, &scales].map(|tensor| elements::<f32>(tensor, tensor.layout()));
            let block = [0, 1].map(|dim| block[dim].min([k, n][dim]));
            Some(pool::tensor(output, |y: &mut [f32]| {
                matmul_block_codes(x, codes, [m, k, n], block, scales, rhs.format, y);
            }))
        }
        _ => None,
    }
}

/// The numbers that an operand stands for, in f32.
fn dequantized(operand: &OperandOf<Flex>) -> FlexTensor {
    match operand.clone() {
        Operand::Matrix(matrix) => Flex::fp8_dequantize(matrix),
        Operand::Float(tensor) => tensor,
    }
}
