//! The filter at its edges, scopes, and what a product captures.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread;

use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, module};
use burn_fp8::burn_fp8_core::Rejection;
use burn_fp8::report::{HighPrecision, Implementation};
use burn_fp8::{
    Execution, Filter, Fp8Backend, Fp8Config, Fp8Error, GemmRole, ProductKind, Recipe,
    high_precision, trace,
};
use common::implementation;

type B = Fp8Backend<Flex>;

fn product<B: Backend>(m: usize, k: usize, n: usize) -> Tensor<B, 2> {
    let device = Default::default();
    Tensor::<B, 2>::ones([m, k], &device).matmul(Tensor::ones([k, n], &device))
}

fn ran(m: usize, k: usize, n: usize) -> Implementation {
    let report = trace(|| product::<B>(m, k, n)).1;
    assert_eq!(report.products.len(), 1);
    report.products[0].ran.clone()
}

/// Whether a product that any filter takes runs in FP8 now.
fn in_fp8() -> bool {
    ran(64, 64, 64) == implementation::<Flex>()
}

#[test]
fn the_default_filter_starts_at_sixteen() {
    // In a scope: another test of this file changes the process-wide default for a moment.
    let ran = |m, k, n| Fp8Config::default().scope(|| ran(m, k, n));
    assert_eq!(ran(16, 16, 16), implementation::<Flex>());
    assert_eq!(ran(17, 17, 17), implementation::<Flex>());
    for (sizes, dimension) in [((15, 16, 16), 'M'), ((16, 15, 16), 'K'), ((16, 16, 15), 'N')] {
        let rejection = Rejection::TooSmall { dimension, size: 15, minimum: 16 };
        let (m, k, n) = sizes;
        assert_eq!(ran(m, k, n), Implementation::HighPrecision(HighPrecision::Filter(rejection)));
    }
}

#[test]
fn leading_dimensions_count_as_rows() {
    let device = Default::default();
    let linear = |lead: [usize; 2]| {
        let x = Tensor::<B, 3>::ones([lead[0], lead[1], 16], &device);
        trace(|| burn::tensor::module::linear(x, Tensor::ones([16, 16], &device), None)).1
    };
    assert_eq!(linear([4, 4]).fp8().count(), 1);
    assert_eq!(linear([3, 5]).fp8().count(), 0);
}

#[test]
fn batched_products_and_plain_ones_are_told_apart() {
    let device = Default::default();
    let batched = || {
        let x = Tensor::<B, 3>::ones([2, 16, 16], &device);
        trace(|| x.clone().matmul(x)).1.products[0].ran.clone()
    };
    assert_eq!(batched(), Implementation::HighPrecision(HighPrecision::Filter(Rejection::Batched)));
    let config = Fp8Config::default().with_filter(Filter::default().with_batched(true));
    assert_eq!(config.scope(batched), implementation::<Flex>());
    let linear_only = Fp8Config::default().with_filter(Filter::linear_only());
    let reason = linear_only.scope(|| ran(16, 16, 16));
    assert_eq!(reason, Implementation::HighPrecision(HighPrecision::Filter(Rejection::LinearOnly)));
}

#[test]
fn attention_stays_on_the_backend_unless_batches_are_taken() {
    let device = Default::default();
    let attention = || {
        let x = Tensor::<B, 4>::ones([2, 3, 16, 32], &device);
        let options = Default::default();
        trace(|| burn::tensor::module::attention(x.clone(), x.clone(), x, None, None, options)).1
    };
    let report = attention();
    let batched = HighPrecision::Filter(Rejection::Batched);
    assert_eq!(report.products.len(), 2);
    assert!(report.high_precision().all(|(product, reason)| {
        product.kind == ProductKind::Attention && product.gemm.batch == 6 && reason == batched
    }));
    // One pair of matrices is a batch as well.
    let single = || {
        let x = Tensor::<B, 4>::ones([1, 1, 16, 32], &device);
        let options = Default::default();
        trace(|| module::attention(x.clone(), x.clone(), x, None, None, options)).1
    };
    assert_eq!(single().fp8().count(), 0);
    let every = Fp8Config::default().with_filter(Filter::every_matmul());
    assert_eq!(every.scope(single).fp8().count(), 2);
    let report = every.scope(attention);
    let kinds: Vec<_> = report.fp8().map(|product| (product.kind, product.gemm.n)).collect();
    assert_eq!(kinds, [(ProductKind::Attention, 16), (ProductKind::Attention, 32)]);
    // A predicate sees what the products are part of.
    let report = every.scope_where(|product| product.kind != ProductKind::Attention, attention);
    let reasons: Vec<_> = report.high_precision().map(|(_, reason)| reason).collect();
    assert_eq!(reasons, [HighPrecision::Predicate; 2]);
}

