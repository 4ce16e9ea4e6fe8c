//! Attention and its gradients against the same in f64, written down as the formula has it.

use burn_fp8_core::{Dropout, Fp8Format};
use burn_fp8_cpu::dropout::keep;
use burn_fp8_cpu::slice;
use burn_fp8_cpu::{
    Attention, AttentionPrecision, Broadcast, Gradients, HeadNumbers, Heads, HeadsMut, Unit,
    attention, attention_backward,
};
use burn_fp8_test_support::operations::{self, AttentionSizes, Sum};
use burn_fp8_test_support::panic_of;
use half::bf16;

use crate::common::{Random, on_all_instructions, pool};

/// Numbers of a normal distribution, others for each seed.
fn normals(count: usize, seed: u64) -> Vec<f32> {
    Random(seed).normals(count)
}

type Case = AttentionSizes;

fn count(shape: [usize; 4]) -> usize {
    shape.iter().product()
}

/// Operands of a case, contiguous, and the gradient of the output.
struct Operands {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    grad: Vec<f32>,
}

impl Operands {
    fn new(case: &Case, seed: u64) -> Self {
        Self {
            q: normals(count(case.q()), seed + 1),
            k: normals(count(case.k()), seed + 2),
            v: normals(count(case.v()), seed + 3),
            grad: normals(count(case.y()), seed + 4),
        }
    }
}

/// The output and the gradients of queries, keys and values.
type Results<T> = [Vec<T>; 4];

/// The same in f64.
fn reference(
    case: &Case,
    Operands { q, k, v, grad }: &Operands,
    options: &Attention<'_>,
    bias: &dyn Fn([usize; 4]) -> f64,
    hidden: &dyn Fn([usize; 4]) -> bool,
) -> Results<Sum> {
    // Dropout by rows of scores, as this crate's generator has it.
    let rows = if options.dropout.is_some() { case.batch * case.heads * case.queries } else { 0 };
    let mut kept = vec![vec![[1f32; 8]; case.keys]; rows];
    if let Some(dropout) = options.dropout {
        kept.iter_mut().enumerate().for_each(|(row, kept)| keep(dropout, row as u64, 0, kept));
    }
    let factor = options.dropout.map_or(1.0, |dropout| f64::from(dropout.factor()));
    let attention = operations::Attention {
        scale: options.scale.into(),
        softcap: options.softcap.map(f64::from),
        causal: options.causal,
        bias,
        hidden,
        kept: &|[b, h, i, j]| match kept.get((b * case.heads + h) * case.queries + i) {
            Some(row) => f64::from(row[j][0]) * factor,
            None => 1.0,
        },
    };
    attention.run(case, [q, k, v, grad])
}

fn run(
    case: &Case,
    Operands { q, k, v, grad }: &Operands,
    options: &Attention<'_>,
) -> Results<f32> {
    let heads = [Heads::new(q, case.q()), Heads::new(k, case.k()), Heads::new(v, case.v())];
    // What was there before must not matter.
    let mut results = [q, grad, k, v].map(|like| vec![f32::NAN; like.len()]);
    results.swap(0, 1);
    let mut logarithms = vec![f32::NAN; case.batch * case.heads * case.queries];
    let [y, of_q, of_k, of_v] = &mut results;
    attention(heads, options, HeadsMut::new(y, case.y()), &mut logarithms);
    attention_backward(
        heads,
        options,
        [Heads::new(y, case.y()), Heads::new(grad, case.y())],
        &logarithms,
        Gradients {
            q: HeadsMut::new(of_q, case.q()),
            k: HeadsMut::new(of_k, case.k()),
            v: HeadsMut::new(of_v, case.v()),
        },
    );
    results
}

/// The root mean square of all errors and the worst one, relative to the root mean square of magnitudes.
fn errors(results: &[f32], exact: &[Sum]) -> [f64; 2] {
    let mean = |squares: f64| (squares / exact.len().max(1) as f64).sqrt();
    let size = mean(exact.iter().map(|exact| exact.magnitude.powi(2)).sum()).max(1e-30);
    let differences =
        results.iter().zip(exact).map(|(x, exact)| (f64::from(*x) - exact.value).abs());
    // NaN is the worst.
    let worst = differences.clone().fold(0.0, |worst: f64, x| if x <= worst { worst } else { x });
    [mean(differences.map(|x| x * x).sum()) / size, worst / size]
}

