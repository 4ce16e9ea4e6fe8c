//! Every public launcher, with what makes its kernels differ in CUDA C++.
//!
//! Each kernel is compiled with every type of element and in both ways of reading, in units of 16 bytes and element by element; with
//! every type and combination of outputs; and once each with what changes numbers or addresses alone: a format, an overflow, a rule of
//! scales, a scale on the host, rows with gaps, 64-bit addresses.

use burn_fp8_core::sums::{Accumulation, Accumulator, RunningSum};
use burn_fp8_core::{Fp8Format, Granularity, Overflow, Recipe, ScaleRounding};
use burn_fp8_kernels::{
    BlockCodes, Element, Input, Layouts, NonFinite, Outputs, RowCodes, Scalar, ScaleRule, amax,
    dequantize, dequantize_blocks, multiply, quantize, quantize_blocks, quantize_matrix, rescale,
    tile_e8m0,
};

use super::runtime::Client;

const FORMATS: [Fp8Format; 2] = [Fp8Format::E4M3, Fp8Format::E5M2];
const ELEMENTS: [Element; 3] = [Element::F32, Element::F16, Element::Bf16];
const OUTPUTS: [Outputs; 3] = [Outputs::Codes, Outputs::Values, Outputs::CodesAndValues];
const LAYOUTS: [Layouts; 3] = [Layouts::Rows, Layouts::Transposed, Layouts::Both];
const FINITE: Overflow = Overflow::SaturateFinite;

/// Shape and strides.
type Layout = (&'static [usize], &'static [usize]);

const UNITS: Layout = (&[1024, 1024], &[1024, 1]);
const GAPS: Layout = (&[1024, 1024], &[2048, 1]);
const TRANSPOSED: Layout = (&[1024, 1024], &[1, 1024]);
/// Read element by element.
const PERMUTED: Layout = (&[4, 5, 6], &[6, 48, 2]);
/// More than 2^32 elements.
const LARGE: Layout = (&[1 << 20, 1 << 13], &[1 << 13, 1]);

struct Launcher<'a> {
    client: &'a Client,
    launches: usize,
}

impl Launcher<'_> {
    /// So many launches on a tensor.
    fn run(
        &mut self,
        (shape, strides): Layout,
        element: Element,
        launches: usize,
        kernel: impl FnOnce(&Client, &Input<'_>),
    ) {
        let last = shape.iter().zip(strides).map(|(size, stride)| (size - 1) * stride);
        let elements = last.sum::<usize>() + 1;
        let handle = self.client.empty(elements * element.size());
        kernel(self.client, &Input { handle: &handle, shape, strides, element });
        self.launches += launches;
    }

    fn scalar(&self) -> Scalar {
        Scalar::Device(self.client.empty(4))
    }

    fn given(&self) -> ScaleRule {
        ScaleRule::Given { scale: self.scalar(), overflow: FINITE }
    }

    fn delayed(&self) -> ScaleRule {
        let recipe = Recipe::delayed().with_power_of_two(true);
        ScaleRule::Delayed { from: self.client.empty(4), recipe }
    }

    fn amax(&mut self, layout: Layout, element: Element, non_finite: NonFinite) {
        self.run(layout, element, 2, |client, input| {
            amax(client, input, non_finite).expect("valid");
        });
    }

    fn quantize(&mut self, layout: Layout, element: Element, rule: &ScaleRule, outputs: Outputs) {
        self.quantize_to(FORMATS[0], layout, element, rule, outputs);
    }

    fn quantize_to(
        &mut self,
        format: Fp8Format,
        layout: Layout,
        element: Element,
        rule: &ScaleRule,
        outputs: Outputs,
    ) {
        let launches = if matches!(rule, ScaleRule::Given { .. }) { 1 } else { 3 };
        self.run(layout, element, launches, |client, input| {
            quantize(client, input, format, rule, outputs).expect("valid");
        });
    }

    fn matrix(&mut self, layout: Layout, element: Element, rule: &ScaleRule, layouts: Layouts) {
        let launches = if matches!(rule, ScaleRule::Given { .. }) { 1 } else { 3 };
        self.run(layout, element, launches, |client, input| {
            quantize_matrix(client, input, FORMATS[1], rule, layouts).expect("valid");
        });
    }

    fn blocks(&mut self, layout: Layout, element: Element, launches: usize, block: [usize; 2]) {
        self.run(layout, element, launches, |client, input| {
            quantize_blocks(client, input, block, FORMATS[0], Recipe::mxfp8()).expect("valid");
        });
    }

    fn rescale(&mut self, layout: Layout, scale: &Scalar) {
        self.run(layout, Element::F32, 1, |client, input| {
            rescale(client, input, [scale, scale]).expect("valid");
        });
    }
}

/// Launches everything; returns how many launches that must be.
pub fn launch_all(client: &Client) -> usize {
    let mut launcher = Launcher { client, launches: 0 };
    tensors(&mut launcher);
    blocks(&mut launcher);
    conversions(&mut launcher);
    sums(&mut launcher);
    launcher.launches
}

