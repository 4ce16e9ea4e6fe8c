//! Every public launcher with every element type and every variant of its kernels.

use burn_fp8_core::{Fp8Format, Overflow, Recipe};
use burn_fp8_kernels::{
    Element, Input, Layouts, NonFinite, Outputs, Scalar, ScaleRule, amax, dequantize, quantize,
    quantize_dequantize, quantize_matrix, rescale,
};

use super::blocks::blocks;
use super::runtime::Client;

pub const FORMATS: [Fp8Format; 2] = [Fp8Format::E4M3, Fp8Format::E5M2];
pub const ELEMENTS: [Element; 3] = [Element::F32, Element::F16, Element::Bf16];
const OVERFLOWS: [Overflow; 3] =
    [Overflow::Saturate, Overflow::SaturateFinite, Overflow::NonSaturating];

/// What must come of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    pub launches: usize,
    pub kernels: usize,
    pub dividing: usize,
}

/// A layout, as kernels tell layouts apart.
pub struct Layout {
    shape: Vec<usize>,
    strides: Vec<usize>,
}

pub fn layout(shape: &[usize], strides: &[usize]) -> Layout {
    Layout { shape: shape.into(), strides: strides.into() }
}

/// In units, in units with gaps, elements of two dimensions and of three; and more than 2^32 elements.
pub fn layouts() -> [Layout; 5] {
    [
        layout(&[1024, 1024], &[1024, 1]),
        layout(&[1024, 1024], &[2048, 1]),
        layout(&[1023, 1023], &[1024, 1]),
        layout(&[4, 5, 6], &[6, 48, 2]),
        layout(&[1 << 20, 1 << 13], &[1 << 13, 1]),
    ]
}

pub struct Launcher<'a> {
    pub client: &'a Client,
    pub launches: usize,
}

impl Launcher<'_> {
    pub fn run(
        &mut self,
        layout: &Layout,
        element: Element,
        launches: usize,
        kernel: impl FnOnce(&Client, &Input<'_>),
    ) {
        let last =
            layout.shape.iter().zip(&layout.strides).map(|(size, stride)| (size - 1) * stride);
        let elements = last.sum::<usize>() + 1;
        let handle = self.client.empty(elements * element.size());
        let Layout { shape, strides } = layout;
        kernel(self.client, &Input { handle: &handle, shape, strides, element });
        self.launches += launches;
    }

    fn scalar(&self) -> Scalar {
        Scalar::Device(self.client.empty(4))
    }

    fn given(&self, overflow: Overflow) -> ScaleRule {
        ScaleRule::Given { scale: self.scalar(), overflow }
    }

    fn delayed(&self) -> ScaleRule {
        let from = self.client.empty(4);
        ScaleRule::Delayed { from, recipe: Recipe::delayed().with_power_of_two(true) }
    }
}

/// Launches everything; a kernel that came up before is no new one.
pub fn launch_all(client: &Client) -> Expected {
    let mut launcher = Launcher { client, launches: 0 };
    let kernels = [
        amaxes(&mut launcher),
        quantizations(&mut launcher),
        delayed(&mut launcher),
        matrices(&mut launcher),
        conversions(&mut launcher),
        blocks(&mut launcher),
    ];
    let dividing = kernels.iter().map(|[_, dividing]| dividing).sum();
    let kernels = kernels.iter().map(|[kernels, _]| kernels).sum();
    Expected { launches: launcher.launches, kernels, dividing }
}

/// Two launches each: the second one is always the same kernel.
fn amaxes(launcher: &mut Launcher<'_>) -> [usize; 2] {
    for layout in layouts() {
        for element in ELEMENTS {
            for non_finite in [NonFinite::Excluded, NonFinite::Propagated] {
                launcher.run(&layout, element, 2, |client, input| {
                    amax(client, input, non_finite).expect("valid");
                });
            }
        }
    }
    [5 * 3 * 2 + 1, 0]
}

