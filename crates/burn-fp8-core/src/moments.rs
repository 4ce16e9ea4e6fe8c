//! Steps of optimizers, and what they keep of their moments.

use serde::{Deserialize, Serialize};

use crate::Fp8Format;

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
/// The generator is that of [`Dropout`](crate::Dropout); the seed is its key, and element and step are its counter. Parameters of one seed get the same numbers in a step, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Noise {
    /// The seed.
    pub seed: u64,
    /// The step.
    pub step: u32,
}
