//! Training on the host: amax histories, and a linear layer with FP8 products.

use burn_fp8::Scaling;

use crate::common::*;
use crate::support::rounded;

/// The amax history of an operand.
pub struct History {
    format: Fp8Format,
    pub entries: Vec<f32>,
    /// The largest amax of the step so far.
    seen: f32,
}

impl History {
    /// Those of input, weight and output gradient; without entries under current scaling.
    pub fn of_operands(length: usize) -> [Self; 3] {
        [E4M3, E4M3, E5M2].map(|format| Self { format, entries: vec![0.0; length], seen: 0.0 })
    }

    /// What a tensor holds in FP8, by the history as it was when the step began; where that is empty by its own amax.
    pub fn quantize(&mut self, x: &[f32], recipe: Recipe) -> Vec<f64> {
        let own = reference::amax(x);
        self.seen = self.seen.max(own);
        let largest = self.entries.iter().fold(0f32, |largest, amax| largest.max(*amax));
        let amax = if largest == 0.0 { own } else { largest };
        let scale = amax / reference::largest(self.format) * 2f32.powi(recipe.margin);
        let scale = match (largest.max(own) == 0.0, recipe.power_of_two) {
            (true, _) => 1.0,
            (_, true) => f64::from(scale).log2().ceil().exp2() as f32,
            (_, false) => scale,
        };
        reference::quantize_dequantize_by(x, scale, self.format)
    }

    /// The step's amax enters.
    pub fn commit(&mut self) {
        let seen = std::mem::take(&mut self.seen);
        if !self.entries.is_empty() {
            self.entries.rotate_left(1);
            self.entries[0] = seen;
        }
    }
}

/// A linear layer whose tensors are of a type, and whose products are in FP8, summed up in f64.
pub struct Layer {
    pub weight: Vec<f32>,
    pub bias: Vec<f32>,
    histories: [History; 3],
    recipe: Recipe,
    dtype: FloatDType,
    /// What input and weight held in the forward pass.
    held: [Vec<f64>; 2],
}

impl Layer {
    pub fn new(weight: Vec<f32>, outputs: usize, recipe: Recipe, dtype: FloatDType) -> Self {
        let length = match recipe.scaling {
            Scaling::Delayed(delayed) => delayed.history_length,
            Scaling::Current(_) => 0,
        };
        Self {
            weight: rounded(weight, dtype),
            bias: vec![0.0; outputs],
            histories: History::of_operands(length),
            recipe,
            dtype,
            held: [vec![], vec![]],
        }
    }

    /// Inputs and outputs.
    fn dims(&self) -> [usize; 2] {
        [self.weight.len() / self.bias.len(), self.bias.len()]
    }

    fn product(&self, a: &[f64], b: &[f64], shape: [usize; 3]) -> Vec<f32> {
        let (product, _) = reference::matmul(a, b, shape);
        rounded(product.into_iter().map(|x| x as f32).collect(), self.dtype)
    }

    pub fn forward(&mut self, x: &[f32]) -> Vec<f32> {
        let [k, n] = self.dims();
        let [of_input, of_weight, _] = &mut self.histories;
        self.held =
            [of_input.quantize(x, self.recipe), of_weight.quantize(&self.weight, self.recipe)];
        let mut y = self.product(&self.held[0], &self.held[1], [x.len() / k, k, n]);
        y.iter_mut().enumerate().for_each(|(index, y)| *y += self.bias[index % n]);
        rounded(y, self.dtype)
    }

    /// Takes a step of gradient descent, ends the step of delayed scaling, and returns the gradient of the input.
    pub fn backward(&mut self, g: &[f32], learning_rate: f32) -> Vec<f32> {
        let [k, n] = self.dims();
        let m = g.len() / n;
        let held = self.histories[2].quantize(g, self.recipe);
        let [x, w] = &self.held;
        let dx = self.product(&held, &reference::transpose(w, [k, n]), [m, n, k]);
        let dw = self.product(&reference::transpose(x, [m, k]), &held, [k, m, n]);
        let g: Vec<f64> = g.iter().map(|g| f64::from(*g)).collect();
        let db = self.product(&vec![1.0; m], &g, [1, m, n]);
        for (parameter, grad) in [(&mut self.weight, dw), (&mut self.bias, db)] {
            let stepped = parameter.iter().zip(grad).map(|(p, grad)| p - learning_rate * grad);
            *parameter = rounded(stepped.collect(), self.dtype);
        }
        self.histories.iter_mut().for_each(History::commit);
        dx
    }
}
