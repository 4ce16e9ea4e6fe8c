//! The sums of tensor cores: the exact model against data of another implementation, which was compared with cards.
#![allow(clippy::single_range_in_vec_init, reason = "pieces of K, of which there may be one")]

use burn_fp8_core::Fp8Format::{E4M3, E5M2};
use burn_fp8_core::sums::{
    Accumulation, Accumulator, Part, RunningSum, SplitK, SplitOrder, Sums, chains, dot, join_parts,
    scaled, step,
};
use burn_fp8_core::{Fp8Format, Overflow};
use burn_fp8_test_support::Golden;
use half::{bf16, f16};

const PATHS: [(&str, Accumulator, Accumulation); 4] = [
    ("hopper.fast", Accumulator::HOPPER, Accumulation::Fast),
    ("hopper.slow", Accumulator::HOPPER, Accumulation::Split),
    ("ada.fast", Accumulator::ADA, Accumulation::Fast),
    ("ada.slow", Accumulator::ADA, Accumulation::Split),
];

/// mmaemu 0.1.0, `gen_tensor_cores.py 20261128 .`: 72 products of every kind of operand, and four types of result.
#[test]
fn sums_and_results_of_hopper_and_ada_are_those_of_mmaemu() {
    let golden = Golden::read(env!("CARGO_MANIFEST_DIR"), "tensor_cores");
    let (mut sums, mut results) = (0, 0);
    for case in golden.cases("cases") {
        let name = case["name"].as_str().expect("a name");
        let size = |key: &str| case[key].as_u64().expect("a size") as usize;
        let number = |key: &str| case[key].as_f64().expect("a number") as f32;
        let format = |key: &str| -> Fp8Format {
            case[key].as_str().expect("a format").parse().expect("one that is known")
        };
        let formats = [format("a"), format("b")];
        let k = size("k");
        let [a, b] = ["a", "b"].map(|operand| golden.u8s(&format!("{name}/{operand}")));
        for (path, accumulator, accumulation) in PATHS {
            let tensor = |of: &str| format!("{name}/{path}{of}");
            let expected = golden.u32s(&tensor(""));
            let scales = [number("scale_a"), number("scale_b")];
            let is_scaled = case["scaled"].as_bool().expect("a truth");
            let results_of = is_scaled.then(|| {
                let [of_bf16, of_f16] = [".bf16", ".f16"].map(|of| golden.u16s(&tensor(of)));
                (golden.u32s(&tensor(".f32")), of_bf16, of_f16, golden.u8s(&tensor(".e4m3fn")))
            });
            for (row, a) in a.chunks(k).enumerate() {
                for (column, b) in b.chunks(k).enumerate() {
                    let at = row * size("n") + column;
                    let sum = dot(accumulator, [a, b], formats, accumulation, None);
                    assert_eq!(sum.to_bits(), expected[at], "{name} {path} {row} {column}");
                    sums += 1;
                    let Some((in_f32, in_bf16, in_f16, in_e4m3)) = &results_of else { continue };
                    let y = scaled(sum, scales);
                    assert_eq!(y.to_bits(), in_f32[at], "{name} {path} f32");
                    // NaN of two bytes has bits of its own there.
                    let of_16 = |bits: u16| if y.is_nan() { 0x7FFF } else { bits };
                    let [of_bf16, of_f16] =
                        [bf16::from_f32(y).to_bits(), f16::from_f32(y).to_bits()].map(of_16);
                    assert_eq!(of_bf16, in_bf16[at], "{name} {path} bf16");
                    assert_eq!(of_f16, in_f16[at], "{name} {path} f16");
                    let code = E4M3.encode(y * number("scale_result"), Overflow::Saturate);
                    let code = if y.is_nan() { 0x7F } else { code };
                    assert_eq!(code, in_e4m3[at], "{name} {path} E4M3");
                    results += 4;
                }
            }
        }
    }
    println!("{sums} sums, {results} results");
    assert!(sums > 40_000 && results > 40_000, "{sums} sums, {results} results");
}

const ONE: u8 = 0x38;

