//! Steps of optimizers with moments in FP8: against torchao's, and against f64.

use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};
use burn_fp8_core::Overflow;
use burn_fp8_cpu::moments::{Kept, Moment, Noise, Rule, Second, Step, round_to_bf16, step};
use burn_fp8_test_support::fp8::encode;

use crate::common::{Random, golden, on_all_instructions, pool};

/// A parameter and its moments.
#[derive(Clone, Debug, PartialEq)]
struct State {
    parameter: Vec<f32>,
    codes: [Vec<u8>; 2],
    scales: [Vec<f32>; 2],
}

impl State {
    fn new(parameter: Vec<f32>, block: usize) -> Self {
        let (elements, blocks) = (parameter.len(), parameter.len().div_ceil(block));
        let codes = [vec![0; elements], vec![0; elements]];
        Self { parameter, codes, scales: [vec![1.0; blocks], vec![1.0; blocks]] }
    }

    fn step(&mut self, by: &Step, kept: Kept, grad: &[f32]) {
        let Self { parameter, codes: [m, v], scales: [of_m, of_v] } = self;
        let moments = [(m, of_m), (v, of_v)].map(|(codes, scales)| Moment { codes, scales });
        step(by, kept, parameter, grad, moments);
    }

    /// A moment in f64, as its codes and scales have it.
    fn moment(&self, which: usize, format: Fp8Format, block: usize) -> Vec<f64> {
        let decoded = self.codes[which].chunks(block).zip(&self.scales[which]);
        decoded
            .flat_map(|(codes, scale)| {
                codes.iter().map(|code| f64::from(format.decode(*code)) * f64::from(*scale))
            })
            .collect()
    }
}

fn kept(block: usize, second: Second) -> Kept {
    Kept { block, second, noise: None }
}

fn adamw(time: usize) -> Step {
    Step {
        rule: Rule::AdamW,
        betas: [0.9, 0.999],
        epsilon: 1e-8,
        weight_decay: 0.1,
        learning_rate: 1e-2,
        time,
    }
}

/// Numbers that are many powers of two apart, others for each `seed`.
fn numbers(elements: usize, seed: usize) -> Vec<f32> {
    Random(seed as u64).magnitudes(12, elements)
}

#[test]
fn steps_are_those_of_torchao() {
    on_all_instructions(|| {
        let golden = golden("moments");
        for case in golden.cases("cases") {
            let name = case["name"].as_str().expect("a name");
            let number = |key: &str| case[key].as_f64().expect("a number");
            let beta = |index: usize| case["betas"][index].as_f64().expect("a number");
            let block = number("block") as usize;
            let decoupled = case["decoupled"].as_bool().expect("whether");
            let grads = golden.f32s(&format!("{name}/grads"));
            let mut state = State::new(golden.f32s(&format!("{name}/p")), block);
            let elements = state.parameter.len();
            // torch may fuse a multiplication and a sum: a tie may go the other way, and what comes after it.
            let mut other = vec![false; elements];
            let mut allowed = vec![0f32; elements];
            let of_step = |key: &str, index: usize| {
                let all = golden.f32s(&format!("{name}/{key}"));
                let each = all.len() / (grads.len() / elements);
                all[index * each..][..each].to_vec()
            };
            for (index, grad) in grads.chunks(elements).enumerate() {
                let by = Step {
                    rule: if decoupled { Rule::AdamW } else { Rule::Adam },
                    betas: [beta(0), beta(1)],
                    epsilon: number("eps"),
                    weight_decay: number("weight_decay"),
                    learning_rate: number("lr"),
                    time: index + 1,
                };
                let before = state.parameter.clone();
                state.step(&by, kept(block, Second::Square(E4M3)), grad);
                let after = of_step("after", index);
                for (i, (x, expected)) in state.parameter.iter().zip(after).enumerate() {
                    // torchao corrects the bias in f32, where 1 - 0.999² has lost five digits. Where a square has become 0, steps are dozens of times as long as the learning rate.
                    let way = (expected - before[i]).abs();
                    allowed[i] += 2e-6 * expected.abs().max(0.1) + 2e-5 * way;
                    assert!(
                        (x - expected).abs() <= allowed[i] || other[i],
                        "{name} {index}: {x} {expected}, from {}",
                        before[i]
                    );
                }
                for (which, moment) in ["m", "v"].into_iter().enumerate() {
                    let codes = golden.u8s(&format!("{name}/{moment}_codes"));
                    let codes = state.codes[which].iter().zip(&codes[index * elements..]);
                    for (other, (ours, theirs)) in other.iter_mut().zip(codes) {
                        *other |= ours != theirs;
                    }
                    let scales = of_step(&format!("{moment}_scales"), index);
                    for (block, (scale, expected)) in
                        state.scales[which].iter().zip(scales).enumerate()
                    {
                        // A block of zeros has a scale of 1 here; torchao's is the least that it has.
                        let zero = block == 1 && *scale == 1.0 && expected < 1e-14 && decoupled;
                        let least = f64::from(expected) * 448.0 <= 1.0001e-12;
                        assert!(
                            zero || least || (scale / expected - 1.0).abs() < 1e-6,
                            "{name} {index} {moment} {block}: {scale} {expected}"
                        );
                    }
                }
            }
            let others = other.iter().filter(|other| **other).count();
            assert!(others <= 4, "{name}: {others} of {elements} elements have other codes");
        }
    });
}

