//! What becomes of products that tensor cores do not run: emulated and reported, or refused on the calling thread.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn_fp8_core::AttentionPrecision;

use super::*;
use burn_fp8::engine::cube::K_WITHOUT_ALGORITHM as K;
use burn_fp8::fused::ops::{self, AttentionOptions};
use burn_fp8::{Fp8Error, high_precision};

/// What a closure panics with on this thread.
fn panic_of<R>(f: impl FnOnce() -> R) -> String {
    let panic = catch_unwind(AssertUnwindSafe(f)).err().expect("must be native");
    *panic.downcast::<String>().expect("a message")
}

fn native() -> Fp8Config {
    config(Recipe::current()).with_execution(Execution::Native)
}

/// Emulated under `Auto`: the forward product only, whose K it is.
fn without_an_algorithm_is_emulated<B: Fp8Matmul>(recipe: Recipe) {
    let _pretend = pretend_tensor_cores();
    let dims = [2, 17, K, 20];
    let (actual, ran) = step::<B>(config(recipe), 3, dims);
    let emulated = config(recipe).with_execution(Execution::FakeQuantized);
    let (expected, _) = step::<Flex>(emulated, 3, dims);
    for (index, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
        assert_close(actual, expected, &format!("result {index}"));
    }
    let fallback =
        Implementation::Fallback(Fallback::NoAlgorithm("no algorithm for this K".into()));
    let decoded = Implementation::Native { algorithm: "decoded".into() };
    let by_role = |role| {
        let product = ran.products.iter().find(|product| product.role == role);
        &product.expect("all three products are in the trace").ran
    };
    assert_eq!(by_role(GemmRole::Output), &fallback, "{ran}");
    assert_eq!(by_role(GemmRole::GradInput), &decoded, "{ran}");
    assert_eq!(by_role(GemmRole::GradWeight), &decoded, "{ran}");
    assert!(ran.to_string().contains("fake-quantized: no algorithm for this K"), "{ran}");
}

/// What no GPU has run is emulated, unless it is asked for.
fn blocks_are_not_tried_unasked<B: Fp8Matmul>() {
    let _pretend = pretend_tensor_cores();
    for recipe in [Recipe::rowwise(), Recipe::mxfp8(), Recipe::blockwise()] {
        let unasked = config(recipe).with_native_blocks(false);
        let (_, ran) = step::<B>(unasked, 5, [1, 17, 40, 20]);
        assert_eq!(ran.products.len(), 3);
        for product in &ran.products {
            assert_eq!(product.ran, Implementation::Fallback(Fallback::BlocksUntried), "{ran}");
        }
        let native = unasked.with_execution(Execution::Native);
        let message = panic_of(|| step::<B>(native, 5, [1, 17, 40, 20]));
        assert!(message.contains("with_native_blocks(true)"), "{message}");
        let error = native.check::<B>(&Default::default()).expect_err("refused").to_string();
        assert!(error.contains("with_native_blocks(true)"), "{error}");
        let asked = native.with_native_blocks(true);
        asked.check::<B>(&Default::default()).expect("they would be tried");
    }
    let a = tensor::<B, 2>(1, [17, 40]);
    let a = Fp8Tensor::quantize_rows(a, Fp8Format::E4M3).expect("rows");
    let b = tensor::<B, 2>(2, [20, 40]);
    let b = Fp8Tensor::quantize_rows(b, Fp8Format::E4M3).expect("rows").transpose();
    let native = config(Recipe::current()).with_execution(Execution::Native);
    let product = || scaled_matmul(&a, &b, &ScaledMatmulOptions::default());
    let error = native.with_native_blocks(false).scope(product).expect_err("refused").to_string();
    assert!(error.contains("with_native_blocks(true)"), "{error}");
    let (tried, ran) = trace(|| native.scope(product));
    let decoded = Implementation::Native { algorithm: "decoded".into() };
    assert_eq!(ran.products[0].ran, decoded);
    let emulated = native.with_execution(Execution::FakeQuantized).scope(product);
    let [tried, emulated] = [tried, emulated].map(|y| values(y.expect("rows").into_float()));
    assert_close(&tried, &emulated, "rows times columns");
}

