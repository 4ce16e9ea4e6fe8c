//! Divisions by reciprocals, which are those of CUDA, on a device that is not CUDA's.

use burn_fp8_core::{Fp8Format, Overflow, Recipe};
use burn_fp8_cpu::slice::{self, blocks};
use burn_fp8_test_support::skip_unless_required;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::wgpu::{WgpuDevice, WgpuRuntime};

use crate::bits::{Division, Encoding};
use crate::element::Element;
use crate::launch::{Words, address_type, array};
use crate::layout::{Dims, Reads};
use crate::tensor::{Input, Scalar};
use crate::{blocks as of_blocks, quantize};

type Client = ComputeClient<WgpuRuntime>;

const FORMATS: [Fp8Format; 2] = [Fp8Format::E4M3, Fp8Format::E5M2];

/// Whether `a·b + c` has one rounding on this device.
#[cube(launch)]
fn fuse(terms: &Array<f32>, sum: &mut Array<f32>) {
    sum[0] = fma(terms[0], terms[1], terms[2]);
}

/// A device that fuses, or nothing after saying that the test is skipped.
fn client() -> Option<Client> {
    let client = WgpuRuntime::client(&WgpuDevice::default());
    let a = 1.0 + f32::EPSILON;
    let (terms, sum) = (upload(&client, &[a, a, -1.0]), client.empty(4));
    let (one, unit) = (CubeCount::Static(1, 1, 1), CubeDim::new_1d(1));
    fuse::launch(&client, one, unit, array(&terms), array(&sum));
    let sum = client.read_one(sum).expect("the device can be read");
    let sum = f32::from_le_bytes(sum[..4].try_into().expect("four bytes"));
    assert!(sum != 0.0, "the kernel did not run");
    if sum != a.mul_add(a, -1.0) {
        let why = "this device rounds a fused multiply-add twice";
        skip_unless_required("BURN_FP8_REQUIRE_FMA", why);
        return None;
    }
    Some(client)
}

fn upload(client: &Client, x: &[f32]) -> Handle {
    client.create_from_slice(&x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
}

/// Every exponent and sign, the highest six bits of the mantissa, and the lowest around every tie.
fn numbers() -> Vec<f32> {
    let bits = (0..1u32 << 15).flat_map(|high| {
        [0, 1, 0xFFFF, 0x1_0000, 0x1_0001, 0x1_FFFF].map(|low| (high << 17) | low)
    });
    bits.map(f32::from_bits).collect()
}

fn assert_codes(client: &Client, codes: Handle, x: &[f32], expected: &[u8], what: &str) {
    let codes = client.read_one(codes).expect("the device can be read");
    for (i, x) in x.iter().enumerate() {
        let (found, wanted) = (codes[i], expected[i]);
        assert!(found == wanted, "{what}: {i}: {x:e}: {found:#x}, not {wanted:#x}");
    }
}

#[test]
fn divisions_by_reciprocals_give_the_codes_of_the_core() {
    let Some(client) = client() else { return };
    let x = numbers();
    let handle = upload(&client, &x);
    let input = Input { handle: &handle, shape: &[x.len()], strides: &[1], element: Element::F32 };
    let address = address_type(&client, x.len() as u64).expect("few elements");
    for format in FORMATS {
        for overflow in [Overflow::Saturate, Overflow::SaturateFinite, Overflow::NonSaturating] {
            // In the range of reciprocals, at its ends, and beyond.
            let ends = [2f32.powi(-80), 2f32.powi(100)];
            let beyond = [ends[0].next_down(), ends[1].next_up(), f32::MIN_POSITIVE, f32::MAX];
            let scales = [1.0, 0.1, 3.7e-3, 0.999_999_94, 1.999_999_9, 7.3e-20, 1e15, 1e30];
            for scale in scales.into_iter().chain(ends).chain(beyond) {
                let encoding = Encoding { format, overflow, division: Division::Reciprocal };
                let job = quantize::Job { encoding, measure: false };
                let reads = Reads::new(&input, Dims::new(input.shape, input.strides));
                let codes = Words::for_elements(&client, x.len(), 1);
                let scales = (Scalar::Host(scale).scales(), None);
                quantize::launch(&client, &reads, scales, [Some(&codes), None], job, address);
                let mut expected = vec![0; x.len()];
                slice::encode(&x, scale, format, overflow, &mut expected);
                let what = format!("{format} {overflow:?} {scale:e}");
                assert_codes(&client, codes.into_handle(), &x, &expected, &what);
            }
        }
    }
}

/// No block has all scales in the range of reciprocals.
#[test]
fn divisions_by_reciprocals_of_the_scales_of_blocks_give_the_codes_of_the_core() {
    let Some(client) = client() else { return };
    let x = numbers();
    let handle = upload(&client, &x);
    let recipe = Recipe::blockwise().with_power_of_two(false);
    for columns in [64, 192, 3 * 1024] {
        let (shape, strides) = ([x.len() / columns, columns], [columns, 1]);
        let input =
            Input { handle: &handle, shape: &shape, strides: &strides, element: Element::F32 };
        for format in FORMATS {
            for block in [[1, 32], [32, 1], [1, 3], [128, 128]] {
                let what = format!("{columns} {format} {block:?}");
                let division = Division::Reciprocal;
                let found = of_blocks::launch(&client, &input, block, format, recipe, division);
                let found = found.expect("valid");
                let matrix = blocks::Blocks { columns, block };
                let [grid_rows, grid_columns] = matrix.grid(x.len());
                let mut codes = vec![0; x.len()];
                let mut scales = vec![0.0; grid_rows * grid_columns];
                blocks::encode(&x, matrix, format, recipe, &mut codes, &mut scales);
                let bytes: Vec<u8> = scales.iter().flat_map(|x| x.to_le_bytes()).collect();
                assert!(client.read_one(found.scales).expect("readable")[..] == bytes, "{what}");
                assert_codes(&client, found.codes, &x, &codes, &what);
            }
        }
    }
}
