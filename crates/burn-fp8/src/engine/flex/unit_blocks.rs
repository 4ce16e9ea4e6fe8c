//! Products on the matrix unit whose operands have scales of blocks.
//!
//! Scales in f32 are applied to the sums over blocks of K. A code times a power of two is a bf16 number, as long as the power is not too small. The largest power of an operand is applied to the result, so that those of
//! its blocks are 1 and less.

use burn::backend::Flex;
use burn::tensor::Shape;
use burn::tensor::ops::FloatTensorOps;
use burn_flex::FlexTensor;
use burn_fp8_core::{Fp8Format, e8m0};
use burn_fp8_cpu::{self as cpu, BlockScales, Epilogue, Powers, Unit};

use super::memory::elements;
use super::unit::{Matrices, float, launched};
use crate::engine::backend::Fp8Engine;
use crate::engine::blocks::BlockCodes;
use crate::engine::capability::Fallback;
use crate::engine::codes::CodesPrimitive;
use crate::engine::launch::{fall_back, note};
use crate::engine::unit::{UnitOperand, UnitOptions, UnitScale};

/// An operand, and the powers of its blocks.
struct Operand {
    codes: BlockCodes<Flex>,
    /// Of each block.
    exponents: Vec<i16>,
    /// The largest of them.
    largest: i16,
}

impl Operand {
    fn new(operand: UnitOperand<Flex>) -> Self {
        let UnitOperand { codes, scale: UnitScale::Blocks { scales, block, .. } } = operand else {
            unreachable!("both operands have scales of blocks, or neither");
        };
        let CodesPrimitive::Bytes(_, format) = codes else {
            unreachable!("Flex holds one byte a code");
        };
        let scales = scales.to_contiguous();
        let exponent = |scale: &f32| {
            debug_assert!(e8m0::encode(*scale).is_some_and(|byte| byte != e8m0::NAN), "{scale:e}");
            // Of 2^-127, which is no normal f32, too.
            (scale.to_bits() >> 23) as i16 - 127
        };
        let exponents: Vec<i16> =
            elements::<f32>(&scales, scales.layout()).iter().map(exponent).collect();
        let largest = exponents.iter().copied().max().unwrap_or(0);
        Self { codes: BlockCodes { codes, scales, block, format }, exponents, largest }
    }

    fn format(&self) -> Fp8Format {
        self.codes.format
    }

    /// The format, and the lowest exponent in relation to the largest.
    fn extent(&self) -> (Fp8Format, i16) {
        let lowest = self.exponents.iter().copied().min().unwrap_or(self.largest);
        (self.format(), lowest - self.largest)
    }

    /// Gives blocks without a finite number but zeros, whose scale says nothing, that of the largest other one: NaN and infinities stay what they are.
    fn ignore_empty(&mut self) {
        let CodesPrimitive::Bytes(codes, _) = &self.codes.codes else {
            unreachable!("Flex holds one byte a code");
        };
        let codes = codes.to_contiguous();
        let columns = codes.layout().shape()[1];
        let [rows_of_block, columns_of_block] = self.codes.block;
        let across = columns.div_ceil(columns_of_block);
        let format = self.format();
        let says_nothing =
            |code: &u8| code & 0x7F == 0 || format.is_nan(*code) || format.is_infinite(*code);
        let mut is_empty = vec![true; self.exponents.len()];
        for (row, codes) in elements::<u8>(&codes, codes.layout()).chunks_exact(columns).enumerate()
        {
            let is_empty = &mut is_empty[row / rows_of_block * across..][..across];
            for (codes, is_empty) in codes.chunks(columns_of_block).zip(is_empty) {
                *is_empty &= codes.iter().all(says_nothing);
            }
        }
        let others = self.exponents.iter().zip(&is_empty).filter(|(_, empty)| !**empty);
        self.largest = others.map(|(exponent, _)| *exponent).max().unwrap_or(0);
        for (exponent, is_empty) in self.exponents.iter_mut().zip(is_empty) {
            if is_empty {
                *exponent = self.largest;
            }
        }
    }

    /// Exponents in relation to the largest.
    fn relative(&self) -> Vec<i16> {
        self.exponents.iter().map(|exponent| exponent - self.largest).collect()
    }

    /// The power of the largest one.
    fn factor(&self) -> f32 {
        e8m0::decode((self.largest + 127) as u8)
    }
}

/// Multiplies two matrices; in f32 where the powers of their blocks are too far apart.
pub(super) fn matmul(
    lhs: UnitOperand<Flex>,
    rhs: UnitOperand<Flex>,
    options: UnitOptions,
) -> FlexTensor {
    let are_powers = |operand: &UnitOperand<Flex>| match operand.scale {
        UnitScale::Blocks { are_powers_of_two, .. } => are_powers_of_two,
        _ => unreachable!("both operands have scales of blocks, or neither"),
    };
    match are_powers(&lhs) && are_powers(&rhs) {
        true => by_powers(lhs, rhs, options),
        false => by_scales(lhs, rhs, options),
    }
}

