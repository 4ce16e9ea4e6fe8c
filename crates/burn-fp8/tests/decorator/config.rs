//! The filter at its edges, traces, and configurations in files.

use burn::tensor::module;
use burn_fp8::burn_fp8_core::Rejection;
use burn_fp8::{AmaxChoice, AttentionPrecision, Gains, ProductInfo};

use crate::common::*;

type B = Fp8Backend<Flex>;

fn product<B: Backend>([m, k, n]: [usize; 3]) -> Tensor<B, 2> {
    ones::<B, 2>([m, k]).matmul(ones([k, n]))
}

/// What ran the one product of a function.
fn ran<R>(f: impl FnOnce() -> R) -> Implementation {
    let [product] = &trace(f).1.products[..] else { panic!("one product") };
    product.ran.clone()
}

fn left_alone(rejection: Rejection) -> Implementation {
    Implementation::HighPrecision(HighPrecision::Filter(rejection))
}

/// The rules themselves are tested in `burn-fp8-core`.
#[test]
fn the_filter_is_asked_and_the_trace_has_its_answer() {
    let plain = |size| ran(|| product::<B>(size));
    let linear = |lead: [usize; 2]| {
        ran(|| module::linear(ones::<B, 3>([lead[0], lead[1], 16]), ones([16, 16]), None))
    };
    let batched = || ran(|| ones::<B, 3>([2, 16, 16]).matmul(ones([2, 16, 16])));
    let taken = implementation::<Flex>();
    let small = |dimension, minimum| {
        left_alone(Rejection::TooSmall { dimension, size: minimum - 1, minimum })
    };
    assert_eq!([plain([16; 3]), plain([17; 3]), linear([4, 4])], [(); 3].map(|()| taken.clone()));
    for (size, dimension) in [([15, 16, 16], 'M'), ([16, 15, 16], 'K'), ([16, 16, 15], 'N')] {
        assert_eq!(plain(size), small(dimension, 16));
    }
    assert_eq!(linear([3, 5]), small('M', 16), "leading dimensions are rows");
    assert_eq!(batched(), left_alone(Rejection::Batched));
    let under = |filter| Fp8Config::default().with_filter(filter);
    assert_eq!(under(Filter::default().with_batched(true)).scope(batched), taken);
    let linear_only = || under(Filter::linear_only()).scope(|| plain([16; 3]));
    assert_eq!(linear_only(), left_alone(Rejection::LinearOnly));
}

