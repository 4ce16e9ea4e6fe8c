//! A decoder's layer, against f64.

use burn_fp8_core::Fp8Format::E4M3;
use burn_fp8_core::{Overflow, Recipe, scale};
use burn_fp8_cpu::Rows;
use burn_fp8_cpu::Unit;
use burn_fp8_cpu::decoder::{CachePart, Inputs, Layer, Linear, Matrix, Next, Workspace, to_bf16};
use burn_fp8_test_support::operations::{Function, rms_norm};
use half::bf16;

use crate::common::{numbers, on_all_instructions, pool, wide};

fn codes(count: usize, seed: u64) -> Vec<u8> {
    numbers(count, seed).into_iter().map(|x| E4M3.encode(x, Overflow::Saturate)).collect()
}

fn assert_near(found: f32, expected: f64, bound: f64, what: &str) {
    assert!((f64::from(found) - expected).abs() <= bound, "{what}: {found}, not {expected}");
}

/// Each element of rows of `k` rounded to E4M3 with the scale of its block, one by one.
fn rounded(x: &[f32], k: usize, inputs: Inputs) -> Vec<f64> {
    let (block, recipe) = match inputs {
        Inputs::AsTheyAre => return wide(x),
        Inputs::Given(_) => ([usize::MAX; 2], Recipe::current()),
        Inputs::Measured(block, recipe) => (block, recipe),
    };
    let of = |i: usize| [i / k / block[0], i % k / block[1]];
    let scale_of = |i: usize| match inputs {
        Inputs::Given(scale) => scale,
        _ => {
            let same = (0..x.len()).filter(|other| of(*other) == of(i));
            scale::of_block(same.map(|i| x[i].abs()).fold(0.0, f32::max), E4M3, recipe)
        }
    };
    let round = |(i, x): (usize, &f32)| {
        let scale = scale_of(i);
        f64::from(E4M3.decode(E4M3.encode(x / scale, Overflow::Saturate))) * f64::from(scale)
    };
    x.iter().enumerate().map(round).collect()
}

/// The weight that a layer stands for.
fn weight(layer: &Linear<'_>) -> Vec<f64> {
    let [n, k] = layer.shape;
    let of_output = |row: usize| f64::from(layer.scales[row % layer.scales.len()]);
    let number = |i: usize| match layer.weight {
        Rows::Bf16(numbers) => numbers[i].to_f64(),
        Rows::F16(numbers) => numbers[i].to_f64(),
        Rows::Codes(codes, format) => f64::from(format.decode(codes[i])),
        Rows::Blocks { codes, format, block: [rows, columns], scales } => {
            let scale = scales[i / k / rows * k.div_ceil(columns) + i % k / columns];
            f64::from(format.decode(codes[i])) * f64::from(scale)
        }
    };
    (0..n * k).map(|i| number(i) * of_output(i / k)).collect()
}

fn linear(layer: &Linear<'_>, x: &[f32]) -> Vec<f64> {
    let [n, k] = layer.shape;
    let (x, weight) = (rounded(x, k, layer.inputs), weight(layer));
    let dot = |x: &[f64], row: usize| {
        let bias = layer.bias.map_or(0.0, |bias| f64::from(bias[row]));
        x.iter().zip(&weight[row * k..]).map(|(x, y)| x * y).sum::<f64>() + bias
    };
    x.chunks(k).flat_map(|x| (0..n).map(move |row| (x, row))).map(|(x, row)| dot(x, row)).collect()
}

