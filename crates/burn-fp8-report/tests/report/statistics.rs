//! Measurements against closed forms, and against arithmetic that shares no code with them.

use std::ops::Range;

use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};
use burn_fp8_core::{GemmRole, Operand, Recipe};
use burn_fp8_report::sample::{
    Alternative, Lines, MAX_SIDE, MatrixSample, OperandSample, ProductStats, product, sizes, spread,
};
use burn_fp8_report::{Advice, Histogram, MatrixSqnr, POOR, Sqnr, rounding_limit};
use burn_fp8_test_support::fp8::quantize_dequantize_by;
use burn_fp8_test_support::{sqnr, transpose, wide};

use crate::common::{operand, random};

#[test]
fn the_ratio_of_a_constant_error_is_its_closed_form() {
    let mut sqnr = Sqnr::default();
    (0..50).for_each(|_| sqnr.add(3.0, 2.7));
    assert!((sqnr.decibels().unwrap() - 20.0).abs() < 1e-9, "an error of a tenth is 20 dB");
    assert_eq!(Sqnr::default().decibels(), None);
    assert_eq!(Sqnr { signal: 1.0, noise: 0.0 }.decibels(), Some(f64::INFINITY));
    // Ratios that f64 does not hold: only no noise at all is exact.
    for (signal, noise, expected) in [(1e-300, 1e300, "-6000.0 dB"), (1e300, 1e-300, "6000.0 dB")] {
        assert_eq!(Sqnr { signal, noise }.to_string(), expected);
    }
    assert_eq!(Sqnr { signal: 1e-300, noise: 0.0 }.to_string(), "exact");
}

#[test]
fn rounding_of_evenly_spread_mantissas_leaves_the_limit() {
    // 1..2 in 4096 steps: the assumption of the formula, for one operand.
    let values: Vec<f32> = (0..4096).map(|i| 1.0 + (i as f32 + 0.5) / 4096.0).collect();
    for (format, limit) in [(E4M3, 32.5), (E5M2, 26.5)] {
        let sample =
            OperandSample { scale: Some(1.0), format, ..operand(values.clone(), [64, 64], format) };
        let sqnr =
            sample.stats(Operand::Input, Lines::Rows, Recipe::current()).sqnr.decibels().unwrap();
        assert!((sqnr - limit).abs() < 0.1, "{format}: {sqnr}");
        // Two such operands, with errors that have nothing to do with each other, are 3 dB worse.
        assert!((rounding_limit([format, format]) - (limit - 3.0)).abs() < 0.1);
    }
}

#[test]
fn powers_of_two_under_a_power_of_two_are_exact() {
    // amax 1.75: scale 2^-8, and the smallest of them, 2^-15, is a subnormal number of it.
    let values: Vec<f32> = (0..16).map(|i| 2f32.powi(-i)).chain([1.75, -0.5]).collect();
    let x = operand(values[2..].to_vec(), [4, 4], E4M3);
    let stats = x.stats(Operand::Input, Lines::Rows, Recipe::current());
    assert_eq!(stats.scale, 2f32.powi(-8));
    assert_eq!(stats.sqnr.decibels(), Some(f64::INFINITY));
    let product = product(GemmRole::Output, [&x, &x], Recipe::current());
    assert_eq!(product.sqnr.decibels(), Some(f64::INFINITY));
    assert_eq!(Advice::of(&product), Advice::Fits);
}

#[test]
fn what_is_lost_is_counted() {
    // Scale 1: half the smallest subnormal, 2^-10, goes to zero; a little more does not.
    let mut values = vec![0.0; 4];
    values.extend([2f32.powi(-10); 3]);
    values.extend([2f32.powi(-10) * 1.01; 2]);
    values.extend([448.0, -449.0, 500.0, f32::NAN, f32::INFINITY, 1.0, 1.0]);
    let sample = OperandSample { scale: Some(1.0), ..operand(values, [4, 4], E4M3) };
    let stats = sample.stats(Operand::Input, Lines::Rows, Recipe::current());
    let counts = (stats.zeros, stats.flushed, stats.saturated, stats.non_finite);
    assert_eq!(counts, (4, 3, 2, 2));
    assert_eq!(stats.share(stats.flushed), 3.0 / 16.0);
    assert_eq!(stats.histogram.counts.iter().sum::<u64>(), 10, "finite and not zero");
    let lost =
        3.0 * 4f64.powi(-10) + 2.0 * (2f64.powi(-9) - f64::from(2f32.powi(-10) * 1.01)).powi(2);
    assert!((stats.sqnr.noise - (lost + 1.0 + 52.0 * 52.0)).abs() < 1e-9);
}

