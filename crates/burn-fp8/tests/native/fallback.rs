//! What becomes of products that tensor cores do not run: emulated and reported, or refused on the calling thread.

use burn_fp8::AttentionPrecision;
use burn_fp8::engine::cube::K_WITHOUT_ALGORITHM as K;
use burn_fp8::fused::ops::{self, AttentionOptions};

use super::*;

const TRY: &str = "with_native_blocks(true)";

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
        assert_near(actual, expected, &format!("result {index}"));
    }
    let fallback =
        Implementation::Fallback(Fallback::NoAlgorithm("no algorithm for this K".into()));
    let by_role = |role| {
        let product = ran.products.iter().find(|product| product.role == role);
        &product.expect("all three products are in the trace").ran
    };
    assert_eq!(by_role(GemmRole::Output), &fallback, "{ran}");
    assert_eq!(by_role(GemmRole::GradInput), &decoded(), "{ran}");
    assert_eq!(by_role(GemmRole::GradWeight), &decoded(), "{ran}");
    says(&ran, ["fake-quantized: no algorithm for this K"]);
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
        panics(|| step::<B>(native, 5, [1, 17, 40, 20]), [TRY]);
        refused(native.check::<B>(&Default::default()), [TRY]);
        let asked = native.with_native_blocks(true);
        asked.check::<B>(&Default::default()).expect("they would be tried");
    }
    let a = Fp8Tensor::quantize_rows(random::<B, 2>(1, [17, 40]), E4M3).expect("rows");
    let b = Fp8Tensor::quantize_rows(random::<B, 2>(2, [20, 40]), E4M3).expect("rows").transpose();
    let native = config(Recipe::current()).with_execution(Execution::Native);
    let product = || scaled_matmul(&a, &b, &ScaledMatmulOptions::default());
    refused(native.with_native_blocks(false).scope(product).map(drop), [TRY]);
    let (tried, ran) = trace(|| native.scope(product));
    assert_eq!(ran.products[0].ran, decoded());
    let emulated = native.with_execution(Execution::FakeQuantized).scope(product);
    let [tried, emulated] = [tried, emulated].map(|y| values(y.expect("rows").into_float()));
    assert_near(&tried, &emulated, "rows times columns");
}

/// Refused under `Native`, by the thread that asks for the product and not by the one that would run it.
fn without_an_algorithm_is_refused<B: Fp8Matmul>() {
    let _pretend = pretend_tensor_cores();
    let x = random::<B, 2>(1, [32, K]);
    let w = random::<B, 2>(2, [K, 16]);
    let why = ["Execution::Native: no algorithm for this K", "Execution::Auto", "scope_where"];
    let product = || {
        let [x, w] =
            [&x, &w].map(|x| Tensor::<Fp8Backend<B>, 2>::from_data(x.to_data(), &x.device()));
        values(x.matmul(w))
    };
    panics(|| native().scope(product), why);
    panics(|| native().scope(|| trace(product)), why);
    assert_eq!(native().scope(|| high_precision(product)).len(), 32 * 16);

    let layer = Fp8LinearConfig::new(K, 16).init::<B>(&x.device());
    panics(|| native().scope(|| layer.forward(x.clone())), why);

    let [a, b] = [x, w].map(|x| Fp8Tensor::quantize(x, E4M3));
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

fn without_an_algorithm_products_are_emulated<B: Fp8Matmul>() {
    for recipe in [Recipe::current(), Recipe::rowwise(), Recipe::mxfp8(), Recipe::blockwise()] {
        without_an_algorithm_is_emulated::<B>(recipe);
    }
}

on_wgpu!([
    without_an_algorithm_products_are_emulated,
    blocks_are_not_tried_unasked,
    without_an_algorithm_is_refused,
]);

#[test]
fn what_tensor_cores_are_not_given_falls_back_and_says_so() {
    let _pretend = pretend_tensor_cores();
    let x = || random::<Fp8Backend<Unfused>, 3>(1, [2, 16, 16]);
    let product = || values(x().matmul(x()));
    let native = |recipe: Recipe| config(recipe).with_execution(Execution::Native);
    assert!(native(Recipe::rowwise()).check::<Unfused>(&WgpuDevice::default()).is_ok());
    let (_, report) = trace(|| config(Recipe::rowwise()).scope(product));
    assert_eq!(report.products[0].ran, Implementation::Fallback(Fallback::Batched));
    let words = ["batched products with several scales"];
    panics(|| native(Recipe::rowwise()).scope(product), words);
    let attention = || {
        let precision = AttentionPrecision::Fp8;
        let options = AttentionOptions { precision, ..AttentionOptions::default() };
        let [q, k, v] = [0; 3].map(|_| x().unsqueeze::<4>());
        values(ops::attention(q, k, v, options))
    };
    let (_, report) = trace(|| config(Recipe::current()).scope(attention));
    assert_eq!(report.products[0].ran, Implementation::Fallback(Fallback::Attention), "{report}");
    let words = ["attention as one operation is not native"];
    panics(|| native(Recipe::current()).scope(attention), words);
}
