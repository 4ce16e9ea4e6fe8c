//! Which format each operand of each product uses, in both orders, and that gradients follow the explicit formula.

mod common;

use std::panic::catch_unwind;

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::backend::{Autodiff, Flex};
use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Tensor};
use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8::report::{Implementation, ProductReport};
use burn_fp8::{Filter, Fp8Backend, Fp8Config, Fp8Format, GemmRole, ProductKind, trace};
use common::exact::{Exact, Sums};
use common::{
    Inner, Outer, Random, every_matmul, implementation, panic_of, reference, tensor, values,
};

fn formats(product: &ProductReport) -> (GemmRole, Fp8Format, Fp8Format) {
    let emulated = Implementation::FakeQuantized;
    assert!([implementation::<Flex>(), emulated].contains(&product.ran), "{}", product.ran);
    let format = |operand: Option<burn_fp8::report::OperandReport>| operand.expect("in FP8").format;
    (product.role, format(product.lhs), format(product.rhs))
}

const NAMED: [(GemmRole, Fp8Format, Fp8Format); 3] = [
    (GemmRole::Output, E4M3, E4M3),
    (GemmRole::GradInput, E5M2, E4M3),
    (GemmRole::GradWeight, E4M3, E5M2),
];

fn linear_step<B: AutodiffBackend>(x_dims: [usize; 3]) -> Vec<ProductReport> {
    let device = Default::default();
    let x = Tensor::<B, 3>::random(x_dims, Distribution::Default, &device).require_grad();
    let linear = burn::nn::LinearConfig::new(x_dims[2], 24).init::<B>(&device);
    trace(|| linear.forward(x).sum().backward()).1.products
}

#[test]
fn linear_layers_are_routed_in_both_orders() {
    for products in [linear_step::<Outer<Flex>>([4, 8, 32]), linear_step::<Inner<Flex>>([4, 8, 32])]
    {
        assert_eq!(products.iter().map(formats).collect::<Vec<_>>(), NAMED);
        for (product, [m, n, k]) in products.iter().zip([[32, 24, 32], [32, 32, 24], [32, 24, 32]])
        {
            assert_eq!(product.kind, ProductKind::Linear);
            let gemm = product.gemm;
            assert_eq!([gemm.batch, gemm.m, gemm.n, gemm.k], [1, m, n, k], "{}", product.role);
        }
    }
}

#[test]
fn batches_that_do_not_broadcast_panic_with_their_shapes() {
    fn multiply<B: Backend>() -> Vec<f32> {
        let [x, y] = [2, 3].map(|batch| tensor::<B, 3>(&vec![1.0; batch * 256], [batch, 16, 16]));
        values(x.matmul(y))
    }
    for config in [
        Fp8Config::default(),
        every_matmul(),
        Fp8Config::default().with_filter(Filter::linear_only()),
    ] {
        for message in [
            config.scope(|| panic_of(multiply::<Fp8Backend<Flex>>)),
            config.scope(|| panic_of(multiply::<Outer<Flex>>)),
            config.scope(|| panic_of(multiply::<Inner<Flex>>)),
        ] {
            assert!(message.contains("[2, 16, 16] and [3, 16, 16] do not multiply"), "{message}");
        }
    }
    // With FP8 off the decorator is Flex, which panics where debug assertions are on and else gives a result.
    let outcome = |multiply: fn() -> Vec<f32>| catch_unwind(multiply).ok();
    Fp8Config::off().scope(|| {
        assert_eq!(outcome(multiply::<Fp8Backend<Flex>>), outcome(multiply::<Flex>));
    });
}

fn matmul_step<B: AutodiffBackend>() -> Vec<ProductReport> {
    let device = Default::default();
    let x = Tensor::<B, 2>::random([16, 32], Distribution::Default, &device).require_grad();
    let w = Tensor::<B, 2>::random([32, 24], Distribution::Default, &device).require_grad();
    trace(|| x.matmul(w).sum().backward()).1.products
}

