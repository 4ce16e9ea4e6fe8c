//! Flex on the matrix unit of the CPU and without one: what runs products, what says so, and that both give the same results.

use burn::tensor::Distribution;

use burn_fp8::cpu::Unit;

use crate::common::*;

type B = Outer<Flex>;

fn random<const D: usize>(shape: [usize; D]) -> Tensor<B, D> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Default::default())
}

/// Results that must be those of emulation but for the order of sums, with what ran their products.
fn results(x: &Tensor<B, 3>, w: &Tensor<B, 2>, attention: &Tensor<B, 4>) -> (Vec<f32>, Report) {
    trace(|| {
        let mut all = Vec::new();
        let whole = [Recipe::current(), Recipe::rowwise()];
        let divided = Recipe::blockwise().with_power_of_two(false);
        let in_blocks = [Recipe::mxfp8(), Recipe::blockwise(), divided];
        let types = [FloatDType::F32, FloatDType::BF16, FloatDType::F16];
        // In bf16 a gradient that is rounded otherwise may give a block another scale, and all of its codes other roundings.
        let in_f32 = in_blocks.map(|recipe| (recipe, FloatDType::F32));
        let cases = whole.into_iter().flat_map(|recipe| types.map(|dtype| (recipe, dtype)));
        for (recipe, dtype) in cases.chain(in_f32) {
            every_matmul().with_recipe(recipe).scope(|| {
                let x = x.clone().cast(dtype).require_grad();
                let w = w.clone().cast(dtype).require_grad();
                let layer = linear(w, None);
                let y = layer.forward(x.clone());
                let heads = attention.clone().cast(dtype);
                // Views that neither rows nor columns of which lie in order: heads behind positions.
                let (q, k) = (heads.clone().swap_dims(1, 2), heads.swap_dims(1, 2));
                let scores = q.matmul(k.transpose());
                let grads = (y.clone() * y.clone()).sum().backward();
                assert_eq!(y.dtype(), DType::from(dtype));
                all.extend([values(y), values(scores)].concat());
                all.extend([grad(&x, &grads), grad(&layer.weight.val(), &grads)].concat());
            });
        }
        all
    })
}

/// A bias that is added inside a product gives the bits of one that is added to it.
#[test]
fn a_bias_is_added_to_the_product() {
    let (x, w, bias) = (random([3, 37, 70]), random([70, 50]), random([50]));
    let linear =
        |bias: Option<Tensor<B, 1>>| burn::tensor::module::linear(x.clone(), w.clone(), bias);
    every_matmul().scope(|| {
        let added = linear(None) + bias.clone().unsqueeze();
        assert_eq!(bits(&values(linear(Some(bias.clone())))), bits(&values(added)));
        // Burn broadcasts one number.
        let one = bias.clone().narrow(0, 0, 1);
        let added = linear(None) + one.clone().unsqueeze();
        assert_eq!(bits(&values(linear(Some(one)))), bits(&values(added)));
    });
}

#[test]
fn products_run_on_the_unit_or_without_one_with_the_same_results() {
    alone(compare_units);
}

/// A name of no unit in the variable: an error before the first product, in one line.
#[test]
fn the_variable_is_checked_before_products_run() {
    with_variable("BURN_FP8_CPU_UNIT", "tpu", || {
        let device = Default::default();
        let error = Fp8Config::default().check::<Autodiff<Flex>>(&device).unwrap_err().to_string();
        let capability = Fp8Backend::<Flex>::capability(&device).to_string();
        let reason = "BURN_FP8_CPU_UNIT: \"tpu\" is no unit; this machine has ";
        says(capability, [&format!("unusable: {reason}")]);
        let backend = "backend `autodiff<flex>` cannot be used on this device";
        says(&error, [&format!("{backend}: {reason}")]);
        refused(Fp8Config::default().measured::<B>(&device), ["BURN_FP8_CPU_UNIT: \"tpu\""]);
        assert_eq!(panic_of(|| random([16, 16]).matmul(random([16, 16]))), error);
    });
}