/// Both errors that a precision may have.
fn bounds(precision: AttentionPrecision) -> [f64; 2] {
    match precision {
        AttentionPrecision::High => [2e-6, 5e-5],
        AttentionPrecision::Bf16 => [6e-3, 0.1],
        AttentionPrecision::Fp8 => [0.08, 1.5],
    }
}

const PRECISIONS: [AttentionPrecision; 3] =
    [AttentionPrecision::High, AttentionPrecision::Bf16, AttentionPrecision::Fp8];

/// The units of the machine; AMX alone where a test has forced it though it is emulated.
fn units() -> Vec<Unit> {
    let units = Unit::available();
    assert!(units.contains(&Unit::Portable));
    match Unit::current() {
        emulated if !units.contains(&emulated) => vec![emulated],
        _ => units,
    }
}

/// Each precision in f32, and each that is not f32 on each unit.
fn ways() -> impl Iterator<Item = (AttentionPrecision, Unit)> {
    let units = units();
    let of_unit = move |unit| PRECISIONS.map(|precision| (precision, unit));
    let is_another =
        |(precision, unit): &_| *precision != AttentionPrecision::High || *unit == Unit::Portable;
    units.into_iter().flat_map(of_unit).filter(is_another)
}

#[track_caller]
fn assert_near(case: &Case, results: &Results<f32>, exact: &Results<Sum>, options: &Attention<'_>) {
    let [root_mean_square, worst] = bounds(options.precision);
    let names = ["output", "gradient of q", "gradient of k", "gradient of v"];
    for ((name, results), exact) in names.iter().zip(results).zip(exact) {
        let errors = errors(results, exact);
        assert!(
            errors[0] <= root_mean_square && errors[1] <= worst,
            "{name}: {errors:?}; {case:?}, {options:?}"
        );
    }
}

#[track_caller]
fn check(case: Case, options: Attention<'_>) {
    let operands = Operands::new(&case, 5);
    let (bias, masks) = (options.bias, options.masks);
    assert!(bias.is_none() && masks.is_empty());
    let exact = reference(&case, &operands, &options, &|_| 0.0, &|_| false);
    for (precision, unit) in ways() {
        let options = Attention { precision, unit, ..options };
        assert_near(&case, &run(&case, &operands, &options), &exact, &options);
    }
}

/// One row, one key, around the sizes of tiles, more keys than queries and fewer, every grouping, widths that are no multiple of anything.
const CASES: [Case; 18] = [
    Case::new([1, 1, 1], [1, 1, 1]),
    Case::new([1, 1, 1], [1, 200, 64]),
    Case::new([2, 3, 3], [63, 65, 8]),
    Case::new([2, 4, 2], [64, 64, 64]),
    Case::new([1, 6, 1], [65, 129, 40]),
    Case::new([3, 2, 2], [7, 5, 33]),
    Case::new([1, 2, 1], [130, 66, 128]),
    Case::new([1, 1, 1], [70, 300, 256]),
    Case::new([2, 8, 8], [128, 128, 32]),
    Case::new([1, 5, 5], [100, 100, 17]),
    Case { value_width: 48, ..Case::new([2, 2, 1], [90, 70, 24]) },
    Case { value_width: 1, ..Case::new([1, 2, 2], [129, 3, 200]) },
    // Few queries.
    Case::new([2, 4, 1], [2, 130, 33]),
    Case::new([2, 2, 2], [3, 70, 128]),
    Case::new([1, 4, 2], [4, 65, 256]),
    // Of tiles of 16 rows or 32 of K one more, or not all.
    Case::new([1, 2, 1], [17, 100, 80]),
    Case::new([2, 1, 1], [100, 17, 20]),
    Case::new([1, 2, 2], [65, 63, 1]),
];

#[test]
fn every_shape_is_as_in_f64() {
    on_all_instructions(|| {
        for case in CASES {
            check(case, Attention::new(case.width));
        }
    });
}

#[test]
fn every_option_is_as_in_f64() {
    for case in CASES {
        let plain = Attention::new(case.width);
        check(case, Attention { causal: true, ..plain });
        let scale = 2.0 / (case.width as f32).sqrt();
        check(case, Attention { scale, softcap: Some(1.5), ..plain });
        let dropout = Some(Dropout::new(0.3, 17).unwrap());
        check(case, Attention { dropout, causal: true, ..plain });
    }
}

