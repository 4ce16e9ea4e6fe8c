//! Which policy is in force, and what it makes of the FP8 configuration.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;

use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, Tensor};
use burn_fp8::policy::{self, Policy, SemanticDType};
use burn_fp8::report::Implementation;
use burn_fp8::{Execution, Filter, Fp8Backend, Fp8Config, Recipe, high_precision, trace};
use common::implementation;

type B = Fp8Backend<Flex>;

/// The process-wide default is one for all tests of this file: those that look outside of scopes take turns.
static DEFAULT: Mutex<()> = Mutex::new(());

fn parse(text: &str) -> Policy {
    Policy::parse(text).expect("a policy")
}

fn ones<B: Backend>() -> Tensor<B, 2> {
    Tensor::ones([16, 16], &Default::default())
}

fn in_fp8() -> bool {
    let report = trace(|| ones::<B>().matmul(ones())).1;
    [Implementation::FakeQuantized, implementation::<Flex>()].contains(&report.products[0].ran)
}

#[test]
fn without_a_policy_casts_do_nothing() {
    let _turn = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(Policy::current(), None);
    for cast in [policy::cast_to_param, policy::cast_to_compute, policy::cast_to_output] {
        let x: Tensor<B, 2> = ones().cast(FloatDType::F16);
        assert_eq!(cast(x).dtype(), DType::F16);
    }
    assert_eq!(policy::cast::<B, 2>(ones(), SemanticDType::Compute).dtype(), DType::F32);
    assert_eq!(policy::cast::<B, 2>(ones(), FloatDType::BF16).dtype(), DType::BF16);
}

#[test]
fn casts_follow_the_policy_in_force() {
    parse("p=f64,c=bf16,o=f16").scope(|| {
        assert_eq!(policy::cast_to_param::<B, 2>(ones()).dtype(), DType::F64);
        assert_eq!(policy::cast_to_compute::<B, 2>(ones()).dtype(), DType::BF16);
        assert_eq!(policy::cast_to_output::<B, 2>(ones()).dtype(), DType::F16);
        assert_eq!(policy::cast::<B, 2>(ones(), SemanticDType::Output).dtype(), DType::F16);
        assert_eq!(policy::cast::<B, 2>(ones(), FloatDType::F64).dtype(), DType::F64);
    });
}

#[test]
fn scopes_of_policies_and_of_configurations_nest_in_each_other() {
    let (bf16, f16) = (parse("c=bf16"), parse("c=f16"));
    bf16.scope(|| {
        assert_eq!(Policy::current(), Some(bf16));
        f16.scope(|| assert_eq!(Policy::current(), Some(f16)));
        assert_eq!(Policy::current(), Some(bf16));
        let tiny = Fp8Config::default().with_filter(Filter::every_matmul());
        tiny.scope(|| {
            assert_eq!(Policy::current(), Some(bf16));
            assert_eq!(Fp8Config::current(), tiny);
            f16.scope(|| assert_eq!(Fp8Config::current(), tiny, "no key m: left alone"));
        });
        high_precision(|| assert_eq!(Policy::current(), Some(bf16)));
        Fp8Config::off().scope_where(|_| true, || assert_eq!(Policy::current(), Some(bf16)));
    });
}

#[test]
fn the_key_m_sets_recipe_and_on_or_off_and_nothing_else() {
    let config = Fp8Config::off()
        .with_filter(Filter::default().with_min_sizes(3, 3, 3))
        .with_execution(Execution::FakeQuantized);
    config.scope(|| {
        assert!(!in_fp8());
        parse("m=fp8_delayed").scope(|| {
            let expected = Fp8Config { enabled: true, recipe: Recipe::delayed(), ..config };
            assert_eq!(Fp8Config::current(), expected);
            assert!(in_fp8());
            // Inside, a configuration decides again, and so does a policy.
            high_precision(|| {
                assert!(!in_fp8());
                parse("m=fp8").scope(|| assert!(in_fp8()));
            });
            parse("m=high").scope(|| {
                assert!(!in_fp8());
                assert_eq!(Fp8Config::current().recipe, Recipe::delayed());
                config.with_recipe(Recipe::current()).scope(|| assert!(!in_fp8()));
                Fp8Config::default().scope(|| assert!(in_fp8()));
            });
            parse("c=bf16").scope(|| assert_eq!(Fp8Config::current(), expected));
        });
        assert_eq!(Fp8Config::current(), config);
    });
}

#[test]
fn the_predicate_around_a_policy_still_holds_in_it() {
    Fp8Config::default().scope_where(
        |product| product.gemm.k >= 128,
        || parse("m=fp8").scope(|| assert!(!in_fp8())),
    );
}

#[test]
fn the_backward_pass_uses_the_policy_of_its_forward_pass() {
    type A = Fp8Backend<Autodiff<Flex>>;
    let loss =
        |policy: &str| parse(policy).scope(|| ones::<A>().require_grad().matmul(ones()).sum());
    let fp8 = loss("m=fp8");
    let high = loss("m=high");
    let backward = |loss: Tensor<A, 1>| trace(|| loss.backward()).1.fp8().count();
    assert_eq!(parse("m=high").scope(|| backward(fp8)), 1);
    assert_eq!(parse("m=fp8").scope(|| backward(high)), 0);
}

#[test]
fn a_panic_leaves_the_scope() {
    let outer = parse("c=bf16,m=high");
    outer.scope(|| {
        let inner = || parse("c=f16,m=fp8").scope(|| panic!("inside"));
        assert!(catch_unwind(AssertUnwindSafe(inner)).is_err());
        assert_eq!(Policy::current(), Some(outer));
        assert!(!in_fp8());
    });
}

#[test]
fn threads_hold_different_policies_at_once_and_scopes_stay_on_theirs() {
    let _turn = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
    let barrier = Barrier::new(2);
    let run = |policy: Policy| {
        policy.scope(|| {
            barrier.wait();
            (0..50).all(|_| Policy::current() == Some(policy))
        })
    };
    let (here, there, beside) = thread::scope(|s| {
        let there = s.spawn(|| run(parse("c=f16")));
        let here = run(parse("c=bf16"));
        let beside = parse("c=f64").scope(|| s.spawn(Policy::current).join().unwrap());
        (here, there.join().unwrap(), beside)
    });
    assert!(here && there);
    assert_eq!(beside, None, "scopes do not cross threads");
}

#[test]
fn the_default_holds_on_every_thread_until_it_is_cleared() {
    let _turn = DEFAULT.lock().unwrap_or_else(PoisonError::into_inner);
    let elsewhere = || thread::scope(|s| s.spawn(|| (Policy::current(), in_fp8())).join().unwrap());
    let high = parse("c=bf16,m=high");
    high.set_default();
    assert_eq!(elsewhere(), (Some(high), false));
    parse("c=f16").scope(|| assert!(!in_fp8()));
    // The configuration set last decides about FP8; the policy stays.
    Fp8Config::default().set_default();
    assert_eq!(elsewhere(), (Some(high), true));
    high.set_default();
    assert_eq!(elsewhere(), (Some(high), false));
    // Another policy does not inherit the key of the one before, nor does the configuration.
    let bf16 = parse("bf16");
    bf16.set_default();
    assert_eq!(elsewhere(), (Some(bf16), true));
    high.set_default();
    Policy::clear_default();
    assert_eq!(elsewhere(), (None, true));
    assert_eq!(Fp8Config::current(), Fp8Config::default());
}