#[test]
fn exponents_are_floors_of_logarithms() {
    for exponent in -149..=127 {
        let power = 2f64.powi(exponent) as f32;
        assert_eq!(Histogram::of(&[power]), Histogram { first: exponent, counts: vec![1] });
        let below = f32::from_bits(power.to_bits() - 1);
        if below > 0.0 {
            assert_eq!(Histogram::of(&[-below]).first, exponent - 1);
        }
    }
    let gap = Histogram::of(&[1.0, 8.0, 9.0]);
    assert_eq!(gap.bins().collect::<Vec<_>>(), [(0, 1), (1, 0), (2, 0), (3, 2)]);
    assert_eq!(Histogram::of(&[0.0, f32::NAN, f32::INFINITY]), Histogram::default());
}

/// What a number becomes in FP8.
fn nearest(x: f32, scale: f32, format: Fp8Format) -> f64 {
    quantize_dequantize_by(&[x], scale, format)[0]
}

/// The product as the table of codes has it, of these columns of the result. Its scales are those of an operand (0 or 1), a row of the left one or a column of the
/// right one, and a place along K.
fn reference(
    [a, b]: [&[f32]; 2],
    [m, n, k]: [usize; 3],
    columns: &[usize],
    formats: [Fp8Format; 2],
    scale: impl Fn(usize, usize, usize) -> f32,
) -> f64 {
    let (mut exact, mut quantized) = (Vec::new(), Vec::new());
    for row in 0..m {
        for &column in columns {
            let terms = (0..k).map(|i| (i, a[row * k + i], b[i * n + column]));
            exact.push(terms.clone().map(|(_, a, b)| f64::from(a) * f64::from(b)).sum::<f64>());
            let terms = terms.map(|(i, a, b)| {
                let left = nearest(a, scale(0, row, i), formats[0]);
                left * nearest(b, scale(1, column, i), formats[1])
            });
            quantized.push(terms.sum::<f64>());
        }
    }
    sqnr(&exact, &quantized)
}

fn amax(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(0f32, |amax, x| amax.max(x.abs()))
}

fn predicted(stats: &ProductStats, alternative: Alternative) -> f64 {
    let is_it =
        |prediction: &&burn_fp8_report::sample::Prediction| prediction.alternative == alternative;
    let prediction = stats.alternatives.iter().find(is_it).expect("predicted");
    prediction.sqnr.whole.decibels().expect("a signal")
}

#[test]
fn products_and_predictions_agree_with_the_table_of_codes() {
    let [m, n, k] = [16, 24, 40];
    let mut x = random(1, m * k);
    // One row of outliers, which costs the others their precision.
    x[3 * k..4 * k].iter_mut().for_each(|x| *x *= 4096.0);
    let w = random(2, k * n);
    let (x_amax, w_amax) = (amax(x.iter().copied()), amax(w.iter().copied()));
    let samples = [operand(x.clone(), [m, k], E4M3), operand(w.clone(), [k, n], E4M3)];
    let stats = product(GemmRole::Output, [&samples[0], &samples[1]], Recipe::current());
    assert_eq!((stats.outputs, stats.terms), ((m * n) as u64, k as u64));

    let check = |actual: f64, formats, scale: &dyn Fn(usize, usize, usize) -> f32| {
        let columns: Vec<_> = (0..n).collect();
        let expected = reference([&x, &w], [m, n, k], &columns, formats, scale);
        assert!((actual - expected).abs() < 1e-6, "{actual} {expected}")
    };
    let whole = |max: [f32; 2]| {
        move |which: usize, _: usize, _: usize| [x_amax, w_amax][which] / max[which]
    };
    check(stats.sqnr.whole.decibels().unwrap(), [E4M3, E4M3], &whole([448.0; 2]));
    let formats = [E5M2, E4M3];
    let other = predicted(&stats, Alternative::Formats(formats));
    check(other, formats, &whole([57344.0, 448.0]));
    let line = |which: usize, line: usize, _: usize| match which {
        0 => amax(x[line * k..][..k].iter().copied()) / 448.0,
        _ => amax(w.iter().skip(line).step_by(n).copied()) / 448.0,
    };
    check(predicted(&stats, Alternative::PerRow), [E4M3, E4M3], &line);
}