/// A list is no configuration, wherever one is read, though serde would take it for its fields, and an empty one for the default.
#[test]
fn lists_are_refused() {
    for json in ["[]", "[true]", "[true, {}, {}]", r#"{"filter": []}"#, r#"{"filter": [1, 2, 3]}"#]
    {
        refused(
            Fp8Config::from_json(json),
            ["invalid type: sequence, expected an object at line 1"],
        );
        let field = format!(r#"{{"fp8": {json}}}"#);
        let read = serde_json::from_str::<std::collections::BTreeMap<String, Fp8Config>>(&field);
        refused(read, ["invalid type: sequence, expected an object"]);
    }
    assert_eq!(Fp8Config::from_json("{}").expect("all defaults"), Fp8Config::default());
    for json in ["", "{", "{}{}", "null", "3", "\"delayed\""] {
        assert!(Fp8Config::from_json(json).is_err(), "{json}");
    }
}

/// A product whose gradients are asked for goes by the gain of all three, another one by its own.
#[test]
fn products_that_gain_nothing_stay_in_high_precision() {
    // From 32 to 64 the gain grows, without gradients from 90% to 110%, with them from 110% to 130%.
    let gains = |low: u32, high: u32| [vec![low; 4], vec![high; 4]].concat();
    let table = Gains::new("made up".into(), vec![32, 64], gains(90, 110), gains(110, 130));
    let filter = Filter::default().with_gains(table.expect("a table"));
    let config = Fp8Config::default().with_filter(filter);
    let saved = Fp8Config::from_json(&config.to_json()).expect("it was written");
    assert_eq!(saved, config);
    let slower = left_alone(Rejection::NoGain { percent: 90 });
    for (tracked, size, expected) in [
        (false, 32, slower),
        (true, 32, implementation::<Flex>()),
        (false, 64, implementation::<Flex>()),
        (true, 128, implementation::<Flex>()),
    ] {
        let x = ones::<Outer<Flex>, 2>([size, size]).set_require_grad(tracked);
        assert_eq!(saved.scope(|| ran(|| x.clone().matmul(x))), expected, "{tracked} {size}");
    }
    let short = config.to_json().replacen("90,", "", 1);
    refused(Fp8Config::from_json(&short), ["forward has 7 numbers; it must have 8"]);
}

#[test]
fn attention_stays_on_the_backend_unless_batches_are_taken() {
    let attention = |batch: [usize; 2]| -> Report {
        let x = ones::<B, 4>([batch[0], batch[1], 16, 32]);
        let options = Default::default();
        trace(|| module::attention(x.clone(), x.clone(), x, None, None, options)).1
    };
    let apart = Fp8Config::default().with_fused(false);
    let report = apart.scope(|| attention([2, 3]));
    let batched = HighPrecision::Filter(Rejection::Batched);
    assert_eq!(report.products.len(), 2);
    assert!(report.high_precision().all(|(product, reason)| {
        product.kind == ProductKind::Attention && product.gemm.batch == 6 && reason == batched
    }));
    // By default it is one operation, with FP8 off that of the backend.
    let as_one = HighPrecision::Attention(AttentionPrecision::High);
    assert_eq!(reasons(&attention([2, 3])), [as_one; 2]);
    assert_eq!(reasons(&high_precision(|| attention([2, 3]))), [HighPrecision::Off; 2]);
    // One pair of matrices is a batch as well.
    assert_eq!(attention([1, 1]).fp8().count(), 0);
    let every = every_matmul();
    assert_eq!(every.scope(|| attention([1, 1])).fp8().count(), 2);
    let report = every.scope(|| attention([2, 3]));
    let kinds: Vec<_> = report.fp8().map(|product| (product.kind, product.gemm.n)).collect();
    assert_eq!(kinds, [(ProductKind::Attention, 16), (ProductKind::Attention, 32)]);
    // A predicate sees what the products are part of.
    let is_no_attention = |product: &ProductInfo| product.kind != ProductKind::Attention;
    let report = every.scope_where(is_no_attention, || attention([2, 3]));
    assert_eq!(reasons(&report), [as_one; 2]);
    let every = every.with_fused(false);
    let report = every.scope_where(is_no_attention, || attention([2, 3]));
    assert_eq!(reasons(&report), [HighPrecision::Predicate; 2]);
}

#[test]
fn traces_nest() {
    let ((_, inner), outer) = trace(|| {
        product::<B>([16; 3]);
        trace(|| product::<B>([17, 16, 16]))
    });
    assert_eq!(outer.products.len(), 2);
    assert_eq!(outer.products[1..], inner.products);
}

#[test]
fn a_predicate_decides_once_for_all_three_products() {
    let [x, w] = [[16, 32], [32, 48]].map(|shape| ones::<Outer<Flex>, 2>(shape).require_grad());
    let step = |n: usize| {
        Fp8Config::default().scope_where(
            move |product| product.role == GemmRole::Output && product.gemm.n == n,
            || trace(|| x.clone().matmul(w.clone()).sum().backward()).1,
        )
    };
    assert_eq!(step(48).fp8().count(), 3);
    let left_out = step(47);
    assert_eq!((left_out.products.len(), reasons(&left_out)), (1, vec![HighPrecision::Predicate]));
}

#[test]
fn a_margin_out_of_range_is_refused() {
    let config = Fp8Config::default().with_recipe(Recipe::current().with_margin(65));
    refused(config.check::<Flex>(&Default::default()), ["margin = 65"]);
    panics(|| config.scope(|| ()), ["margin = 65"]);
    refused(Fp8Config::from_json(r#"{"recipe": {"margin": -65}}"#), ["margin = -65"]);
}

#[test]
fn files_round_trip_and_bad_ones_are_named() {
    let (_folder, path) = files::path("fp8.json");
    let config = Fp8Config::default()
        .with_recipe(Recipe::current().with_margin(1).with_power_of_two(true))
        .with_filter(Filter::linear_only().with_min_sizes(1, 2, 3))
        .with_execution(Execution::FakeQuantized);
    config.save(&path).unwrap();
    assert_eq!(Fp8Config::load(&path).unwrap(), config);

    let name = path.display().to_string();
    for (content, expected) in [
        (&b"{"[..], "EOF"),
        (br#"{"filter": {"min_q": 1}}"#, "unknown field `min_q`"),
        (br#"{"execution": "gpu"}"#, "unknown variant `gpu`"),
        (br#"{"filter": {"min_m": -1}}"#, "line 1"),
        (b"[]x", "invalid"),
        (b"{\xff", "not UTF-8"),
    ] {
        std::fs::write(&path, content).unwrap();
        refused(Fp8Config::load(&path), [expected, &name]);
    }
    std::fs::write(&path, "é".repeat(1 << 20)).unwrap();
    assert!(matches!(Fp8Config::load(&path), Err(Fp8Error::TooLarge { .. })));
    refused(Fp8Config::load(path.with_file_name("missing.json")), ["cannot read", "missing.json"]);
}

#[test]
fn the_report_prints_as_a_table() {
    let report = trace(|| (product::<B>([16, 32, 64]), product::<B>([2; 3]))).1;
    let text = report.to_string();
    let ran = implementation::<Flex>().to_string();
    says(&text, ["matmul", "output", "1 × 16×64×32", "E4M3", &ran, "M = 2 < 16"]);
    // 2 · 16 · 32 · 64 FLOPs, and 2 · 2 · 2 · 2.
    assert!(text.ends_with("1 of 2 products in FP8, 100.0% of 65.6 kFLOPs"), "{text}");
}

#[test]
fn recipes_are_read_from_json() {
    let recipe =
        |json: &str| Fp8Config::from_json(&format!(r#"{{"recipe": {json}}}"#)).map(|c| c.recipe);
    let current = Recipe::current();
    let short = Recipe::delayed().with_history_length(16);
    for (json, expected) in [
        (r#""current""#, current),
        (r#""rowwise""#, Recipe::rowwise()),
        (r#""torchao_rowwise""#, Recipe::torchao_rowwise()),
        (r#""mxfp8""#, Recipe::mxfp8()),
        (r#""blockwise""#, Recipe::blockwise()),
        (r#""delayed""#, Recipe::delayed()),
        (r#""bf16""#, Recipe::bf16()),
        (r#"{"scaling": "current"}"#, current),
        (r#"{"scaling": {"current": "per_tensor"}}"#, current),
        (r#"{"scaling": {"current": "per_row"}}"#, Recipe::rowwise()),
        (r#"{"scaling": {"current": "mxfp8"}, "formats": "E4M3"}"#, Recipe::mxfp8()),
        (
            r#"{"scaling": {"current": {"mxfp8": "even"}}}"#,
            current.with_granularity(Granularity::Mx(ScaleRounding::Even)),
        ),
        (
            r#"{"scaling": {"current": "blockwise"}, "power_of_two": true, "formats": "E4M3"}"#,
            Recipe::blockwise(),
        ),
        (r#"{"scaling": "delayed"}"#, Recipe::delayed()),
        (r#"{"scaling": {"delayed": {}}}"#, Recipe::delayed()),
        (
            r#"{"scaling": {"delayed": {"history_length": 16, "amax_choice": "most_recent"}}}"#,
            short.with_amax_choice(AmaxChoice::MostRecent),
        ),
        (r#"{"formats": "E4M3"}"#, current.with_formats(Formats::E4M3)),
        (
            r#"{"products": {"grad_weight": "high"}}"#,
            current.with_precision(GemmRole::GradWeight, Precision::High),
        ),
        (
            r#"{"products": {"output": "bf16", "grad_input": "bf16", "grad_weight": "bf16"}}"#,
            Recipe::bf16(),
        ),
    ] {
        let json = json.replace(r#""E4M3""#, r#"{"output_grad": "e4m3"}"#);
        assert_eq!(recipe(&json).expect(&json), expected, "{json}");
    }
    let swapped = Formats { input: E5M2, output_grad: E4M3, ..Formats::HYBRID };
    for original in [
        current,
        Recipe::rowwise().with_formats(Formats::E4M3),
        Recipe::mxfp8(),
        Recipe::mxfp8().with_granularity(Granularity::Mx(ScaleRounding::Floor)),
        Recipe::blockwise().with_margin(1),
        short.with_margin(-2).with_power_of_two(true),
        Recipe::delayed().with_formats(swapped).with_precision(GemmRole::Output, Precision::High),
    ] {
        let config = Fp8Config::default().with_recipe(original);
        assert_eq!(Fp8Config::from_json(&config.to_json()).expect("just written"), config);
    }
    let names = "current, rowwise, torchao_rowwise, mxfp8, blockwise, delayed, bf16";
    let quoted = format!("`{}` at line 1 column 19", names.replace(", ", "`, `"));
    let sequence = "invalid type: sequence, expected an object";
    for (json, words) in [
        (r#""delayd""#, &format!("unknown variant `delayd`, expected one of {quoted}")[..]),
        ("3", &format!("a recipe: one of {names}, or an object")),
        ("[]", "invalid type: sequence"),
        (r#"{"formats": []}"#, sequence),
        (r#"{"products": []}"#, sequence),
        (r#"{"scaling": {"delayed": []}}"#, sequence),
        (r#"{"scaling": []}"#, "invalid type: sequence"),
        (r#"{"scaling": "delayd"}"#, "expected `current` or `delayed`"),
        (
            r#"{"scaling": {"current": "per_tile"}}"#,
            "`per_tensor`, `per_row`, `mxfp8`, `blockwise`",
        ),
        (r#"{"scaling": {"current": {"mxfp8": "up"}}}"#, "`rceil`, `floor`, `ceil`, `even`"),
        (r#"{"scaling": {"current": {"blockwise": {}}}}"#, "unknown field `blockwise`"),
        (r#"{"scaling": {"current": {"mxfp8": "even", "x": {}}}}"#, "unknown field `x`"),
        (r#"{"scaling": {"delayed": "mxfp8"}}"#, "invalid type"),
        (r#"{"margin": 1, "scaling": {"current": "mxfp8"}}"#, "MXFP8"),
        (r#"{"scaling": {"current": {}}}"#, "invalid"),
        (r#"{"scaling": {"currant": {}}}"#, "expected `current` or `delayed`"),
        (r#"{"scaling": {"current": "per_row", "delayed": {}}}"#, "either current or delayed"),
        (r#"{"scaling": {}}"#, "\"delayed\""),
        (r#"{"scaling": {"delayed": {}, "margin": 1}}"#, "unknown field `margin`"),
        (r#"{"scaling": {"delayed": {"history": 1}}}"#, "unknown field `history`"),
        (r#"{"scaling": {"delayed": {"history_length": 0}}}"#, "1..=65536"),
        (r#"{"scaling": 3}"#, "\"current\", \"delayed\""),
        (r#"{"formats": {"weight": "e5m2"}}"#, "grad_input would multiply E5M2 by E5M2"),
        (r#"{"products": {"output": "fp4"}}"#, "unknown variant `fp4`"),
    ] {
        refused(recipe(json), [words]);
    }
}
