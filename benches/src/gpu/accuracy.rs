//! Writes products of codes with all that is needed to judge their errors: gpu_accuracy.py multiplies the same codes in f64 and
//! with `torch._scaled_mm`.
//!
//! Files hold numbers in little-endian order, row by row; `index.json` tells what they are.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::tensor::{FloatDType, Tensor, TensorData};
use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8::{Execution, Fp8Config, Fp8Format, Fp8Tensor, ScaledMatmulOptions, scaled_matmul};
use examples_common::write_json;
use serde::Serialize;

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
    type Matrices = [Tensor<Unfused, 2>; 2];
    let mut add = |shape, data: &str, matrices: &Matrices, bias: Option<&Tensor<Unfused, 1>>| {
        for formats in FORMATS {
            let case = case(folder, shape, data, formats, matrices, bias)?;
            println!("{}", case.name);
            cases.push(case);
        }
        anyhow::Ok(())
    };
    for (seed, &shape @ [m, k, n]) in (0u64..).zip(shapes) {
        for (data, name) in Data::ALL {
            let matrices = [data.matrix(2 * seed, [m, k]), data.matrix(2 * seed + 1, [n, k])];
            add(shape, name, &matrices, None)?;
        }
    }
    for (seed, shape @ [m, k, n]) in (100u64..).zip(BIASED) {
        let data = Data::Normal;
        let matrices = [data.matrix(3 * seed, [m, k]), data.matrix(3 * seed + 1, [n, k])];
        // As large as the product's elements, so that it counts.
        let bias = data.matrix(3 * seed + 2, [1, n]) * (k as f32).sqrt();
        add(shape, "bias", &matrices, Some(&bias.squeeze_dim::<1>(0).cast(FloatDType::BF16)))?;
    }
    write_json(&folder.join("index.json"), &Index { cases })
}

/// The products of both matrices; those with a bias in bf16 alone, since torch has no other output with one.
fn case(
    folder: &Path,
    [m, k, n]: [usize; 3],
    data: &str,
    formats: [Fp8Format; 2],
    [lhs, rhs]: &[Tensor<Unfused, 2>; 2],
    bias: Option<&Tensor<Unfused, 1>>,
) -> Result<Case> {
    let names = formats.map(name);
    let prefix = format!("{m}x{k}x{n}-{data}-{}", names.join("-"));
    let lhs = Fp8Tensor::quantize(lhs.clone(), formats[0]);
    let rhs = Fp8Tensor::quantize(rhs.clone(), formats[1]);
    let native = Fp8Config::default().with_execution(Execution::Native);
    let mut outputs = vec![];
    let dtypes = [(FloatDType::F32, "f32"), (FloatDType::BF16, "bf16")];
    for (dtype, dtype_name) in dtypes.into_iter().skip(usize::from(bias.is_some())) {
        for (fast_accumulation, accumulation) in [(true, "fast"), (false, "precise")] {
            let mut options = ScaledMatmulOptions::float(dtype);
            if fast_accumulation {
                options = options.with_fast_accumulation();
            }
            if let Some(bias) = bias {
                options = options.with_bias(bias.clone());
            }
            let product = || scaled_matmul(&lhs, &rhs.transpose(), &options);
            let output = native.scope(product)?.into_float();
            ensure!(output.dims() == [m, n] && output.dtype() == dtype.into(), "{prefix}");
            let file = format!("{prefix}-{dtype_name}-{accumulation}.bin");
            save(folder, &file, output.into_data())?;
            outputs.push(Output { file, dtype: dtype_name, fast_accumulation });
        }
    }
    let codes = |operand: &Fp8Tensor<Unfused, 2>, side: &str, format| {
        let file = format!("{prefix}-{side}.bin");
        save(folder, &file, TensorData::new(operand.to_bytes(), operand.dims()))?;
        anyhow::Ok(Codes { file, format, scale: operand.read_scale() })
    };
    let bias = bias.map(|bias| {
        let file = format!("{prefix}-bias.bin");
        save(folder, &file, bias.to_data()).map(|()| file)
    });
    Ok(Case {
        lhs: codes(&lhs, "lhs", names[0])?,
        rhs: codes(&rhs, "rhs", names[1])?,
        bias: bias.transpose()?,
        name: prefix,
        m,
        k,
        n,
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
