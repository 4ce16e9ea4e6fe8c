//! Optimizers with moments in FP8: the same codes on every backend, close to Burn's AdamW, their records.

use burn::backend::NdArray;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::SimpleOptimizer;
use burn::record::{HalfPrecisionSettings, Record};
use burn::tensor::Bool;
use burn_fp8::engine::Fp8Engine;
use burn_fp8_train::{
    Moments8, Moments8Config, Moments8Item, Moments8State, Rule, Second, from_adamw,
};

use crate::common::*;

const SHAPE: [usize; 2] = [65, 100];

/// Numbers that are up to 2^18 apart, others for each `seed`: those that the chapter on the optimizer's memory tells of.
fn numbers<A: Backend>(seed: usize) -> Tensor<A, 2> {
    let number = |i: usize| {
        let hash = (i + 7919 * seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
        let exponent = (hash % 19) as f32 - 9.0;
        ((hash >> 5) as f32 / (1 << 18) as f32 - 1.0) * exponent.exp2()
    };
    tensor(&(0..SHAPE[0] * SHAPE[1]).map(number).collect::<Vec<_>>(), SHAPE)
}

type Stepped<A> = (Tensor<A, 2>, Option<Moments8State<A>>);

fn steps<A: Fp8Engine>(
    optimizer: &Moments8,
    count: usize,
    mut state: Option<Moments8State<A>>,
) -> Stepped<A> {
    let mut parameter = numbers(0);
    for step in 1..=count {
        // A view, as gradients of weights can be.
        let grad = numbers(step).swap_dims(0, 1).swap_dims(0, 1);
        (parameter, state) = optimizer.step(1e-2, parameter, grad, state);
    }
    (parameter, state)
}

fn item<A: Fp8Engine>(state: Option<Moments8State<A>>) -> Moments8Item {
    state.expect("there was a step").into_item::<HalfPrecisionSettings>()
}

fn configs() -> Vec<Moments8Config> {
    let seconds = [Second::Root(Fp8Format::E4M3), Second::Square(Fp8Format::E5M2)];
    let of_rules = [
        Moments8Config::adam().with_weight_decay(0.01),
        Moments8Config::adamw(),
        Moments8Config::lion(),
    ];
    of_rules
        .into_iter()
        .flat_map(|config| seconds.map(|second| config.clone().with_second(second).with_block(128)))
        .collect()
}

#[test]
fn one_pass_gives_the_codes_of_tensor_operations() {
    for config in configs() {
        let optimizer = config.build();
        let (fused, of_fused) = steps::<Flex>(&optimizer, 5, None);
        let (operations, of_operations) = steps::<NdArray>(&optimizer, 5, None);
        assert_eq!(fused.into_data(), operations.into_data(), "{config}");
        let [fused, operations] =
            [format!("{:?}", item(of_fused)), format!("{:?}", item(of_operations))];
        assert_eq!(fused, operations, "{config}");
        // With a seed both go through the same pass.
        let optimizer = config.with_seed(Some(3)).build();
        let (fused, _) = steps::<Flex>(&optimizer, 3, None);
        assert_eq!(fused.into_data(), steps::<NdArray>(&optimizer, 3, None).0.into_data());
    }
}

/// How far parameters are from those of Burn's AdamW after 20 steps, as a part of the way that they went.
fn away_from_adamw(config: &Moments8Config, rows: usize) -> f32 {
    let adamw = AdamWConfig::new().with_weight_decay(0.1).build();
    let part = |seed| numbers::<Flex>(seed).narrow(0, 0, rows);
    let (mut ours, mut theirs) = (part(0), part(0));
    let (mut of_ours, mut of_theirs) = (None, None);
    let start = ours.clone();
    for step in 1..=20 {
        (ours, of_ours) = config.build().step(1e-2, ours, part(step), of_ours);
        (theirs, of_theirs) = adamw.step(1e-2, theirs, part(step), of_theirs);
    }
    let norm = |x: Tensor<Flex, 2>| x.powi_scalar(2).sum().sqrt().into_scalar();
    norm(ours - theirs.clone()) / norm(theirs - start)
}

#[test]
fn parameters_move_as_with_burns_adamw() {
    let config = Moments8Config::adamw().with_weight_decay(0.1);
    // 800 elements keep f32; 6,500 have codes.
    let (full, in_fp8) = (away_from_adamw(&config, 8), away_from_adamw(&config, SHAPE[0]));
    assert!(full < 1e-5, "{full}");
    assert!((1e-4..0.02).contains(&in_fp8), "{in_fp8}");
    // The default is nearer than what other libraries keep.
    for square in [Second::Square(E4M3), Second::Square(E5M2)] {
        let other = away_from_adamw(&config.clone().with_second(square), SHAPE[0]);
        println!("root {in_fp8}, {square:?} {other}");
        assert!(in_fp8 < other, "{square:?}: {other}, root: {in_fp8}");
    }
}

#[test]
fn state_takes_a_quarter() {
    let elements = 512 * 2048;
    let state = |config: Moments8Config| {
        let ones = || Tensor::<Flex, 2>::ones([512, 2048], &Default::default());
        config.build().step(0.1, ones(), ones(), None).1.expect("there was a step").bytes_held()
    };
    assert_eq!(state(Moments8Config::adamw()), 2 * (elements + 4 * elements / 256));
    assert_eq!(state(Moments8Config::adamw().with_block(128)), 2 * (elements + 4 * elements / 128));
    assert_eq!(state(Moments8Config::lion()), elements + 4 * elements / 256);
    assert!((state(Moments8Config::adamw()) as f64) <= 0.27 * (8 * elements) as f64);
}

#[test]
fn a_record_continues_where_it_was_written() {
    type Model = Linear<B>;
    type B = Fp8Backend<Autodiff<Flex>>;
    let device = Default::default();
    let config =
        Moments8Config::adamw().with_grad_clipping(Some(GradientClippingConfig::Norm(1.0)));
    let start: Model = LinearConfig::new(64, 80).init(&device);
    let grads = |model: &Model| {
        let x = Tensor::<B, 2>::ones([16, 64], &device);
        GradientsParams::from_grads(model.forward(x).powi_scalar(2).mean().backward(), model)
    };
    let mut optimizer = Fp8Optimizer::new(config.init::<B, Model>());
    let mut model = start;
    for _ in 0..3 {
        let grads = grads(&model);
        model = optimizer.step(1e-2, model, grads);
    }
    // Half precision is that of the recorder, not of moments.
    let recorder = BinBytesRecorder::<HalfPrecisionSettings>::default();
    let bytes = recorder.record(optimizer.to_record(), ()).unwrap();
    let loaded = recorder.load(bytes, &device).unwrap();
    let mut resumed = Fp8Optimizer::new(config.init::<B, Model>()).load_record(loaded);
    let (mut first, mut second) = (model.clone(), model);
    for _ in 0..2 {
        let [of_first, of_second] = [grads(&first), grads(&second)];
        first = optimizer.step(1e-2, first, of_first);
        second = resumed.step(1e-2, second, of_second);
    }
    assert_eq!(first.weight.val().into_data(), second.weight.val().into_data());
    assert_eq!(first.bias.unwrap().val().into_data(), second.bias.unwrap().val().into_data());
}

#[test]
fn a_record_of_other_blocks_is_converted() {
    let [from, to] = [128, 256].map(|block| Moments8Config::adamw().with_block(block).build());
    let (_, state) = steps::<Flex>(&from, 4, None);
    let (expected, _) = steps::<Flex>(&from, 1, state.clone());
    let (parameter, state) = steps::<Flex>(&to, 1, state);
    let change = (parameter - expected).abs().mean().into_scalar();
    assert!(change < 1e-3, "{change}");
    assert!(format!("{:?}", item(state)).contains("block: 256"));
}

#[test]
fn a_record_of_adamw_goes_on_in_fp8() {
    type A = Autodiff<Flex>;
    type Model = Linear<A>;
    let device = Default::default();
    let grads = |model: &Model| {
        let x = Tensor::<A, 2>::ones([16, 64], &device);
        GradientsParams::from_grads(model.forward(x).powi_scalar(2).mean().backward(), model)
    };
    let adamw = AdamWConfig::new();
    let mut full = adamw.init::<A, Model>();
    let mut model: Model = LinearConfig::new(64, 80).init(&device);
    for _ in 0..3 {
        let grads = grads(&model);
        model = full.step(1e-2, model, grads);
    }
    let records = from_adamw::<Model, A>(full.to_record()).unwrap();
    let mut ours = Moments8Config::adamw().init::<A, Model>().load_record(records);
    let start = model.weight.val();
    let (of_full, of_ours) = (grads(&model), grads(&model));
    let expected = full.step(1e-2, model.clone(), of_full).weight.val();
    let found = ours.step(1e-2, model, of_ours).weight.val();
    let largest = |x: Tensor<A, 2>| x.abs().max().into_scalar();
    let moved = largest(expected.clone() - start);
    // Decoded from codes of the third step: the parameter moves as far to a few percent.
    assert!(largest(found - expected) < 0.1 * moved);

    let mut amsgrad = adamw.with_amsgrad(true).init::<A, Model>();
    let model: Model = LinearConfig::new(4, 4).init(&device);
    let x = Tensor::<A, 2>::ones([2, 4], &device);
    let of_model = GradientsParams::from_grads(model.forward(x).sum().backward(), &model);
    amsgrad.step(1e-2, model, of_model);
    refused(from_adamw::<Model, A>(amsgrad.to_record()), ["AMSGrad"]);
}

#[test]
fn a_damaged_record_is_refused() {
    let (_, state) = steps::<Flex>(&Moments8Config::adamw().build(), 1, None);
    let good = serde_json::to_value(item(state)).unwrap();
    let read = |value| serde_json::from_value::<Moments8Item>(value);
    assert!(read(good.clone()).is_ok());
    type Damage = fn(&mut serde_json::Value);
    let damages: [(Damage, &str); 5] = [
        (|fields| fields["block"] = 0.into(), "blocks of 0"),
        (|fields| fields["block"] = 64.into(), "6500 codes and 26 scales of blocks of 64"),
        (|fields| fields["scales"][3] = (-1.0).into(), "must be a finite, positive number"),
        (|fields| fields["scales"].as_array_mut().unwrap().clear(), "0 scales"),
        (|fields| fields["root"] = true.into(), "a first moment is said to be kept as its root"),
    ];
    for (damage, expected) in damages {
        let mut value = good.clone();
        damage(&mut value["first"]["Fp8"]);
        refused(read(value), [expected]);
    }
}

#[test]
fn the_state_of_another_parameter_or_rule_is_refused() {
    let (adamw, lion) = (Moments8Config::adamw().build(), Moments8Config::lion().build());
    let words = ["the record belongs to another model or optimizer"];
    let (_, state) = steps::<Flex>(&adamw, 1, None);
    let ones = Tensor::<Flex, 1>::ones([5000], &Default::default());
    panics(|| adamw.step(0.1, ones.clone(), ones, state), words);
    let (_, state) = steps::<Flex>(&lion, 1, None);
    panics(|| steps::<Flex>(&adamw, 1, state), words);
}

#[test]
fn a_gradient_that_is_not_a_number_stays_in_its_element() {
    for optimizer in [Moments8Config::adamw().build(), Moments8Config::lion().build()] {
        let ones = || Tensor::<Flex, 1>::ones([5000], &Default::default());
        let mask = Tensor::<Flex, 1, Bool>::from_data(
            TensorData::new((0..5000).map(|i| i == 77).collect::<Vec<bool>>(), [5000]),
            &Default::default(),
        );
        let (mut parameter, mut state) = (ones(), None);
        for grad in [ones().mask_fill(mask, f32::NAN), ones(), ones()] {
            (parameter, state) = optimizer.step(0.1, parameter, grad, state);
        }
        let lost = parameter.is_nan().int().sum().into_scalar();
        assert_eq!(lost, 1);
    }
}

#[test]
fn parameters_of_other_types_and_without_elements() {
    let device = Default::default();
    let half = Tensor::<Flex, 1>::ones([5000], &device).cast(FloatDType::BF16);
    let optimizer = Moments8Config::adamw().build();
    let (stepped, _) = optimizer.step(0.5, half.clone(), half, None);
    assert_eq!(stepped.dtype(), DType::BF16);
    let change = (stepped.cast(FloatDType::F32) - 1.0).abs().max().into_scalar();
    assert!((0.49..0.51).contains(&change), "{change}");

    // Each step changes a parameter by an eighth of the distance of two numbers: rounded to the nearest one it never moves, at random it moves by as much in the mean.
    let moved = |config: Moments8Config| {
        let optimizer = config.with_weight_decay(0.0).build();
        let mut parameter = Tensor::<Flex, 1>::full([50_000], 1.5, &device).cast(FloatDType::BF16);
        let (grad, mut state) = (Tensor::<Flex, 1>::ones([50_000], &device), None);
        for _ in 0..32 {
            (parameter, state) = optimizer.step(1.0 / 1024.0, parameter, grad.clone(), state);
        }
        1.5 - parameter.cast(FloatDType::F32).mean().into_scalar()
    };
    assert_eq!(moved(Moments8Config::adamw()), 0.0);
    let moved = moved(Moments8Config::adamw().with_seed(Some(1)));
    assert!((moved - 32.0 / 1024.0).abs() < 32.0 / 1024.0 * 0.01, "{moved}");

    let none = Tensor::<Flex, 2>::zeros([0, 4], &device);
    assert_eq!(optimizer.step(0.5, none.clone(), none, None).0.dims(), [0, 4]);
}

#[test]
fn numbers_that_no_optimizer_has_are_refused() {
    let adamw = Moments8Config::adamw;
    for (config, expected) in [
        (adamw().with_block(0), "a block has 0 elements"),
        (adamw().with_block(257), "a block has 257 elements"),
        (adamw().with_betas([0.9, 1.0]), "a beta is 1"),
        (adamw().with_epsilon(f64::NAN), "epsilon is NaN"),
    ] {
        panics(|| config.build(), [expected]);
    }
    assert_eq!(Moments8Config::lion().rule, Rule::Lion);
}
