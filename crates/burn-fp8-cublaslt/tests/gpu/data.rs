//! Inputs of a product on the host, and its result in f64, computed from decoded codes.

use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};
use burn_fp8_core::Overflow;
use burn_fp8_cublaslt::*;
use burn_fp8_test_support::operations::Function;
use burn_fp8_test_support::{Random, fp8};
use half::{bf16, f16};

/// A code whose magnitude is at most 32: subnormals, zeros and most exponents occur.
fn code(random: &mut Random, format: Fp8Format) -> u8 {
    loop {
        let code = random.bits() as u8;
        if fp8::decode(code, format).abs() <= 32.0 {
            return code;
        }
    }
}

/// Elements as bytes.
pub fn encode(dtype: DataType, values: &[f32]) -> Vec<u8> {
    let bytes = |value: &f32| match dtype {
        DataType::F32 => value.to_le_bytes().to_vec(),
        DataType::F16 => f16::from_f32(*value).to_le_bytes().to_vec(),
        DataType::Bf16 => bf16::from_f32(*value).to_le_bytes().to_vec(),
        DataType::Fp8(format) => vec![format.encode(*value, Overflow::Saturate)],
    };
    values.iter().flat_map(bytes).collect()
}

/// Bytes as elements.
pub fn decode(dtype: DataType, bytes: &[u8]) -> Vec<f64> {
    let value = |chunk: &[u8]| match dtype {
        DataType::F32 => f64::from(f32::from_le_bytes(chunk.try_into().unwrap())),
        DataType::F16 => f16::from_le_bytes(chunk.try_into().unwrap()).to_f64(),
        DataType::Bf16 => bf16::from_le_bytes(chunk.try_into().unwrap()).to_f64(),
        DataType::Fp8(format) => fp8::decode(chunk[0], format),
    };
    bytes.chunks(dtype.size() as usize).map(value).collect()
}

/// A product with its factors.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub problem: ScaledMatmul,
    pub alpha: f32,
    pub beta: f32,
    /// C and D are one buffer.
    pub in_place: bool,
}

impl Case {
    pub fn new(problem: ScaledMatmul) -> Self {
        let beta = if problem.c.is_some() { 0.75 } else { 0.0 };
        Self { problem, alpha: 1.25, beta, in_place: false }
    }
}

/// All inputs. C and bias are values that their type holds exactly.
pub struct Inputs {
    pub a: Vec<u8>,
    pub b: Vec<u8>,
    pub c: Vec<f64>,
    pub c_bytes: Vec<u8>,
    pub bias: Vec<f64>,
    pub bias_bytes: Vec<u8>,
    /// As they lie on the device, but those of blocks of 32, which are bytes there: [`on_device`].
    pub scale_a: Vec<f32>,
    pub scale_b: Vec<f32>,
    pub inverse_scale_d: f32,
}

/// Elements from the first of the first matrix to the end of the last row of the last.
pub fn extent(problem: &ScaledMatmul, rows: u64, ld: u64, stride: u64) -> u64 {
    (problem.batch.count - 1) * stride + rows * ld
}

fn scales(problem: &ScaledMatmul, of_a: bool, random: &mut Random) -> Vec<f32> {
    let rows = if of_a { problem.shape.m } else { problem.shape.n };
    let blocks = problem.shape.k.div_ceil(128);
    let count = match (problem.scales, block_of(problem, of_a)) {
        (Scales::None, _) => 0,
        (Scales::PerRow, _) => rows,
        (_, None) => 1,
        (_, Some(BlockScale::Row32)) => {
            let count = rows.next_multiple_of(128) * blocks * 4;
            return (0..count).map(|_| 2f32.powi((random.bits() % 5) as i32 - 6)).collect();
        }
        (_, Some(BlockScale::Row128)) => blocks * rows,
        (_, Some(BlockScale::Square128)) => rows.div_ceil(128) * blocks.next_multiple_of(4),
    };
    (0..count).map(|_| random.between(0.02, 0.08)).collect()
}

/// The bytes of scales on the device.
pub fn on_device(problem: &ScaledMatmul, scales: &[f32]) -> Vec<u8> {
    match problem.scales {
        // E8M0: the exponent, as f32 has it.
        Scales::Blocks { a: BlockScale::Row32, .. } => {
            scales.iter().map(|scale| (scale.to_bits() >> 23) as u8).collect()
        }
        _ => scales.iter().flat_map(|scale| scale.to_le_bytes()).collect(),
    }
}

/// The blocks of an operand, where it has some.
pub fn block_of(problem: &ScaledMatmul, of_a: bool) -> Option<BlockScale> {
    match problem.scales {
        Scales::Blocks { a, b } => Some(if of_a { a } else { b }),
        _ => None,
    }
}

/// The place of the scale of one element, by the layouts that `Scales` documents.
pub fn place_of_scale(problem: &ScaledMatmul, of_a: bool, row: u64, k: u64) -> u64 {
    let blocks = problem.shape.k.div_ceil(128);
    let rows = if of_a { problem.shape.m } else { problem.shape.n };
    match block_of(problem, of_a) {
        None if problem.scales == Scales::PerRow => row,
        None => 0,
        Some(BlockScale::Row32) => {
            // Tiles of 128 rows and four blocks, which are 128 elements of K.
            let tile = row / 128 * blocks + k / 128;
            512 * tile + 16 * (row % 32) + 4 * (row % 128 / 32) + k % 128 / 32
        }
        Some(BlockScale::Row128) => (k / 128) * rows + row,
        Some(BlockScale::Square128) => (row / 128) * blocks.next_multiple_of(4) + k / 128,
    }
}

