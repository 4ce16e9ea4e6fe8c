//! Epilogues on products of integers, whose sums are exact: so every result has one right answer.

use burn_fp8_core::Overflow;
use burn_fp8_cpu::{Activation, Codes, Epilogue, OperandScales, Output};
use half::{bf16, f16};

use super::{FORMATS, Layout, Operand, PAIRS, Random, Runner, exact, integers};

/// An epilogue, and the exact sums that it is applied to.
pub struct Case {
    pub lhs: Operand,
    pub rhs: Operand,
    pub sums: Vec<f64>,
    /// Of each row and each column, `[batch × M]` and `[batch × N]`.
    pub lhs_scales: Vec<f32>,
    pub rhs_scales: Vec<f32>,
    pub bias: Option<Vec<f32>>,
    pub activation: Activation,
}

impl Case {
    pub fn new(lhs: Operand, rhs: Operand, [lhs_scale, rhs_scale]: [f32; 2]) -> Self {
        let sums = exact(&lhs, &rhs).values;
        let batch = lhs.batches();
        let lhs_scales = vec![lhs_scale; batch * lhs.shape[0]];
        let rhs_scales = vec![rhs_scale; batch * rhs.shape[1]];
        Self { lhs, rhs, sums, lhs_scales, rhs_scales, bias: None, activation: Activation::None }
    }

    pub fn integers(random: &mut Random, [m, n, k]: [usize; 3], scales: [f32; 2]) -> Self {
        let [left, right] = random.pick(&PAIRS);
        let lhs = Operand::random(random, &integers(left), left, [m, k], Layout::Rows);
        let rhs = Operand::random(random, &integers(right), right, [k, n], Layout::Transposed);
        Self::new(lhs, rhs, scales)
    }

    /// The results before they are rounded to the type of the output, operation by operation in f32.
    pub fn expected(&self) -> Vec<f32> {
        let ([m, _], [_, n]) = (self.lhs.shape, self.rhs.shape);
        let result = |(index, sum): (usize, &f64)| {
            let (batch, row, column) = (index / (m * n), index / n % m, index % n);
            let (lhs, rhs) =
                (self.lhs_scales[batch * m + row], self.rhs_scales[batch * n + column]);
            let mut x = *sum as f32;
            assert!(sum.is_nan() || f64::from(x) == *sum);
            let both = lhs * rhs;
            x = if both.is_normal() { x * both } else { x * lhs * rhs };
            x += self.bias.as_ref().map_or(0.0, |bias| bias[column]);
            match self.activation {
                Activation::None => x,
                Activation::Relu if x < 0.0 => 0.0,
                Activation::Relu => x,
                _ => unreachable!("not exact"),
            }
        };
        self.sums.iter().enumerate().map(result).collect()
    }

    /// One scale of each operand.
    pub fn tensor(&self) -> Epilogue<'_> {
        self.epilogue(OperandScales::Tensor { lhs: self.lhs_scales[0], rhs: self.rhs_scales[0] })
    }

    /// A scale of each row and column.
    pub fn rows(&self) -> Epilogue<'_> {
        self.epilogue(OperandScales::Rows { lhs: &self.lhs_scales, rhs: &self.rhs_scales })
    }

    pub fn epilogue<'a>(&'a self, scales: OperandScales<'a>) -> Epilogue<'a> {
        Epilogue { scales, bias: self.bias.as_deref(), activation: self.activation }
    }

    pub fn views(&self) -> [Codes<'_>; 2] {
        [self.lhs.view(), self.rhs.view()]
    }

    /// Asserts that each type of output holds the expected results, rounded by `half`, or by a division and `Fp8Format::encode`.
    #[track_caller]
    pub fn check(&self, epilogue: &Epilogue<'_>) {
        let [lhs, rhs] = self.views();
        let expected = self.expected();
        let len = expected.len();
        for runner in Runner::all() {
            let what = format!("{runner:?} {:?} {epilogue:?}", self.lhs.shape);
            let mut y = vec![f32::NAN; len];
            runner.run(lhs, rhs, epilogue, Output::F32(&mut y));
            same(&y, &expected, |x| x, &what);

            let before: Vec<_> = (0..len).map(|i| i as f32 - 7.0).collect();
            let mut y = before.clone();
            runner.run(lhs, rhs, epilogue, Output::Add(&mut y));
            let added: Vec<_> = before.iter().zip(&expected).map(|(y, x)| y + x).collect();
            same(&y, &added, |x| x, &format!("{what} added"));

            let mut y = vec![bf16::NAN; len];
            runner.run(lhs, rhs, epilogue, Output::Bf16(&mut y));
            let y: Vec<_> = y.into_iter().map(f32::from).collect();
            same(&y, &expected, |x| bf16::from_f32(x).to_f32(), &format!("{what} bf16"));

            let mut y = vec![f16::NAN; len];
            runner.run(lhs, rhs, epilogue, Output::F16(&mut y));
            let y: Vec<_> = y.into_iter().map(f32::from).collect();
            same(&y, &expected, |x| f16::from_f32(x).to_f32(), &format!("{what} f16"));

            for format in FORMATS {
                for factor in [1.0, 4.0, 0.27, 77.0] {
                    let mut codes = vec![0x7F; len];
                    runner.run(
                        lhs,
                        rhs,
                        epilogue,
                        Output::Fp8 { codes: &mut codes, format, factor },
                    );
                    let y: Vec<_> = codes.iter().map(|code| format.decode(*code)).collect();
                    let round = |x| format.decode(format.encode(x * factor, Overflow::Saturate));
                    same(&y, &expected, round, &format!("{what} {format} × {factor}"));
                }
            }
        }
    }
}

/// Bit for bit, but for the sign of zeros and the payload of NaN.
#[track_caller]
pub fn same(y: &[f32], expected: &[f32], round: impl Fn(f32) -> f32, what: &str) {
    for (index, (y, x)) in y.iter().zip(expected).enumerate() {
        let rounded = round(*x);
        let same = *y == rounded || y.is_nan() && rounded.is_nan();
        assert!(same, "{what}: {index} is {y:e}, not {rounded:e}, from {x:e}");
    }
}