#[test]
fn scopes_nest_and_the_innermost_holds() {
    let default = Fp8Config::default();
    let off = Fp8Config::off();
    off.scope(|| {
        assert!(!in_fp8());
        default.scope(|| {
            assert!(in_fp8());
            high_precision(|| assert!(!in_fp8()));
            assert!(in_fp8());
        });
        assert!(!in_fp8());
    });
    high_precision(|| default.scope(|| assert!(in_fp8())));
}

#[test]
fn a_panic_leaves_the_scope() {
    Fp8Config::default().scope(|| {
        let panicked =
            catch_unwind(AssertUnwindSafe(|| Fp8Config::off().scope(|| panic!("inside"))));
        assert!(panicked.is_err());
        assert!(in_fp8());
    });
}

#[test]
fn a_panic_leaves_the_trace() {
    let panicked = catch_unwind(|| {
        trace(|| {
            product::<B>(16, 16, 16);
            panic!("inside")
        })
    });
    assert!(panicked.is_err());
    assert_eq!(trace(|| product::<B>(16, 16, 16)).1.products.len(), 1);
}

#[test]
fn traces_nest() {
    let ((_, inner), outer) = trace(|| {
        product::<B>(16, 16, 16);
        trace(|| product::<B>(17, 16, 16))
    });
    assert_eq!(inner.products.len(), 1);
    assert_eq!(outer.products.len(), 2);
    assert_eq!(outer.products[1], inner.products[0]);
}

/// The process-wide default is one for all tests of this file: those that change it take turns.
static DEFAULT: Mutex<()> = Mutex::new(());

#[test]
fn scopes_stay_on_their_thread_and_the_default_is_for_all() {
    let _turn = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
    let tiny = || ran(2, 2, 2) == implementation::<Flex>();
    let everything = Fp8Config::default().with_filter(Filter::every_matmul());
    everything.scope(|| {
        assert!(tiny());
        assert!(!thread::scope(|s| s.spawn(tiny).join().unwrap()), "scopes do not cross threads");
    });
    // Other tests run meanwhile: the default only gets wider, by products that they do not make outside a scope.
    let wider = Fp8Config::default().with_filter(Filter::default().with_min_sizes(16, 16, 11));
    let eleven = || ran(16, 11, 16) == implementation::<Flex>();
    assert!(!eleven());
    wider.set_default();
    assert!(thread::scope(|s| s.spawn(eleven).join().unwrap()));
    Fp8Config::default().set_default();
    assert!(!eleven());
}

#[test]
fn threads_hold_different_scopes_at_once() {
    let barrier = std::sync::Barrier::new(2);
    let run = |config: Fp8Config| {
        config.scope(|| {
            barrier.wait();
            (0..50).map(|_| in_fp8()).collect::<Vec<_>>()
        })
    };
    let (on, off) = thread::scope(|s| {
        let off = s.spawn(|| run(Fp8Config::off()));
        (run(Fp8Config::default()), off.join().unwrap())
    });
    assert!(on.iter().all(|on| *on) && off.iter().all(|on| !on));
}