/// Scales and inputs of every kind, with odd sizes, and with more rows than kernels for few have.
#[test]
fn layers_multiply_what_they_stand_for() {
    on_all_instructions(|| {
        let recipes = [
            Inputs::AsTheyAre,
            Inputs::Given(0.003),
            Inputs::Measured([usize::MAX; 2], Recipe::current()),
            Inputs::Measured([1, usize::MAX], Recipe::rowwise()),
            Inputs::Measured([1, 32], Recipe::mxfp8()),
            Inputs::Measured([1, 48], Recipe::blockwise()),
            Inputs::Measured([1, 64], Recipe::blockwise().with_power_of_two(false)),
            Inputs::Measured([2, 128], Recipe::blockwise()),
        ];
        for [m, n, k] in [[1, 5, 96], [3, 7, 133], [11, 4, 64], [2, 300, 1000]] {
            let (codes, x) = (codes(n * k, 1), numbers(m * k, 3));
            let halves: Vec<bf16> = numbers(n * k, 5).into_iter().map(bf16::from_f32).collect();
            let (each, bias) = (numbers(n, 7), numbers(n, 9));
            let blocks = numbers(n * k.div_ceil(32), 11);
            let in_blocks = |rows: usize, columns: usize| {
                let scales = &blocks[..n.div_ceil(rows) * k.div_ceil(columns)];
                (
                    Rows::Blocks { codes: &codes, format: E4M3, block: [rows, columns], scales },
                    &[1.0][..],
                )
            };
            let weights = [
                (Rows::Codes(&codes, E4M3), &[0.3][..]),
                (Rows::Codes(&codes, E4M3), &each[..]),
                (Rows::Bf16(&halves), &[1.0][..]),
                in_blocks(3, 32),
                in_blocks(1, 64),
                in_blocks(128, 128),
                in_blocks(2, 2 * k),
            ];
            let units: Vec<_> = Unit::available().into_iter().map(Some).chain([None]).collect();
            let cases =
                recipes.into_iter().flat_map(|inputs| weights.map(|weight| (inputs, weight)));
            for (inputs, (weight, scales)) in cases {
                let along = match weight {
                    Rows::Blocks { block, .. } => block[1],
                    _ => usize::MAX,
                };
                let is_for_units = match inputs {
                    _ if matches!(weight, Rows::Bf16(_)) => false,
                    Inputs::AsTheyAre => false,
                    Inputs::Given(_) => along >= k,
                    Inputs::Measured([_, columns], _) => Linear::is_for_units([along, columns], k),
                };
                for unit in units.iter().copied().filter(|unit| unit.is_none() || is_for_units) {
                    for bias in [None, Some(&bias[..])] {
                        let layer = Linear { weight, unit, shape: [n, k], scales, bias, inputs };
                        let mut y = vec![f32::NAN; m * n];
                        layer.forward(&x, &mut y);
                        let bound = 1e-6 * k as f64;
                        for (i, (found, expected)) in y.iter().zip(linear(&layer, &x)).enumerate() {
                            let what = format!("{m}×{n}×{k}, {inputs:?}, {along}, {unit:?}, {i}");
                            assert_near(*found, expected, bound, &what);
                        }
                    }
                }
            }
        }
    });
}

#[test]
#[should_panic(
    expected = "a weight with scales of whole rows takes inputs with such, not of 32 of 64"
)]
fn a_unit_takes_scales_of_whole_rows() {
    let codes = codes(64, 1);
    let (weight, unit) = (Rows::Codes(&codes, E4M3), Some(Unit::Portable));
    let inputs = Inputs::Measured([1, 32], Recipe::mxfp8());
    let layer = Linear { weight, unit, shape: [1, 64], scales: &[1.0], bias: None, inputs };
    layer.forward(&[1.0; 64], &mut [0.0]);
}

#[test]
#[should_panic(expected = "2 scales and None biases are not those of 3 outputs")]
fn scales_are_those_of_the_outputs() {
    let codes = codes(6, 1);
    let (weight, unit) = (Rows::Codes(&codes, E4M3), None);
    let (shape, inputs) = ([3, 2], Inputs::AsTheyAre);
    let layer = Linear { weight, unit, shape, scales: &[1.0, 2.0], bias: None, inputs };
    layer.forward(&[1.0, 2.0], &mut [0.0; 3]);
}

fn to_f32(x: &[f64]) -> Vec<f32> {
    x.iter().map(|x| *x as f32).collect()
}

const ROWS: usize = 3;
const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const WIDTH: usize = 20;
const ROOM: usize = 9;

/// Keys and values in one of three ways.
struct Memory {
    kind: usize,
    floats: [Vec<f32>; 2],
    halves: [Vec<bf16>; 2],
    codes: [(Vec<u8>, Vec<f32>); 2],
}

impl Memory {
    fn new(kind: usize, tokens: usize) -> Self {
        let count = tokens * WIDTH;
        Self {
            kind,
            floats: [(); 2].map(|()| vec![0.0; count]),
            halves: [(); 2].map(|()| vec![bf16::ZERO; count]),
            codes: [(); 2].map(|()| (vec![0; count], vec![0.0; tokens])),
        }
    }

    fn held(&mut self) -> [CachePart<'_>; 2] {
        match self.kind {
            0 => self.floats.each_mut().map(|x| CachePart::F32(x)),
            1 => self.halves.each_mut().map(|x| CachePart::Bf16(x)),
            _ => self.codes.each_mut().map(|(codes, scales)| CachePart::E4m3(codes, scales)),
        }
    }
}

/// A cache with its numbers in f64, `[rows, kv heads, room, width]`.
fn read(held: &CachePart<'_>) -> Vec<f64> {
    match held {
        CachePart::F32(x) => wide(x),
        CachePart::Bf16(x) => x.iter().map(|x| x.to_f64()).collect(),
        CachePart::E4m3(codes, scales) => {
            let number = |(i, code): (usize, &u8)| {
                f64::from(E4M3.decode(*code)) * f64::from(scales[i / WIDTH])
            };
            codes.iter().enumerate().map(number).collect()
        }
    }
}