#[test]
fn a_long_row_is_as_in_f64() {
    let case = Case::new([1, 1, 1], [4096, 4096, 16]);
    check(case, Attention { causal: true, ..Attention::new(case.width) });
}

/// Every way that a bias and a mask broadcast, with rows that see nothing.
#[test]
fn bias_and_masks_broadcast() {
    for case in [CASES[2], CASES[4], CASES[6], CASES[10]] {
        let scores = case.scores();
        let operands = Operands::new(&case, 9);
        for which in 0..16 {
            let shape: [usize; 4] =
                core::array::from_fn(|dim| if which >> dim & 1 == 1 { scores[dim] } else { 1 });
            let index = move |place: [usize; 4]| {
                place.iter().zip(shape).fold(0, |index, (place, size)| {
                    index * size + if size == 1 { 0 } else { *place }
                })
            };
            let bias = normals(count(shape), 21);
            // The first row of queries of some heads sees nothing at all.
            let mask: Vec<u8> =
                normals(count(shape), 22).iter().map(|x| u8::from(*x > 0.4) * 255).collect();
            let first: Vec<u8> =
                (0..scores[0] * scores[1] * scores[2]).map(|row| u8::from(row % 3 == 0)).collect();
            let rows = [scores[0], scores[1], scores[2], 1];
            let masks = [Broadcast::new(&mask, shape), Broadcast::new(&first, rows)];
            let hidden = |[b, h, i, j]: [usize; 4]| {
                mask[index([b, h, i, j])] != 0 || ((b * scores[1] + h) * scores[2] + i) % 3 == 0
            };
            let of = |place: [usize; 4]| f64::from(bias[index(place)]);
            for (precision, unit) in ways() {
                let options = Attention {
                    precision,
                    unit,
                    bias: Some(Broadcast::new(&bias, shape)),
                    masks: &masks,
                    ..Attention::new(case.width)
                };
                let exact = reference(&case, &operands, &options, &of, &hidden);
                let results = run(&case, &operands, &options);
                assert!(results.iter().flatten().all(|x| x.is_finite()), "{shape:?}");
                let blind = results[0].chunks(case.value_width).step_by(3);
                assert!(blind.flatten().all(|y| *y == 0.0), "{shape:?}: a row that sees nothing");
                // One key may be all that a row sees: then its gradients are sums of what cancels.
                assert_near(&case, &results, &exact, &options);
            }
        }
    }
}

/// What is rounded already gives the same bits; what is not gives others.
#[test]
fn operands_are_rounded_to_the_precision() {
    let case = Case::new([1, 2, 1], [70, 80, 32]);
    let operands = Operands::new(&case, 29);
    for unit in units() {
        check_rounding(&case, &operands, unit);
    }
}

fn check_rounding(case: &Case, operands: &Operands, unit: Unit) {
    let options = |precision| Attention { precision, unit, ..Attention::new(case.width) };
    let run = |operands: &Operands, precision| run(case, operands, &options(precision));
    let [high, low, fp8] = PRECISIONS.map(|precision| run(operands, precision));
    assert!(high.iter().zip(&low).all(|(high, low)| high != low));
    assert!(low.iter().zip(&fp8).all(|(low, fp8)| low != fp8));
    let Operands { q, k, v, grad } = operands;
    let round = |x: &[f32]| x.iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
    let rounded = Operands { q: round(q), k: round(k), v: round(v), grad: round(grad) };
    assert!(run(&rounded, AttentionPrecision::High)[0] != low[0]);
    // The output's product with its gradient takes that as it is.
    assert!(run(&rounded, AttentionPrecision::Bf16)[0] == low[0]);
}

