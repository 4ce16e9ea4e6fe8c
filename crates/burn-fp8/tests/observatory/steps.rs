//! The observatory: which steps it sees, names, threads, its log.

use burn_fp8::report::{Observatory, ObservatoryOptions, log, named};
use burn_fp8::sums::{Accumulator, Sums};

use crate::common::observatory::{K, M, N, every_step, operands, products, sites};
use crate::common::*;

#[test]
fn watching_changes_no_bit() {
    let tensors = operands(2);
    let plain = products::<Outer<Flex>>(&tensors);
    assert!(every_step().step(|| products::<Outer<Flex>>(&tensors)) == plain);
}

#[test]
fn only_sampled_steps_are_seen() {
    let tensors = operands(3);
    let observatory = Observatory::new(ObservatoryOptions::default().with_every(3)).expect("valid");
    products::<Outer<Flex>>(&tensors);
    for _ in 0..7 {
        observatory.step(|| products::<Outer<Flex>>(&tensors));
        products::<Outer<Flex>>(&tensors);
    }
    let seen = sites(&observatory);
    assert_eq!((seen.steps, seen.span, seen.sites.len()), (3, Some([0, 6]), 1));
    assert_eq!(seen.sites[0].points.iter().map(|point| point.step).collect::<Vec<_>>(), [0, 3, 6]);
    for (every, elements, expected) in [(0, 1, "every = 0"), (1, 0, "max_elements = 0")] {
        let options = ObservatoryOptions::default().with_every(every).with_max_elements(elements);
        refused(Observatory::new(options), [expected]);
    }
}

#[test]
fn steps_nest_and_panics_leave_nothing() {
    let tensors = operands(12);
    let (outer, inner) = (every_step(), every_step());
    outer.step(|| {
        named("outer", || {
            products::<Outer<Flex>>(&tensors);
            inner.step(|| products::<Outer<Flex>>(&tensors));
            let message = panic_of(|| {
                inner.step(|| {
                    named("lost", || -> () {
                        panic!("{:?}", products::<Outer<Flex>>(&tensors)[0].len())
                    })
                })
            });
            assert_eq!(message, (M * N).to_string());
            products::<Outer<Flex>>(&tensors);
        })
    });
    let labels = |observatory: &Observatory| -> Vec<String> {
        sites(observatory).sites.iter().map(|site| site.label()).collect()
    };
    assert_eq!(labels(&outer), ["outer.up #1", "outer.up #2"]);
    assert_eq!((labels(&inner), inner.report().steps), (vec!["up #1".to_string()], 1));
    // Nothing is left on the thread.
    products::<Outer<Flex>>(&tensors);
    assert_eq!(outer.report().sites.len(), 2);
}

#[test]
fn a_backward_pass_after_its_step_is_not_sampled() {
    let [x, w, _] = operands(13);
    let observatory = every_step();
    let weight = tensor::<Outer<Flex>, 2>(&w, [K, N]).require_grad();
    let y = observatory.step(|| tensor::<Outer<Flex>, 2>(&x, [M, K]).matmul(weight.clone()));
    let gradients = y.sum().backward();
    assert!(weight.grad(&gradients).is_some());
    assert!(observatory.report().sites[0].last.products.grad_weight.is_none());
}

#[test]
fn the_log_holds_what_was_seen() {
    let (_folder, path) = files::path("run.jsonl");
    let options = || ObservatoryOptions::default().with_every(1).with_log(&path);
    let observatory = Observatory::new(options()).expect("created");
    for seed in 0..3 {
        observatory.step(|| products::<Outer<Flex>>(&operands(seed)));
        // Flushed after each step.
        assert_eq!(log::read(&path).expect("whole").steps, seed + 1);
    }
    let (seen, read) = (sites(&observatory), log::read(&path).expect("whole"));
    assert_eq!(seen.to_string(), read.to_string());
    assert_eq!(seen.to_html(), read.to_html());
    refused(Observatory::new(options()), ["cannot create", "run.jsonl", "give another name"]);
}

#[test]
fn sums_are_added_to_a_log_where_cards_are_asked_about() {
    let (folder, _) = files::path("run.jsonl");
    let logged = |name: &str, sums: &[Sums], config: Fp8Config| {
        let path = folder.path().join(name);
        let options = ObservatoryOptions::default().with_every(1).with_log(&path);
        let observatory = Observatory::new(options.with_sums(sums.to_vec())).expect("created");
        config.scope(|| observatory.step(|| products::<Outer<Flex>>(&operands(4))));
        (std::fs::read(&path).expect("there"), sites(&observatory).sites[0].last.clone())
    };
    let config = Fp8Config::default();
    let (plain, entry) = logged("plain", &[], config);
    assert!(!String::from_utf8_lossy(&plain).contains("sums"), "as before there were any");
    assert!(logged("of f32", &[Sums::F32], config).0 == plain, "f32 is no card");
    let cards = [Sums::Ada, Sums::F32, Sums::Hopper, Sums::Ada];
    let of = |config: Fp8Config| {
        let (_, mut asked) = logged(config.sums.name(), &cards, config);
        let products = &mut asked.products;
        let all = [&mut products.output, &mut products.grad_input, &mut products.grad_weight];
        let sums = all.map(|stats| stats.as_mut().expect("measured").sums.take());
        assert_eq!(asked, entry, "but for sums");
        sums.map(|sums| -> Vec<Sums> {
            sums.expect("asked about").cards.iter().map(|card| card.sums).collect()
        })
    };
    assert_eq!(of(config), [[Sums::Ada, Sums::Hopper]; 3], "each once");
    // The one that is emulated comes first.
    let blackwell = of(config.with_sums(Sums::Blackwell));
    assert_eq!(blackwell, [[Sums::Blackwell, Sums::Ada, Sums::Hopper]; 3]);
    let own = |chain| Sums::Custom(Accumulator { chain, ..Accumulator::ADA });
    for (sums, expected) in [
        ((1..9).map(own).collect::<Vec<_>>(), "sums of 8 cards; at most 7"),
        (vec![own(0)], "chain = 0"),
    ] {
        refused(Observatory::new(ObservatoryOptions::default().with_sums(sums)), [expected]);
    }
}

#[test]
fn steps_that_overlap_are_told_and_do_not_spoil_the_log() {
    let (_folder, path) = files::path("run.jsonl");
    let options = ObservatoryOptions::default().with_every(1).with_log(&path);
    let observatory = Observatory::new(options).expect("created");
    let tensors = operands(14);
    observatory.step(|| {
        products::<Outer<Flex>>(&tensors);
        observatory.step(|| products::<Outer<Flex>>(&tensors));
    });
    let failure = observatory.failure().expect("told");
    says(&failure, ["step 0 ended after step 1"]);
    assert_eq!(failure.lines().count(), 1);
    observatory.step(|| products::<Outer<Flex>>(&tensors));
    let read = log::read(&path).expect("whole");
    assert_eq!((read.steps, read.span), (2, Some([1, 2])));
    assert_eq!(observatory.report().steps, 2);
}

#[test]
fn steps_of_other_threads_count() {
    let tensors = operands(15);
    let observatory = every_step();
    std::thread::scope(|scope| {
        let step = || observatory.step(|| products::<Outer<Flex>>(&tensors));
        scope.spawn(step).join().expect("ran");
        scope.spawn(step).join().expect("ran");
    });
    assert_eq!((sites(&observatory).steps, observatory.report().sites.len()), (2, 1));
}