/// Each step from what the codes before it stand for, in f64; and the codes by search.
#[test]
fn steps_are_those_of_f64() {
    on_all_instructions(|| {
        let (elements, block) = (3 * 128 + 37, 128);
        let seconds = [E4M3, E5M2].map(|format| [Second::Square(format), Second::Root(format)]);
        for (rule, second) in [Rule::Adam, Rule::AdamW, Rule::Lion]
            .into_iter()
            .flat_map(|rule| seconds.iter().flatten().map(move |second| (rule, *second)))
        {
            let root = matches!(second, Second::Root(_));
            let mut state = State::new(numbers(elements, 1), block);
            for time in 1..=5 {
                let by = Step { rule, time, epsilon: 1e-6, ..adamw(1) };
                let mut grad = numbers(elements, 10 + time);
                grad[..128].fill(0.0);
                let before = state.clone();
                state.step(&by, kept(block, second), &grad);
                let [m, v] = [(0, E4M3), (1, second.format())]
                    .map(|(at, format)| before.moment(at, format, block));
                let betas = by.betas;
                let mut moments = [vec![], vec![]];
                for i in 0..elements {
                    let (p, mut g) = (f64::from(before.parameter[i]), f64::from(grad[i]));
                    let (lr, decay) = (by.learning_rate, by.weight_decay);
                    let mean = |beta: f64, old: f64, new: f64| beta * old + (1.0 - beta) * new;
                    let expected = match rule {
                        Rule::Lion => {
                            let direction = mean(betas[0], m[i], g);
                            moments[0].push(mean(betas[1], m[i], g));
                            let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
                            p * (1.0 - lr * decay) - lr * sign
                        }
                        _ => {
                            if rule == Rule::Adam {
                                g += decay * p;
                            }
                            let first = mean(betas[0], m[i], g);
                            let old = if root { v[i] * v[i] } else { v[i] };
                            let square = mean(betas[1], old, g * g);
                            moments[0].push(first);
                            moments[1].push(if root { square.sqrt() } else { square });
                            let corrected = |x: f64, beta: f64| x / (1.0 - beta.powi(time as i32));
                            let (first, square) =
                                (corrected(first, betas[0]), corrected(square, betas[1]));
                            let kept = if rule == Rule::AdamW { p * (1.0 - lr * decay) } else { p };
                            kept - lr * first / (square.sqrt() + by.epsilon)
                        }
                    };
                    let error = (f64::from(state.parameter[i]) - expected).abs();
                    assert!(
                        error <= 2e-6 * (p.abs() + (expected - p).abs() + lr),
                        "{rule:?} {second:?} {time} {i}: {error}"
                    );
                }
                for (which, moment) in
                    moments.iter().enumerate().filter(|(_, moment)| !moment.is_empty())
                {
                    let format = [E4M3, second.format()][which];
                    let lifted = root && which == 1;
                    let mut other = 0;
                    for (index, numbers) in moment.chunks(block).enumerate() {
                        let amax = numbers.iter().fold(0f64, |amax, x| amax.max(x.abs()));
                        let scale = f64::from(state.scales[which][index]);
                        let expected =
                            if amax == 0.0 { 1.0 } else { amax / f64::from(format.max()) };
                        assert!(
                            (scale / expected - 1.0).abs() < 1e-6,
                            "{rule:?} {second:?} {time}"
                        );
                        for (x, code) in numbers.iter().zip(&state.codes[which][index * block..]) {
                            let near = encode(x / scale, format, Overflow::SaturateFinite);
                            let near = if lifted && *x > 0.0 { near.max(1) } else { near };
                            // f32 may round to the other side of a tie.
                            other += usize::from(near != *code);
                            let apart =
                                f64::from(format.decode(near)) - f64::from(format.decode(*code));
                            assert!(
                                apart.abs() <= (x / scale).abs() / 4.0 + 1e-2,
                                "{rule:?} {second:?} {time}"
                            );
                        }
                    }
                    assert!(other <= 1, "{rule:?} {second:?} {time}: {other} other codes");
                }
            }
        }
    });
}

