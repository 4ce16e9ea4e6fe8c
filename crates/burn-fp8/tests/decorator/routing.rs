//! Which format each operand of each product uses, in both orders, and that gradients follow the explicit formula.

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::tensor::TensorPrimitive;
use burn::tensor::module::linear;

use burn_fp8::report::{OperandReport, ProductReport};

use crate::common::*;

fn formats(product: &ProductReport) -> (GemmRole, Fp8Format, Fp8Format) {
    let emulated = Implementation::FakeQuantized;
    assert!([implementation::<Flex>(), emulated].contains(&product.ran), "{}", product.ran);
    let format = |operand: Option<OperandReport>| operand.expect("in FP8").format;
    (product.role, format(product.lhs), format(product.rhs))
}

const NAMED: [(GemmRole, Fp8Format, Fp8Format); 3] = [
    (GemmRole::Output, E4M3, E4M3),
    (GemmRole::GradInput, E5M2, E4M3),
    (GemmRole::GradWeight, E4M3, E5M2),
];

fn linear_step<B: AutodiffBackend>(x_dims: [usize; 3]) -> Vec<ProductReport> {
    let x = Tensor::<B, 3>::ones(x_dims, &Default::default()).require_grad();
    let linear = LinearConfig::new(x_dims[2], 24).init::<B>(&Default::default());
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
        Fp8Config::off(),
    ] {
        for message in [
            config.scope(|| panic_of(multiply::<Fp8Backend<Flex>>)),
            config.scope(|| panic_of(multiply::<Outer<Flex>>)),
            config.scope(|| panic_of(multiply::<Inner<Flex>>)),
        ] {
            says(message, ["[2, 16, 16] and [3, 16, 16] do not multiply"]);
        }
    }
}

fn matmul_step<B: AutodiffBackend>() -> Vec<ProductReport> {
    let ones = [&[1.0; 16 * 32][..], &[1.0; 32 * 24], &[1.0; 16 * 24]];
    trace(|| matrix_step::<B>(ones, [16, 32, 24])).1.products
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

#[test]
fn a_weight_used_twice_sums_its_gradients() {
    let mut random = Random(7);
    let (m, k) = (6, 5);
    let [x, w, other] = [m * k, k * k, m * k].map(|count| random.spread(count));
    let weight = tensor::<Outer<Flex>, 2>(&w, [k, k]).require_grad();
    let [first, second] = [&x, &other].map(|x| tensor::<Outer<Flex>, 2>(x, [m, k]));
    let grads = every_matmul().scope(|| {
        let product = first.matmul(weight.clone()) + second.matmul(weight.clone());
        product.sum().backward()
    });
    let [a, b] = [&x, &other].map(|x| {
        let [_, _, dw] = exact_step_under(Recipe::current(), [x, &w, &vec![1.0; m * k]], [m, k, k]);
        dw
    });
    a.plus(&b).assert(&values(weight.grad(&grads).unwrap()), Sums::F32, "dw");
}

/// The roles that run where one operand is frozen.
fn roles_with_frozen<B: AutodiffBackend>(freeze_input: bool) -> Vec<GemmRole> {
    let operand = |shape: [usize; 2], is_frozen: bool| {
        let ones = Tensor::<B, 2>::ones(shape, &Default::default());
        if is_frozen { ones } else { ones.require_grad() }
    };
    let (x, w) = (operand([16, 32], freeze_input), operand([32, 24], !freeze_input));
    let (grads, report) = trace(|| linear(x.clone(), w.clone(), None).sum().backward());
    assert_eq!(x.grad(&grads).is_none(), freeze_input);
    assert_eq!(w.grad(&grads).is_none(), !freeze_input);
    report.products.iter().map(|product| product.role).collect()
}

#[test]
fn frozen_operands_cost_no_gradient() {
    for (freeze_input, role) in [(true, GemmRole::GradWeight), (false, GemmRole::GradInput)] {
        assert_eq!(roles_with_frozen::<Outer<Flex>>(freeze_input), [GemmRole::Output, role]);
        assert_eq!(roles_with_frozen::<Inner<Flex>>(freeze_input), [GemmRole::Output, role]);
    }
}

#[test]
fn a_bias_alone_costs_no_product() {
    let device = Default::default();
    let [x, w] = [[16, 32], [32, 24]].map(|shape| Tensor::<Outer<Flex>, 2>::ones(shape, &device));
    let b = Tensor::<Outer<Flex>, 1>::zeros([24], &device).require_grad();
    let (grads, report) = trace(|| linear(x, w, Some(b.clone())).sum().backward());
    assert_eq!(report.products.len(), 1, "{report}");
    assert_eq!(values(b.grad(&grads).unwrap()), [16.0; 24]);
}

#[test]
fn a_product_with_itself_sums_both_gradients() {
    let k = 5;
    let x = Random(29).spread(k * k);
    let tracked = tensor::<Outer<Flex>, 2>(&x, [k, k]).require_grad();
    let grads = every_matmul().scope(|| tracked.clone().matmul(tracked.clone()).sum().backward());
    let [_, dx, dw] = exact_step_under(Recipe::current(), [&x, &x, &vec![1.0; k * k]], [k, k, k]);
    dx.plus(&dw).assert(&values(tracked.grad(&grads).unwrap()), Sums::F32, "dx");
}

#[test]
fn nothing_tracked_runs_the_forward_product_alone() {
    let x = Tensor::<Outer<Flex>, 2>::ones([16, 16], &Default::default());
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
    let x = Tensor::<Twice, 2>::from_primitive(TensorPrimitive::Float(
        <Autodiff<Autodiff<Flex>> as AutodiffBackend>::from_inner(x.into_primitive().tensor()),
    ));
    let _ = x.clone().require_grad().matmul(x);
}
