//! Frozen layers where products run on tensor cores.

use super::*;

const DIMS: [usize; 2] = [40, 24];

fn layer<B: Fp8Matmul>(activation: ActivationScale) -> FrozenLinear<B> {
    let bias = Some(random::<B, 1>(2, [DIMS[1]]));
    FrozenLinear::from_weight(random::<B, 2>(1, DIMS), bias, activation).expect("valid")
}

/// The output for a permuted input, and what ran.
fn output<B: Fp8Matmul>(layer: &FrozenLinear<B>, execution: Execution) -> (Vec<f32>, Report) {
    let config = Fp8Config::default().with_execution(execution);
    let x = random::<B, 3>(3, [DIMS[0], 5, 3]).permute([2, 1, 0]);
    trace(|| config.scope(|| values(layer.forward(x))))
}

fn check<B: Fp8Matmul>() {
    // The second one saturates: the largest input is near 16.
    for activation in [ActivationScale::Current, ActivationScale::Static(2f32.powi(-6))] {
        let (expected, emulated) = output(&layer::<Flex>(activation), Execution::FakeQuantized);
        let frozen = layer::<B>(activation);
        let (codes, bytes) = (frozen.tensor().to_bytes(), frozen.bytes());
        let clone = frozen.clone();

        let pretend = pretend_tensor_cores();
        let (actual, native) = output(&frozen, Execution::Native);
        assert_near(&actual, &expected, &format!("{activation:?}"));
        let ([actual], [expected_product]) = (&native.products[..], &emulated.products[..]) else {
            panic!("one product each: {native} {emulated}");
        };
        assert_eq!((actual.kind, actual.gemm), (expected_product.kind, expected_product.gemm));
        assert_eq!((actual.lhs, actual.rhs), (expected_product.lhs, expected_product.rhs));
        let saturated = actual.lhs.expect("in FP8").saturated;
        assert_eq!(saturated > 0, activation != ActivationScale::Current, "{native}");

        // The weight has been moved; it is the same one, held once, also that of the clone.
        for layer in [&frozen, &clone] {
            assert_eq!(layer.tensor().to_bytes(), codes);
            assert_eq!((layer.dims(), layer.bytes()), (DIMS, bytes));
            let restored = FrozenLinear::<B>::from_record(layer.to_record(), &Default::default());
            assert_eq!(restored.tensor().to_bytes(), codes);
        }
        let moved = frozen.clone().with_activation(ActivationScale::Current).expect("valid");
        assert_eq!(values(moved.weight()), values(layer::<Flex>(activation).weight()));

        // And back.
        let (again, _) = output(&frozen, Execution::FakeQuantized);
        assert_near(&again, &expected, "emulated after a native product");
        drop(pretend);
        let (again, _) = output(&clone, Execution::Auto);
        assert_near(&again, &expected, "emulated on the same codes");
    }
}

#[test]
fn frozen_layers_move_their_weight_and_give_what_flex_gives() {
    check::<Unfused>();
    check::<Fp8Backend<Autodiff<Unfused>>>();
    #[cfg(feature = "fusion")]
    check::<burn::backend::Wgpu>();
}