/// Heads in the memory of `[batch, length, heads, width]`, and every second row of another tensor.
#[test]
fn layouts_do_not_matter() {
    let case = Case::new([2, 4, 2], [70, 90, 24]);
    let operands = Operands::new(&case, 31);
    for (precision, unit) in ways() {
        let options = Attention { precision, unit, causal: true, ..Attention::new(case.width) };
        let expected = run(&case, &operands, &options);
        let joined = |values: &[f32], [_, heads, length, width]: [usize; 4]| {
            let mut joined = vec![f32::NAN; 2 * values.len()];
            for (row, values) in values.chunks(width).enumerate() {
                let (b, h, r) = (row / length / heads, row / length % heads, row % length);
                joined[2 * ((b * length + r) * heads + h) * width..][..width]
                    .copy_from_slice(values);
            }
            joined
        };
        let shapes = [case.q(), case.k(), case.v(), case.y()];
        let Operands { q, k, v, grad } = &operands;
        let memory: Vec<_> =
            [q, k, v, grad].iter().zip(shapes).map(|(x, shape)| joined(x, shape)).collect();
        let strided = |index: usize| {
            let [_, heads, length, width] = shapes[index];
            let strides = [2 * length * heads * width, 2 * width, 2 * heads * width];
            Heads::strided(HeadNumbers::F32(&memory[index]), shapes[index], strides)
        };
        let heads = [strided(0), strided(1), strided(2)];
        let mut y = vec![f32::NAN; grad.len()];
        let mut logarithms = vec![0.0; 2 * 4 * 70];
        attention(heads, &options, HeadsMut::joined(&mut y, case.y()), &mut logarithms);
        let mut results = [q, k, v].map(|like| vec![f32::NAN; like.len()]);
        let [of_q, of_k, of_v] = &mut results;
        let output = Heads::strided(HeadNumbers::F32(&y), case.y(), [4 * 70 * 24, 24, 4 * 24]);
        attention_backward(
            heads,
            &options,
            [output, strided(3)],
            &logarithms,
            Gradients {
                q: HeadsMut::joined(of_q, case.q()),
                k: HeadsMut::joined(of_k, case.k()),
                v: HeadsMut::joined(of_v, case.v()),
            },
        );
        let results = [&y, &results[0], &results[1], &results[2]];
        let shapes = [case.y(), case.q(), case.k(), case.v()];
        for ((expected, result), shape) in expected.iter().zip(results).zip(shapes) {
            let every_second: Vec<f32> = joined(expected, shape)
                .chunks(2 * shape[3])
                .flat_map(|pair| pair[..shape[3]].to_vec())
                .collect();
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(bits(result) == bits(&every_second), "{precision:?} {shape:?}");
        }
    }
}

/// By heads, and by tiles of queries and of keys.
#[test]
fn any_number_of_threads_gives_the_same_bits() {
    let cases = [Case::new([2, 4, 4], [200, 200, 32]), Case::new([1, 3, 1], [300, 257, 64])];
    for case in cases {
        let operands = Operands::new(&case, 41);
        for (precision, unit) in ways() {
            let dropout = Some(Dropout::new(0.1, 3).unwrap());
            let options =
                Attention { precision, unit, causal: true, dropout, ..Attention::new(case.width) };
            let mut first: Option<Results<u32>> = None;
            for threads in [1, 2, 3, 8] {
                let pool = pool(threads);
                let results = pool.install(|| run(&case, &operands, &options));
                let bits = results.map(|x| x.iter().map(|x| x.to_bits()).collect());
                let first = first.get_or_insert_with(|| bits.clone());
                assert!(bits == *first, "{precision:?}, {threads} threads, {case:?}");
            }
        }
    }
}

/// NaN and infinities in one row of queries stay in it; masked keys are not looked at.
#[test]
fn special_values_stay_in_their_rows() {
    let case = Case::new([1, 2, 2], [70, 70, 16]);
    for (precision, unit) in ways() {
        for special in [f32::NAN, f32::INFINITY] {
            let mut operands = Operands::new(&case, 51);
            let options = Attention { precision, unit, ..Attention::new(case.width) };
            operands.q[67 * 16 + 3] = special;
            let [y, ..] = run(&case, &operands, &options);
            for (row, y) in y.chunks(16).enumerate() {
                assert_eq!(
                    y.iter().all(|y| y.is_nan()),
                    row == 67,
                    "{precision:?} {special} {row}"
                );
                assert_eq!(y.iter().all(|y| y.is_finite()), row != 67);
            }
        }
        // No row sees the last key, whose score would be infinite.
        let mut operands = Operands::new(&case, 52);
        operands.k[69 * 16..70 * 16].fill(f32::MAX);
        let mut mask = vec![0u8; 70];
        mask[69] = 1;
        let masks = [Broadcast::new(&mask, [1, 1, 1, 70])];
        let options =
            Attention { masks: &masks, precision: AttentionPrecision::High, ..Attention::new(16) };
        let [y, ..] = run(&case, &operands, &options);
        assert!(y.iter().all(|y| y.is_finite()));
    }
}