/// By hand: 1 and 2^-13 are kept beside each other, 2^-14 is not, in any number.
#[test]
fn terms_are_cut_13_bits_below_the_largest() {
    // E4M3 codes of 2^-6 and 2^-7, a subnormal one, 2^-8.
    let [sixth, seventh, eighth] = [0x08, 0x04, 0x02];
    let sum = |accumulator, a: &[u8], b: &[u8]| {
        dot(accumulator, [a, b], [E4M3; 2], Accumulation::Fast, None)
    };
    assert_eq!(sum(Accumulator::HOPPER, &[ONE, sixth], &[ONE, seventh]), 1.0 + 2f32.powi(-13));
    assert_eq!(sum(Accumulator::HOPPER, &[ONE, sixth], &[ONE, eighth]), 1.0);
    // 31 of them are 2^-9.05: in another block they come to that, and are kept as far as 2^-13.
    let small = |count: usize, block: usize| {
        let mut a = vec![ONE];
        a.resize(block, 0);
        a.resize(block + count, sixth);
        let mut b = vec![ONE];
        b.resize(block, 0);
        b.resize(block + count, eighth);
        [a, b]
    };
    let [a, b] = small(31, 1);
    assert_eq!(sum(Accumulator::HOPPER, &a, &b), 1.0);
    assert_eq!(sum(Accumulator::BLACKWELL, &a, &b), 1.0 + 31.0 * 2f32.powi(-14));
    // The running sum is a term as well: 1 from the block before cuts them likewise.
    let [a, b] = small(32, 32);
    assert_eq!(sum(Accumulator::HOPPER, &a, &b), 1.0);
    let late = Accumulator { running: RunningSum::Late, ..Accumulator::HOPPER };
    assert_eq!(sum(late, &a, &b), 1.0 + 2f32.powi(-9));
    // A subnormal number has the exponent of normal ones: 2^-9 · 2^8 counts as 2^2.
    assert_eq!(sum(Accumulator::ADA, &[0x01, 0x08], &[0x78, 0x08]), 0.5);
    assert_eq!(sum(Accumulator::ADA, &[0x01, 0x09], &[0x78, 0x0F]), 0.5 + 2f32.powi(-11));
    // Ada's block ends earlier.
    let [a, b] = small(16, 16);
    assert_eq!(sum(Accumulator::HOPPER, &a, &b), 1.0);
    let alone = dot(Accumulator::ADA, [&a[16..], &b[16..]], [E4M3; 2], Accumulation::Fast, None);
    assert_eq!(alone, 2f32.powi(-10));
}

/// Split accumulation adds in f32 what one chain forgets.
#[test]
fn a_new_chain_begins_every_128() {
    let (mut a, mut b) = (vec![0; 256], vec![0; 256]);
    (a[0], b[0]) = (ONE, ONE);
    (a[128], b[128]) = (0x08, 0x02);
    let sum = |accumulation| dot(Accumulator::HOPPER, [&a, &b], [E4M3; 2], accumulation, None);
    assert_eq!(sum(Accumulation::Fast), 1.0);
    assert_eq!(sum(Accumulation::Split), 1.0 + 2f32.powi(-14));
    // 127 is of the first chain.
    (a[127], b[127], a[128]) = (0x08, 0x02, 0);
    let sum = |accumulation| dot(Accumulator::HOPPER, [&a, &b], [E4M3; 2], accumulation, None);
    assert_eq!(sum(Accumulation::Split), 1.0);
}

#[test]
fn special_values_are_those_of_the_exact_sum() {
    let sum = |a: [u8; 2], b: [u8; 2]| {
        dot(Accumulator::ADA, [&a, &b], [E5M2, E4M3], Accumulation::Split, None).to_bits()
    };
    let (infinity, nan, one) = (0x7C, 0x7E, 0x3C);
    assert_eq!(sum([infinity, one], [ONE, ONE]), f32::INFINITY.to_bits());
    assert_eq!(sum([infinity | 0x80, one], [ONE, ONE]), f32::NEG_INFINITY.to_bits());
    for [a, b] in [
        [[infinity, one], [0, ONE]],
        [[infinity, infinity | 0x80], [ONE, ONE]],
        [[nan, one], [0, 0]],
        [[nan | 0x80, one], [ONE, ONE]],
        [[one, one], [ONE, 0x7F]],
    ] {
        assert_eq!(sum(a, b), 0x7FFF_FFFF, "{a:x?} {b:x?}");
    }
    // A zero is positive, and so is what is cut to it.
    assert_eq!(sum([one | 0x80, one], [ONE, ONE]), 0);
    assert_eq!(sum([0x80, 0x80], [ONE, ONE]), 0);
}

