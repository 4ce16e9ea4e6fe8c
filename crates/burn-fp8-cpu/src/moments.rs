//! Steps of optimizers whose moments are in FP8: decoded, changed and encoded while they are in the cache.

use burn_fp8_core::{Fp8Format, Overflow, Recipe, element, scale};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::dropout::Philox;
use crate::slice::pass::{self, Pass, measure};
use crate::slice::same_length;
use crate::slice::widen::Widen;
use crate::unit::arch;

/// How a gradient and its moments change a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Rule {
    /// Adam with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019).
    AdamW,
    /// Adam (Kingma and Ba, 2015); weight decay is added to the gradient.
    Adam,
    /// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023): the sign of a momentum, with decoupled weight decay. It has no second moment.
    Lion,
}

/// What is kept of the second moment, the mean square of gradients, in FP8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Second {
    /// The mean square itself, as torchao keeps it.
    Square(Fp8Format),
    /// Its root, which needs half of the range: E4M3 holds gradients that are 230,000 times apart in a block, where as squares they may be 480 times apart. One that is not 0
    /// never becomes 0, so that no first moment is ever divided by nothing.
    Root(Fp8Format),
}

impl Second {
    /// The format of its codes.
    pub fn format(self) -> Fp8Format {
        match self {
            Self::Square(format) | Self::Root(format) => format,
        }
    }
}

/// The format of first moments.
pub const FIRST: Fp8Format = Fp8Format::E4M3;

/// The elements of a block at most.
pub const MAX_BLOCK: usize = 256;

/// One step of an optimizer for all elements of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The rule.
    pub rule: Rule,
    /// How much of the moments stays. For Lion the first is that of the step, the second that of the momentum.
    pub betas: [f64; 2],
    /// What is added to the root of the second moment.
    pub epsilon: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// The learning rate.
    pub learning_rate: f64,
    /// The number of this step, from 1 on.
    pub time: usize,
}

/// The numbers that a [`Step`] multiplies by, rounded once to f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// What stays of a parameter.
    pub keep: f32,
    /// How much of a parameter is added to its gradient.
    pub penalty: f32,
    /// What the first moment, or the sign, is multiplied by.
    pub rate: f32,
    /// What the root of the second moment is multiplied by.
    pub root: f32,
    /// What is added to that.
    pub epsilon: f32,
    /// How much of the gradient goes into the first moment, and of its square into the second; for Lion into the sign, and into the momentum.
    pub new: [f32; 2],
}

impl Step {
    /// Its factors.
    pub fn factors(&self) -> Factors {
        let Self { rule, betas, epsilon, weight_decay, learning_rate, time } = *self;
        let [first, second] = betas.map(|beta| {
            let correction = 1.0 - beta.powi(i32::try_from(time).unwrap_or(i32::MAX));
            if rule == Rule::Lion { 1.0 } else { correction }
        });
        let (keep, penalty) = match rule {
            Rule::Adam => (1.0, weight_decay),
            Rule::AdamW | Rule::Lion => (1.0 - learning_rate * weight_decay, 0.0),
        };
        Factors {
            keep: keep as f32,
            penalty: penalty as f32,
            rate: (learning_rate / first) as f32,
            root: second.sqrt().recip() as f32,
            epsilon: epsilon as f32,
            new: betas.map(|beta| (1.0 - beta) as f32),
        }
    }
}

/// Rounding at random, up with the probability that makes the mean right: by a counter-based generator, so that a step gives the same codes on any number of threads.
///
/// The generator is that of [`Dropout`](burn_fp8_core::Dropout); the seed is its key, and element and step are its counter. Parameters of one seed get the same numbers in a step, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Noise {
    /// The seed.
    pub seed: u64,
    /// The step.
    pub step: u32,
}

/// Elements of a task: a tenth of a millisecond.
const TASK: usize = 1 << 16;

/// A moment of a parameter: a code for each element, and a scale for each block of them.
#[derive(Debug)]
pub struct Moment<'a> {
    /// The codes.
    pub codes: &'a mut [u8],
    /// The scales.
    pub scales: &'a mut [f32],
}