/// Blocks along K, cut off by its end: with the definition of MXFP8's scales, and with those of blocks of 128, where a weight's are square.
#[test]
fn blocks_have_scales_of_their_own() {
    let [m, n, k] = [6, 140, 150];
    let mut x = random(1, m * k);
    x[40..50].iter_mut().for_each(|x| *x *= 4096.0);
    let w = random(2, k * n);
    let samples = [operand(x.clone(), [m, k], E4M3), operand(w.clone(), [k, n], E4M3)];
    let stats = product(GemmRole::Output, [&samples[0], &samples[1]], Recipe::current());
    let power = |amax: f32| 2f64.powf((f64::from(amax) / 448.0).log2().ceil()) as f32;
    let at = |which: usize, line: usize, i: usize| match which {
        0 => x[line * k + i],
        _ => w[i * n + line],
    };
    // [rows of x or columns of w, K] that share a scale.
    for (alternative, recipe, across, along) in [
        (Alternative::Mxfp8, Recipe::mxfp8(), [1, 1], 32),
        (Alternative::Blockwise, Recipe::blockwise(), [1, 128], 128),
    ] {
        let of_block = |which: usize, lines: Range<usize>, along: Range<usize>| {
            let values = lines.flat_map(|line| along.clone().map(move |i| (line, i)));
            power(amax(values.map(|(line, i)| at(which, line, i))))
        };
        let grids = [0, 1].map(|which| {
            let (lines, across) = ([m, n][which], across[which]);
            let blocks = |length: usize, size: usize| {
                (0..length).step_by(size).map(move |from| from..length.min(from + size))
            };
            let row = |lines: Range<usize>| -> Vec<f32> {
                blocks(k, along).map(|along| of_block(which, lines.clone(), along)).collect()
            };
            blocks(lines, across).map(row).collect::<Vec<_>>()
        });
        let scale =
            |which: usize, line: usize, i: usize| grids[which][line / across[which]][i / along];
        // As many lines of each operand as are computed.
        let chosen = spread(n, MAX_SIDE);
        let expected = reference([&x, &w], [m, n, k], &chosen, [E4M3, E4M3], scale);
        let found = predicted(&stats, alternative);
        assert!((found - expected).abs() < 1e-6, "{alternative}: {found} {expected}");
        // The same where it is what ran.
        let none = samples.clone().map(|sample| OperandSample { scale: None, ..sample });
        let ran = product(GemmRole::Output, [&none[0], &none[1]], recipe);
        assert!((ran.sqnr.whole.decibels().unwrap() - expected).abs() < 1e-6);
        assert!(ran.alternatives.iter().all(|other| other.alternative != alternative));
        let of_input = none[0].stats(Operand::Input, Lines::Rows, recipe);
        assert_eq!(of_input.saturated, 0, "scales are rounded up");
        assert!(of_input.sqnr.decibels().unwrap() > 25.0);
        let exact = wide(&x);
        let left = (0..m * k).map(|place| nearest(x[place], scale(0, place / k, place % k), E4M3));
        let expected = sqnr(&exact, &left.collect::<Vec<_>>());
        assert!((of_input.sqnr.decibels().unwrap() - expected).abs() < 1e-6);
    }
}

