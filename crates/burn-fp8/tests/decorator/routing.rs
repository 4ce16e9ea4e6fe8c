//! Which format each operand of each product uses, in both orders, and that gradients follow the explicit formula.

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::tensor::TensorPrimitive;
use burn::tensor::module::linear as linear_product;
use burn_fp8::report::{OperandReport, ProductReport};

use crate::common::*;

type Balanced<B> = Autodiff<B, BalancedCheckpointing>;

/// Role and formats, and the sizes of a product.
type Routed = (GemmRole, [Fp8Format; 2], [usize; 4]);

fn routed(product: &ProductReport) -> Routed {
    let emulated = Implementation::FakeQuantized;
    assert!([implementation::<Flex>(), emulated].contains(&product.ran), "{}", product.ran);
    let format = |operand: Option<OperandReport>| operand.expect("in FP8").format;
    let gemm = product.gemm;
    (product.role, [product.lhs, product.rhs].map(format), [gemm.batch, gemm.m, gemm.n, gemm.k])
}

/// Of a product of 32 rows, 32 inputs and 24 outputs.
const NAMED: [Routed; 3] = [
    (GemmRole::Output, [E4M3, E4M3], [1, 32, 24, 32]),
    (GemmRole::GradInput, [E5M2, E4M3], [1, 32, 32, 24]),
    (GemmRole::GradWeight, [E4M3, E5M2], [1, 32, 24, 32]),
];

fn linear_products<B: AutodiffBackend>() -> (ProductKind, Vec<Routed>) {
    let layer = LinearConfig::new(32, 24).init::<B>(&Default::default());
    let x = ones::<B, 3>([4, 8, 32]).require_grad();
    let products = trace(|| layer.forward(x).sum().backward()).1.products;
    (products[0].kind, products.iter().map(routed).collect())
}

fn matmul_products<B: AutodiffBackend>() -> Vec<Routed> {
    let ones = [&[1.0; 32 * 32][..], &[1.0; 32 * 24], &[1.0; 32 * 24]];
    trace(|| matrix_step::<B>(ones, [32, 32, 24])).1.products.iter().map(routed).collect()
}

#[test]
fn gradients_are_named_but_those_of_a_matmul_in_the_inner_order() {
    for (kind, products) in [
        linear_products::<Outer<Flex>>(),
        linear_products::<Inner<Flex>>(),
        // A balanced checkpoint quantizes once.
        linear_products::<Fp8Backend<Balanced<Flex>>>(),
        linear_products::<Balanced<Fp8Backend<Flex>>>(),
    ] {
        assert_eq!((kind, &products[..]), (ProductKind::Linear, &NAMED[..]));
    }
    assert_eq!(matmul_products::<Outer<Flex>>(), NAMED);
    // Burn's Autodiff multiplies gradients like any other tensors.
    for (role, formats, _) in matmul_products::<Inner<Flex>>() {
        assert_eq!((role, formats), (GemmRole::Output, [E4M3; 2]));
    }
}

/// The gradients of two linear layers with operations between them that a balanced checkpoint runs again, and the report.
fn network<B: AutodiffBackend>() -> (Vec<Vec<u32>>, Vec<ProductReport>) {
    let layer = |seed| linear::<B>(random(seed, [32, 32]), Some(random(seed + 1, [32])));
    let (first, second) = (layer(1), layer(3));
    let x = random::<B, 2>(5, [16, 32]).require_grad();
    let (grads, report) = trace(|| {
        let hidden = burn::tensor::activation::gelu(first.forward(x.clone() * 0.05 + 1.0));
        let hidden = second.forward(hidden.clone().tanh() * 0.5 + hidden.sin());
        hidden.clone().matmul(hidden.transpose()).powi_scalar(2).mean().backward()
    });
    let mut all = vec![grad(&x, &grads)];
    for Linear { weight, bias } in [first, second] {
        all.extend([grad(&weight.val(), &grads), grad(&bias.expect("there").val(), &grads)]);
    }
    assert!(all.iter().all(|grad| grad.iter().all(|x| x.is_finite()) && grad[0] != 0.0));
    assert_eq!(report.products.len(), 9);
    (all.iter().map(|grad| bits(grad)).collect(), report.products)
}