/// How moments are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// The elements of a block; the last one of a parameter may have fewer.
    pub block: usize,
    /// What is kept of the second moment.
    pub second: Second,
    /// The moment that changes least in a step, the second one or that of Lion, is rounded at random; without it to the nearest code, as the first one always is.
    pub noise: Option<Noise>,
}

/// Changes a parameter by a step, and its moments: the first one in [`FIRST`], and the second one, which Lion does not look at. All zero before the first step.
///
/// The parameter is changed by moments as they are before they become codes again, whose scales are `amax / max` of their block. A moment that is not finite stays NaN, as
/// in f32 (infinite in E5M2), and does not change its neighbours. Runs on rayon's current pool; the number of threads changes no result.
///
/// # Panics
/// If the lengths do not fit each other, or a block has no elements or more than [`MAX_BLOCK`].
pub fn step(
    step: &Step,
    kept: Kept,
    parameter: &mut [f32],
    grad: &[f32],
    [first, second]: [Moment<'_>; 2],
) {
    let Kept { block, .. } = kept;
    assert!((1..=MAX_BLOCK).contains(&block), "a block has {block} elements, not 1 to {MAX_BLOCK}");
    let elements = parameter.len();
    same_length(("the parameter", elements), ("its gradient", grad.len()));
    let moments = match step.rule {
        Rule::Lion => [Some(&first), None],
        Rule::Adam | Rule::AdamW => [Some(&first), Some(&second)],
    };
    for moment in moments.into_iter().flatten() {
        same_length(("the parameter", elements), ("codes of a moment", moment.codes.len()));
        same_length(
            ("blocks", elements.div_ceil(block)),
            ("scales of a moment", moment.scales.len()),
        );
    }
    let factors = step.factors();
    let work = Blocks { rule: step.rule, factors, kept, start: 0, parameter, grad, first, second };
    if elements > TASK && rayon::current_num_threads() > 1 {
        let blocks = TASK / block;
        return work.in_parallel(blocks * block, blocks);
    }
    work.run_all();
}

/// Neighbouring blocks of a parameter.
struct Blocks<'a> {
    rule: Rule,
    factors: Factors,
    kept: Kept,
    /// The index of the first element.
    start: usize,
    parameter: &'a mut [f32],
    grad: &'a [f32],
    first: Moment<'a>,
    second: Moment<'a>,
}

impl Blocks<'_> {
    fn run_all(self) {
        let format = self.kept.second.format();
        pass::run(self, format, Overflow::SaturateFinite);
    }

    fn in_parallel(self, elements: usize, blocks: usize) {
        let Self { rule, factors, kept, parameter, grad, first, second, .. } = self;
        let codes = first.codes.par_chunks_mut(elements);
        let first = codes.zip(first.scales.par_chunks_mut(blocks));
        let parameter = parameter.par_chunks_mut(elements).zip(grad.par_chunks(elements));
        let task = |index: usize,
                    parameter: &mut [f32],
                    grad: &[f32],
                    first: Moment<'_>,
                    second: Moment<'_>| {
            let start = index * elements;
            Blocks { rule, factors, kept, start, parameter, grad, first, second }.run_all();
        };
        let of_first = |(codes, scales)| Moment { codes, scales };
        if rule == Rule::Lion {
            return parameter.zip(first).enumerate().for_each(|(index, ((p, g), m))| {
                let none = Moment { codes: &mut [], scales: &mut [] };
                task(index, p, g, of_first(m), none);
            });
        }
        let codes = second.codes.par_chunks_mut(elements);
        let second = codes.zip(second.scales.par_chunks_mut(blocks));
        parameter.zip(first.zip(second)).enumerate().for_each(|(index, ((p, g), (m, v)))| {
            task(index, p, g, of_first(m), of_first(v));
        });
    }
}

impl Pass for Blocks<'_> {
    #[inline(always)]
    fn run(self, _: impl Widen, format: Fp8Format, _: Overflow) {
        let root = matches!(self.kept.second, Second::Root(_));
        match (self.rule, root) {
            (Rule::Lion, _) => self.lion(),
            (Rule::Adam, true) => self.adam::<true>(format, true),
            (Rule::Adam, false) => self.adam::<false>(format, true),
            (Rule::AdamW, true) => self.adam::<true>(format, false),
            (Rule::AdamW, false) => self.adam::<false>(format, false),
        }
    }
}

