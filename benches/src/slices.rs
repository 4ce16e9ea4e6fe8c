//! The slice functions of the core against memory copies and sums at the same number of threads.

use std::cell::RefCell;
use std::hint::black_box;

use burn_fp8_core::{Fp8Format, Overflow};
use burn_fp8_cpu::slice::{self, Source};
use half::{bf16, f16};

use crate::harness::{Options, Side, pool};
use crate::reference;
use crate::rows::Row;

/// The name of this group.
pub const GROUP: &str = "slices";

/// What its rows are called that compare elements a second, not bytes.
const ELEMENTS_GROUP: &str = "slices, elements";

const FORMAT: Fp8Format = Fp8Format::E4M3;
const OVERFLOW: Overflow = Overflow::SaturateFinite;
/// No power of two, so that the division is one.
const SCALE: f32 = 0.013;

/// Slices of all the types involved, written once so that their pages exist.
struct Buffers {
    x: Vec<f32>,
    y: Vec<f32>,
    z: Vec<f32>,
    brains: Vec<bf16>,
    halves: Vec<f16>,
    codes: Vec<u8>,
}

impl Buffers {
    fn new(elements: usize) -> Self {
        let x: Vec<f32> = (0..elements).map(value).collect();
        Self {
            y: vec![1.0; elements],
            z: vec![1.0; elements],
            brains: x.iter().map(|x| bf16::from_f32(*x)).collect(),
            halves: x.iter().map(|x| f16::from_f32(*x)).collect(),
            codes: vec![0x55; elements],
            x,
        }
    }
}

/// The i-th of the numbers that are quantized: spread over 8 binades below `max × scale`, so that FP8 subnormals occur.
fn value(i: usize) -> f32 {
    let mixed = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let uniform = mixed as f32 / 2f32.powi(32) - 0.5;
    uniform * uniform * uniform * 8.0 * FORMAT.max() * SCALE
}

/// A function and the bytes that it reads and writes per element.
#[derive(Clone, Copy)]
struct Function {
    name: &'static str,
    bytes: usize,
    run: fn(&mut Buffers),
}

const fn function(name: &'static str, bytes: usize, run: fn(&mut Buffers)) -> Function {
    Function { name, bytes, run }
}

const MEMCPY: Function = function("memcpy", 8, |b| reference::copy(&b.x, &mut b.y));
const TRIAD: Function = function("triad", 12, |b| reference::triad(&b.x, SCALE, &b.z, &mut b.y));
const SUM: Function = function("sum", 4, |b| {
    black_box(reference::sum(&b.x));
});
const ENCODE: Function = function("encode", 5, |b| encode(FORMAT, &b.x, &mut b.codes));
const AMAX: Function = function("amax", 4, |b| amax(&b.x));
const ENCODE_WITH_AMAX: Function =
    function("encode_with_amax", 5, |b| encode_with_amax(&b.x, &mut b.codes));
const ENCODE_BF16: Function =
    function("encode bf16", 3, |b| encode(FORMAT, &b.brains, &mut b.codes));
const ENCODE_F16: Function = function("encode f16", 3, |b| encode(FORMAT, &b.halves, &mut b.codes));

/// Each function, what it is measured against, and the least ratio of their speeds in bytes a second.
const BENCHMARKS: [(Function, Function, Option<f64>); 16] = [
    (QUANTIZE_DEQUANTIZE, TRIAD, Some(0.6)),
    (ENCODE, MEMCPY, Some(0.5)),
    (function("decode", 5, |b| decode(FORMAT, &b.codes, &mut b.y)), MEMCPY, Some(0.5)),
    (AMAX, SUM, Some(0.8)),
    (function("encode E5M2", 5, |b| encode(Fp8Format::E5M2, &b.x, &mut b.codes)), MEMCPY, None),
    (function("decode E5M2", 5, |b| decode(Fp8Format::E5M2, &b.codes, &mut b.y)), MEMCPY, None),
    (ENCODE_BF16, MEMCPY, None),
    (ENCODE_F16, MEMCPY, None),
    // What a product's operands cost before it: codes are what matrix units are given.
    (ENCODE, TRIAD, Some(0.6)),
    (ENCODE_BF16, TRIAD, Some(0.6)),
    (ENCODE_F16, TRIAD, Some(0.6)),
    (ENCODE_WITH_AMAX, TRIAD, Some(0.6)),
    (function("amax bf16", 2, |b| amax(&b.brains)), SUM, None),
    (ENCODE_AND_ROUND, TRIAD, None),
    (IN_PLACE, TRIAD, None),
    (SCALE_IN_PLACE, TRIAD, None),
];

