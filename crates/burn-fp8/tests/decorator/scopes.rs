//! Scopes of configurations and of policies: they nest in each other, stay on their thread, end with a panic, and are captured by what runs in them.

use std::sync::Barrier;
use std::thread;

use crate::common::*;

/// What turns FP8 on or off: for a while, or for the process.
#[derive(Clone, Copy, Debug)]
enum Switch {
    Config(Fp8Config),
    Policy(Policy),
}

impl Switch {
    /// On and off, by either.
    fn all() -> [[Self; 2]; 2] {
        [
            [Fp8Config::default(), Fp8Config::off()].map(Self::Config),
            ["c=bf16,m=fp8", "c=f16,m=high"].map(|text| Self::Policy(parse(text))),
        ]
    }

    fn scope<R>(self, run: impl FnOnce() -> R) -> R {
        match self {
            Self::Config(config) => config.scope(run),
            Self::Policy(policy) => policy.scope(run),
        }
    }
}

fn parse(text: &str) -> Policy {
    Policy::parse(text).expect("a policy")
}

fn ones<B: Backend>() -> Tensor<B, 2> {
    Tensor::ones([16, 16], &Default::default())
}

/// Whether a product that any filter takes runs in FP8 now.
fn in_fp8() -> bool {
    let report = trace(|| ones::<Fp8Backend<Flex>>().matmul(ones())).1;
    report.fp8().count() == 1
}

#[test]
fn scopes_nest_in_each_other_and_the_innermost_holds() {
    for [outer, inner] in Switch::all().into_iter().flat_map(|a| Switch::all().map(|b| [a, b])) {
        outer[1].scope(|| {
            assert!(!in_fp8());
            inner[0].scope(|| {
                assert!(in_fp8());
                high_precision(|| assert!(!in_fp8()));
                assert!(in_fp8());
            });
            assert!(!in_fp8());
        });
        high_precision(|| inner[0].scope(|| assert!(in_fp8())));
    }
}

#[test]
fn a_policy_is_in_force_until_its_scope_ends_and_leaves_the_configuration_alone_without_the_key_m()
{
    let (bf16, f16) = (parse("c=bf16"), parse("c=f16"));
    bf16.scope(|| {
        assert_eq!(Policy::current(), Some(bf16));
        f16.scope(|| assert_eq!(Policy::current(), Some(f16)));
        assert_eq!(Policy::current(), Some(bf16));
        let tiny = every_matmul();
        tiny.scope(|| {
            assert_eq!(Policy::current(), Some(bf16));
            assert_eq!(Fp8Config::current(), tiny);
            f16.scope(|| assert_eq!(Fp8Config::current(), tiny));
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
        parse("m=fp8_delayed").scope(|| {
            let expected = Fp8Config { enabled: true, recipe: Recipe::delayed(), ..config };
            assert_eq!(Fp8Config::current(), expected);
            parse("m=high").scope(|| {
                assert_eq!(Fp8Config::current().recipe, Recipe::delayed());
                config.with_recipe(Recipe::current()).scope(|| assert!(!in_fp8()));
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
fn a_panic_leaves_the_scope_and_the_trace() {
    for [on, off] in Switch::all() {
        on.scope(|| {
            let policy = Policy::current();
            panic_of(|| off.scope(|| panic!("inside")));
            assert_eq!(Policy::current(), policy);
            assert!(in_fp8());
        });
    }
    panic_of(|| trace(|| panic!("{}", in_fp8())));
    assert!(in_fp8());
}

#[test]
fn threads_hold_different_scopes_at_once_and_scopes_stay_on_theirs() {
    for [on, off] in Switch::all() {
        let barrier = Barrier::new(2);
        let run = |switch: Switch| {
            switch.scope(|| {
                barrier.wait();
                (0..50).map(|_| (in_fp8(), Policy::current())).collect::<Vec<_>>()
            })
        };
        let (here, there, beside) = thread::scope(|s| {
            let there = s.spawn(|| run(off));
            let here = run(on);
            let beside = off.scope(|| s.spawn(|| (in_fp8(), Policy::current())).join().unwrap());
            (here, there.join().unwrap(), beside)
        });
        let policy_of = |switch: Switch| match switch {
            Switch::Config(_) => None,
            Switch::Policy(policy) => Some(policy),
        };
        assert_eq!(here, [(true, policy_of(on)); 50]);
        assert_eq!(there, [(false, policy_of(off)); 50]);
        assert_eq!(beside, (true, None), "scopes do not cross threads");
    }
}

#[test]
fn the_backward_pass_uses_the_scope_of_its_forward_pass() {
    let loss = |switch: Switch| {
        switch.scope(|| ones::<Outer<Flex>>().require_grad().matmul(ones().require_grad()).sum())
    };
    let backward = |loss: Tensor<Outer<Flex>, 1>| trace(|| loss.backward()).1;
    for [on, off] in Switch::all() {
        let (in_fp8, not_in_fp8) = (loss(on), loss(off));
        assert_eq!(off.scope(|| backward(in_fp8)).fp8().count(), 2);
        assert_eq!(on.scope(|| backward(not_in_fp8)).products.len(), 0);
    }
    // Its recipe, too.
    let margin = Fp8Config::default().with_recipe(Recipe::current().with_margin(2));
    let report = backward(loss(Switch::Config(margin)));
    let scales = report.products.iter().map(|p| (p.role, p.lhs.unwrap().scale));
    let expected =
        [(GemmRole::GradInput, 1.0 / 57344.0 * 4.0), (GemmRole::GradWeight, 1.0 / 448.0 * 4.0)];
    assert_eq!(scales.collect::<Vec<_>>(), expected);
}

#[test]
fn defaults_hold_on_every_thread_until_they_are_cleared() {
    alone(change_the_defaults);
}

fn change_the_defaults() {
    let elsewhere = || thread::scope(|s| s.spawn(|| (Policy::current(), in_fp8())).join().unwrap());
    assert_eq!(elsewhere(), (None, true));
    Fp8Config::off().set_default();
    assert_eq!(elsewhere(), (None, false));
    Fp8Config::default().set_default();
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