impl Blocks<'_> {
    #[inline(always)]
    fn adam<const ROOT: bool>(self, format: Fp8Format, penalized: bool) {
        let Self { factors: f, kept, start, parameter, grad, first, second, .. } = self;
        let block = kept.block;
        let moments = first
            .codes
            .chunks_mut(block)
            .zip(first.scales)
            .zip(second.codes.chunks_mut(block).zip(second.scales));
        let parameter = parameter.chunks_mut(block).zip(grad.chunks(block));
        let [mut m, mut v] = [[0f32; MAX_BLOCK]; 2];
        let mut words = [0; WORDS];
        for (index, ((p, g), ((m_codes, m_scale), (v_codes, v_scale)))) in
            parameter.zip(moments).enumerate()
        {
            let (m, v) = (&mut m[..p.len()], &mut v[..p.len()]);
            decode(m_codes, *m_scale, FIRST, m);
            decode(v_codes, *v_scale, format, v);
            for (((p, g), m), v) in p.iter_mut().zip(g).zip(&mut *m).zip(&mut *v) {
                let g = if penalized { *g + f.penalty * *p } else { *g };
                let square = if ROOT { *v * *v } else { *v };
                let square = square + f.new[1] * (g * g - square);
                *m += f.new[0] * (g - *m);
                let root = square.sqrt();
                *p = f.keep * *p - f.rate * *m / (root * f.root + f.epsilon);
                *v = if ROOT { root } else { square };
            }
            encode(m, FIRST, false, None, m_codes, m_scale);
            let words = of_block(kept, start + index * block, v.len(), &mut words);
            encode(v, format, ROOT, words, v_codes, v_scale);
        }
    }

    #[inline(always)]
    fn lion(self) {
        let Self { factors: f, kept, start, parameter, grad, first, .. } = self;
        let block = kept.block;
        let moments = first.codes.chunks_mut(block).zip(first.scales);
        let parameter = parameter.chunks_mut(block).zip(grad.chunks(block));
        let mut m = [0f32; MAX_BLOCK];
        let mut words = [0; WORDS];
        for (index, ((p, g), (codes, scale))) in parameter.zip(moments).enumerate() {
            let m = &mut m[..p.len()];
            decode(codes, *scale, FIRST, m);
            for ((p, g), m) in p.iter_mut().zip(g).zip(&mut *m) {
                let direction = *m + f.new[0] * (*g - *m);
                // Of 0 and of NaN: itself.
                let sign = if direction > 0.0 { 1.0 } else { direction };
                let sign = if direction < 0.0 { -1.0 } else { sign };
                *p = f.keep * *p - f.rate * sign;
                *m += f.new[1] * (*g - *m);
            }
            let words = of_block(kept, start + index * block, m.len(), &mut words);
            encode(m, FIRST, false, words, codes, scale);
        }
    }
}

#[inline(always)]
fn decode(codes: &[u8], scale: f32, format: Fp8Format, x: &mut [f32]) {
    let largest = codes.iter().fold(0, |largest: u8, code| largest.max(code & 0x7F));
    if format.decode(largest).is_finite() {
        for (x, code) in x.iter_mut().zip(codes) {
            *x = element::decode_finite(*code, format) * scale;
        }
    } else {
        for (x, code) in x.iter_mut().zip(codes) {
            *x = element::decode(*code, format) * scale;
        }
    }
}

/// Those of the block that starts at an element, if it is rounded at random.
#[inline(always)]
fn of_block(kept: Kept, start: usize, elements: usize, words: &mut [u32; WORDS]) -> Option<&[u32]> {
    kept.noise.map(|noise| draw(noise, PURPOSE_MOMENTS, start, elements, words))
}

