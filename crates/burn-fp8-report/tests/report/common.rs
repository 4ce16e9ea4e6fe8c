//! What the test files share.

use burn_fp8_core::{Fp8Format, GemmRole, Operand, Recipe};
use burn_fp8_report::log::{Header, Operands, Products, Shape, SiteEntry, VERSION};
use burn_fp8_report::sample::{Lines, MatrixSample, OperandSample, product};
use burn_fp8_test_support::Random;
use burn_fp8_test_support::fp8::amax;

/// Values of many magnitudes, in both signs.
pub fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count).map(|_| random.unit() * 2f32.powi((random.bits() % 6) as i32 - 5)).collect()
}

/// A whole operand, with the scale `amax / max`.
pub fn operand(values: Vec<f32>, shape: [usize; 2], format: Fp8Format) -> OperandSample {
    let amax = amax(&values);
    OperandSample {
        elements: values.len() as u64,
        matrix: MatrixSample::whole(values, shape),
        format,
        scale: Some(amax / format.max()),
        amax,
    }
}

pub fn header() -> Header {
    Header { fp8_observatory: VERSION, every: 10, max_elements: 4096 }
}

/// A site with its three products; larger `spoil` makes the input fit worse.
pub fn entry(step: u64, site: u64, name: &str, spoil: f32) -> SiteEntry {
    let recipe = Recipe::current();
    let mut x = random(site, 256);
    x[7] *= spoil;
    let samples = [
        operand(x, [16, 16], Fp8Format::E4M3),
        operand(random(site + 100, 256), [16, 16], Fp8Format::E4M3),
        operand(random(site + step, 256), [16, 16], Fp8Format::E5M2),
    ];
    let mut operands = Operands::default();
    for (operand, sample) in Operand::ALL.into_iter().zip(&samples) {
        operands.set(operand, sample.stats(operand, Lines::Rows, recipe));
    }
    let mut products = Products::default();
    for role in GemmRole::ALL {
        let pair = role.operands().map(|operand| &samples[operand as usize]);
        products.set(role, product(role, pair, recipe));
    }
    SiteEntry {
        step,
        site,
        name: name.into(),
        kind: "linear".into(),
        gemm: Shape { batch: 1, m: 16, n: 16, k: 16 },
        recipe: recipe.to_string(),
        operands,
        products,
    }
}