/// Sums over a block of K are multiplied by the scales of both blocks, in f32.
fn by_scales(lhs: UnitOperand<Flex>, rhs: UnitOperand<Flex>, options: UnitOptions) -> FlexTensor {
    let unit = Unit::current();
    note(&options.note, || launched(unit));
    let [(a, of_a, block_a), (b, of_b, block_b)] = [lhs, rhs].map(|operand| {
        let UnitScale::Blocks { scales, block, .. } = operand.scale else {
            unreachable!("both operands have scales of blocks, or neither");
        };
        (Matrices::new(operand.codes), scales.to_contiguous(), block)
    });
    let (start_a, start_b) = ([a.start], [b.start]);
    let [of_a, of_b] = [&of_a, &of_b].map(|scales| elements::<f32>(scales, scales.layout()));
    let codes_a = a.codes(&start_a).with_scales(BlockScales { scales: of_a, block: block_a });
    let codes_b = b.codes(&start_b).with_scales(BlockScales { scales: of_b, block: block_b });
    let shape = Shape::new([a.shape[0], b.shape[1]]);
    let epilogue = Epilogue::scaled(1.0, 1.0);
    float(shape, options.dtype, |output| cpu::matmul(unit, codes_a, codes_b, &epilogue, output))
}

fn by_powers(lhs: UnitOperand<Flex>, rhs: UnitOperand<Flex>, options: UnitOptions) -> FlexTensor {
    let UnitOptions { dtype, otherwise, note: to } = options;
    let mut operands = [lhs, rhs].map(Operand::new);
    let are_exact = |[a, b]: &[Operand; 2]| Powers::are_exact(a.extent(), b.extent());
    if !are_exact(&operands) {
        operands.iter_mut().for_each(Operand::ignore_empty);
    }
    if !are_exact(&operands) {
        fall_back(Fallback::BlocksTooFarApart, otherwise, &to);
        let [a, b] = operands.map(|operand| Flex::fp8_dequantize_blocks(operand.codes));
        return Flex::float_cast(Flex::fp8_plain_matmul(a, b), dtype.into());
    }
    let unit = Unit::current();
    note(&to, || launched(unit));
    let epilogue = Epilogue::scaled(operands[0].factor(), operands[1].factor());
    let relative = operands.each_ref().map(Operand::relative);
    let blocks = operands.each_ref().map(|operand| operand.codes.block);
    let [a, b] = operands.map(|operand| Matrices::new(operand.codes.codes));
    let (start_a, start_b) = ([a.start], [b.start]);
    let powers = |which: usize| Powers { exponents: &relative[which], block: blocks[which] };
    let codes_a = a.codes(&start_a).with_powers(powers(0));
    let codes_b = b.codes(&start_b).with_powers(powers(1));
    let shape = Shape::new([a.shape[0], b.shape[1]]);
    float(shape, dtype, |output| cpu::matmul(unit, codes_a, codes_b, &epilogue, output))
}

#[cfg(test)]
mod tests {
    use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};
    use burn_fp8_core::Recipe;

    use super::*;
    use crate::engine::blocks::QuantizeBlocks;
    use crate::engine::launch::{LaunchNote, Launched, Otherwise};

    fn quantized(
        x: &[f32],
        shape: [usize; 2],
        block: [usize; 2],
        recipe: Recipe,
    ) -> BlockCodes<Flex> {
        let tensor =
            Tensor::<Flex, 2>::from_data(TensorData::new(x.to_vec(), shape), &Default::default());
        let request = QuantizeBlocks { block, format: Fp8Format::E4M3, recipe };
        Flex::fp8_quantize_blocks(tensor.into_primitive().tensor(), request)
    }

    fn operand(BlockCodes { codes, scales, block, .. }: BlockCodes<Flex>) -> UnitOperand<Flex> {
        let are_powers_of_two =
            read(scales.clone()).iter().all(|scale| scale.log2().fract() == 0.0);
        UnitOperand { codes, scale: UnitScale::Blocks { scales, block, are_powers_of_two } }
    }

    fn read(tensor: FlexTensor) -> Vec<f32> {
        let tensor = Tensor::<Flex, 2>::from_primitive(TensorPrimitive::Float(tensor));
        tensor.into_data().to_vec().expect("f32")
    }

    /// Magnitudes from 2^-12 to 2^12 in blocks of their own, and a block of zeros.
    fn values(count: usize) -> Vec<f32> {
        let value = |index: usize| match index / 40 % 7 {
            6 => 0.0,
            size => ((index * 37 % 101) as f32 - 50.0) * 2f32.powi(4 * size as i32 - 12),
        };
        (0..count).map(value).collect()
    }

    fn run(a: BlockCodes<Flex>, b: BlockCodes<Flex>, otherwise: Otherwise) -> (Vec<f32>, Launched) {
        let note = LaunchNote::default();
        let options = UnitOptions { dtype: DType::F32, otherwise, note: Some(note.clone()) };
        let output = Flex::fp8_matmul_on_unit(operand(a), operand(b), options);
        (read(output), note.get().expect("noted").clone().expect("it ran"))
    }

    /// `[m, k]` times `[k, n]` of what the codes stand for, in f64.
    fn exact(a: &BlockCodes<Flex>, b: &BlockCodes<Flex>, [m, k, n]: [usize; 3]) -> Vec<f64> {
        let [a, b] = [a, b].map(|codes| read(Flex::fp8_dequantize_blocks(codes.clone())));
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