/// The layer in f64, given what its cache holds after it.
fn reference(
    layer: &Layer<'_, [Linear<'_>; 7]>,
    x: &[f64],
    next: Next<'_>,
    cache: &[Vec<f64>; 2],
) -> Vec<f64> {
    let epsilon = f64::from(layer.epsilon);
    let matrix = |matrix: Matrix| &layer.products[matrix as usize];
    let turned = |x: Vec<f64>, gamma: Option<&[f32]>, heads: usize| {
        let mut x = gamma.map_or(x.clone(), |gamma| rms_norm(&x, gamma, epsilon));
        for (row, x) in x.chunks_mut(heads * WIDTH).enumerate() {
            for head in x.chunks_mut(WIDTH) {
                for i in 0..WIDTH / 2 {
                    let [cos, sin] = next.turns.map(|table| f64::from(table[row * WIDTH / 2 + i]));
                    let [a, b] = [head[i], head[i + WIDTH / 2]];
                    (head[i], head[i + WIDTH / 2]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
        x
    };
    let normed = to_f32(&rms_norm(x, layer.norms[0], epsilon));
    let query = turned(linear(matrix(Matrix::Query), &normed), layer.head_norms[0], HEADS);
    let key = turned(linear(matrix(Matrix::Key), &normed), layer.head_norms[1], KV_HEADS);
    let value = linear(matrix(Matrix::Value), &normed);
    let mut heads = vec![];
    for index in 0..ROWS * next.tokens * HEADS {
        let (row, token, head) =
            (index / HEADS / next.tokens, index / HEADS % next.tokens, index % HEADS);
        let own = next.at + token;
        let kv = row * KV_HEADS + head / (HEADS / KV_HEADS);
        let at = |token: usize| (kv * ROOM + token) * WIDTH;
        // What was put into the cache is what was computed, rounded at most to E4M3.
        let new = (row * next.tokens + token) * KV_HEADS + head / (HEADS / KV_HEADS);
        for (of_head, held) in [&key, &value].into_iter().zip(cache) {
            let (new, held) = (&of_head[new * WIDTH..][..WIDTH], &held[at(own)..][..WIDTH]);
            let most = new.iter().fold(0f64, |most, x| most.max(x.abs()));
            let is_near = new.iter().zip(held).all(|(x, y)| (x - y).abs() <= most / 16.0);
            assert!(is_near, "{held:?} for {new:?}");
        }
        let query = &query[index * WIDTH..][..WIDTH];
        let first = layer.window.map_or(0, |window| (own + 1).saturating_sub(window));
        let seen = first.max(next.padding[row]).min(own + 1)..own + 1;
        let weights: Vec<f64> = seen
            .clone()
            .map(|token| {
                let key = &cache[0][at(token)..][..WIDTH];
                let dot: f64 = query.iter().zip(key).map(|(x, y)| x * y).sum();
                (dot / (WIDTH as f64).sqrt()).exp()
            })
            .collect();
        let sum: f64 = weights.iter().sum();
        heads.extend((0..WIDTH).map(|i| {
            let weighted = seen.clone().zip(&weights);
            let sums = weighted.map(|(token, weight)| weight * cache[1][at(token) + i]);
            if sum == 0.0 { 0.0 } else { sums.sum::<f64>() / sum }
        }));
    }
    let add = |x: &[f64], y: Vec<f64>| x.iter().zip(y).map(|(x, y)| x + y).collect::<Vec<_>>();
    let x = add(x, linear(matrix(Matrix::Output), &to_f32(&heads)));
    let normed = to_f32(&rms_norm(&x, layer.norms[1], epsilon));
    let [gate, up] = [Matrix::Gate, Matrix::Up].map(|of_mlp| linear(matrix(of_mlp), &normed));
    let gated = gate.iter().zip(up).map(|(x, up)| Function::Silu.of(*x) * up);
    let gated = to_f32(&gated.collect::<Vec<_>>());
    add(&x, linear(matrix(Matrix::Down), &gated))
}

/// Prompts and single tokens, grouped heads with norms and without, biases, windows, a row that sees fewer keys and one that sees none, on one thread and on three.
#[test]
fn a_layer_does_what_it_should_to_tokens() {
    on_all_instructions(|| {
        let (hidden, inner) = (24, 40);
        let shapes = [
            [HEADS * WIDTH, hidden],
            [KV_HEADS * WIDTH, hidden],
            [KV_HEADS * WIDTH, hidden],
            [hidden, HEADS * WIDTH],
            [inner, hidden],
            [inner, hidden],
            [hidden, inner],
        ];
        let codes: Vec<_> =
            (0..7).map(|i| codes(shapes[i][0] * shapes[i][1], 100 * i as u64)).collect();
        let (scales, bias) = (numbers(HEADS * WIDTH, 13), numbers(HEADS * WIDTH, 17));
        let linear = |i: usize| Linear {
            weight: Rows::Codes(&codes[i], E4M3),
            unit: None,
            shape: shapes[i],
            scales: &scales[..shapes[i][0]],
            bias: (i < 3).then_some(&bias[..shapes[i][0]]),
            inputs: Inputs::AsTheyAre,
        };
        let gamma = numbers(hidden, 19);
        let of_heads = numbers(WIDTH, 23);
        let [without, with] = [[None; 2], [Some(&of_heads[..]); 2]];
        for (head_norms, window, kind) in [
            (without, None, 0),
            (without, Some(3), 1),
            (without, None, 2),
            (with, Some(3), 0),
            (with, None, 1),
            (with, Some(2), 2),
        ] {
            let layer = Layer {
                norms: [&gamma, &gamma],
                head_norms,
                epsilon: 1e-5,
                products: [0, 1, 2, 3, 4, 5, 6].map(linear),
                width: WIDTH,
                window,
            };
            let mut ends = vec![];
            for threads in [1, 3] {
                let pool = pool(threads);
                let mut memory = Memory::new(kind, ROWS * KV_HEADS * ROOM);
                let mut room = Workspace::default();
                let mut at = 0;
                for tokens in [4, 1, 1, 3] {
                    let mut x = numbers(ROWS * tokens * hidden, 29 + at as u64);
                    let angles = numbers(ROWS * tokens * WIDTH / 2, at as u64);
                    let turns: [Vec<f32>; 2] =
                        [f32::cos, f32::sin].map(|of| angles.iter().map(|x| of(*x)).collect());
                    let turns = turns.each_ref().map(|table| &table[..]);
                    let next = Next { tokens, turns, at, padding: &[0, 2, ROOM + 4] };
                    let before = wide(&x);
                    pool.install(|| layer.forward(&mut x, next, memory.held(), &mut room));
                    let held = memory.held().each_ref().map(read);
                    let expected = reference(&layer, &before, next, &held);
                    for (i, (found, expected)) in x.iter().zip(expected).enumerate() {
                        let bound = 2e-5 * expected.abs().max(1.0);
                        let what = format!("{kind}, {window:?}, {tokens} at {at}: {i}");
                        assert_near(*found, expected, bound, &what);
                    }
                    at += tokens;
                    ends.push(x);
                }
            }
            let [one, three] = [0, 4].map(|first| &ends[first..first + 4]);
            assert_eq!(one, three, "threads change nothing");
        }
    });
}

#[test]
fn numbers_are_rounded_to_bf16_as_they_should() {
    // More than half of a step by the last bit of f32, half of a step, and what is not finite.
    let bits = [0x3F80_8001u32, 0x3F80_8000, 0x3F81_8000, 0x7F80_0000, 0x7FC0_0001, 0x8000_0001];
    let x = bits.map(f32::from_bits);
    let mut y = [bf16::ZERO; 6];
    to_bf16(&x, &mut y);
    assert_eq!(y.map(bf16::to_bits)[..4], [0x3F81, 0x3F80, 0x3F82, 0x7F80]);
    assert!(y[4].is_nan() && y[5].to_bits() == 0x8000);
}

#[test]
#[should_panic(expected = "there is no room for token 9")]
fn a_cache_has_room() {
    let codes = codes(64 * 64, 1);
    let linear = |shape: [usize; 2]| Linear {
        weight: Rows::Codes(&codes[..shape[0] * shape[1]], E4M3),
        unit: None,
        shape,
        scales: &[1.0],
        bias: None,
        inputs: Inputs::AsTheyAre,
    };
    let layer = Layer {
        norms: [&[1.0; 4]; 2],
        head_norms: [None; 2],
        epsilon: 1e-5,
        products: [[4, 4], [4, 4], [4, 4], [4, 4], [8, 4], [8, 4], [4, 8]].map(linear),
        width: 2,
        window: None,
    };
    let mut cache = [(); 2].map(|()| vec![0f32; 2 * 9 * 2]);
    let next = Next { tokens: 1, turns: [&[1.0], &[0.0]], at: 9, padding: &[0] };
    let held = cache.each_mut().map(|x| CachePart::F32(x));
    layer.forward(&mut [1.0; 4], next, held, &mut Workspace::default());
}
