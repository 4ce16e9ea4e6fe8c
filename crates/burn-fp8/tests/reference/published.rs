//! Published FP8 checkpoints on the CPU backends, and frozen layers written as such.

use burn::tensor::{IntDType, set_default_dtypes};
use burn_fp8::checkpoint::{Activations, Checkpoint, Export};

use crate::common::published::{
    blocks_larger_than_the_weight_are_as_large_as_it, folder, for_each_published,
    layers_are_those_of_their_libraries,
};
use crate::common::*;

tests_on_cpu!([
    layers_are_those_of_their_libraries,
    blocks_larger_than_the_weight_are_as_large_as_it,
]);

/// Whatever the device's default type is, weights are exact.
#[test]
fn scales_stay_f32_on_a_device_whose_default_is_not() {
    alone(|| {
        set_default_dtypes::<Flex>(&Default::default(), FloatDType::BF16, IntDType::I32)
            .expect("nothing has asked for the default yet");
        for_each_published::<Flex>(|published| {
            let bias = published.layer.bias();
            assert!(bias.is_none_or(|bias| bias.dtype() == DType::F32), "{}", published.name);
            let (x, shape) = published.part("input");
            let x = TensorData::new(x, shape);
            let x = Tensor::<Flex, 2>::from_data(x, (&Default::default(), DType::F32));
            assert_eq!(published.layer.forward(x).dtype(), DType::F32, "{}", published.name);
        });
    });
}

/// Frozen layers, written as compressed-tensors does and read again, give the same bits.
#[test]
fn frozen_layers_are_published_and_read_again() {
    let x = random::<Flex, 2>(3, [3, 48]);
    let [fixed, current] = [ActivationScale::Static(0.01), ActivationScale::Current].map(|scale| {
        FrozenLinear::from_weight(random::<Flex, 2>(1, [48, 20]), Some(random(2, [20])), scale)
            .expect("a layer")
    });
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
    // A row by itself has the scale that it has per token.
    for (name, layer, x) in [("fixed", &fixed, x.clone()), ("current", &current, x.narrow(0, 1, 1))]
    {
        let again = FrozenLinear::<Flex>::from_checkpoint(&checkpoint, name, &Default::default());
        let again = again.expect(name);
        assert_eq!(bits(&values(again.weight())), bits(&values(layer.weight())));
        let [again, layer] = [&again, layer].map(|layer| values(layer.forward(x.clone())));
        assert_close(&again, &layer, if name == "fixed" { 0.0 } else { 1e-6 }, name);
    }
}

#[test]
fn a_missing_layer_and_a_wrong_input_are_told() {
    let checkpoint = Checkpoint::open(folder("ct_block")).expect("a checkpoint");
    let load =
        |name: &str| FrozenLinear::<Flex>::from_checkpoint(&checkpoint, name, &Default::default());
    refused(load("model.layers.9.x"), ["model.layers.9.x", "model.layers.0"]);
    let layer = load(&checkpoint.layers()[0].name).expect("a layer");
    let [k, _] = layer.dims();
    let too_wide = ones::<Flex, 2>([2, k + 1]);
    panics(|| layer.forward(too_wide), [&format!("takes […, {k}]")]);
    let native = Fp8Config::default().with_execution(Execution::Native);
    let forward = || native.scope(|| layer.forward(ones::<Flex, 2>([2, k])));
    match has_unit::<Flex>() {
        true => drop(forward()),
        false => panics(forward, ["Execution::Native"]),
    }
}