/// The codes of a block and its scale. Roots are `lifted`: no positive number becomes 0. At random, the mean of their squares is right.
#[inline(always)]
fn encode(
    x: &[f32],
    format: Fp8Format,
    lifted: bool,
    words: Option<&[u32]>,
    codes: &mut [u8],
    scale: &mut f32,
) {
    let amax = measure(x);
    *scale = scale::from_amax(amax.value, format, Recipe::current());
    let scale = *scale;
    let least = if lifted { scale * format.min_positive_subnormal() } else { 0.0 };
    // Not a condition on storing, which is slow.
    let lift = |x: f32| if x > 0.0 && x < least { least } else { x };
    let Some(words) = words else {
        // Two loops: the first is shorter.
        if !amax.non_finite {
            for (x, code) in x.iter().zip(codes) {
                *code = element::quantize(lift(*x), scale, format, Overflow::Saturate).code();
            }
            return;
        }
        for (x, code) in x.iter().zip(codes) {
            *code = element::quantize(lift(*x), scale, format, Overflow::SaturateFinite).code();
        }
        return;
    };
    // The lower halves of the words are for one half of the block, the upper ones for the other.
    let half = x.len().div_ceil(2);
    for (bit, (x, codes)) in [0, 16].into_iter().zip(x.chunks(half).zip(codes.chunks_mut(half))) {
        for ((x, code), word) in x.iter().zip(codes).zip(words) {
            let uniform = (((word >> bit) & 0xFFFF) as f32 + 0.5) / 65536.0;
            *code = element::at_random(lift(*x) / scale, uniform, lifted, format);
        }
    }
    if amax.non_finite {
        for (x, code) in x.iter().zip(codes).filter(|(x, _)| !x.is_finite()) {
            *code = element::quantize(*x, scale, format, Overflow::SaturateFinite).code();
        }
    }
}

/// Rounds numbers of a parameter to bf16 at random, in place: to one of both neighbours, so that the mean over steps is right, also where each step changes a parameter by less than their distance. What is not finite stays so.
///
/// Runs on rayon's current pool; the number of threads changes no result.
pub fn round_to_bf16(x: &mut [f32], noise: Noise) {
    let tasks = x.par_chunks_mut(TASK).enumerate();
    tasks.for_each(|(index, x)| ToBf16 { x, start: index * TASK, noise }.run_all());
}

struct ToBf16<'a> {
    x: &'a mut [f32],
    start: usize,
    noise: Noise,
}

impl ToBf16<'_> {
    fn run_all(self) {
        pass::run(self, FIRST, Overflow::SaturateFinite);
    }
}

impl Pass for ToBf16<'_> {
    #[inline(always)]
    fn run(self, _: impl Widen, _: Fp8Format, _: Overflow) {
        let mut words = [0; WORDS];
        for (index, x) in self.x.chunks_mut(MAX_BLOCK).enumerate() {
            let start = self.start + index * MAX_BLOCK;
            let words = draw(self.noise, PURPOSE_BF16, start, x.len(), &mut words);
            for (bit, x) in [0, 16].into_iter().zip(x.chunks_mut(x.len().div_ceil(2))) {
                for (x, word) in x.iter_mut().zip(words) {
                    let uniform = (word >> bit) & 0xFFFF;
                    let rounded = f32::from_bits(x.to_bits().wrapping_add(uniform) & 0xFFFF_0000);
                    *x = if x.is_finite() { rounded } else { *x };
                }
            }
        }
    }
}

/// Words for a block: 16 bits for each element.
const WORDS: usize = MAX_BLOCK / 2;

/// The last words of the counters: what the words are for.
const PURPOSE_MOMENTS: u32 = 1;
const PURPOSE_BF16: u32 = 2;

/// Words at random for so many elements from `start` on, up to [`MAX_BLOCK`]: a half of a word for each.
#[inline(always)]
fn draw(
    noise: Noise,
    purpose: u32,
    start: usize,
    elements: usize,
    words: &mut [u32; WORDS],
) -> &[u32] {
    // Each counter gives four words, for eight elements.
    let counters = elements.div_ceil(8);
    let words = &mut words[..4 * counters];
    {
        let (low, rest) = words.split_at_mut(counters);
        let (high, rest) = rest.split_at_mut(counters);
        let (step, of_purpose) = rest.split_at_mut(counters);
        for (index, (low, high)) in low.iter_mut().zip(&mut *high).enumerate() {
            let counter = (start + index) as u64;
            (*low, *high) = (counter as u32, (counter >> 32) as u32);
        }
        step.fill(noise.step);
        of_purpose.fill(purpose);
        let words = [low, high, step, of_purpose];
        arch().dispatch(Philox { words, seed: noise.seed });
    }
    words
}