#[test]
fn matmul_gradients_are_named_in_the_outer_order_only() {
    let outer = matmul_step::<Outer<Flex>>();
    assert_eq!(outer.iter().map(formats).collect::<Vec<_>>(), NAMED);
    // Burn's Autodiff multiplies gradients like any other tensors.
    let inner = matmul_step::<Inner<Flex>>();
    assert_eq!(inner.iter().map(formats).collect::<Vec<_>>(), [(GemmRole::Output, E4M3, E4M3); 3]);
}

#[test]
fn a_balanced_checkpoint_quantizes_once() {
    type Balanced = Fp8Backend<Autodiff<Flex, BalancedCheckpointing>>;
    let products = linear_step::<Balanced>([4, 8, 32]);
    assert_eq!(products.iter().map(formats).collect::<Vec<_>>(), NAMED);
    let inner = linear_step::<Autodiff<Fp8Backend<Flex>, BalancedCheckpointing>>([4, 8, 32]);
    assert_eq!(inner.iter().map(formats).collect::<Vec<_>>(), NAMED);
}

/// The gradients of two linear layers with operations between them that a balanced checkpoint runs again, and the report.
fn network<B: AutodiffBackend>() -> (Vec<f32>, Vec<ProductReport>) {
    let mut random = Random(23);
    let layer = |random: &mut Random| Linear::<B> {
        weight: Param::from_tensor(tensor(&random.spread(32 * 32), [32, 32])),
        bias: Some(Param::from_tensor(tensor(&random.spread(32), [32]))),
    };
    let (first, second) = (layer(&mut random), layer(&mut random));
    let x = tensor::<B, 2>(&random.spread(16 * 32), [16, 32]).require_grad();
    let (grads, report) = trace(|| {
        let hidden = burn::tensor::activation::gelu(first.forward(x.clone() * 0.05 + 1.0));
        let hidden = second.forward(hidden.clone().tanh() * 0.5 + hidden.sin());
        hidden.clone().matmul(hidden.transpose()).powi_scalar(2).mean().backward()
    });
    let mut all = values(x.grad(&grads).unwrap());
    for layer in [first, second] {
        all.extend(values(layer.weight.grad(&grads).unwrap()));
        all.extend(values(layer.bias.unwrap().grad(&grads).unwrap()));
    }
    assert!(all.iter().all(|grad| grad.is_finite()) && all.iter().any(|grad| *grad != 0.0));
    (all, report.products)
}

#[test]
fn recomputing_changes_neither_gradients_nor_products() {
    let (expected, products) = network::<Fp8Backend<Autodiff<Flex>>>();
    assert_eq!(products.len(), 9);
    let balanced = network::<Fp8Backend<Autodiff<Flex, BalancedCheckpointing>>>();
    assert!(balanced == (expected, products), "gradients, shapes or scales differ");
    let (expected, products) = network::<Autodiff<Fp8Backend<Flex>>>();
    assert_eq!(products.len(), 9);
    let balanced = network::<Autodiff<Fp8Backend<Flex>, BalancedCheckpointing>>();
    assert!(balanced == (expected, products), "gradients, shapes or scales differ");
}

/// Output and gradients of `sum(linear(x) · dy)` by the formula of the golden file, in f64.
struct Expected {
    y: Exact,
    dx: Exact,
    dw: Exact,
    db: Exact,
}

fn expected(x: &[f32], w: &[f32], b: &[f32], dy: &[f32], [m, k, n]: [usize; 3]) -> Expected {
    let (qx, qw) =
        (reference::quantize_dequantize(x, E4M3), reference::quantize_dequantize(w, E4M3));
    let qdy = reference::quantize_dequantize(dy, E5M2);
    let dy: Vec<f64> = dy.iter().map(|dy| f64::from(*dy)).collect();
    Expected {
        y: Exact::product(&qx, &qw, [m, k, n]).plus_bias(b),
        dx: Exact::product(&qdy, &reference::transpose(&qw, [k, n]), [m, n, k]),
        dw: Exact::product(&reference::transpose(&qx, [m, k]), &qdy, [k, m, n]),
        db: Exact::product(&vec![1.0; m], &dy, [1, m, n]),
    }
}