#[test]
fn roles_sum_over_their_dimension() {
    let [m, n, k] = [5, 7, 9];
    let (x, w, g) = (random(3, m * k), random(4, k * n), random(5, m * n));
    let samples = [
        operand(x.clone(), [m, k], E4M3),
        operand(w.clone(), [k, n], E4M3),
        operand(g.clone(), [m, n], E5M2),
    ];
    let scale = |sample: &OperandSample| sample.scale.expect("one scale");
    let [sx, sw, sg] = samples.each_ref().map(scale);
    for (role, pair, operands, sizes, scales) in [
        (GemmRole::GradInput, [2, 1], [&g, &transpose(&w, [k, n])], [m, k, n], [sg, sw]),
        (GemmRole::GradWeight, [0, 2], [&transpose(&x, [m, k]), &g], [k, n, m], [sx, sg]),
    ] {
        let [_, columns, terms] = sizes;
        let columns: Vec<_> = (0..columns).collect();
        let formats = pair.map(|index| samples[index].format);
        let stats = product(role, pair.map(|index| &samples[index]), Recipe::current());
        let operands = operands.map(|values| &values[..]);
        let expected = reference(operands, sizes, &columns, formats, |which, _, _| scales[which]);
        assert!((stats.sqnr.whole.decibels().unwrap() - expected).abs() < 1e-6, "{role}");
        assert_eq!(stats.terms, terms as u64);
    }
}

#[test]
fn stale_scales_are_told_from_current_ones() {
    let x = random(6, 256);
    let current = operand(x.clone(), [16, 16], E4M3);
    let stale = OperandSample { scale: current.scale.map(|scale| scale / 16.0), ..current.clone() };
    let has = |stats: &ProductStats| {
        stats
            .alternatives
            .iter()
            .any(|prediction| prediction.alternative == Alternative::CurrentScale)
    };
    let fresh = product(GemmRole::Output, [&current, &current], Recipe::current());
    assert!(!has(&fresh));
    let saturating = product(GemmRole::Output, [&stale, &current], Recipe::current());
    assert_eq!(
        predicted(&saturating, Alternative::CurrentScale),
        fresh.sqnr.whole.decibels().expect("a signal")
    );
    let advice = Advice::of(&saturating);
    assert!(
        matches!(advice, Advice::Change { alternative: Alternative::CurrentScale, gain, .. } if gain > 3.0),
        "{advice:?}"
    );
}

#[test]
fn advice_follows_its_thresholds() {
    let ratio = |decibels: f64| {
        let sqnr = Sqnr { signal: 10f64.powf(decibels / 10.0), noise: 1.0 };
        MatrixSqnr { whole: sqnr, line: sqnr }
    };
    let stats = |now: f64, best: f64| ProductStats {
        formats: [E4M3; 2],
        outputs: 1,
        non_finite: 0,
        terms: 1,
        sqnr: ratio(now),
        sums: None,
        alternatives: vec![burn_fp8_report::sample::Prediction {
            alternative: Alternative::PerRow,
            sqnr: ratio(best),
        }],
    };
    // Rounding alone leaves 29.5 dB.
    assert_eq!(Advice::of(&stats(26.6, 40.0)), Advice::Fits);
    assert!(matches!(Advice::of(&stats(26.0, 29.1)), Advice::Change { is_poor: false, .. }));
    assert_eq!(Advice::of(&stats(26.0, 28.9)), Advice::Bearable);
    assert!(matches!(Advice::of(&stats(10.0, POOR - 0.1)), Advice::Change { is_poor: true, .. }));
    assert!(matches!(Advice::of(&stats(19.9, 22.8)), Advice::HighPrecision { .. }));
    let none = ProductStats { sqnr: MatrixSqnr::default(), ..stats(0.0, 0.0) };
    assert_eq!(Advice::of(&none), Advice::NoSignal);
    let diverged = ProductStats { non_finite: 1, ..stats(29.0, 29.0) };
    assert_eq!(Advice::of(&diverged), Advice::NonFinite);
}

