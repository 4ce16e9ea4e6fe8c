//! Several uses in one graph.

use burn_fp8::ops::{QdqOptions, in_qdq, out_qdq};

use super::{B, grads_of, history, input, layer, sgd};
use crate::common::*;

fn fresh_state() -> (Tensor<B, 1>, Tensor<B, 1>) {
    (ones([1]).require_grad(), tensor(&[0.0; 3], [3]).require_grad())
}

fn options() -> QdqOptions {
    QdqOptions::new(E4M3)
}

/// The documented example: x = 2, y = 3. A use that never ran leaves no trace.
#[test]
fn reused_state_takes_the_maximum() {
    for inputs in [[2.0], [3.0]].into_iter().zip([[3.0], [2.0]]) {
        let (scale, history) = fresh_state();
        let [x, y, unused] = [inputs.0, inputs.1, [100.0]].map(|input| {
            in_qdq(tensor::<B, 1>(&input, [1]), scale.clone(), history.clone(), options())
        });
        let grads = (x * y).backward();
        drop(unused);
        assert_eq!(grad(&scale, &grads), [1.0]);
        assert_eq!(grad(&history, &grads), [3.0, 0.0, 0.0]);
        let (other_scale, other_history) = fresh_state();
        assert!(other_scale.grad(&grads).is_none() && other_history.grad(&grads).is_none());
    }
}

#[test]
fn untracked_state_works_and_receives_nothing() {
    let x = tensor::<B, 1>(&[2.0, 3.3], [2]).require_grad();
    let (scale, history) = (ones::<B, 1>([1]), tensor::<B, 1>(&[448.0], [1]));
    let y = in_qdq(x.clone(), scale.clone(), history.clone(), options());
    assert_eq!(values(y.clone()), [2.0, 3.25]);
    let grads = y.backward();
    assert_eq!(grad(&x, &grads), [1.0, 1.0]);
    assert!(scale.grad(&grads).is_none() && history.grad(&grads).is_none());
}

#[test]
fn state_that_is_no_leaf_is_refused() {
    let (scale, history) = fresh_state();
    let x = ones::<B, 1>([2]);
    for op in [in_qdq::<B, 1>, out_qdq::<B, 1>] {
        for (scale, history) in
            [(scale.clone() * 1.0, history.clone()), (scale.clone(), history.clone() * 1.0)]
        {
            panics(|| op(x.clone(), scale, history, options()), ["must be a leaf"]);
        }
    }
    // A computed tensor that is not tracked is no leaf's child.
    let y = in_qdq(x, scale.detach().set_require_grad(false) * 1.0, history, options());
    assert_eq!(values(y), [1.0, 1.0]);
}

fn through_a_clone<A: AutodiffBackend + Fp8Matmul>() {
    let layer = layer::<A>();
    let clone = layer.clone();
    let y = layer.forward(input(2.0)) + clone.forward(input(3.0)) + layer.forward(input(1.0));
    let grads = GradientsParams::from_grads(y.sum().backward(), &layer);
    let layer = sgd::<A>().step(0.1, layer, grads);
    assert_eq!(history(&layer), [3.0, 0.0, 0.0]);
    assert_eq!(values(layer.dot.input.scale.val()), [1.0]);
    // The next step takes its scale from this history: 3 / 448, by Flax's formula.
    let grads = grads_of(&layer, 1.0);
    let layer = sgd::<A>().step(0.1, layer, grads);
    assert_eq!(history(&layer), [1.0, 0.0, 3.0]);
    assert_eq!(values(layer.dot.input.scale.val()), [1.0 / (448.0 / 3.0f32)]);
}

#[test]
fn a_layer_used_through_its_clone_takes_the_maximum() {
    through_a_clone::<B>();
    through_a_clone::<Outer<Flex>>();
    through_a_clone::<Inner<Flex>>();
}

#[test]
fn a_layer_that_took_no_part_keeps_its_state() {
    let (one, other) = (layer::<B>(), layer::<B>());
    let trained = [2.0, 3.0].into_iter().fold(other, |other, amax| {
        let grads = grads_of(&other, amax);
        sgd::<B>().step(0.1, other, grads)
    });
    let other = trained;
    let state = |layer: &Fp8Linear<B>| (history(layer), values(layer.dot.input.scale.val()));
    let before = state(&other);
    assert_eq!(before.0, [3.0, 0.0, 2.0]);
    let mut grads = grads_of(&one, 2.0);
    for id in burn::module::list_param_ids(&other) {
        assert!(grads.remove::<Flex, 2>(id).is_none());
    }
    let other = sgd::<B>().step(0.1, other, grads);
    assert_eq!(state(&other), before);
}