/// Functions of narrow types against those of f32, and the least ratio of their speeds in elements a second.
const ELEMENTS: [(Function, Function, Option<f64>); 6] = [
    (ENCODE_BF16, ENCODE, Some(0.9)),
    (ENCODE_F16, ENCODE, Some(0.9)),
    (function("amax bf16", 2, |b| amax(&b.brains)), AMAX, Some(0.9)),
    (function("amax f16", 2, |b| amax(&b.halves)), AMAX, Some(0.9)),
    (
        function("encode_with_amax bf16", 3, |b| encode_with_amax(&b.brains, &mut b.codes)),
        ENCODE_WITH_AMAX,
        Some(0.9),
    ),
    (
        function("encode_with_amax f16", 3, |b| encode_with_amax(&b.halves, &mut b.codes)),
        ENCODE_WITH_AMAX,
        Some(0.9),
    ),
];

const QUANTIZE_DEQUANTIZE: Function = function("quantize_dequantize", 8, |b| {
    slice::quantize_dequantize(&b.x, SCALE, FORMAT, OVERFLOW, &mut b.y);
});
const ENCODE_AND_ROUND: Function = function("encode_and_round", 9, |b| {
    slice::encode_and_round(&b.x, SCALE, FORMAT, OVERFLOW, &mut b.codes, &mut b.y);
});
// After the first run every element is a number of the format: the time does not depend on the values.
const IN_PLACE: Function = function("quantize_dequantize_in_place", 8, |b| {
    slice::quantize_dequantize_in_place(&mut b.z, SCALE, FORMAT, OVERFLOW);
});
// The factor is 1 lest repetitions run into f32 subnormals; the multiplication cannot know.
const SCALE_IN_PLACE: Function = function("scale_in_place", 8, |b| {
    slice::scale_in_place(&mut b.z, black_box(1.0));
});

fn encode<S: Source>(format: Fp8Format, x: &[S], codes: &mut [u8]) {
    slice::encode(x, SCALE, format, OVERFLOW, codes);
}

fn encode_with_amax<S: Source>(x: &[S], codes: &mut [u8]) {
    black_box(slice::encode_with_amax(x, SCALE, FORMAT, OVERFLOW, codes));
}

fn decode(format: Fp8Format, codes: &[u8], x: &mut [f32]) {
    slice::decode(codes, SCALE, format, x);
}

fn amax<S: Source>(x: &[S]) {
    black_box(slice::amax(x));
}

/// Measures every slice function at every number of threads.
pub fn run(options: &Options) -> Vec<Row> {
    let buffers = RefCell::new(Buffers::new(options.elements));
    let mut rows = Vec::new();
    for &threads in &options.threads {
        let pool = pool(threads);
        let elements = ELEMENTS.map(|benchmark| (benchmark, false));
        for ((subject, reference, target), in_bytes) in
            BENCHMARKS.map(|benchmark| (benchmark, true)).into_iter().chain(elements)
        {
            let side = |function: Function, run| match Side::new(function.name, run) {
                side if in_bytes => side.with_bytes(function.bytes * options.elements),
                side => side,
            };
            let on_pool = |function: Function| {
                let (buffers, pool) = (&buffers, &pool);
                move || {
                    let mut buffers = buffers.borrow_mut();
                    let buffers = &mut *buffers;
                    pool.install(|| (function.run)(buffers));
                }
            };
            let group = if in_bytes { GROUP } else { ELEMENTS_GROUP };
            let (mut subject_run, mut reference_run) = (on_pool(subject), on_pool(reference));
            rows.push(options.compare(
                (group, threads, target),
                side(subject, &mut subject_run),
                side(reference, &mut reference_run),
            ));
        }
    }
    rows
}
