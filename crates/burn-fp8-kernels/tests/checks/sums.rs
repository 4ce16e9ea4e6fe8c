//! Products with the sums of tensor cores: those of the exact reference, and of recordings.

use super::{Client, client, read_words, upload};
use burn_fp8_core::Fp8Format::{E4M3, E5M2};
use burn_fp8_core::sums::{Accumulation, Accumulator, RunningSum, dot};
use burn_fp8_core::{Fp8Format, Overflow};
use burn_fp8_kernels::{KernelError, RowCodes, multiply};
use burn_fp8_test_support::fp8::finite_codes;
use burn_fp8_test_support::{Golden, Random};

const PAIRS: [[Fp8Format; 2]; 3] = [[E4M3, E4M3], [E4M3, E5M2], [E5M2, E4M3]];
const ACCUMULATIONS: [Accumulation; 2] = [Accumulation::Fast, Accumulation::Split];

/// Chains of 48.
const SMALL: Accumulator =
    Accumulator { products: 8, fraction: 10, result: 9, running: RunningSum::Early, chain: 48 };

/// A matrix on the host, whose rows are `stride` codes apart; between them are NaN.
struct Codes {
    codes: Vec<u8>,
    rows: usize,
    k: usize,
    stride: usize,
    format: Fp8Format,
}

impl Codes {
    fn new(rows: &[Vec<u8>], stride: usize, format: Fp8Format) -> Self {
        let k = rows[0].len();
        let padded = |row: &Vec<u8>| {
            let mut row = row.clone();
            row.resize(stride, 0x7F);
            row
        };
        let codes = rows.iter().flat_map(padded).collect();
        Self { codes, rows: rows.len(), k, stride, format }
    }

    fn row(&self, row: usize) -> &[u8] {
        &self.codes[row * self.stride..][..self.k]
    }
}

/// The bits of the sums on the device.
fn on_device(
    client: &Client,
    [a, b]: [&Codes; 2],
    accumulator: Accumulator,
    accumulation: Accumulation,
) -> Vec<u32> {
    let handles = [a, b].map(|operand| upload(client, &operand.codes));
    let rows = |operand: &Codes, at: usize| RowCodes {
        codes: &handles[at],
        rows: operand.rows,
        stride: operand.stride,
        format: operand.format,
    };
    let sums = multiply(client, [rows(a, 0), rows(b, 1)], a.k, accumulator, accumulation);
    read_words(client, &sums.expect("valid"))
}

/// Compares every sum with the reference, which gives some that are not 0, and returns it.
#[track_caller]
fn assert_reference(
    client: &Client,
    [a, b]: [&Codes; 2],
    accumulator: Accumulator,
    accumulation: Accumulation,
) -> Vec<u32> {
    let formats = [a.format, b.format];
    let of = |at: usize| {
        let operands = [a.row(at / b.rows), b.row(at % b.rows)];
        dot(accumulator, operands, formats, accumulation, None).to_bits()
    };
    let expected: Vec<u32> = (0..a.rows * b.rows).map(of).collect();
    assert!(expected.iter().any(|sum| *sum != 0), "nothing is compared with 0");
    let found = on_device(client, [a, b], accumulator, accumulation);
    assert_eq!(found.len(), expected.len());
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let (row, column) = (at / b.rows, at % b.rows);
        assert!(
            found == expected,
            "{accumulator}, {accumulation:?}, {formats:?}, K {}, strides {} and {}, row {row}, column {column}: {found:#x}, not {expected:#x}",
            a.k,
            a.stride,
            b.stride
        );
    }
    expected
}

/// What a row has.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Every finite code alike: exponents far apart.
    Any,
    /// What a quantized tensor has.
    Normal,
    /// Subnormal numbers and zeros.
    Subnormal,
    /// Neighbours of opposite sign, nearly alike.
    Opposite,
    /// Neighbours nearly alike: with opposite ones they cancel.
    Alike,
    /// Zeros, whole blocks of them, and few large numbers among small ones.
    Sparse,
    /// A few codes that are no number, among normal ones and zeros.
    Special,
}