/// What mmaemu documents of cuBLASLt 12.8.3.14: which tiles a part has, by hand.
#[test]
fn parts_of_a_split_sum_are_those_of_cublaslt() {
    let split = |order| Some(SplitK { splits: 3, order });
    let of = |k, accumulation, order| chains(k, 128, accumulation, split(order));
    let fast = of(600, Accumulation::Fast, SplitOrder::Contiguous);
    assert_eq!(fast, [vec![vec![0..256]], vec![vec![256..512]], vec![vec![512..600]]]);
    let slow = of(600, Accumulation::Split, SplitOrder::Contiguous);
    assert_eq!(slow[1], [vec![256..384], vec![384..512]]);
    // Four tiles of 128 are two, two and none.
    let empty = of(512, Accumulation::Fast, SplitOrder::Contiguous);
    assert_eq!(empty, [vec![vec![0..256]], vec![vec![256..512]], vec![]]);
    let fast = of(600, Accumulation::Fast, SplitOrder::Serial);
    assert_eq!(fast[0], [vec![0..64, 192..256, 384..448, 576..600]]);
    assert_eq!(fast[1], [vec![64..128, 256..320, 448..512]]);
    let slow = of(600, Accumulation::Split, SplitOrder::Pairwise);
    assert_eq!(slow[0], [vec![0..64, 192..256], vec![384..448, 576..600]]);
    assert_eq!(slow[1], [vec![64..128, 256..320], vec![448..512]]);
    // One part is no split.
    let one = Some(SplitK { splits: 1, order: SplitOrder::Pairwise });
    assert_eq!(chains(130, 128, Accumulation::Split, one), [[[0..128], [128..130]]]);
    assert_eq!(chains(0, 128, Accumulation::Fast, None), [Part::new()]);

    // 2^24 forgets an odd 1: the order shows.
    let (large, one) = (2f32.powi(24), 1.0);
    let join = |parts: &[f32], order| join_parts(parts, split(order));
    assert_eq!(join(&[large, one, one], SplitOrder::Serial), large);
    assert_eq!(join(&[one, one, large], SplitOrder::Contiguous), large + 2.0);
    // (p2 + p0) + p1
    assert_eq!(join(&[one, large, one], SplitOrder::Pairwise), large + 2.0);
    assert_eq!(join(&[large, one, one], SplitOrder::Pairwise), large);
    // (p3 + (p0 + p2)) + p1: 3 more is a tie, which goes to 4.
    assert_eq!(join(&[one, one, one, large], SplitOrder::Pairwise), large + 4.0);
    assert_eq!(join(&[one, large, one, one], SplitOrder::Pairwise), large + 4.0);
    assert_eq!(join(&[large, one, one, one], SplitOrder::Pairwise), large);
    // ((p4 + (p0 + p3)) + p1) + p2
    assert_eq!(join(&[one, large, one, one, one], SplitOrder::Pairwise), large + 4.0);
    assert_eq!(join(&[one], SplitOrder::Pairwise), 1.0);
}

/// The scales of blocks of MXFP8 move the products, not the running sum.
#[test]
fn exponents_of_blocks_move_products_alone() {
    let accumulator = Accumulator::BLACKWELL;
    let sum = |exponent, c| step(accumulator, [&[ONE], &[ONE]], [E4M3; 2], exponent, c);
    assert_eq!(sum(-20, 1.0), 1.0 + 2f32.powi(-20));
    // 25 bits are kept of a term, 23 of the sum.
    assert_eq!(sum(-24, 1.0), 1.0);
    assert_eq!(sum(30, 1.0), 2f32.powi(30));
    assert_eq!(sum(-140, 0.0), 2f32.powi(-140));
    assert_eq!(sum(200, 0.0), f32::INFINITY);
}

#[test]
fn an_accumulator_out_of_range_is_refused_by_name() {
    for (accumulator, message) in [
        (Accumulator { products: 0, ..Accumulator::ADA }, "products = 0: it takes 1 to 64"),
        (Accumulator { result: 24, ..Accumulator::ADA }, "result = 24: it takes 1 to 23"),
        (Accumulator { fraction: 31, ..Accumulator::ADA }, "fraction = 31: it takes 1 to 30"),
        (Accumulator { chain: 0, ..Accumulator::ADA }, "chain = 0: it takes 1 to"),
    ] {
        let error = Sums::Custom(accumulator).validate().expect_err(message).to_string();
        assert!(error.contains(message), "{error}");
    }
    for sums in Sums::CARDS {
        assert_eq!(sums.validate(), Ok(()));
        assert_eq!(sums.name().to_uppercase().parse(), Ok(sums));
        let json = serde_json::to_string(&sums).expect("JSON");
        assert_eq!(serde_json::from_str::<Sums>(&json).expect(&json), sums);
    }
    let error = "volta".parse::<Sums>().expect_err("no FP8 there").to_string();
    assert!(error.contains("hopper, ada and blackwell"), "{error}");
}