#[test]
fn the_backward_pass_uses_the_configuration_of_its_forward_pass() {
    type B = Fp8Backend<Autodiff<Flex>>;
    let device = Default::default();
    let x = Tensor::<B, 2>::full([16, 16], 3.0, &device).require_grad();
    let margin = Fp8Config::default().with_recipe(Recipe::current().with_margin(2));
    let y = margin.scope(|| x.clone().matmul(x.clone()));
    let report = Fp8Config::off().scope(|| trace(|| y.sum().backward()).1);
    let scales: Vec<_> = report.products.iter().map(|p| (p.role, p.lhs.unwrap().scale)).collect();
    let expected =
        [(GemmRole::GradInput, 1.0 / 57344.0 * 4.0), (GemmRole::GradWeight, 3.0 / 448.0 * 4.0)];
    assert_eq!(scales, expected);
    // And the other way round: off in the forward pass is off in the backward pass.
    let y = high_precision(|| x.clone().matmul(x.clone()));
    assert_eq!(trace(|| y.sum().backward()).1.products.len(), 0);
}

#[test]
fn a_predicate_decides_once_for_all_three_products() {
    type B = Fp8Backend<Autodiff<Flex>>;
    let device = Default::default();
    let x = Tensor::<B, 2>::ones([16, 32], &device).require_grad();
    let w = Tensor::<B, 2>::ones([32, 48], &device).require_grad();
    let step = |n: usize| {
        let config = Fp8Config::default();
        let seen = |product: &burn_fp8::ProductInfo| product.role == GemmRole::Output;
        config.scope_where(
            move |product| seen(product) && product.gemm.n == n,
            || trace(|| x.clone().matmul(w.clone()).sum().backward()).1,
        )
    };
    assert_eq!(step(48).fp8().count(), 3);
    let left_out = step(47);
    assert_eq!(left_out.products.len(), 1);
    assert_eq!(left_out.products[0].ran, Implementation::HighPrecision(HighPrecision::Predicate));
}

