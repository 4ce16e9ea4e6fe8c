//! The launchers of blocks.

use burn_fp8_core::{Fp8Format, Granularity, Recipe, ScaleRounding};
use burn_fp8_kernels::{BlockCodes, dequantize_blocks, quantize_blocks, tile_e8m0};

use super::variants::{ELEMENTS, FORMATS, Launcher, layouts};

fn recipes() -> [Recipe; 6] {
    let mx = |rounding| Recipe::mxfp8().with_granularity(Granularity::Mx(rounding));
    [
        Recipe::mxfp8(),
        mx(ScaleRounding::Floor),
        mx(ScaleRounding::Ceil),
        mx(ScaleRounding::Even),
        Recipe::blockwise(),
        Recipe::blockwise().with_power_of_two(false),
    ]
}

/// How many kernels are new; those that the name says to divide are none of them.
pub fn blocks(launcher: &mut Launcher<'_>) -> [usize; 2] {
    let [units, pitched, elements, permuted, large] = layouts();
    for element in ELEMENTS {
        for format in FORMATS {
            for recipe in recipes() {
                for block in [[1, 32], [1, 128]] {
                    launcher.run(&units, element, 1, |client, input| {
                        quantize_blocks(client, input, block, format, recipe).expect("valid");
                    });
                }
                for block in [[32, 1], [128, 128]] {
                    launcher.run(&elements, element, 2, |client, input| {
                        quantize_blocks(client, input, block, format, recipe).expect("valid");
                    });
                }
            }
        }
        for (layout, launches) in [(&pitched, 1), (&permuted, 2), (&large, 1)] {
            launcher.run(layout, element, launches, |client, input| {
                let (format, recipe) = (Fp8Format::E4M3, Recipe::mxfp8());
                quantize_blocks(client, input, [1, 32], format, recipe).expect("valid");
            });
        }
    }
    // By element: formats, recipes and blocks in one launch; those that measure, where only MXFP8 depends on the format, by units and by
    // cubes; those that encode, dividing or not; three dimensions in two launches, and 64-bit addresses. Gaps make no difference.
    let quantizing = 3 * (2 * 6 * 2 + (2 * 4 + 2) * 2 + 2 * 2 * 2 + 2 + 1);

    let client = launcher.client;
    let buffer = client.empty(1 << 16);
    let shapes = [&[64, 64][..], &[63, 63], &[4, 64, 64], &[4, 63, 63]];
    for shape in shapes {
        for block in [[1, 32], [32, 1], [128, 128]] {
            for format in FORMATS {
                let blocks = BlockCodes { codes: &buffer, scales: &buffer, shape, block, format };
                dequantize_blocks(client, &blocks).expect("valid");
                launcher.launches += 1;
            }
        }
    }
    launcher.run(&units, ELEMENTS[0], 1, |client, input| {
        tile_e8m0(client, input).expect("valid");
    });
    [quantizing + shapes.len() * 3 * 2 + 1, 0]
}
