//! What is checked on every runtime: each test target names its runtime `TestRuntime`, and makes tests of all checks with [`tests`].
//! Here are a device, and tensors on it.

pub mod blocks;
pub mod conversions;
pub mod layouts;
pub mod quantize;
pub mod scales;
pub mod sums;
mod values;

use burn_fp8_kernels::{Element, Input};
use cubecl::prelude::*;
use cubecl::server::Handle;
use half::{bf16, f16};

/// A test of every check, in a module for each file, with the attributes given.
macro_rules! tests {
    ($(#[$attribute:meta])*) => {
        tests! { [$(#[$attribute])*]
            quantize {
                every_exponent_of_f32
                every_f16_and_bf16
                random_bits_of_f32
                every_mantissa_of_f32
            }
            scales {
                current_scales_come_from_the_tensor
                delayed_scales_come_from_earlier_steps_and_the_amax_is_measured_on_the_way
                a_zero_history_takes_the_amax_of_the_tensor
                matrices_measure_and_choose_alike
                nothing_but_zeros_or_nothing_finite_has_scale_one
                amaxes_exclude_or_propagate_what_is_not_finite
            }
            layouts {
                codes_and_values_are_in_row_major_order
                matrices_are_padded_and_transposed
                large_grids
                tall_matrices
            }
            blocks {
                codes_and_scales_of_every_layout
                every_recipe_and_block
                every_amax
                more_blocks_than_a_dimension_of_a_grid
                codes_are_multiplied_by_the_scales_of_their_blocks
                scales_of_mxfp8_are_tiled
                what_has_no_blocks_is_an_error
            }
            conversions {
                every_code_is_decoded
                ties_and_their_neighbours_with_scales_on_the_device
                products_are_rescaled_as_in_the_core
                strided_products_are_rescaled
                what_cannot_be_launched_is_an_error
                more_elements_than_32_bits_reach
            }
            sums {
                sums_of_every_kind_are_those_of_the_reference
                sums_of_accumulators_of_ones_own
                rows_begin_anywhere
                blocks_of_the_largest_products
                chains_are_added_to_the_nearest
                sums_are_those_of_cards
                what_has_no_sum_is_an_error
            }
        }
    };
    ($attributes:tt $($file:ident { $($check:ident)* })*) => {
        $(mod $file { $(tests! { $attributes $file $check })* })*
    };
    ([$(#[$attribute:meta])*] $file:ident $check:ident) => {
        #[test]
        $(#[$attribute])*
        fn $check() {
            crate::checks::$file::$check();
        }
    };
}

pub type Client = ComputeClient<crate::TestRuntime>;

pub const ELEMENTS: [Element; 3] = [Element::F32, Element::F16, Element::Bf16];

pub fn client() -> Client {
    crate::TestRuntime::client(&Default::default())
}

/// A tensor on the device, row by row unless given other strides.
#[derive(Clone)]
pub struct Held {
    pub handle: Handle,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
    pub element: Element,
}

impl Held {
    /// Uploads numbers, rounded to the element type, and returns what they have become.
    pub fn new(client: &Client, x: &[f32], shape: &[usize], element: Element) -> (Self, Vec<f32>) {
        let strides = contiguous(shape);
        let (bytes, x) = as_element(x, element);
        let held = Self { handle: upload(client, &bytes), shape: shape.into(), strides, element };
        (held, x)
    }

    pub fn input(&self) -> Input<'_> {
        Input {
            handle: &self.handle,
            shape: &self.shape,
            strides: &self.strides,
            element: self.element,
        }
    }
}

/// The bytes of numbers as an element type, and the numbers after rounding.
pub fn as_element(x: &[f32], element: Element) -> (Vec<u8>, Vec<f32>) {
    let bytes = |x: &f32| match element {
        Element::F32 => x.to_le_bytes().to_vec(),
        Element::F16 => f16::from_f32(*x).to_le_bytes().to_vec(),
        Element::Bf16 => bf16::from_f32(*x).to_le_bytes().to_vec(),
    };
    let bytes: Vec<u8> = x.iter().flat_map(bytes).collect();
    let x = numbers_in(&bytes, element);
    (bytes, x)
}

/// The numbers that bytes of an element type stand for.
pub fn numbers_in(bytes: &[u8], element: Element) -> Vec<f32> {
    let number = |bytes: &[u8]| match *bytes {
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
        [a, b] if element == Element::F16 => f16::from_le_bytes([a, b]).to_f32(),
        [a, b] => bf16::from_le_bytes([a, b]).to_f32(),
        _ => unreachable!("a chunk is an element"),
    };
    bytes.chunks_exact(element.size()).map(number).collect()
}

/// A buffer of whole words.
pub fn upload(client: &Client, bytes: &[u8]) -> Handle {
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(4), 0xAA);
    client.create_from_slice(&bytes)
}

pub fn contiguous(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

/// What a strided view of `memory` holds, in row-major order.
pub fn gather(memory: &[f32], shape: &[usize], strides: &[usize]) -> Vec<f32> {
    let elements = shape.iter().product();
    let at = |mut index: usize| {
        let mut place = 0;
        for (size, stride) in shape.iter().zip(strides).rev() {
            place += index % size * stride;
            index /= size;
        }
        memory[place]
    };
    (0..elements).map(at).collect()
}

pub fn read(client: &Client, handle: &Handle) -> Vec<u8> {
    client.read_one(handle.clone()).expect("the device can be read").to_vec()
}

pub fn read_words(client: &Client, handle: &Handle) -> Vec<u32> {
    let words = |word: &[u8]| u32::from_le_bytes(word.try_into().expect("four bytes"));
    read(client, handle).chunks_exact(4).map(words).collect()
}

pub fn read_scalar(client: &Client, handle: &Handle) -> f32 {
    f32::from_bits(read_words(client, handle)[0])
}

/// One f32 on the device.
pub fn scalar(client: &Client, x: f32) -> Handle {
    client.create_from_slice(&x.to_le_bytes())
}