#[test]
fn recomputing_changes_neither_gradients_nor_products() {
    assert!(network::<Fp8Backend<Balanced<Flex>>>() == network::<Outer<Flex>>());
    assert!(network::<Balanced<Fp8Backend<Flex>>>() == network::<Inner<Flex>>());
}

/// Of a weight that is multiplied twice, and of a matrix with itself.
#[test]
fn a_tensor_used_twice_sums_its_gradients() {
    type B = Outer<Flex>;
    let (x, other, w) = (Random(1).spread(25), Random(2).spread(25), Random(3).spread(25));
    let exact = |x, w| exact_step_under(Recipe::current(), [x, w, &[1.0; 25]], [5; 3]);
    let weight = tensor::<B, 2>(&w, [5; 2]).require_grad();
    let twice = every_matmul().scope(|| {
        let [a, b] = [&x, &other].map(|x| tensor::<B, 2>(x, [5; 2]).matmul(weight.clone()));
        (a + b).sum().backward()
    });
    let [[_, _, a], [_, _, b]] = [exact(&x, &w), exact(&other, &w)];
    a.plus(&b).assert(&grad(&weight, &twice), Sums::F32, "of a weight used twice");
    let itself = every_matmul().scope(|| weight.clone().matmul(weight.clone()).sum().backward());
    let [_, dx, dw] = exact(&w, &w);
    dx.plus(&dw).assert(&grad(&weight, &itself), Sums::F32, "of a product with itself");
}

/// The roles that run where some of input, weight and bias are tracked.
fn roles<B: AutodiffBackend>([x, w, b]: [bool; 3]) -> Vec<GemmRole> {
    let (input, weight) = (ones::<B, 2>([16, 32]), ones::<B, 2>([32, 24]));
    let leaves = (input.set_require_grad(x), weight.set_require_grad(w));
    let bias = ones::<B, 1>([24]).set_require_grad(b);
    let (y, forward) =
        trace(|| linear_product(leaves.0.clone(), leaves.1.clone(), Some(bias.clone())));
    let mut products = forward.products;
    if x || w || b {
        let (grads, backward) = trace(|| y.sum().backward());
        let reached = [leaves.0.grad(&grads), leaves.1.grad(&grads)].map(|grad| grad.is_some());
        assert_eq!(reached, [x, w]);
        assert_eq!(bias.grad(&grads).map(values), b.then(|| vec![16.0; 24]));
        products.extend(backward.products);
    }
    products.iter().map(|product| product.role).collect()
}

#[test]
fn what_is_not_tracked_costs_no_product() {
    use GemmRole::{GradInput, GradWeight, Output};
    for (tracked, expected) in [
        ([false, true, false], &[Output, GradWeight][..]),
        ([true, false, false], &[Output, GradInput]),
        ([false, false, true], &[Output]),
        ([false, false, false], &[Output]),
    ] {
        assert_eq!(roles::<Outer<Flex>>(tracked), expected);
        assert_eq!(roles::<Inner<Flex>>(tracked), expected);
    }
}

#[test]
fn the_inner_backend_runs_in_fp8_as_well() {
    fn inner_of<B: AutodiffBackend>() -> usize {
        let x = ones::<B::InnerBackend, 2>([16, 16]);
        trace(|| x.clone().matmul(x)).1.fp8().count()
    }
    assert_eq!([inner_of::<Outer<Flex>>(), inner_of::<Inner<Flex>>()], [1, 1]);
    assert_eq!(Outer::<Flex>::name(&Default::default()), "fp8<autodiff<flex>>");
}

#[test]
#[should_panic(expected = "FP8 products have no second derivative")]
fn second_derivatives_are_refused_rather_than_lost() {
    type Twice = Fp8Backend<Autodiff<Autodiff<Flex>>>;
    let x = ones::<Autodiff<Flex>, 2>([16, 16]).require_grad();
    let x = Tensor::<Twice, 2>::from_primitive(TensorPrimitive::Float(
        <Autodiff<Autodiff<Flex>> as AutodiffBackend>::from_inner(x.into_primitive().tensor()),
    ));
    let _ = x.clone().require_grad().matmul(x);
}