/// Threads keep memory for what they multiply: what was there before must not matter.
#[test]
fn what_was_multiplied_before_does_not_matter() {
    let cases = [Case::new([1, 2, 2], [150, 150, 72]), Case::new([2, 2, 1], [35, 77, 23])];
    let pool = pool(1);
    for (precision, unit) in ways() {
        let run = |case: &Case, operands: &Operands| {
            let options = Attention { precision, unit, ..Attention::new(case.width) };
            pool.install(|| run(case, operands, &options))
        };
        let clean = cases.map(|case| run(&case, &Operands::new(&case, 81)));
        for (case, clean) in cases.iter().zip(&clean) {
            for other in &cases {
                let mut lost = Operands::new(other, 82);
                let Operands { q, k, v, grad } = &mut lost;
                [q, k, v, grad].into_iter().for_each(|x| x.fill(f32::NAN));
                run(other, &lost);
                let again = run(case, &Operands::new(case, 81));
                assert!(again == *clean, "{precision:?}, {unit}, {case:?} after {other:?}");
            }
        }
    }
}

/// Scores so far apart that all probabilities but one are 0, and so low that `exp` of them is.
#[test]
fn large_scores_do_not_overflow() {
    let case = Case::new([1, 1, 1], [80, 150, 32]);
    let mut operands = Operands::new(&case, 61);
    operands.q.iter_mut().for_each(|q| *q *= 300.0);
    let options = Attention::new(case.width);
    let exact = reference(&case, &operands, &options, &|_| 0.0, &|_| false);
    let results = run(&case, &operands, &options);
    // Scores of a thousand are known to 1e-4.
    assert!(errors(&results[0], &exact[0])[1] < 1e-2);
    assert!(results.iter().flatten().all(|x| x.is_finite()));
}

#[test]
fn nothing_at_all_is_attended_to() {
    for case in [
        Case::new([0, 2, 1], [3, 4, 8]),
        Case::new([2, 2, 1], [0, 4, 8]),
        Case::new([1, 2, 2], [3, 0, 8]),
    ] {
        let operands = Operands::new(&case, 71);
        let results = run(&case, &operands, &Attention::new(8));
        assert!(results.iter().flatten().all(|x| *x == 0.0), "{case:?}");
    }
}

#[test]
fn bad_input_is_refused_by_name() {
    let case = Case::new([1, 4, 2], [5, 6, 8]);
    let message = |q: [usize; 4], k: [usize; 4], v: [usize; 4], options: &Attention<'_>| {
        let run = || {
            let [of_q, of_k, of_v] = [q, k, v].map(|shape| vec![0f32; count(shape)]);
            let heads = [Heads::new(&of_q, q), Heads::new(&of_k, k), Heads::new(&of_v, v)];
            let shape = [q[0], q[1], q[2], v[3]];
            let mut y = vec![0f32; count(shape)];
            let mut logarithms = vec![0f32; q[0] * q[1] * q[2]];
            attention(heads, options, HeadsMut::new(&mut y, shape), &mut logarithms);
        };
        panic_of(run)
    };
    let plain = Attention::new(8);
    let (q, k, v) = (case.q(), case.k(), case.v());
    let heads = message([1, 3, 5, 8], k, v, &plain);
    assert!(heads.contains("3 heads of queries cannot share 2 heads of keys"), "{heads}");
    for [q, k, v] in [[q, [1, 2, 7, 8], v], [q, [1, 2, 6, 9], v], [[2, 4, 5, 8], k, v]] {
        let shapes = message(q, k, v, &plain);
        assert!(shapes.contains("must have") && shapes.contains(&format!("{k:?}")), "{shapes}");
    }
    for width in [0, 257] {
        let widths = message([1, 4, 5, width], [1, 2, 6, width], v, &plain);
        assert!(widths.contains("1 to 256 wide"), "{widths}");
    }
    let (mask, bias) = ([0u8; 7], [0f32; 5]);
    let masks = [Broadcast::new(&mask, [1, 1, 1, 7])];
    let masked = message(q, k, v, &Attention { masks: &masks, ..plain });
    assert!(masked.contains("the mask of attention has shape [1, 1, 1, 7]"), "{masked}");
    let bias = Some(Broadcast::new(&bias, [1, 1, 1, 5]));
    let biased = message(q, k, v, &Attention { bias, ..plain });
    assert!(biased.contains("the bias of attention has shape [1, 1, 1, 5]"), "{biased}");
    let side_by_side =
        |count, shapes| panic_of(|| _ = HeadsMut::side_by_side(&mut vec![0f32; count], shapes));
    let many = side_by_side(8, [[1, usize::MAX, 1, 8], [1, 1, 1, 8], [1, 1, 1, 8]]);
    assert!(many.contains("do not lie side by side"), "{many}");
    let wrapped =
        std::panic::catch_unwind(|| _ = HeadsMut::joined(&mut [], [1 << 32, 1 << 32, 1, 1]));
    assert!(wrapped.is_err());
    let apart = side_by_side(count(q) + count(k) + count(v), [q, k, v]);
    assert!(
        apart.contains("[1, 4, 5, 8], [1, 2, 6, 8]") && apart.contains("side by side"),
        "{apart}"
    );
}

