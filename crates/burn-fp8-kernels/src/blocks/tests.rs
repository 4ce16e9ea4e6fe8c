//! What kernels do on CUDA only, on a device that is not CUDA's: see `quantize/tests.rs` for what it needs.

use burn_fp8_core::slice::blocks;
use cubecl::wgpu::{WgpuDevice, WgpuRuntime};

use super::*;
use crate::bits::Division;
use crate::element::Element;

#[test]
fn divisions_by_reciprocals_of_the_scales_of_blocks_give_the_codes_of_the_core() {
    let client = WgpuRuntime::client(&WgpuDevice::default());
    if !crate::quantize::tests::fuses(&client) {
        let why = "this device rounds a fused multiply-add twice";
        return burn_fp8_test_support::skip_unless_required("BURN_FP8_REQUIRE_FMA", why);
    }
    // Every exponent, the highest mantissa bits, and the lowest around every tie; no block has all scales in the range of reciprocals.
    let bits = (0..1u32 << 15).flat_map(|high| {
        [0, 1, 0xFFFF, 0x1_0000, 0x1_0001, 0x1_FFFF].map(|low| (high << 17) | low)
    });
    let x: Vec<f32> = bits.map(f32::from_bits).collect();
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let handle = client.create_from_slice(&bytes);
    let recipe = Recipe::blockwise().with_power_of_two(false);
    for columns in [64, 192, 3 * 1024] {
        let shape = [x.len() / columns, columns];
        let input =
            Input { handle: &handle, shape: &shape, strides: &[columns, 1], element: Element::F32 };
        for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
            for block in [[1, 32], [32, 1], [1, 3], [128, 128]] {
                let found = launch(&client, &input, block, format, recipe, Division::Reciprocal);
                let found = found.expect("valid");
                let matrix = blocks::Blocks { columns, block };
                let [grid_rows, grid_columns] = matrix.grid(x.len());
                let (mut codes, mut scales) =
                    (vec![0; x.len()], vec![0.0; grid_rows * grid_columns]);
                blocks::encode(&x, matrix, format, recipe, &mut codes, &mut scales);
                let read = |handle| client.read_one(handle).expect("readable");
                let bytes: Vec<u8> = scales.iter().flat_map(|x| x.to_le_bytes()).collect();
                assert!(read(found.scales)[..] == bytes, "{columns} {format} {block:?}");
                let found = read(found.codes);
                for i in 0..x.len() {
                    assert!(
                        found[i] == codes[i],
                        "{columns} {format} {block:?} {i}: {:e}: {:#x}, not {:#x}",
                        x[i],
                        found[i],
                        codes[i]
                    );
                }
            }
        }
    }
}
