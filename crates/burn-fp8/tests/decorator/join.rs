//! Products in high precision whose batch and rows are joined: those of Burn's own matrices of two dimensions, to the bit, forward and backward.

use burn::tensor::module;

use crate::common::*;

/// Batch, rows, inputs, outputs.
const SHAPE: [usize; 4] = [6, 50, 70, 33];

/// Output, and the gradients of input, weight and bias where there is one: `[…, K]` in `D` dimensions, by a layer or by a product.
fn step<B: AutodiffBackend, const D: usize>(lead: &[usize], layer: bool) -> Vec<Vec<u32>> {
    let [_, _, inputs, outputs] = SHAPE;
    let dims = |last: usize| -> [usize; D] {
        let dims: Vec<_> = lead.iter().copied().chain([last]).collect();
        dims.try_into().expect("D dimensions")
    };
    let random = |seed, count| Random(seed).spread(count);
    let rows: usize = lead.iter().product();
    let x = tensor::<B, D>(&random(1, rows * inputs), dims(inputs)).require_grad();
    let weight = tensor::<B, 2>(&random(2, inputs * outputs), [inputs, outputs]).require_grad();
    let bias = tensor::<B, 1>(&random(3, outputs), [outputs]).require_grad();
    let grad = tensor::<B, D>(&random(4, rows * outputs), dims(outputs));
    let y = match layer {
        true => module::linear(x.clone(), weight.clone(), Some(bias.clone())),
        false => x.clone().matmul(weight.clone().unsqueeze()),
    };
    let grads = (y.clone() * grad).sum().backward();
    let mut results = vec![values(y), values(x.grad(&grads).expect("tracked"))];
    results.push(values(weight.grad(&grads).expect("tracked")));
    results.extend(layer.then(|| values(bias.grad(&grads).expect("tracked"))));
    results.iter().map(|values| bits(values)).collect()
}

fn joined_products_are_those_of_two_dimensions<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    let [batch, rows, ..] = SHAPE;
    let lead = [batch, rows];
    let off = Fp8Config::off();
    let filtered =
        Fp8Config::default().with_filter(Filter::default().with_min_sizes(1 << 20, 1, 1));
    for layer in [true, false] {
        let flat = step::<Autodiff<B>, 2>(&[batch * rows], layer);
        let batched = step::<Autodiff<B>, 3>(&lead, layer);
        assert_ne!(flat[2], batched[2], "another order of sums, else this shows nothing");
        for config in [off, filtered] {
            let outer =
                |join| config.with_join(join).scope(|| trace(|| step::<Outer<B>, 3>(&lead, layer)));
            let (results, report) = outer(true);
            assert_eq!(results, flat, "layer: {layer}");
            assert_eq!(report.fp8().count(), 0);
            assert_eq!(outer(false).0, batched);
        }
    }
    // The gradient of the bias is no product: it stays a sum over batch and rows.
    let inner = off.with_join(true).scope(|| step::<Inner<B>, 3>(&lead, true));
    assert_eq!(inner[..3], step::<Autodiff<B>, 2>(&[batch * rows], true)[..3]);
    // Four dimensions, and a scope of high precision, which keeps the rest of the configuration.
    let four = || step::<Outer<B>, 4>(&[2, batch / 2, rows], true);
    let four = Fp8Config::default().with_join(true).scope(|| high_precision(four));
    assert_eq!(four, step::<Autodiff<B>, 2>(&[batch * rows], true));
}

tests_on_cpu!([joined_products_are_those_of_two_dimensions]);

#[test]
fn batches_of_both_operands_stay_as_they_are() {
    fn product<B: Backend>() -> Vec<u32> {
        let [a, b] = [1, 2].map(|seed| tensor(&Random(seed).spread(3 * 20 * 20), [3, 20, 20]));
        bits(&values(Tensor::<B, 3>::matmul(a, b)))
    }
    let joined = Fp8Config::off().with_join(true).scope(product::<Fp8Backend<Flex>>);
    assert_eq!(joined, product::<Flex>());
}