#[test]
fn what_is_not_finite_stays_where_it_is() {
    for second in [Second::Square(E5M2), Second::Root(E4M3)] {
        let (elements, block) = (300, 256);
        let mut state = State::new(vec![1.0; elements], block);
        let mut grad = vec![0.5; elements];
        (grad[3], grad[290]) = (f32::NAN, f32::INFINITY);
        let mut clean = state.clone();
        for time in 1..=3 {
            state.step(&adamw(time), kept(block, second), &grad);
            clean.step(&adamw(time), kept(block, second), &vec![0.5; elements]);
            grad.fill(0.5);
        }
        for (i, (x, expected)) in state.parameter.iter().zip(&clean.parameter).enumerate() {
            match i {
                3 | 290 => assert!(x.is_nan(), "{second:?} {i}: {x}"),
                _ => assert_eq!(x, expected, "{second:?} {i}"),
            }
        }
        for which in 0..2 {
            let is_finite = |code: &u8| [E4M3, second.format()][which].decode(*code).is_finite();
            let count = state.codes[which].iter().filter(|code| !is_finite(code)).count();
            assert_eq!(count, 2, "{second:?} {which}");
        }
    }
}

/// A first moment that outlives the second one would be divided by `epsilon` alone.
#[test]
fn a_root_that_is_not_zero_does_not_become_zero() {
    let block = 256;
    let furthest = |second| {
        let mut state = State::new(vec![0.0; block], block);
        let mut grad = vec![1e-6; block];
        grad[0] = 10.0;
        for time in 1..=50 {
            let before = state.parameter.clone();
            state.step(&Step { weight_decay: 0.0, ..adamw(time) }, kept(block, second), &grad);
            // The large one was noise: only second moments remember it.
            grad[0] = 0.0;
            grad[1..].fill(if time < 30 { 1e-6 } else { 0.0 });
            assert!(before.iter().zip(&state.parameter).all(|(x, y)| (x - y).abs() < 0.1));
        }
        state.parameter.iter().fold(0f32, |most, x| most.max(x.abs()))
    };
    assert!(furthest(Second::Root(E4M3)) < 0.5);
}

#[test]
fn threads_and_tasks_change_nothing() {
    let block = 128;
    let elements = (1 << 18) + 77;
    let grads = [numbers(elements, 3), numbers(elements, 4)];
    for (rule, noise) in [
        (Rule::AdamW, None),
        (Rule::AdamW, Some(Noise { seed: 9, step: 1 })),
        (Rule::Lion, Some(Noise { seed: 9, step: 1 })),
    ] {
        let run = |threads: usize| {
            pool(threads).install(|| {
                let mut state = State::new(numbers(elements, 2), block);
                for (index, grad) in grads.iter().enumerate() {
                    let by = Step { rule, ..adamw(index + 1) };
                    state.step(&by, Kept { block, second: Second::Root(E4M3), noise }, grad);
                }
                state
            })
        };
        assert_eq!(run(1), run(4), "{rule:?} {noise:?}");
    }
}

/// Each code is a neighbour of the number, and their mean, for roots that of their squares, is right: over 65,536 steps with other noise, within five deviations.
#[test]
fn rounding_at_random_is_right_in_the_mean() {
    // After the first step the momentum is 0.01 of the gradient, and the root of the second moment that of 0.001.
    mean_is_right(Rule::Lion, 0, |g| f64::from(0.01f32 * g));
    mean_is_right(Rule::AdamW, 1, |g| 0.001f64.sqrt() * f64::from(g.abs()));
}