/// Runs a linear layer on `x` of any rank in both orders and compares with the formula.
fn check_linear<B: AutodiffBackend, const D: usize>(lead: [usize; D]) {
    let (k, n) = (13, 7);
    let m = lead[..D - 1].iter().product();
    let mut random = Random(D as u64);
    let (x, w) = (random.spread(m * k), random.spread(k * n));
    let (b, dy) = (random.spread(n), random.spread(m * n));
    let mut dims = lead;
    dims[D - 1] = k;
    let mut out_dims = lead;
    out_dims[D - 1] = n;
    let input = tensor::<B, D>(&x, dims).require_grad();
    let linear = Linear::<B> {
        weight: Param::from_tensor(tensor(&w, [k, n])),
        bias: Some(Param::from_tensor(tensor(&b, [n]))),
    };
    let (y, grads) = every_matmul().scope(|| {
        let y = linear.forward(input.clone());
        let grads = (y.clone() * tensor(&dy, out_dims)).sum().backward();
        (y, grads)
    });
    let expected = expected(&x, &w, &b, &dy, [m, k, n]);
    let bias = linear.bias.as_ref().expect("made with a bias");
    expected.y.assert(&values(y), Sums::F32, "y");
    expected.dx.assert(&values(input.grad(&grads).unwrap()), Sums::F32, "dx");
    expected.dw.assert(&values(linear.weight.grad(&grads).unwrap()), Sums::F32, "dw");
    expected.db.assert(&values(bias.grad(&grads).unwrap()), Sums::F32, "db");
}

#[test]
fn linear_gradients_follow_the_formula_for_every_rank() {
    check_linear::<Outer<Flex>, 2>([5, 0]);
    check_linear::<Outer<Flex>, 3>([2, 5, 0]);
    check_linear::<Outer<Flex>, 4>([2, 3, 5, 0]);
    check_linear::<Inner<Flex>, 2>([5, 0]);
    check_linear::<Inner<Flex>, 3>([2, 5, 0]);
    check_linear::<Inner<Flex>, 4>([2, 3, 5, 0]);
}

#[test]
fn linear_gradients_follow_the_formula_with_balanced_checkpoints() {
    check_linear::<Fp8Backend<Autodiff<Flex, BalancedCheckpointing>>, 3>([2, 5, 0]);
    check_linear::<Autodiff<Fp8Backend<Flex>, BalancedCheckpointing>, 3>([2, 5, 0]);
}

#[cfg(feature = "ndarray")]
#[test]
fn linear_gradients_follow_the_formula_on_ndarray() {
    use burn::backend::NdArray;
    check_linear::<Outer<NdArray>, 3>([2, 5, 0]);
    check_linear::<Inner<NdArray>, 4>([2, 3, 5, 0]);
}

#[test]
fn a_weight_used_twice_sums_its_gradients() {
    type B = Outer<Flex>;
    let mut random = Random(7);
    let (m, k) = (6, 5);
    let (x, w, dy) = (random.spread(m * k), random.spread(k * k), random.spread(m * k));
    let weight = tensor::<B, 2>(&w, [k, k]).require_grad();
    let (first, second) = (tensor::<B, 2>(&x, [m, k]), tensor::<B, 2>(&dy, [m, k]));
    let grads = every_matmul().scope(|| {
        let product = first.clone().matmul(weight.clone()) + second.clone().matmul(weight.clone());
        product.sum().backward()
    });
    let ones = vec![1.0; m * k];
    let a = expected(&x, &w, &vec![0.0; k], &ones, [m, k, k]).dw;
    let b = expected(&dy, &w, &vec![0.0; k], &ones, [m, k, k]).dw;
    a.plus(&b).assert(&values(weight.grad(&grads).unwrap()), Sums::F32, "dw");
}