fn quantizations(launcher: &mut Launcher<'_>) -> [usize; 2] {
    let [units, _, elements, ..] = layouts();
    let outputs = [Outputs::Codes, Outputs::Values, Outputs::CodesAndValues];
    for element in ELEMENTS {
        for layout in layouts() {
            for outputs in outputs {
                let rule = launcher.given(Overflow::SaturateFinite);
                launcher.run(&layout, element, 1, |client, input| {
                    quantize(client, input, Fp8Format::E4M3, &rule, outputs).expect("valid");
                });
            }
            // Three launches, of which the kernel that makes the scale is new, once.
            launcher.run(&layout, element, 3, |client, input| {
                let rule = ScaleRule::Current(Recipe::current());
                quantize(client, input, Fp8Format::E4M3, &rule, Outputs::Codes).expect("valid");
            });
        }
        for format in FORMATS {
            for overflow in OVERFLOWS {
                let rule = launcher.given(overflow);
                launcher.run(&units, element, 1, |client, input| {
                    quantize(client, input, format, &rule, Outputs::CodesAndValues).expect("valid");
                });
            }
        }
        launcher.run(&units, element, 1, |client, input| {
            let overflow = Overflow::SaturateFinite;
            let rule = ScaleRule::Given { scale: Scalar::Host(0.5), overflow };
            quantize(client, input, Fp8Format::E4M3, &rule, Outputs::Codes).expect("valid");
        });
        for layout in [&units, &elements] {
            for output in ELEMENTS {
                let scale = launcher.scalar();
                launcher.run(layout, element, 1, |client, input| {
                    let (format, overflow) = (Fp8Format::E5M2, Overflow::Saturate);
                    quantize_dequantize(client, input, format, &scale, overflow, output)
                        .expect("valid");
                });
            }
        }
    }
    // By element: layouts and outputs, formats and overflows less the one that came up, a host scale, both layouts and outputs.
    let dividing = 3 * (5 * 3 + (2 * 3 - 1) + 1 + 2 * 3);
    [dividing + 1, dividing]
}

/// Three launches each, all of them new: the amax that may be skipped, the scale (once), and codes with an amax.
fn delayed(launcher: &mut Launcher<'_>) -> [usize; 2] {
    for layout in layouts() {
        for element in ELEMENTS {
            let rule = launcher.delayed();
            launcher.run(&layout, element, 3, |client, input| {
                quantize(client, input, Fp8Format::E4M3, &rule, Outputs::Codes).expect("valid");
            });
        }
    }
    [5 * 3 + 1 + 5 * 3, 5 * 3]
}

fn matrices(launcher: &mut Launcher<'_>) -> [usize; 2] {
    let all = [Layouts::Rows, Layouts::Transposed, Layouts::Both];
    let [units, _, elements, ..] = layouts();
    for element in ELEMENTS {
        for layouts in all {
            for layout in super::variants::layouts() {
                let rule = launcher.given(Overflow::SaturateFinite);
                launcher.run(&layout, element, 1, |client, input| {
                    quantize_matrix(client, input, Fp8Format::E4M3, &rule, layouts).expect("valid");
                });
            }
            for layout in [&units, &elements] {
                let rule = launcher.delayed();
                launcher.run(layout, element, 3, |client, input| {
                    quantize_matrix(client, input, Fp8Format::E4M3, &rule, layouts).expect("valid");
                });
            }
        }
        for format in FORMATS {
            for overflow in OVERFLOWS {
                let rule = launcher.given(overflow);
                launcher.run(&units, element, 1, |client, input| {
                    quantize_matrix(client, input, format, &rule, Layouts::Both).expect("valid");
                });
            }
        }
    }
    // By element: layouts, of which gaps between rows make no difference, and outputs; delayed ones; formats and overflows less the
    // one that came up.
    let dividing = 3 * (4 * 3 + 2 * 3 + (2 * 3 - 1));
    [dividing, dividing]
}

fn conversions(launcher: &mut Launcher<'_>) -> [usize; 2] {
    let (client, scale, host) = (launcher.client, launcher.scalar(), Scalar::Host(2.0));
    let codes = client.empty(1024);
    for output in ELEMENTS {
        for format in FORMATS {
            for scale in [None, Some(&scale), Some(&host)] {
                dequantize(client, &codes, 1024, format, scale, output).expect("valid");
                launcher.launches += 1;
            }
        }
        for layout in layouts() {
            launcher.run(&layout, Element::F32, 1, |client, input| {
                rescale(client, input, [&scale, &scale], output).expect("valid");
            });
        }
        let [units, ..] = layouts();
        launcher.run(&units, Element::F32, 1, |client, input| {
            rescale(client, input, [&host, &scale], output).expect("valid");
        });
    }
    [3 * (2 * 3 + 5 + 1), 0]
}