fn compare_units() {
    let device = Default::default();
    // A sum in another order may give another code, one in a few hundred runs: the same numbers each time.
    B::seed(&device, 7);
    let (x, w) = (random([3, 37, 70]), random([70, 50]));
    let heads = random([2, 19, 3, 24]);
    let (weight, input) = (random([64, 48]).inner(), random([5, 64]).inner());
    let frozen = FrozenLinear::from_weight(weight, None, ActivationScale::Current).expect("good");
    let native = Fp8Config::default().with_execution(Execution::Native);
    let emulated = Fp8Config::default().with_execution(Execution::FakeQuantized);

    Unit::force(Some(Unit::Portable)).expect("everywhere");
    let error = native.check::<Autodiff<Flex>>(&device).unwrap_err();
    assert!(matches!(error, Fp8Error::NativeUnavailable { .. }));
    let message = error.to_string();
    says(&message, ["`autodiff<flex>`", "Execution::Auto"]);
    let two = || (random([16, 16]), random([16, 16]));
    assert_eq!(panic_of(|| native.scope(|| two().0.matmul(two().1))), message);
    assert!(!Fp8Backend::<Flex>::capability(&device).is_native());
    let (expected, report) = results(&x, &w, &heads);
    assert!(report.fp8().count() >= 24, "{report}");
    assert!(report.fp8().all(|product| product.ran == Implementation::FakeQuantized), "{report}");
    let served = values(frozen.forward(input.clone()));

    let units = Unit::available();
    println!("units: {units:?}");
    for unit in units.into_iter().filter(|unit| *unit != Unit::Portable) {
        Unit::force(Some(unit)).expect("available");
        let Capability::MatrixUnit(capability) = Fp8Backend::<Flex>::capability(&device) else {
            panic!("{unit} is no matrix unit");
        };
        let ran = Implementation::MatrixUnit(capability.name);
        assert!(capability.name == unit.to_string() && ran.to_string().contains(capability.name));
        native.check::<Flex>(&device).expect("there is a unit");
        native.scope(|| drop(two().0.matmul(two().1)));

        let (on_unit, report) = results(&x, &w, &heads);
        assert!(report.fp8().all(|product| product.ran == ran), "{report}");
        assert!(report.to_string().contains(&format!("native: {unit}")), "{report}");
        assert_eq!(on_unit.len(), expected.len());
        let largest = fp8::amax(&expected);
        for (index, (x, y)) in on_unit.iter().zip(&expected).enumerate() {
            // Results in bf16 differ by a unit in their last place where sums differ by less; and so do the codes made of them.
            let tolerance = 0.02 * (y.abs() + 0.002 * largest);
            assert!((x - y).abs() <= tolerance, "{unit}: [{index}] is {x}, emulated {y}");
        }
        let answers = values(frozen.forward(input.clone()));
        for (x, y) in answers.iter().zip(&served) {
            assert!((x - y).abs() <= 1e-5 * (1.0 + y.abs()), "{unit}: {x}, emulated {y}");
        }
        let (off, report) = emulated.scope(|| trace(|| frozen.forward(input.clone())));
        assert_eq!(report.products[0].ran, Implementation::FakeQuantized);
        assert_eq!(values(off), served);

        let tensor = |rows| Fp8Tensor::quantize(random([rows, 32]).inner(), Fp8Format::E4M3);
        let (a, b) = (tensor(7), tensor(9));
        let options = ScaledMatmulOptions::default();
        let multiply = || scaled_matmul(&a, &b.transpose(), &options).expect("good").into_float();
        let (ours, report) = trace(multiply);
        assert_eq!(report.products[0].ran, ran);
        let theirs = emulated.scope(multiply);
        for (x, y) in values(ours).iter().zip(values(theirs)) {
            assert!((x - y).abs() <= 0.01 * (1.0 + y.abs()), "{unit}: {x}, emulated {y}");
        }
    }
}