const KINDS: [Kind; 7] = [
    Kind::Any,
    Kind::Normal,
    Kind::Subnormal,
    Kind::Opposite,
    Kind::Alike,
    Kind::Sparse,
    Kind::Special,
];

fn row(kind: Kind, k: usize, format: Fp8Format, random: &mut Random) -> Vec<u8> {
    let finite = finite_codes(format);
    let encode = |x: f64| format.encode(x as f32, Overflow::Saturate);
    let normal = |random: &mut Random| encode(random.normal() * f64::from(format.max()) / 4.0);
    let pairs = |random: &mut Random, sign: f64| -> Vec<u8> {
        let mut pair = 0.0;
        let number = |at: usize| match at % 2 {
            0 => {
                pair = random.normal() * 30.0;
                encode(pair)
            }
            _ => encode(sign * pair * [1.0, 1.0, 1.1][random.below(3)]),
        };
        (0..k).map(number).collect()
    };
    match kind {
        Kind::Any => random.picks(&finite, k),
        Kind::Normal => (0..k).map(|_| normal(random)).collect(),
        Kind::Subnormal => {
            let below = 1 << format.mantissa_bits();
            (0..k).map(|_| (random.below(below) | random.below(2) << 7) as u8).collect()
        }
        Kind::Opposite => pairs(random, -1.0),
        Kind::Alike => pairs(random, 1.0),
        Kind::Sparse => {
            let large = random.below(k);
            let number = |at: usize| match random.below(10) {
                _ if at == large => encode(400.0),
                0 if (at / 40).is_multiple_of(2) => encode(random.normal()),
                _ => 0,
            };
            (0..k).map(number).collect()
        }
        Kind::Special => {
            let mut codes: Vec<u8> =
                (0..k).map(|_| if random.below(4) == 0 { 0x80 } else { normal(random) }).collect();
            let special: &[u8] = match format {
                E4M3 => &[0x7F, 0xFF],
                E5M2 => &[0x7C, 0x7C, 0xFC, 0xFC, 0x7E],
            };
            for _ in 0..1 + random.below(2) {
                codes[random.below(k)] = random.pick(special);
            }
            codes
        }
    }
}

/// Rows of every kind, so many of each.
fn operand(
    of_each: usize,
    k: usize,
    stride: usize,
    format: Fp8Format,
    random: &mut Random,
) -> Codes {
    let kinds = KINDS.iter().cycle().take(of_each * KINDS.len());
    let rows: Vec<_> = kinds.map(|kind| row(*kind, k, format, random)).collect();
    Codes::new(&rows, stride, format)
}

/// Padded rows, as [`burn_fp8_kernels::quantize_matrix`] makes them, on more than one cube.
pub fn sums_of_every_kind_are_those_of_the_reference() {
    let client = client();
    let mut random = Random(3);
    let mut seen = vec![];
    for formats in PAIRS {
        for k in [1usize, 15, 16, 17, 31, 32, 33, 47, 49, 127, 128, 129, 255, 256, 500, 1000] {
            let stride = k.next_multiple_of(16);
            let a = operand(3, k, stride, formats[0], &mut random);
            let b = operand(5, k, stride, formats[1], &mut random);
            for accumulator in
                [Accumulator::HOPPER, Accumulator::ADA, Accumulator::BLACKWELL, SMALL]
            {
                for accumulation in ACCUMULATIONS {
                    seen.extend(assert_reference(&client, [&a, &b], accumulator, accumulation));
                }
            }
        }
    }
    let count =
        |wanted: fn(f32) -> bool| seen.iter().filter(|sum| wanted(f32::from_bits(**sum))).count();
    println!("{} sums", seen.len());
    assert!(count(|sum| sum == f32::INFINITY) > 100);
    assert!(count(|sum| sum == f32::NEG_INFINITY) > 100);
    assert!(count(f32::is_nan) > 100);
    assert!(count(|sum| sum > 0.0) > 10_000 && count(|sum| sum < 0.0) > 10_000);
}