/// The roles that run where one operand is frozen.
fn roles_with_frozen<B: AutodiffBackend>(freeze_input: bool) -> Vec<GemmRole> {
    let device: <B as burn::tensor::backend::BackendTypes>::Device = Default::default();
    let track =
        |tensor: Tensor<B, 2>, frozen: bool| if frozen { tensor } else { tensor.require_grad() };
    let x = Tensor::<B, 2>::random([16, 32], Distribution::Default, &device);
    let w = Tensor::<B, 2>::random([32, 24], Distribution::Default, &device);
    let (x, w) = (track(x, freeze_input), track(w, !freeze_input));
    let linear = |x: Tensor<B, 2>, w: Tensor<B, 2>| burn::tensor::module::linear(x, w, None);
    let (grads, report) = trace(|| linear(x.clone(), w.clone()).sum().backward());
    assert_eq!(x.grad(&grads).is_none(), freeze_input);
    assert_eq!(w.grad(&grads).is_none(), !freeze_input);
    report.products.iter().map(|product| product.role).collect()
}

#[test]
fn frozen_operands_cost_no_gradient() {
    let input_frozen = [GemmRole::Output, GemmRole::GradWeight];
    let weight_frozen = [GemmRole::Output, GemmRole::GradInput];
    assert_eq!(roles_with_frozen::<Outer<Flex>>(true), input_frozen);
    assert_eq!(roles_with_frozen::<Outer<Flex>>(false), weight_frozen);
    assert_eq!(roles_with_frozen::<Inner<Flex>>(true), input_frozen);
    assert_eq!(roles_with_frozen::<Inner<Flex>>(false), weight_frozen);
}

#[test]
fn a_bias_alone_costs_no_product() {
    type B = Outer<Flex>;
    let device = Default::default();
    let x = Tensor::<B, 2>::random([16, 32], Distribution::Default, &device);
    let w = Tensor::<B, 2>::random([32, 24], Distribution::Default, &device);
    let b = Tensor::<B, 1>::zeros([24], &device).require_grad();
    let linear = || burn::tensor::module::linear(x.clone(), w.clone(), Some(b.clone()));
    let (grads, report) = trace(|| linear().sum().backward());
    assert_eq!(report.products.len(), 1, "{report}");
    assert_eq!(values(b.grad(&grads).unwrap()), [16.0; 24]);
}

#[test]
fn a_product_with_itself_sums_both_gradients() {
    type B = Outer<Flex>;
    let (k, mut random) = (5, Random(29));
    let x = random.spread(k * k);
    let tracked = tensor::<B, 2>(&x, [k, k]).require_grad();
    let grads = every_matmul().scope(|| tracked.clone().matmul(tracked.clone()).sum().backward());
    let expected = expected(&x, &x, &vec![0.0; k], &vec![1.0; k * k], [k, k, k]);
    let sum = expected.dx.plus(&expected.dw);
    sum.assert(&values(tracked.grad(&grads).unwrap()), Sums::F32, "dx");
}

#[test]
fn nothing_tracked_runs_the_forward_product_alone() {
    type B = Outer<Flex>;
    let x = Tensor::<B, 2>::ones([16, 16], &Default::default());
    let (y, report) = trace(|| x.clone().matmul(x));
    assert!(!y.is_require_grad());
    assert_eq!(report.products.len(), 1);
}

#[test]
fn the_inner_backend_runs_in_fp8_as_well() {
    fn inner_of<B: AutodiffBackend>() -> usize {
        let x = Tensor::<B::InnerBackend, 2>::ones([16, 16], &Default::default());
        trace(|| x.clone().matmul(x)).1.fp8().count()
    }
    assert_eq!(inner_of::<Outer<Flex>>(), 1);
    assert_eq!(inner_of::<Inner<Flex>>(), 1);
    assert_eq!(Fp8Backend::<Autodiff<Flex>>::name(&Default::default()), "fp8<autodiff<flex>>");
}

#[test]
#[should_panic(expected = "FP8 products have no second derivative")]
fn second_derivatives_are_refused_rather_than_lost() {
    type Twice = Fp8Backend<Autodiff<Autodiff<Flex>>>;
    let device = Default::default();
    let x = Tensor::<Autodiff<Flex>, 2>::ones([16, 16], &device).require_grad();
    let x = Tensor::<Twice, 2>::from_primitive(burn::tensor::TensorPrimitive::Float(
        <Autodiff<Autodiff<Flex>> as AutodiffBackend>::from_inner(x.into_primitive().tensor()),
    ));
    let _ = x.clone().require_grad().matmul(x);
}