/// Heads in two bytes or in one, as a cache holds them, give the bits of the same numbers in f32.
#[test]
fn heads_are_converted_as_they_are_read() {
    for [queries, keys, width] in
        [[1, 1, 24], [2, 64, 24], [1, 130, 24], [4, 130, 137], [70, 200, 24]]
    {
        let case = Case::new([2, 4, 2], [queries, keys, width]);
        let operands = [case.q(), case.k(), case.v()].map(|shape| normals(count(shape), 7));
        let run = |kv: [HeadNumbers<'_>; 2], precision| {
            let strides = |[_, heads, length, width]: [usize; 4]| {
                [heads * length * width, length * width, width]
            };
            let heads = [
                Heads::new(&operands[0], case.q()),
                Heads::strided(kv[0], case.k(), strides(case.k())),
                Heads::strided(kv[1], case.v(), strides(case.v())),
            ];
            let mut y = vec![f32::NAN; count(case.y())];
            let mut logarithms = vec![0.0; count(case.y()) / width];
            let options = Attention { causal: true, precision, ..Attention::new(width) };
            attention(heads, &options, HeadsMut::new(&mut y, case.y()), &mut logarithms);
            y
        };
        let [_, k, v] = &operands;
        let halves = [k, v].map(|x| x.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>());
        let numbers = halves.each_ref().map(|x| x.iter().map(|x| x.to_f32()).collect::<Vec<_>>());
        for precision in [AttentionPrecision::High, AttentionPrecision::Bf16] {
            let [k, v] = &halves;
            let stored = run([HeadNumbers::Bf16(k), HeadNumbers::Bf16(v)], precision);
            let [k, v] = &numbers;
            assert_eq!(stored, run([HeadNumbers::F32(k), HeadNumbers::F32(v)], precision));
        }
        // All codes but NaN, and a scale for each row.
        let codes = [3, 5].map(|step| {
            let code = |index: usize| ((index * step) % 254) as u8;
            let codes: Vec<u8> = (0..count(case.k())).map(code).collect();
            codes.into_iter().map(|code| code + u8::from(code >= 127)).collect::<Vec<_>>()
        });
        let scales: Vec<f32> = (0..count(case.k()) / width).map(|row| 1e-3 * row as f32).collect();
        let numbers = codes.each_ref().map(|codes| {
            let mut numbers = vec![0.0; codes.len()];
            let rows = codes.chunks(width).zip(numbers.chunks_mut(width)).zip(&scales);
            for ((codes, numbers), scale) in rows {
                slice::decode(codes, *scale, Fp8Format::E4M3, numbers);
            }
            numbers
        });
        let [k, v] = codes.each_ref().map(|codes| HeadNumbers::E4m3(codes, &scales));
        let stored = run([k, v], AttentionPrecision::High);
        let [k, v] = &numbers;
        let converted = run([HeadNumbers::F32(k), HeadNumbers::F32(v)], AttentionPrecision::High);
        assert!(stored.iter().all(|y| y.is_finite()));
        assert_eq!(stored, converted);
    }
}

/// What depends on the products of bf16 numbers, on AMX's code.
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#[test]
fn emulated_tiles_do_the_same() {
    use crate::common::{alone, emulated};
    alone(|| {
        if !emulated::force() {
            burn_fp8_test_support::skip("AMX is not emulated");
            return;
        }
        every_shape_is_as_in_f64();
        every_option_is_as_in_f64();
        operands_are_rounded_to_the_precision();
        layouts_do_not_matter();
        any_number_of_threads_gives_the_same_bits();
        special_values_stay_in_their_rows();
        what_was_multiplied_before_does_not_matter();
        assert!(emulated::instructions() > 0, "AMX's code has run");
        assert_eq!(emulated::configured(), 0, "tiles are released");
    });
}