/// Accumulators of no card: blocks and chains that end within a word, running sums that join late, few bits and many.
pub fn sums_of_accumulators_of_ones_own() {
    let client = client();
    let mut random = Random(5);
    let late = |accumulator| Accumulator { running: RunningSum::Late, ..accumulator };
    let own = |products, fraction, result, chain| Accumulator {
        products,
        fraction,
        result,
        chain,
        ..Accumulator::ADA
    };
    for accumulator in [
        late(Accumulator::HOPPER),
        late(Accumulator::BLACKWELL),
        late(own(5, 8, 23, 30)),
        own(3, 13, 13, 20),
        own(1, 1, 1, 1),
        own(3, 28, 23, 64),
        own(64, 24, 20, 100),
        own(16, 3, 23, 37),
        own(6, 25, 7, u32::MAX),
    ] {
        for formats in [[E4M3, E4M3], [E5M2, E5M2]] {
            for k in [1, 37, 100, 321] {
                let [a, b] = formats.map(|format| operand(1, k, k + 3, format, &mut random));
                for accumulation in ACCUMULATIONS {
                    assert_reference(&client, [&a, &b], accumulator, accumulation);
                }
            }
        }
    }
}

/// With no gaps between them, or with odd ones, rows begin within words.
pub fn rows_begin_anywhere() {
    let client = client();
    let mut random = Random(7);
    for k in [1usize, 2, 3, 5, 31, 130, 257] {
        for strides in [[k, k], [k + 1, k + 2], [k.next_multiple_of(4), k + 7]] {
            let a = operand(1, k, strides[0], E4M3, &mut random);
            let b = operand(2, k, strides[1], E5M2, &mut random);
            for accumulation in ACCUMULATIONS {
                assert_reference(&client, [&a, &b], Accumulator::ADA, accumulation);
            }
        }
    }
}

/// All products have the largest magnitude and one sign: what 32 bits have to hold.
pub fn blocks_of_the_largest_products() {
    let client = client();
    for (accumulator, formats) in
        [Accumulator::HOPPER, Accumulator::BLACKWELL, Accumulator { products: 64, ..SMALL }]
            .into_iter()
            .flat_map(|accumulator| PAIRS.map(|formats| (accumulator, formats)))
    {
        let largest = formats.map(|format| format.encode(f32::INFINITY, Overflow::Saturate));
        let rows = |code: u8| [vec![code; 256], vec![code | 0x80; 256]];
        let [a, b] = [0, 1].map(|at| Codes::new(&rows(largest[at]), 256, formats[at]));
        for accumulation in ACCUMULATIONS {
            assert_reference(&client, [&a, &b], accumulator, accumulation);
        }
    }
}

/// By hand: the second chain is half of the first one's last bit, and more or less.
pub fn chains_are_added_to_the_nearest() {
    let client = client();
    let accumulator = Accumulator { chain: 16, ..Accumulator::BLACKWELL };
    // Powers of two of E5M2, and their products.
    let code = |exponent: i32| E5M2.encode(2f32.powi(exponent), Overflow::Saturate);
    let (plus, minus) = (1.0, -1.0);
    let ulp = f32::EPSILON;
    for (first, second, expected) in [
        (&[(plus, 0)][..], &[(plus, -24)][..], 1.0),
        (&[(plus, 0), (plus, -23)], &[(plus, -24)], 1.0 + 2.0 * ulp),
        (&[(plus, 0)], &[(plus, -24), (plus, -32)], 1.0 + ulp),
        (&[(plus, 0)], &[(plus, -24), (minus, -32)], 1.0),
        (&[(plus, 0)], &[(minus, -25)], 1.0),
        (&[(plus, 0)], &[(minus, -25), (minus, -32)], 1.0 - ulp / 2.0),
        (&[(minus, 0)], &[(minus, -24), (minus, -32)], -1.0 - ulp),
        // The carry goes to the exponent.
        (&[(plus, 1), (minus, -23)], &[(plus, -24)], 2.0),
        (&[(plus, -24)], &[(minus, 0)], -1.0 + ulp / 2.0),
        (&[(plus, -24)], &[(plus, 20)], 2f32.powi(20)),
    ] {
        let [mut a, mut b] = [vec![0; 32], vec![0; 32]];
        let terms = first.iter().zip(0..).chain(second.iter().zip(16..));
        for (&(sign, exponent), at) in terms {
            let half = exponent / 2;
            a[at] = code(half);
            b[at] = code(exponent - half) | u8::from(sign < 0.0) << 7;
        }
        let [a, b] = [a, b].map(|row| Codes::new(&[row], 32, E5M2));
        let sums = assert_reference(&client, [&a, &b], accumulator, Accumulation::Split);
        assert_eq!(f32::from_bits(sums[0]), expected, "{first:?} + {second:?}");
    }
}

