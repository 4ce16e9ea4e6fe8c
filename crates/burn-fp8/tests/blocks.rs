//! Scales of blocks (MXFP8, blocks of 128) on the CPU backends. Wgpu has a file of its own.

mod common;

use common::blocks;

macro_rules! tests {
    ($($backend:ty),*) => {
        $(
            #[test]
            fn layers_are_those_of_other_libraries() {
                blocks::layers_are_those_of_other_libraries::<$backend>();
            }

            #[test]
            fn blocks_are_those_of_slices() {
                blocks::blocks_are_those_of_slices::<$backend>(true);
            }

            #[test]
            fn shapes_and_orders_agree() {
                blocks::shapes_and_orders_agree::<$backend>();
            }

            #[test]
            fn outliers_stay_in_their_blocks() {
                blocks::outliers_stay_in_their_blocks::<$backend>();
            }

            #[test]
            fn native_is_refused_in_words() {
                blocks::native_is_refused_in_words::<$backend>();
            }

            #[test]
            fn bf16_is_quantized_as_it_is() {
                blocks::bf16_is_quantized_as_it_is::<$backend>();
            }
        )*
    };
}

mod flex {
    use super::blocks;

    tests!(burn::backend::Flex);
}

#[cfg(feature = "ndarray")]
mod ndarray {
    use super::blocks;

    tests!(burn::backend::NdArray);
}
