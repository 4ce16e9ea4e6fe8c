//! Products in high precision whose batch and rows are joined: those of Burn's own matrices of two dimensions, to the bit, forward and backward.

use crate::common::*;

/// All rows, inputs, outputs; and batch and rows.
const SHAPE: [usize; 3] = [300, 70, 33];
const LEAD: [usize; 3] = [6, 50, 0];

/// The bits of output and gradients of a layer, or of its product alone.
fn run<B: AutodiffBackend, const D: usize>(lead: [usize; D], layer: bool) -> Vec<Vec<u32>> {
    let data = linear_data(1, SHAPE);
    let [x, w, _, g] = &data;
    let of = |last| std::array::from_fn::<_, D, _>(|d| if d == D - 1 { last } else { lead[d] });
    let weight = tensor::<B, 2>(w, [70, 33]);
    let results = match layer {
        true => linear_step::<B, D>(&data, lead).to_vec(),
        false => {
            let [x, g] = [tensor::<B, D>(x, of(70)).require_grad(), tensor(g, of(33))];
            let weight = weight.require_grad();
            let y = x.clone().matmul(weight.clone().unsqueeze());
            let grads = (y.clone() * g).sum().backward();
            vec![values(y), grad(&x, &grads), grad(&weight, &grads)]
        }
    };
    results.iter().map(|values| bits(values)).collect()
}

fn joined_products_are_those_of_two_dimensions<B: Fp8Matmul>()
where
    Autodiff<B>: Fp8Matmul,
{
    let off = Fp8Config::off();
    let too_small = Filter::default().with_min_sizes(1 << 20, 1, 1);
    for layer in [true, false] {
        let flat = run::<Autodiff<B>, 2>([SHAPE[0], 0], layer);
        let batched = run::<Autodiff<B>, 3>(LEAD, layer);
        assert_ne!(flat[2], batched[2], "another order of sums, else this shows nothing");
        for config in [off, Fp8Config::default().with_fused(false).with_filter(too_small)] {
            let outer =
                |join| config.with_join(join).scope(|| trace(|| run::<Outer<B>, 3>(LEAD, layer)));
            let (results, report) = outer(true);
            assert_eq!((results, report.fp8().count()), (flat.clone(), 0), "layer: {layer}");
            assert_eq!(outer(false).0, batched);
            // By itself where the backend fuses.
            let joins = config.enabled && B::FP8_ON_HOST;
            let fused = config.with_fused(true).scope(|| run::<Outer<B>, 3>(LEAD, layer));
            assert_eq!(fused, if joins { flat.clone() } else { batched.clone() });
        }
    }
    // The gradient of the bias is no product: it stays a sum over batch and rows.
    let flat = run::<Autodiff<B>, 2>([SHAPE[0], 0], true);
    let inner = off.with_join(true).scope(|| run::<Inner<B>, 3>(LEAD, true));
    assert_eq!(inner[..3], flat[..3]);
    // Four dimensions, and a scope of high precision, which keeps the rest of the configuration.
    let four = || high_precision(|| run::<Outer<B>, 4>([2, 3, 50, 0], true));
    assert_eq!(Fp8Config::default().with_join(true).scope(four), flat);
}

tests_on_cpu!([joined_products_are_those_of_two_dimensions]);

#[test]
fn batches_of_both_operands_stay_as_they_are() {
    fn product<B: Backend>() -> Vec<u32> {
        bits(&values(random::<B, 3>(1, [3, 20, 20]).matmul(random(2, [3, 20, 20]))))
    }
    let joined = Fp8Config::off().with_join(true).scope(product::<Fp8Backend<Flex>>);
    assert_eq!(joined, product::<Flex>());
}