/// A second model, in f64, which can be broken: the golden data must tell each break.
mod broken {
    use burn_fp8_test_support::fp8::decode;

    use super::*;

    /// A break of the rules.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Break {
        OneBitMoreOfTerms,
        OneBitLessOfTerms,
        OneBitMoreOfTheSum,
        OneBitLessOfTheSum,
        TwiceTheProducts,
        HalfTheProducts,
        ChainsOf64,
        ChainsOf256,
        TermsToTheNearest,
        TermsDown,
        SumsToTheNearest,
        SumsDown,
        ExponentWithoutC,
        ExponentOfTheFirstProduct,
        LateC,
        UncutC,
        NormalizedProducts,
        NormalizedSubnormals,
        ZerosCount,
        NegativeZeros,
        ChainsAddedBackward,
        ChainsAddedExactly,
        ChainsGoOn,
        AnyNan,
        InfinitiesAreLargeNumbers,
    }

    const BREAKS: [Break; 25] = [
        Break::OneBitMoreOfTerms,
        Break::OneBitLessOfTerms,
        Break::OneBitMoreOfTheSum,
        Break::OneBitLessOfTheSum,
        Break::TwiceTheProducts,
        Break::HalfTheProducts,
        Break::ChainsOf64,
        Break::ChainsOf256,
        Break::TermsToTheNearest,
        Break::TermsDown,
        Break::SumsToTheNearest,
        Break::SumsDown,
        Break::ExponentWithoutC,
        Break::ExponentOfTheFirstProduct,
        Break::LateC,
        Break::UncutC,
        Break::NormalizedProducts,
        Break::NormalizedSubnormals,
        Break::ZerosCount,
        Break::NegativeZeros,
        Break::ChainsAddedBackward,
        Break::ChainsAddedExactly,
        Break::ChainsGoOn,
        Break::AnyNan,
        Break::InfinitiesAreLargeNumbers,
    ];

    fn exponent(x: f64) -> i32 {
        x.abs().log2().floor() as i32
    }

    /// The exponent of a code's number, which is not below that of the smallest normal one.
    fn of_code(x: f64, format: Fp8Format, broken: Option<Break>) -> i32 {
        let least = format.min_positive_normal().log2() as i32;
        match x == 0.0 {
            true => least,
            false if broken == Some(Break::NormalizedSubnormals) => exponent(x),
            false => exponent(x).max(least),
        }
    }

    fn step(
        terms: &[(f64, f64)],
        formats: [Fp8Format; 2],
        c: f64,
        [fraction, result]: [i32; 2],
        broken: Option<Break>,
    ) -> f64 {
        let is = |kind| broken == Some(kind);
        let products = terms.iter().filter(|(a, b)| a * b != 0.0 || is(Break::ZerosCount));
        let mut exponents: Vec<i32> = products
            .map(|(a, b)| match is(Break::NormalizedProducts) {
                true => exponent(a * b),
                false => of_code(*a, formats[0], broken) + of_code(*b, formats[1], broken),
            })
            .collect();
        if is(Break::ExponentOfTheFirstProduct) {
            exponents.truncate(1);
        }
        let with_c = !is(Break::ExponentWithoutC) && !is(Break::LateC);
        exponents.extend((c != 0.0 && with_c).then(|| exponent(c)));
        let Some(largest) = exponents.into_iter().max() else {
            return if with_c { c } else { 0.0 };
        };
        let unit = 2f64.powi(largest - fraction);
        let cut = |x: f64| match broken {
            Some(Break::TermsToTheNearest) => (x / unit).round_ties_even(),
            Some(Break::TermsDown) => (x / unit).floor(),
            _ => (x / unit).trunc(),
        };
        let of_c = match broken {
            Some(Break::LateC) => 0.0,
            Some(Break::UncutC) => c / unit,
            _ => cut(c),
        };
        let sum = (terms.iter().map(|(a, b)| cut(a * b)).sum::<f64>() + of_c) * unit;
        let negative = is(Break::NegativeZeros) && terms.iter().any(|(a, b)| a * b < 0.0);
        if sum == 0.0 {
            return if negative { -0.0 } else { 0.0 };
        }
        let own = 2f64.powi(exponent(sum) - result);
        let sum = own
            * match broken {
                Some(Break::SumsToTheNearest) => (sum / own).round_ties_even(),
                Some(Break::SumsDown) => (sum / own).floor(),
                _ => (sum / own).trunc(),
            };
        if is(Break::LateC) { f64::from((sum + c) as f32) } else { sum }
    }

    fn sum(
        [a, b]: [&[u8]; 2],
        formats: [Fp8Format; 2],
        mut products: usize,
        is_slow: bool,
        broken: Option<Break>,
    ) -> u32 {
        let number = |code: &u8, format| match decode(*code, format) {
            x if broken == Some(Break::InfinitiesAreLargeNumbers) => x.clamp(-65536.0, 65536.0),
            x => x,
        };
        let terms: Vec<(f64, f64)> =
            a.iter().zip(b).map(|(a, b)| (number(a, formats[0]), number(b, formats[1]))).collect();
        let class: f64 = terms.iter().map(|(a, b)| a * b).sum();
        if !class.is_finite() {
            return match class.is_nan() && broken != Some(Break::AnyNan) {
                true => 0x7FFF_FFFF,
                false => (class as f32).to_bits(),
            };
        }
        let (mut bits, mut chain) = ([13, 13], 128);
        match broken {
            Some(Break::OneBitMoreOfTerms) => bits[0] += 1,
            Some(Break::OneBitLessOfTerms) => bits[0] -= 1,
            Some(Break::OneBitMoreOfTheSum) => bits[1] += 1,
            Some(Break::OneBitLessOfTheSum) => bits[1] -= 1,
            Some(Break::TwiceTheProducts) => products *= 2,
            Some(Break::HalfTheProducts) => products /= 2,
            Some(Break::ChainsOf64) => chain = 64,
            Some(Break::ChainsOf256) => chain = 256,
            _ => {}
        }
        let one = |c: f64, terms: &[(f64, f64)]| {
            terms.chunks(products).fold(c, |c, block| step(block, formats, c, bits, broken))
        };
        let add = |sum: f32, chain: f64| sum + chain as f32;
        let y = match is_slow && broken != Some(Break::ChainsGoOn) {
            false => one(0.0, &terms) as f32,
            true => {
                let chains: Vec<f64> = terms.chunks(chain).map(|terms| one(0.0, terms)).collect();
                match broken {
                    Some(Break::ChainsAddedBackward) => chains.into_iter().rev().fold(0.0, add),
                    Some(Break::ChainsAddedExactly) => chains.iter().sum::<f64>() as f32,
                    _ => chains.into_iter().fold(0.0, add),
                }
            }
        };
        y.to_bits()
    }

    #[test]
    fn golden_data_and_a_case_by_hand_tell_every_break_of_the_rules() {
        let golden = Golden::read(env!("CARGO_MANIFEST_DIR"), "tensor_cores");
        let mut told = vec![0; BREAKS.len()];
        for case in golden.cases("cases") {
            let name = case["name"].as_str().expect("a name");
            let k = case["k"].as_u64().expect("a size") as usize;
            let formats =
                ["a", "b"].map(|key| case[key].as_str().expect("a format").parse().expect("known"));
            let [a, b] = ["a", "b"].map(|operand| golden.u8s(&format!("{name}/{operand}")));
            for (path, accumulator, accumulation) in PATHS {
                let expected = golden.u32s(&format!("{name}/{path}"));
                let is_slow = accumulation == Accumulation::Split;
                let products = accumulator.products as usize;
                let n = b.len() / k;
                let of = |at: usize, broken| {
                    let operands = [&a[at / n * k..][..k], &b[at % n * k..][..k]];
                    sum(operands, formats, products, is_slow, broken)
                };
                for (at, expected) in expected.iter().enumerate() {
                    assert_eq!(of(at, None), *expected, "{name} {path} {at}: the model itself");
                }
                for (broken, told) in BREAKS.into_iter().zip(&mut told) {
                    // Once is enough.
                    if *told == 0 {
                        *told = (0..expected.len())
                            .filter(|at| of(*at, Some(broken)) != expected[*at])
                            .count();
                    }
                }
            }
        }
        // A subnormal number has the exponent of normal ones: 2^-9 · 2^8 counts as 2^2, which cuts 2^-12.
        let by_hand = |broken| {
            sum([&[0x01, 0x08], &[0x78, 0x08]], [E4M3; 2], 32, false, broken) == 0.5f32.to_bits()
        };
        assert!(by_hand(None));
        for (broken, told) in BREAKS.into_iter().zip(&mut told) {
            *told += usize::from(!by_hand(Some(broken)));
        }
        let untold: Vec<_> = BREAKS.into_iter().zip(told).filter(|(_, told)| *told == 0).collect();
        assert!(untold.is_empty(), "nothing tells {untold:?}");
    }
}