/// Refused under `Native`, by the thread that asks for the product and not by the one that would run it.
fn without_an_algorithm_is_refused<B: Fp8Matmul>() {
    let _pretend = pretend_tensor_cores();
    let x = tensor::<B, 2>(1, [32, K]);
    let w = tensor::<B, 2>(2, [K, 16]);
    let says_why = |message: &str| {
        assert!(message.contains("Execution::Native: no algorithm for this K"), "{message}");
        assert!(
            message.contains("Execution::Auto") && message.contains("scope_where"),
            "{message}"
        );
    };
    let product = || {
        let [x, w] =
            [&x, &w].map(|x| Tensor::<Fp8Backend<B>, 2>::from_data(x.to_data(), &x.device()));
        values(x.matmul(w))
    };
    says_why(&panic_of(|| native().scope(product)));
    says_why(&panic_of(|| native().scope(|| trace(product))));
    assert_eq!(native().scope(|| high_precision(product)).len(), 32 * 16);

    let layer = Fp8LinearConfig::new(K, 16).init::<B>(&x.device());
    says_why(&panic_of(|| native().scope(|| layer.forward(x.clone()))));

    let [a, b] = [x, w].map(|x| Fp8Tensor::quantize(x, Fp8Format::E4M3));
    let options = ScaledMatmulOptions::default();
    match native().scope(|| scaled_matmul(&a, &b, &options)) {
        Err(Fp8Error::NativeUnavailable { reason, .. }) => {
            assert_eq!(reason, "no algorithm for this K");
        }
        other => panic!("{other:?}"),
    }
    let product = scaled_matmul(&a, &b, &options).expect("emulated").into_float();
    assert_eq!(product.dims(), [32, 16]);
}

#[test]
fn without_an_algorithm_is_emulated_and_says_so() {
    for recipe in [Recipe::current(), Recipe::rowwise(), Recipe::mxfp8(), Recipe::blockwise()] {
        without_an_algorithm_is_emulated::<Unfused>(recipe);
        #[cfg(feature = "fusion")]
        without_an_algorithm_is_emulated::<burn::backend::Wgpu>(recipe);
    }
}

#[test]
fn blocks_are_not_tried_unless_asked_for() {
    blocks_are_not_tried_unasked::<Unfused>();
    #[cfg(feature = "fusion")]
    blocks_are_not_tried_unasked::<burn::backend::Wgpu>();
}

#[test]
fn without_an_algorithm_is_refused_where_it_is_asked_for() {
    without_an_algorithm_is_refused::<Unfused>();
    #[cfg(feature = "fusion")]
    without_an_algorithm_is_refused::<burn::backend::Wgpu>();
}

#[test]
fn what_tensor_cores_are_not_given_falls_back_and_says_so() {
    let _pretend = pretend_tensor_cores();
    let x = || tensor::<Fp8Backend<Unfused>, 3>(1, [2, 16, 16]);
    let product = || values(x().matmul(x()));
    let native = |recipe: Recipe| config(recipe).with_execution(Execution::Native);
    assert!(native(Recipe::rowwise()).check::<Unfused>(&WgpuDevice::default()).is_ok());
    let (_, report) = trace(|| config(Recipe::rowwise()).scope(product));
    assert_eq!(report.products[0].ran, Implementation::Fallback(Fallback::Batched));
    let message = panic_of(|| native(Recipe::rowwise()).scope(product));
    assert!(message.contains("batched products with several scales"), "{message}");
    let attention = || {
        let precision = AttentionPrecision::Fp8;
        let options = AttentionOptions { precision, ..AttentionOptions::default() };
        let [q, k, v] = [0; 3].map(|_| x().unsqueeze::<4>());
        values(ops::attention(q, k, v, options))
    };
    let (_, report) = trace(|| config(Recipe::current()).scope(attention));
    assert_eq!(report.products[0].ran, Implementation::Fallback(Fallback::Attention), "{report}");
    let message = panic_of(|| native(Recipe::current()).scope(attention));
    assert!(message.contains("attention as one operation is not native"), "{message}");
}
