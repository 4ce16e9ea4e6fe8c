//! What the test files share.
#![allow(dead_code, reason = "each test file uses a part of it")]

use burn_fp8_core::Fp8Format;
use burn_fp8_core::{GemmRole, Operand, Recipe};
use burn_fp8_report::log::{Header, Operands, Products, Shape, SiteEntry, VERSION};
use burn_fp8_report::sample::{Lines, Matrix, OperandSample, product};

/// Values of a small generator (splitmix64) of many magnitudes, in both signs.
pub fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut bits = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut value =
        || ((bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 2f32.powi((bits() % 6) as i32 - 5);
    (0..count).map(|_| value()).collect()
}

/// A whole operand, with the scale `amax / max`.
pub fn operand(values: Vec<f32>, shape: [usize; 2], format: Fp8Format) -> OperandSample {
    let amax = values.iter().filter(|x| x.is_finite()).fold(0f32, |amax, x| amax.max(x.abs()));
    OperandSample {
        elements: values.len() as u64,
        matrix: Matrix::whole(values, shape),
        format,
        scale: Some(amax / format.max()),
        amax,
    }
}

/// The number nearest to `x / scale` among those that codes stand for, the one of even code of two, times the scale.
///
/// By search through the table of all codes.
pub fn nearest(x: f32, scale: f32, format: Fp8Format) -> f64 {
    let quotient = f64::from(x / scale).abs().min(f64::from(format.max()));
    let finite = (0..=0x7Fu8).filter(|code| format.decode(*code).is_finite());
    let distance = |code: &u8| (f64::from(format.decode(*code)) - quotient).abs();
    let code = finite
        .min_by(|a, b| distance(a).total_cmp(&distance(b)).then((a & 1).cmp(&(b & 1))))
        .expect("there are codes");
    f64::from(format.decode(code)).copysign(f64::from(x)) * f64::from(scale)
}

pub fn decibels_of(exact: &[f64], approximate: &[f64]) -> f64 {
    let power = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>();
    let signal = power(&mut exact.iter().copied());
    let noise = power(&mut exact.iter().zip(approximate).map(|(x, y)| x - y));
    10.0 * (signal / noise).log10()
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