/// A scale for the tensor: amaxes, codes and values, matrices.
fn tensors(launcher: &mut Launcher<'_>) {
    let (given, delayed) = (launcher.given(), launcher.delayed());
    for element in ELEMENTS {
        for layout in [UNITS, PERMUTED] {
            launcher.amax(layout, element, NonFinite::Excluded);
            launcher.quantize(layout, element, &delayed, Outputs::CodesAndValues);
            for outputs in OUTPUTS {
                launcher.quantize(layout, element, &given, outputs);
            }
            for layouts in LAYOUTS {
                launcher.matrix(layout, element, &given, layouts);
            }
            launcher.matrix(layout, element, &delayed, Layouts::Both);
        }
    }
    let element = Element::F32;
    launcher.amax(UNITS, element, NonFinite::Propagated);
    launcher.quantize(UNITS, element, &ScaleRule::Current(Recipe::current()), Outputs::Codes);
    for layout in [GAPS, LARGE] {
        launcher.amax(layout, element, NonFinite::Excluded);
        launcher.quantize(layout, element, &given, Outputs::CodesAndValues);
        launcher.matrix(layout, element, &given, Layouts::Both);
    }
    for format in FORMATS {
        for overflow in [Overflow::Saturate, FINITE, Overflow::NonSaturating] {
            let rule = ScaleRule::Given { scale: Scalar::Host(0.5), overflow };
            launcher.quantize_to(format, UNITS, element, &rule, Outputs::CodesAndValues);
        }
    }
}

/// A scale for each block: by rows, by tiles, by tiles that are turned, and in two launches.
fn blocks(launcher: &mut Launcher<'_>) {
    for element in ELEMENTS {
        for (layout, launches, block) in [
            (UNITS, 1, [1, 32]),
            (UNITS, 1, [1, 128]),
            (UNITS, 1, [32, 1]),
            (UNITS, 1, [128, 128]),
            (TRANSPOSED, 1, [1, 32]),
            (TRANSPOSED, 1, [128, 128]),
            (PERMUTED, 2, [1, 32]),
            (PERMUTED, 2, [128, 128]),
        ] {
            launcher.blocks(layout, element, launches, block);
        }
    }
    for block in [[1, 32], [32, 1]] {
        launcher.blocks(LARGE, Element::F32, 1, block);
    }
    let roundings = [ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even];
    let of_mx = |rounding| Recipe::mxfp8().with_granularity(Granularity::Mx(rounding));
    let others = [Recipe::blockwise(), Recipe::blockwise().with_power_of_two(false)];
    for recipe in roundings.map(of_mx).into_iter().chain(others) {
        for block in [[1, 32], [32, 1], [3, 5]] {
            let launches = if block == [3, 5] { 2 } else { 1 };
            launcher.run(UNITS, Element::F32, launches, |client, input| {
                quantize_blocks(client, input, block, FORMATS[1], recipe).expect("valid");
            });
        }
    }
    for layout in [UNITS, LARGE] {
        launcher.run(layout, Element::F32, 1, |client, input| {
            tile_e8m0(client, input).expect("valid");
        });
    }
}

fn conversions(launcher: &mut Launcher<'_>) {
    let (client, scale, host) = (launcher.client, launcher.scalar(), Scalar::Host(2.0));
    let buffer = client.empty(1 << 16);
    for format in FORMATS {
        dequantize(client, &buffer, 1024, format).expect("valid");
        launcher.launches += 1;
    }
    for layout in [UNITS, PERMUTED, LARGE] {
        launcher.rescale(layout, &scale);
    }
    launcher.rescale(UNITS, &host);
    // Four elements in a block, in a row, anywhere; in one matrix and in several.
    for shape in [&[64, 64][..], &[63, 63], &[4, 64, 64], &[4, 63, 63]] {
        for block in [[1, 32], [32, 1], [128, 128], [3, 6]] {
            let format = FORMATS[0];
            let blocks = BlockCodes { codes: &buffer, scales: &buffer, shape, block, format };
            dequantize_blocks(client, &blocks).expect("valid");
            launcher.launches += 1;
        }
    }
}

/// Every pair of formats, rows and blocks of whole words and others, the accumulators of all cards, a running sum that joins late, 64-bit addresses.
fn sums(launcher: &mut Launcher<'_>) {
    let client = launcher.client;
    let mut run = |formats: [Fp8Format; 2], stride: usize, accumulator: Accumulator| {
        let codes = client.empty(64 * stride);
        let operands = formats.map(|format| RowCodes { codes: &codes, rows: 64, stride, format });
        multiply(client, operands, 64, accumulator, Accumulation::Split).expect("valid");
        launcher.launches += 1;
    };
    for format in FORMATS {
        for other in FORMATS {
            run([format, other], 64, Accumulator::HOPPER);
        }
        run([format; 2], 65, Accumulator::HOPPER);
    }
    let late = Accumulator { running: RunningSum::Late, ..Accumulator::HOPPER };
    let odd = Accumulator { products: 5, fraction: 3, chain: 48, ..Accumulator::ADA };
    for accumulator in [Accumulator::ADA, Accumulator::BLACKWELL, late, odd] {
        run([Fp8Format::E4M3; 2], 64, accumulator);
    }
    run([Fp8Format::E4M3; 2], 1 << 26, Accumulator::HOPPER);
}
