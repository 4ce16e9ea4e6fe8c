//! Writes products of codes with all that is needed to judge their errors: gpu_accuracy.py multiplies the same codes in f64 and
//! with `torch._scaled_mm`.
//!
//! Files hold numbers in little-endian order, row by row; `index.json` tells what they are.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use burn::tensor::{DType, FloatDType, Int, Tensor, TensorData, TensorPrimitive};
use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8::engine::{Fp8Engine, GemmOperand, GemmOptions};
use burn_fp8::{Execution, Fp8Config, Fp8Format, Fp8Tensor, ScaledMatmulOptions, scaled_matmul};
use serde::Serialize;

use crate::gemm::operand;
use crate::json::write_json;
use crate::options::Unfused;

/// M, K, N, multiples of 16: torch takes no others.
const SHAPES: [[usize; 3]; 5] =
    [[256, 512, 256], [512, 4096, 512], [256, 16384, 256], [1024, 2048, 768], [4096, 4096, 2048]];
const QUICK: usize = 3;
/// The same of products with bias. torch takes any M.
const BIASED: [[usize; 3]; 2] = [[512, 4096, 512], [1000, 2048, 768]];
const FORMATS: [[Fp8Format; 2]; 3] = [[E4M3, E4M3], [E4M3, E5M2], [E5M2, E4M3]];

#[derive(Serialize)]
struct Index {
    cases: Vec<Case>,
}

/// `lhs` `[m, k]` times `rhs` `[n, k]` transposed, and `bias` added to each row.
#[derive(Serialize)]
struct Case {
    name: String,
    m: usize,
    k: usize,
    n: usize,
    lhs: Codes,
    rhs: Codes,
    /// The file of `n` numbers in bf16.
    bias: Option<String>,
    outputs: Vec<Output>,
}

#[derive(Serialize)]
struct Codes {
    file: String,
    /// `e4m3` or `e5m2`.
    format: &'static str,
    /// What a code is multiplied with.
    scale: f32,
}

#[derive(Serialize)]
struct Output {
    file: String,
    /// `f32` or `bf16`.
    dtype: &'static str,
    fast_accumulation: bool,
}

/// What the matrices hold.
#[derive(Clone, Copy)]
enum Data {
    /// Normally distributed.
    Normal,
    /// The same, with one element in a thousand a thousand times as large.
    Outliers,
    /// Between 0 and 1: sums grow with K, as after a ReLU.
    Positive,
}

impl Data {
    const ALL: [(Self, &str); 3] =
        [(Self::Normal, "normal"), (Self::Outliers, "outliers"), (Self::Positive, "positive")];

    fn matrix(self, seed: u64, shape @ [rows, columns]: [usize; 2]) -> Tensor<Unfused, 2> {
        let mut random = SplitMix(seed);
        let values: Vec<f32> = (0..rows * columns)
            .map(|index| match self {
                Self::Positive => random.uniform(),
                Self::Outliers if index % 1009 == 0 => 1000.0 * random.normal(),
                Self::Normal | Self::Outliers => random.normal(),
            })
            .collect();
        Tensor::from_data(TensorData::new(values, shape), &Default::default())
    }
}

/// splitmix64: the same data everywhere.
struct SplitMix(u64);

impl SplitMix {
    /// In 0..1.
    fn uniform(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Twelve uniform numbers have variance 1 together.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }
}

/// Writes all cases into a folder.
pub fn write(folder: &Path, quick: bool) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let shapes = if quick { &SHAPES[..QUICK] } else { &SHAPES[..] };
    let mut cases = vec![];
    for (seed, &shape) in (0u64..).zip(shapes) {
        for (data, name) in Data::ALL {
            let [m, k, n] = shape;
            let [lhs, rhs] = [data.matrix(2 * seed, [m, k]), data.matrix(2 * seed + 1, [n, k])];
            for formats in FORMATS {
                let case = case(folder, shape, name, formats, [lhs.clone(), rhs.clone()])?;
                println!("{}", case.name);
                cases.push(case);
            }
        }
    }
    for (seed, shape) in (100u64..).zip(BIASED) {
        for formats in FORMATS {
            let case = biased(folder, shape, formats, seed)?;
            println!("{}", case.name);
            cases.push(case);
        }
    }
    write_json(&folder.join("index.json"), &Index { cases })
}