impl Inputs {
    pub fn new(problem: &ScaledMatmul, random: &mut Random) -> Self {
        let shape = problem.shape;
        let mut codes = |operand: Operand, rows, stride| -> Vec<u8> {
            let count = extent(problem, rows, operand.ld, stride);
            (0..count).map(|_| code(random, operand.format)).collect()
        };
        let (a, b) = (
            codes(problem.a, shape.m, problem.batch.a),
            codes(problem.b, shape.n, problem.batch.b),
        );
        let mut values = |dtype: DataType, count: u64| {
            let values: Vec<f32> = (0..count).map(|_| random.between(-3.0, 3.0)).collect();
            let bytes = encode(dtype, &values);
            (decode(dtype, &bytes), bytes)
        };
        let (c, c_bytes) =
            problem.c.map_or_else(Default::default, |c| values(c.dtype, shape.m * c.ld));
        let (bias, bias_bytes) =
            problem.epilogue.bias.map_or_else(Default::default, |dtype| values(dtype, shape.n));
        Self {
            a,
            b,
            c,
            c_bytes,
            bias,
            bias_bytes,
            scale_a: scales(problem, true, random),
            scale_b: scales(problem, false, random),
            inverse_scale_d: if problem.scaled_d { 8.0 } else { 1.0 },
        }
    }
}

/// One element of the result.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    /// Before the activation.
    pub input: f64,
    /// After it.
    pub output: f64,
    /// How far accumulation in few bits may move `input`.
    pub slack: f64,
}

impl Element {
    /// How far `output` may be moved: the slope of GELU is below 1.2, and its tanh is an approximation on the device.
    pub fn output_slack(&self, activation: Activation) -> f64 {
        match activation {
            Activation::Gelu => 1.2 * self.slack + 2e-3 * self.input.abs() + 1e-4,
            Activation::None | Activation::Relu => self.slack,
        }
    }
}

/// The result as `[count][m][n]`.
pub fn reference(case: &Case, inputs: &Inputs) -> Vec<Element> {
    let Batch { count, a, b, .. } = case.problem.batch;
    (0..count)
        .flat_map(|index| {
            let [a, b] = [(&inputs.a, a), (&inputs.b, b)]
                .map(|(codes, stride)| &codes[(index * stride) as usize..]);
            reference_of_one(case, [a, b], inputs)
        })
        .collect()
}

/// That of one product, from its codes.
fn reference_of_one(case: &Case, [a, b]: [&[u8]; 2], inputs: &Inputs) -> Vec<Element> {
    let problem = &case.problem;
    let Shape { m, n, k } = problem.shape;
    // Tensor cores of Hopper keep about 14 bits of a partial sum; without promotion errors add up along K.
    let epsilon = match problem.accumulation {
        Accumulation::Precise => 2f64.powi(-9),
        Accumulation::Fast => 2f64.powi(-8),
    };
    let dequantize = |codes: &[u8], operand: Operand, scales: &[f32], of_a: bool| {
        let at = |row: u64, column: u64| {
            let code = codes[(row * operand.ld + column) as usize];
            let scale = match problem.scales {
                Scales::None => 1.0,
                _ => scales[place_of_scale(problem, of_a, row, column) as usize],
            };
            fp8::decode(code, operand.format) * f64::from(scale)
        };
        let rows = if of_a { m } else { n };
        (0..rows)
            .flat_map(|row| (0..k).map(move |column| (row, column)))
            .map(|(row, column)| at(row, column))
            .collect::<Vec<f64>>()
    };
    let a = dequantize(a, problem.a, &inputs.scale_a, true);
    let b = dequantize(b, problem.b, &inputs.scale_b, false);
    let mut elements = Vec::new();
    for i in 0..m {
        for j in 0..n {
            let row = &a[(i * k) as usize..][..k as usize];
            let column = &b[(j * k) as usize..][..k as usize];
            let sum: f64 = row.iter().zip(column).map(|(a, b)| a * b).sum();
            let magnitude: f64 = row.iter().zip(column).map(|(a, b)| (a * b).abs()).sum();
            let c =
                problem.c.map_or(0.0, |c| f64::from(case.beta) * inputs.c[(i * c.ld + j) as usize]);
            let bias = problem.epilogue.bias.map_or(0.0, |_| inputs.bias[j as usize]);
            let input = f64::from(case.alpha) * sum + c + bias;
            let output = match problem.epilogue.activation {
                Activation::None => input,
                Activation::Relu => Function::Relu.of(input),
                Activation::Gelu => Function::GeluTanh.of(input),
            };
            let slack = epsilon * f64::from(case.alpha).abs() * magnitude
                + 1e-6 * (c.abs() + bias.abs() + 1e-6);
            elements.push(Element { input, output, slack });
        }
    }
    elements
}

/// How far rounding to `dtype` may move `x`, with some room.
pub fn rounding(dtype: DataType, x: f64) -> f64 {
    match dtype {
        DataType::F32 => x.abs() * 2f64.powi(-22),
        DataType::Bf16 => x.abs() * 2f64.powi(-8),
        DataType::F16 => x.abs() * 2f64.powi(-10) + 2f64.powi(-24),
        DataType::Fp8(E4M3) => x.abs() * 2f64.powi(-4) + 2f64.powi(-9),
        DataType::Fp8(E5M2) => x.abs() * 2f64.powi(-3) + 2f64.powi(-16),
    }
}

/// The largest number of a type, at which FP8 saturates.
pub fn saturate(dtype: DataType, x: f64) -> f64 {
    match dtype {
        DataType::Fp8(format) => x.clamp(f64::from(-format.max()), f64::from(format.max())),
        _ => x,
    }
}