#[test]
fn results_that_are_not_finite_are_left_out_and_counted() {
    let mut x = random(7, 64);
    x[9] = f32::NAN; // row 1
    let [x, w] = [operand(x, [8, 8], E4M3), operand(random(8, 64), [8, 8], E4M3)];
    let stats = product(GemmRole::Output, [&x, &w], Recipe::current());
    assert_eq!((stats.outputs, stats.non_finite), (56, 8));
    assert!(stats.sqnr.decibels().unwrap().is_finite());
}

#[test]
fn samples_are_bounded_spread_and_repeatable() {
    for shape in
        [[8192, 1024, 1024], [1, 1 << 20, 64], [3, 5, 7], [1 << 20, 16, 16], [600, 500, 700]]
    {
        let [m, n, k] = sizes(shape, 1 << 18);
        assert!(
            [m * k, k * n, m * n].iter().all(|size| *size <= 1 << 18 && *size > 0),
            "{shape:?}"
        );
        assert!(m <= shape[0] && n <= shape[1] && k <= shape[2]);
    }
    assert_eq!(sizes([512, 512, 512], 1 << 18), [512; 3], "all of it where it fits");
    assert_eq!(sizes([1 << 20, 16, 16], 1 << 18), [1 << 14, 16, 16], "as much as fits");
    let chosen = spread(1000, 10);
    assert_eq!(chosen, spread(1000, 10));
    assert!(chosen.iter().enumerate().all(|(part, index)| index / 100 == part), "{chosen:?}");
    let distances: Vec<_> = chosen.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(distances.iter().any(|distance| *distance != distances[0]));
    assert_eq!(spread(3, 10), [0, 1, 2]);
}

#[test]
fn outliers_that_no_sample_meets_still_count_for_row_scales() {
    let values = random(9, 64);
    let amaxes = [vec![100.0; 8], vec![100.0; 8]];
    let sampled = |amax| OperandSample {
        matrix: MatrixSample::sampled(values.clone(), [8, 8], amax),
        amax: 100.0,
        scale: Some(100.0 / 448.0),
        ..operand(values.clone(), [8, 8], E4M3)
    };
    let stats =
        |sample: &OperandSample| product(GemmRole::Output, [sample, sample], Recipe::current());
    let with = stats(&sampled(amaxes));
    assert_eq!(
        predicted(&with, Alternative::PerRow),
        with.sqnr.whole.decibels().unwrap(),
        "nothing to gain"
    );
    let without = stats(&sampled([vec![f32::NAN; 8], vec![0.0; 8]]));
    assert!(predicted(&without, Alternative::PerRow) > with.sqnr.whole.decibels().unwrap());
}

#[test]
fn lost_rows_are_seen_behind_a_large_one() {
    // A row 2^20 times as large as the others: at its scale they are zero, a loss of all their power, 0 dB.
    for large_row in [true, false] {
        let mut x: Vec<f32> = random(12, 64).iter().map(|x| x.signum() * (1.0 + x.abs())).collect();
        let w = x.clone();
        match large_row {
            true => x[..8].iter_mut().for_each(|x| *x *= 2f32.powi(20)),
            false => x.iter_mut().step_by(8).for_each(|x| *x *= 2f32.powi(20)),
        }
        let [x, w] = [operand(x, [8, 8], E4M3), operand(w, [8, 8], E4M3)];
        // A large column of the right operand is one of the result.
        let pair = if large_row { [&x, &w] } else { [&w, &x] };
        let stats = product(GemmRole::Output, pair, Recipe::current());
        assert!(stats.sqnr.whole.decibels().unwrap() > 20.0);
        assert_eq!(stats.sqnr.line.decibels(), Some(0.0));
        assert_eq!(stats.sqnr.decibels(), Some(0.0));
        let advice = Advice::of(&stats);
        assert!(
            matches!(
                advice,
                Advice::Change { alternative: Alternative::PerRow, is_poor: false, .. }
            ),
            "{advice:?}"
        );
    }
}
