//! Published FP8 checkpoints on the CPU backends, and frozen layers written as such.

use burn::tensor::{Distribution, IntDType, set_default_dtypes};
use burn_fp8::checkpoint::{Activations, Checkpoint, Export};

use crate::common::published::{
    activations_stay_as_they_are_where_no_file_quantizes_them,
    blocks_larger_than_the_weight_are_as_large_as_it, layers_are_modules,
    layers_are_those_of_their_libraries, scales_and_biases_are_f32,
    weights_of_one_block_are_native,
};
use crate::common::*;

tests_on_cpu!([
    layers_are_those_of_their_libraries,
    activations_stay_as_they_are_where_no_file_quantizes_them,
    blocks_larger_than_the_weight_are_as_large_as_it,
    weights_of_one_block_are_native,
    layers_are_modules,
]);

#[test]
fn scales_stay_f32_on_a_device_whose_default_is_not() {
    alone(|| {
        set_default_dtypes::<Flex>(&Default::default(), FloatDType::BF16, IntDType::I32)
            .expect("nothing has asked for the default yet");
        scales_and_biases_are_f32::<Flex>();
    });
}

/// Frozen layers, written as compressed-tensors does and read again, give the same bits.
#[test]
fn frozen_layers_are_published_and_read_again() {
    let device = Default::default();
    let weight = Tensor::<Flex, 2>::random([48, 20], Distribution::Default, &device);
    let bias = Tensor::<Flex, 1>::random([20], Distribution::Default, &device);
    let x = Tensor::<Flex, 2>::random([3, 48], Distribution::Default, &device);
    let [fixed, current] = [ActivationScale::Static(0.01), ActivationScale::Current]
        .map(|scale| FrozenLinear::from_weight(weight.clone(), Some(bias.clone()), scale).unwrap());
    let published = [&fixed, &current].map(|layer| layer.to_published().expect("finite"));
    assert_eq!(published[0].shape(), [20, 48]);
    assert_eq!(published[1].activations(), Activations::PerToken);
    let (_parent, folder) = files::path("model");
    Export::new()
        .linear("fixed", &published[0])
        .and_then(|export| export.linear("current", &published[1]))
        .and_then(|export| export.write(&folder, "{}"))
        .expect("written");
    let checkpoint = Checkpoint::open(&folder).expect("just written");
    let load =
        |name| FrozenLinear::<Flex>::from_checkpoint(&checkpoint, name, &device).expect(name);
    let again = load("fixed");
    assert_eq!(bits(&values(again.weight())), bits(&values(fixed.weight())));
    assert_eq!(bits(&values(again.forward(x.clone()))), bits(&values(fixed.forward(x.clone()))));
    let again = load("current");
    assert_eq!(bits(&values(again.weight())), bits(&values(current.weight())));
    // A row by itself has the scale that it has per token.
    let row = x.clone().narrow(0, 1, 1);
    let (ours, theirs) = (values(again.forward(row.clone())), values(current.forward(row)));
    assert_close(&ours, &theirs, 1e-6, "a row");
}

#[test]
fn a_missing_layer_and_a_wrong_input_are_told() {
    let checkpoint = Checkpoint::open(published::folder("ct_block")).expect("a checkpoint");
    let device = Default::default();
    let missing = FrozenLinear::<Flex>::from_checkpoint(&checkpoint, "model.layers.9.x", &device);
    refused(missing, ["model.layers.9.x", "model.layers.0"]);
    let name = &checkpoint.layers()[0].name;
    let layer = FrozenLinear::<Flex>::from_checkpoint(&checkpoint, name, &device).expect(name);
    let [k, _] = layer.dims();
    let too_wide = Tensor::<Flex, 2>::zeros([2, k + 1], &device);
    panics(|| layer.forward(too_wide), [&format!("takes […, {k}]")]);
    let native = Fp8Config::default().with_execution(Execution::Native);
    let forward = || native.scope(|| layer.forward(Tensor::<Flex, 2>::ones([2, k], &device)));
    match implementation::<Flex>() {
        Implementation::MatrixUnit(_) => drop(forward()),
        _ => panics(forward, ["Execution::Native"]),
    }
}
