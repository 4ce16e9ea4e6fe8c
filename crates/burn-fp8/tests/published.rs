//! Published FP8 checkpoints on the CPU backends, and frozen layers written as such.

mod common;

use burn::backend::Flex;
use burn::tensor::{Distribution, Tensor};
use burn_fp8::checkpoint::{Activations, Checkpoint, Export};
use burn_fp8::nn::{ActivationScale, CheckpointLinear, FrozenLinear};
use burn_fp8::report::Implementation;
use burn_fp8::{Execution, Fp8Config};
use common::{bits, panic_of, published, values};

#[test]
fn layers_are_those_of_their_libraries() {
    published::layers_are_those_of_their_libraries::<Flex>();
}

#[test]
fn activations_stay_as_they_are_where_no_file_quantizes_them() {
    published::activations_stay_as_they_are_where_no_file_quantizes_them::<Flex>();
}

#[test]
fn blocks_larger_than_the_weight_are_as_large_as_it() {
    published::blocks_larger_than_the_weight_are_as_large_as_it::<Flex>();
}

#[test]
fn layers_are_modules() {
    published::layers_are_modules::<Flex>();
}

#[cfg(feature = "ndarray")]
mod ndarray {
    use burn::backend::NdArray;

    use super::published;

    #[test]
    fn layers_are_those_of_their_libraries() {
        published::layers_are_those_of_their_libraries::<NdArray>();
    }

    #[test]
    fn activations_stay_as_they_are_where_no_file_quantizes_them() {
        published::activations_stay_as_they_are_where_no_file_quantizes_them::<NdArray>();
    }

    #[test]
    fn blocks_larger_than_the_weight_are_as_large_as_it() {
        published::blocks_larger_than_the_weight_are_as_large_as_it::<NdArray>();
    }
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
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().join("model");
    Export::new()
        .linear("fixed", &published[0])
        .and_then(|export| export.linear("current", &published[1]))
        .and_then(|export| export.write(&folder, "{}"))
        .expect("written");
    let checkpoint = Checkpoint::open(&folder).expect("just written");
    let load = |name| CheckpointLinear::<Flex>::load(&checkpoint, name, &device).expect(name);
    let again = load("fixed");
    assert_eq!(bits(&values(again.weight())), bits(&values(fixed.weight())));
    assert_eq!(bits(&values(again.forward(x.clone()))), bits(&values(fixed.forward(x.clone()))));
    let again = load("current");
    assert_eq!(bits(&values(again.weight())), bits(&values(current.weight())));
    // A row by itself has the scale that it has per token.
    let row = x.clone().narrow(0, 1, 1);
    let (ours, theirs) = (values(again.forward(row.clone())), values(current.forward(row)));
    common::assert_close(&ours, &theirs, 1e-6, "a row");
}

#[test]
fn a_missing_layer_and_a_wrong_input_are_told() {
    let checkpoint = Checkpoint::open(published::folder("ct_block")).expect("a checkpoint");
    let device = Default::default();
    let error = CheckpointLinear::<Flex>::load(&checkpoint, "model.layers.9.x", &device);
    let error = error.expect_err("no such layer").to_string();
    assert!(error.contains("model.layers.9.x") && error.contains("model.layers.0"), "{error}");
    let name = &checkpoint.layers()[0].name;
    let layer = CheckpointLinear::<Flex>::load(&checkpoint, name, &device).expect(name);
    let [k, _] = layer.dims();
    let message = panic_of(|| layer.forward(Tensor::<Flex, 2>::zeros([2, k + 1], &device)));
    assert!(message.contains(&format!("takes […, {k}]")), "{message}");
    let native = Fp8Config::default().with_execution(Execution::Native);
    let forward = || native.scope(|| layer.forward(Tensor::<Flex, 2>::ones([2, k], &device)));
    match common::implementation::<Flex>() {
        Implementation::MatrixUnit(_) => drop(forward()),
        _ => {
            let message = panic_of(forward);
            assert!(message.contains("Execution::Native"), "{message}");
        }
    }
}