fn mean_is_right(rule: Rule, which: usize, moment: impl Fn(f32) -> f64) {
    let block = 64;
    let power = if rule == Rule::Lion { 1 } else { 2 };
    // Across two powers of two, with subnormals and a zero.
    let grad: Vec<f32> =
        (0..block).map(|i| [1.0, 0.47 * 1.03f32.powi(-(i as i32)), 1e-5, 0.0][i % 4]).collect();
    let signed: Vec<f32> =
        grad.iter().enumerate().map(|(i, x)| if i % 8 < 4 { *x } else { -x }).collect();
    let runs = 1 << 16;
    let mut sums = vec![0f64; block];
    let numbers: Vec<f64> = signed.iter().map(|g| moment(*g)).collect();
    let largest = numbers.iter().fold(0f64, |largest, x| largest.max(x.abs()));
    for run in 0..runs {
        let mut state = State::new(vec![0.0; block], block);
        let noise = Some(Noise { seed: 5, step: run });
        let betas = if rule == Rule::Lion { [0.9, 0.99] } else { [0.9, 0.999] };
        let by = Step { rule, betas, ..adamw(1) };
        state.step(&by, Kept { block, second: Second::Root(E4M3), noise }, &signed);
        if rule == Rule::AdamW {
            let mut nearest = State::new(vec![0.0; block], block);
            nearest.step(&by, kept(block, Second::Root(E4M3)), &signed);
            assert_eq!(state.codes[0], nearest.codes[0], "first moments are not at random");
        }
        let scale = f64::from(state.scales[which][0]);
        for ((x, sum), code) in numbers.iter().zip(&mut sums).zip(&state.codes[which]) {
            let value = f64::from(E4M3.decode(*code)) * scale;
            let distance = (x.abs() / 8.0).max(scale / 512.0);
            assert!((value - x).abs() < distance * 1.0001, "{value} of {x}");
            *sum += value.powi(power);
        }
    }
    for (x, sum) in numbers.iter().zip(sums) {
        let distance = (x.abs() / 8.0).max(largest / 448.0 / 512.0);
        // How far a value, or its square, may lie from its mean.
        let distance = if power == 2 { distance * (2.0 * x + distance) } else { distance };
        let (mean, exact) = (sum / f64::from(runs), x.powi(power));
        let allowed = 5.0 * 0.5 * distance / f64::from(runs).sqrt() + exact.abs() * 1e-6;
        assert!((mean - exact).abs() <= allowed, "{rule:?}: {mean} of {exact}");
    }
}

/// Each becomes one of its neighbours, with their mean over 4,096 steps within five deviations; the same on one thread and on three, which take several tasks.
#[test]
fn parameters_in_bf16_are_right_in_the_mean() {
    let exact = [1.0, 1.0 + 1.0 / 1024.0, -1.003, 3e-3, 0.1, -1e30, 1e-39, 0.0];
    let is_bf16 = |x: f32| (x.to_bits() & 0xFFFF) == 0;
    let steps = 4096;
    let mut sums = [0f64; 8];
    for step in 0..steps {
        let mut x = exact;
        round_to_bf16(&mut x, Noise { seed: 9, step });
        for ((x, number), sum) in x.into_iter().zip(exact).zip(&mut sums) {
            let toward_zero = number.to_bits() & 0xFFFF_0000;
            let away = if is_bf16(number) { toward_zero } else { toward_zero + 0x1_0000 };
            assert!([toward_zero, away].contains(&x.to_bits()), "{x} of {number}");
            *sum += f64::from(x);
        }
    }
    for (number, sum) in exact.into_iter().zip(sums) {
        let below = f32::from_bits(number.to_bits() & 0xFFFF_0000);
        let distance = f64::from(f32::from_bits(below.to_bits() + 0x1_0000)) - f64::from(below);
        let (mean, number) = (sum / f64::from(steps), f64::from(number));
        let deviation = 0.5 * distance.abs() / f64::from(steps).sqrt();
        assert!((mean - number).abs() <= 5.0 * deviation, "{mean} of {number}");
    }

    let special = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
    let mut x = special;
    round_to_bf16(&mut x, Noise { seed: 9, step: 1 });
    assert_eq!(x.map(f32::to_bits), special.map(f32::to_bits));

    let long = numbers(200_003, 3);
    let on = |threads| {
        let pool = pool(threads);
        let mut x = long.clone();
        pool.install(|| round_to_bf16(&mut x, Noise { seed: 9, step: 1 }));
        x
    };
    assert_eq!(on(1), on(3));
    // No two places have the same words.
    let mut same = vec![1.0 + 1.0 / 256.0; 1 << 17];
    round_to_bf16(&mut same, Noise { seed: 9, step: 1 });
    assert_ne!(same[..1 << 16], same[1 << 16..]);
}

#[test]
#[should_panic(expected = "its gradient has 3")]
fn lengths_are_compared() {
    State::new(vec![0.0; 4], 128).step(&adamw(1), kept(128, Second::Root(E4M3)), &[0.0; 3]);
}

#[test]
#[should_panic(expected = "a block has 512 elements")]
fn blocks_have_a_limit() {
    State::new(vec![0.0; 4], 512).step(&adamw(1), kept(512, Second::Root(E4M3)), &[0.0; 4]);
}