#[test]
fn a_margin_out_of_range_is_refused() {
    let config = Fp8Config::default().with_recipe(Recipe::current().with_margin(65));
    let error = config.check::<Flex>(&Default::default()).unwrap_err().to_string();
    assert!(error.contains("margin = 65"), "{error}");
    assert!(catch_unwind(|| config.scope(|| ())).is_err());
    let json = Fp8Config::from_json(r#"{"recipe": {"margin": -65}}"#).unwrap_err().to_string();
    assert!(json.contains("margin = -65"), "{json}");
}

#[test]
fn files_round_trip_and_bad_ones_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fp8.json");
    let config = Fp8Config::default()
        .with_recipe(Recipe::current().with_margin(1).with_power_of_two(true))
        .with_filter(Filter::linear_only().with_min_sizes(1, 2, 3))
        .with_execution(Execution::FakeQuantized);
    config.save(&path).unwrap();
    assert_eq!(Fp8Config::load(&path).unwrap(), config);

    let name = path.display().to_string();
    for (content, expected) in [
        ("{", "EOF"),
        (r#"{"filter": {"min_q": 1}}"#, "unknown field `min_q`"),
        (r#"{"execution": "gpu"}"#, "unknown variant `gpu`"),
        (r#"{"filter": {"min_m": -1}}"#, "line 1"),
        ("[]x", "invalid"),
    ] {
        std::fs::write(&path, content).unwrap();
        let error = Fp8Config::load(&path).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(&name), "{error}");
    }
    std::fs::write(&path, "é".repeat(1 << 20)).unwrap();
    assert!(matches!(Fp8Config::load(&path), Err(Fp8Error::TooLarge { .. })));
    std::fs::write(&path, [b'{', 0xff]).unwrap();
    let error = Fp8Config::load(&path).unwrap_err().to_string();
    assert!(error.contains("not UTF-8") && error.contains(&name), "{error}");
    let missing = Fp8Config::load(folder.path().join("missing.json")).unwrap_err().to_string();
    assert!(missing.contains("cannot read") && missing.contains("missing.json"), "{missing}");
}

#[test]
fn the_report_prints_as_a_table() {
    let report = trace(|| (product::<B>(16, 32, 64), product::<B>(2, 2, 2))).1;
    let text = report.to_string();
    let ran = implementation::<Flex>().to_string();
    for expected in ["matmul", "output", "1 × 16×64×32", "E4M3", &ran, "M = 2 < 16"] {
        assert!(text.contains(expected), "{text}");
    }
    assert!(text.ends_with("1 of 2 products in FP8"), "{text}");
}

#[test]
fn recipes_are_read_from_json() {
    use burn_fp8::{
        AmaxChoice, Formats, Fp8Format, GemmRole, Granularity, Precision, ScaleRounding,
    };

    let recipe =
        |json: &str| Fp8Config::from_json(&format!(r#"{{"recipe": {json}}}"#)).map(|c| c.recipe);
    for (json, expected) in [
        (r#"{"scaling": "current"}"#, Recipe::current()),
        (r#"{"scaling": {"current": "per_tensor"}}"#, Recipe::current()),
        (r#"{"scaling": {"current": "per_row"}}"#, Recipe::rowwise()),
        (
            r#"{"scaling": {"current": "mxfp8"}, "formats": {"output_grad": "e4m3"}}"#,
            Recipe::mxfp8(),
        ),
        (
            r#"{"scaling": {"current": {"mxfp8": "even"}}}"#,
            Recipe::current().with_granularity(Granularity::Mx(ScaleRounding::Even)),
        ),
        (
            r#"{"scaling": {"current": "blockwise"}, "power_of_two": true, "formats": {"output_grad": "e4m3"}}"#,
            Recipe::blockwise(),
        ),
        (r#"{"scaling": "delayed"}"#, Recipe::delayed()),
        (r#"{"scaling": {"delayed": {}}}"#, Recipe::delayed()),
        (
            r#"{"scaling": {"delayed": {"history_length": 16, "amax_choice": "most_recent"}}}"#,
            Recipe::delayed().with_history_length(16).with_amax_choice(AmaxChoice::MostRecent),
        ),
        (r#"{"formats": {"output_grad": "e4m3"}}"#, Recipe::current().with_formats(Formats::E4M3)),
        (
            r#"{"products": {"grad_weight": "high"}}"#,
            Recipe::current().with_precision(GemmRole::GradWeight, Precision::High),
        ),
    ] {
        assert_eq!(recipe(json).expect(json), expected, "{json}");
    }
    let swapped =
        Formats { input: Fp8Format::E5M2, output_grad: Fp8Format::E4M3, ..Formats::HYBRID };
    for original in [
        Recipe::current(),
        Recipe::rowwise().with_formats(Formats::E4M3),
        Recipe::mxfp8(),
        Recipe::mxfp8().with_granularity(Granularity::Mx(ScaleRounding::Floor)),
        Recipe::blockwise().with_margin(1),
        Recipe::delayed().with_history_length(3).with_margin(-2).with_power_of_two(true),
        Recipe::delayed().with_formats(swapped).with_precision(GemmRole::Output, Precision::High),
    ] {
        let config = Fp8Config::default().with_recipe(original);
        assert_eq!(Fp8Config::from_json(&config.to_json()).expect("just written"), config);
    }
    for (json, words) in [
        (r#"{"scaling": "delayd"}"#, "expected `current` or `delayed`"),
        (
            r#"{"scaling": {"current": "per_tile"}}"#,
            "`per_tensor`, `per_row`, `mxfp8`, `blockwise`",
        ),
        (r#"{"scaling": {"current": {"mxfp8": "up"}}}"#, "`rceil`, `floor`, `ceil`, `even`"),
        (r#"{"scaling": {"current": {"blockwise": {}}}}"#, "unknown field `blockwise`"),
        (
            r#"{"scaling": {"current": {"mxfp8": "even", "per_row": {}}}}"#,
            "unknown field `per_row`",
        ),
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
        let error = recipe(json).expect_err(json).to_string();
        assert!(error.contains(words), "{json}: {error}");
    }
}
