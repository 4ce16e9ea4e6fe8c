//! The golden file `max_accumulation`: several uses of one state combine by maximum.

use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;

use burn_fp8::ops::{QdqOptions, in_qdq, out_qdq};

use crate::common::golden::{assert_tensor, exact};
use crate::common::*;

/// The backward pass comes to the uses by their depth in the graph, so from the last to the first one or the other way round.
fn golden_cases<B: AutodiffBackend + Fp8Matmul>(is_reversed: bool, is_tracked: bool) -> usize {
    let golden = golden("max_accumulation");
    let cases = golden.cases("cases");
    for case in cases {
        let name = case["name"].as_str().expect("a name");
        let uses = case["reuse"].as_u64().expect("a number") as usize;
        let load = |what: &str| exact::<B, 2>(golden.data(&format!("{name}/{what}")));
        let state = |what: &str| exact::<B, 1>(golden.data(&format!("{name}/{what}")));
        let (scale, history) =
            (state("scale").require_grad(), state("amax_history").require_grad());
        let (op, format): (fn(_, _, _, _) -> _, _) = match case["op"].as_str() {
            Some("in_qdq") => (in_qdq::<B, 2>, Fp8Format::E4M3),
            Some("out_qdq") => (out_qdq::<B, 2>, Fp8Format::E5M2),
            other => panic!("no operation {other:?}"),
        };
        let mut xs = vec![];
        let mut loss: Option<Tensor<B, 1>> = None;
        for index in 0..uses {
            let mut x = load(&format!("x{index}"));
            x = x.set_require_grad(is_tracked);
            xs.push(x.clone());
            let options = QdqOptions::new(format);
            let mut y = op(x, scale.clone(), history.clone(), options);
            let shallow = if is_reversed { uses - index } else { index };
            // Exact, and deeper: a later place in the graph.
            for _ in 0..shallow {
                y = y * 1.0;
            }
            let term = (y * load(&format!("g{index}"))).sum();
            loss = Some(match loss {
                Some(loss) => loss + term,
                None => term,
            });
        }
        let grads = loss.expect("at least one use").backward();
        let expect = |what: &str| golden.data(&format!("{name}/max/{what}"));
        let new = |state: &Tensor<B, 1>| state.grad(&grads).expect("a new value");
        assert_tensor(
            new(&scale),
            &expect("scale"),
            &format!("{name} {is_reversed} {is_tracked} scale"),
        );
        // The golden file has, for contrast, what plain addition would give.
        let sum = golden.data(&format!("{name}/sum/scale"));
        assert_ne!(values(new(&scale)), sum.to_vec::<f32>().expect("f32"), "{name}: a sum");
        let what = format!("{name} {is_reversed} {is_tracked} history");
        assert_tensor(new(&history), &expect("amax_history"), &what);
        for (index, x) in xs.iter().enumerate() {
            assert_eq!(x.grad(&grads).is_some(), is_tracked);
            if let Some(dx) = x.grad(&grads) {
                assert_tensor(dx, &expect(&format!("dx{index}")), &format!("{name} dx{index}"));
            }
        }
    }
    cases.len()
}

#[test]
fn golden_cases_in_either_order_with_and_without_tracked_inputs() {
    for [reversed, tracked] in [[false, false], [false, true], [true, false], [true, true]] {
        assert_eq!(golden_cases::<Autodiff<Flex>>(reversed, tracked), 9);
        assert_eq!(golden_cases::<Outer<Flex>>(reversed, tracked), 9);
        assert_eq!(golden_cases::<Autodiff<Flex, BalancedCheckpointing>>(reversed, tracked), 9);
        #[cfg(feature = "ndarray")]
        assert_eq!(golden_cases::<Autodiff<burn::backend::NdArray>>(reversed, tracked), 9);
    }
}
