//! The launchers of blocks.

use burn_fp8_core::{Fp8Format, Granularity, Recipe, ScaleRounding};
use burn_fp8_kernels::{BlockCodes, dequantize_blocks, quantize_blocks, tile_e8m0};

use super::variants::{ELEMENTS, FORMATS, Launcher, layout, layouts};

const EVERY_RECIPE: [Recipe; 6] = [
    Recipe::mxfp8(),
    Recipe::mxfp8().with_granularity(Granularity::Mx(ScaleRounding::Floor)),
    Recipe::mxfp8().with_granularity(Granularity::Mx(ScaleRounding::Ceil)),
    Recipe::mxfp8().with_granularity(Granularity::Mx(ScaleRounding::Even)),
    Recipe::blockwise(),
    Recipe::blockwise().with_power_of_two(false),
];

/// How many kernels are new; those that the name says to divide are none of them.
pub fn blocks(launcher: &mut Launcher<'_>) -> [usize; 2] {
    let [units, pitched, elements, permuted, large] = layouts();
    let transposed = layout(&[1024, 1024], &[1, 1024]);
    // By rows, by tiles, by tiles that are turned; those below are the kernels that measure, and the ones that encode.
    let once = [
        (&units, [1, 32]),
        (&units, [1, 128]),
        (&units, [32, 1]),
        (&units, [128, 128]),
        (&transposed, [1, 32]),
        (&transposed, [1, 128]),
        (&transposed, [128, 128]),
    ];
    let twice = [(&elements, [32, 1]), (&elements, [128, 128])];
    for element in ELEMENTS {
        let mut run = |layout, launches, block, format, recipe| {
            launcher.run(layout, element, launches, |client, input| {
                quantize_blocks(client, input, block, format, recipe).expect("valid");
            });
        };
        for (format, recipe) in [
            (Fp8Format::E4M3, EVERY_RECIPE[0]),
            (Fp8Format::E5M2, EVERY_RECIPE[0]),
            (Fp8Format::E4M3, EVERY_RECIPE[5]),
        ] {
            for (layout, block) in once {
                run(layout, 1, block, format, recipe);
            }
            for (layout, block) in twice {
                run(layout, 2, block, format, recipe);
            }
        }
        // Gaps between rows make no difference; three dimensions do, and 64-bit addresses.
        for (layout, launches, block) in [
            (&pitched, 1, [1, 32]),
            (&permuted, 2, [1, 32]),
            (&large, 1, [1, 32]),
            (&large, 1, [32, 1]),
        ] {
            run(layout, launches, block, Fp8Format::E4M3, EVERY_RECIPE[0]);
        }
    }
    for recipe in EVERY_RECIPE {
        launcher.run(&units, ELEMENTS[0], 1, |client, input| {
            quantize_blocks(client, input, [1, 32], Fp8Format::E4M3, recipe).expect("valid");
        });
    }
    let quantizing = 3 * (3 * (once.len() + 2 * twice.len()) + 2 + 2) + EVERY_RECIPE.len() - 2;

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
    [quantizing + shapes.len() * 3 * FORMATS.len() + 1, 0]
}