/// mmaemu 0.1.0: what an H100 and an RTX 4060 give.
pub fn sums_are_those_of_cards() {
    let client = client();
    let golden = Golden::read(env!("CARGO_MANIFEST_DIR"), "tensor_cores");
    let mut compared = 0;
    for case in golden.cases("cases") {
        let name = case["name"].as_str().expect("a name");
        let k = case["k"].as_u64().expect("a size") as usize;
        let [a, b] = ["a", "b"].map(|operand| {
            let format = case[operand].as_str().expect("a format");
            let codes = golden.u8s(&format!("{name}/{operand}"));
            let rows: Vec<_> = codes.chunks(k).map(<[u8]>::to_vec).collect();
            Codes::new(&rows, k.next_multiple_of(16), format.parse().expect("one that is known"))
        });
        for (card, accumulator) in [("hopper", Accumulator::HOPPER), ("ada", Accumulator::ADA)] {
            for (path, accumulation) in
                [("fast", Accumulation::Fast), ("slow", Accumulation::Split)]
            {
                let expected = golden.u32s(&format!("{name}/{card}.{path}"));
                let found = on_device(&client, [&a, &b], accumulator, accumulation);
                assert!(found == expected, "{name}, {card}, {path}");
                compared += found.len();
            }
        }
    }
    println!("{compared} sums");
    assert!(compared > 10_000, "{compared} sums");
}

pub fn what_has_no_sum_is_an_error() {
    let client = client();
    let codes = client.empty(64);
    let operand = RowCodes { codes: &codes, rows: 4, stride: 16, format: E4M3 };
    let error = |a: RowCodes<'_>, k, accumulator| {
        multiply(&client, [a, operand], k, accumulator, Accumulation::Fast).expect_err("refused")
    };
    let ada = Accumulator::ADA;
    let none = RowCodes { rows: 0, ..operand };
    assert_eq!(error(none, 16, ada), KernelError::Empty { shape: vec![0, 16] });
    assert_eq!(error(operand, 0, ada), KernelError::Empty { shape: vec![4, 0] });
    assert_eq!(error(operand, 17, ada), KernelError::Codes { len: 65, held: 64 });
    let long = RowCodes { rows: 5, ..operand };
    assert_eq!(error(long, 16, ada), KernelError::Codes { len: 80, held: 64 });
    let none = error(operand, 16, Accumulator { products: 0, ..ada });
    assert!(none.to_string().contains("products = 0: it takes 1 to 64"), "{none}");
    // 32 products are the most with Blackwell's bits, in steps that are powers of two.
    let wide = Accumulator { products: 64, ..Accumulator::BLACKWELL };
    assert_eq!(error(operand, 16, wide), KernelError::WideSum { accumulator: wide });
    let deep = Accumulator { fraction: 30, products: 1, ..ada };
    assert_eq!(error(operand, 16, deep), KernelError::WideSum { accumulator: deep });
}
