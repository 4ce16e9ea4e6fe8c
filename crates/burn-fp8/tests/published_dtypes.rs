//! Published layers on a device whose default type is not f32. Alone in its process: the default is the device's.

mod common;

use burn::backend::Flex;
use burn::tensor::{FloatDType, IntDType, set_default_dtypes};
use common::published;

#[test]
fn scales_stay_f32() {
    set_default_dtypes::<Flex>(&Default::default(), FloatDType::BF16, IntDType::I32)
        .expect("nothing has asked for the default yet");
    published::scales_and_biases_are_f32::<Flex>();
}