fn case(
    folder: &Path,
    [m, k, n]: [usize; 3],
    data: &str,
    formats: [Fp8Format; 2],
    matrices: [Tensor<Unfused, 2>; 2],
) -> Result<Case> {
    let names = formats.map(name);
    let prefix = format!("{m}x{k}x{n}-{data}-{}", names.join("-"));
    let mut operands = matrices.into_iter().zip(formats).map(|(x, format)| operand(x, format));
    let [lhs, rhs] = [(); 2].map(|()| operands.next().expect("two of each"));
    let mut outputs = vec![];
    for (dtype, dtype_name) in [(DType::F32, "f32"), (DType::BF16, "bf16")] {
        for fast_accumulation in [true, false] {
            let options = GemmOptions::new(k, dtype, fast_accumulation);
            let output = Unfused::fp8_gemm(lhs.clone(), rhs.clone(), options);
            let output = Tensor::<Unfused, 2>::from_primitive(TensorPrimitive::Float(output));
            anyhow::ensure!(output.dims() == [m, n] && output.dtype() == dtype, "{prefix}");
            let accumulation = if fast_accumulation { "fast" } else { "precise" };
            let file = format!("{prefix}-{dtype_name}-{accumulation}.bin");
            save(folder, &file, output.into_data())?;
            outputs.push(Output { file, dtype: dtype_name, fast_accumulation });
        }
    }
    let codes = |operand: GemmOperand<Unfused>, side: &str, shape: [usize; 2], format| {
        let words = Tensor::<Unfused, 2, Int>::from_primitive(operand.words);
        anyhow::ensure!(words.dims() == [shape[0], shape[1] / 4], "{prefix}: no padding");
        let file = format!("{prefix}-{side}.bin");
        save(folder, &file, words.into_data())?;
        Ok(Codes { file, format, scale: operand.scale.read() })
    };
    Ok(Case {
        lhs: codes(lhs, "lhs", [m, k], names[0])?,
        rhs: codes(rhs, "rhs", [n, k], names[1])?,
        name: prefix.clone(),
        m,
        k,
        n,
        bias: None,
        outputs,
    })
}

/// `scaled_matmul` with a bias, in bf16: with one torch has no other output.
fn biased(
    folder: &Path,
    [m, k, n]: [usize; 3],
    formats: [Fp8Format; 2],
    seed: u64,
) -> Result<Case> {
    let names = formats.map(name);
    let prefix = format!("{m}x{k}x{n}-bias-{}", names.join("-"));
    let quantized =
        |seed, shape, format| Fp8Tensor::quantize(Data::Normal.matrix(seed, shape), format);
    let lhs = quantized(3 * seed, [m, k], formats[0]);
    let rhs = quantized(3 * seed + 1, [n, k], formats[1]);
    // As large as the product's elements, so that it counts.
    let bias = Data::Normal.matrix(3 * seed + 2, [1, n]) * (k as f32).sqrt();
    let bias: Tensor<Unfused, 1> = bias.squeeze_dim::<1>(0).cast(FloatDType::BF16);
    let native = Fp8Config::default().with_execution(Execution::Native);
    let mut outputs = vec![];
    for fast_accumulation in [true, false] {
        let options = ScaledMatmulOptions::float(FloatDType::BF16).with_bias(bias.clone());
        let (options, accumulation) = match fast_accumulation {
            true => (options.with_fast_accumulation(), "fast"),
            false => (options, "precise"),
        };
        let output = native.scope(|| scaled_matmul(&lhs, &rhs.transpose(), &options))?.into_float();
        anyhow::ensure!(output.dims() == [m, n] && output.dtype() == DType::BF16, "{prefix}");
        let file = format!("{prefix}-bf16-{accumulation}.bin");
        save(folder, &file, output.into_data())?;
        outputs.push(Output { file, dtype: "bf16", fast_accumulation });
    }
    let codes = |operand: &Fp8Tensor<Unfused, 2>, side: &str, format| {
        let file = format!("{prefix}-{side}.bin");
        let bytes = operand.to_bytes();
        save(folder, &file, TensorData::new(bytes, operand.dims()))?;
        anyhow::Ok(Codes { file, format, scale: operand.read_scale() })
    };
    let bias_file = format!("{prefix}-bias.bin");
    save(folder, &bias_file, bias.into_data())?;
    Ok(Case {
        lhs: codes(&lhs, "lhs", names[0])?,
        rhs: codes(&rhs, "rhs", names[1])?,
        name: prefix.clone(),
        m,
        k,
        n,
        bias: Some(bias_file),
        outputs,
    })
}

fn name(format: Fp8Format) -> &'static str {
    match format {
        E4M3 => "e4m3",
        E5M2 => "e5m2",
    }
}

fn save(folder: &Path, file: &str, data: TensorData) -> Result<()> {
    let path = folder.join(file);
    fs::write(&path, data.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
}
