//! Optimizers whose state takes a quarter of the memory: moments in FP8.

mod state;

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::module::AutodiffModule;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::record::{AdaptorRecord, AdaptorRecordV1};
use burn::optim::{AdamW, AdamWState, LearningRate, Optimizer, SimpleOptimizer};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, FloatDType, Tensor};
use burn_fp8::Fp8Error;
use burn_fp8::engine::Fp8Engine;
use burn_fp8_core::Fp8Format;
use burn_fp8_cpu::moments::{self, FIRST, Factors, Kept, MAX_BLOCK, Noise, Rule, Second, Step};

use state::{Moment, of_codes};
pub use state::{Moments8Item, Moments8State};

/// Parameters of fewer elements keep their moments in f32, as torchao and bitsandbytes do.
const FEWEST: usize = 4096;

/// An optimizer that keeps its moments in FP8: AdamW, Adam or Lion.
///
/// A parameter of at least 4,096 elements takes two bytes an element for both moments, and two scales a block, where Burn's AdamW takes eight: 0.254 of it with blocks of 256.
/// Moments are decoded, changed in f32, applied, and encoded anew. Each block has the scale `amax / 448` (E4M3), as in torchao's `AdamWFp8`; the second moment is kept as its
/// root, see [`Second`].
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{GradientsParams, Optimizer};
/// use burn::tensor::{Distribution, Tensor};
/// use burn_fp8_train::Moments8Config;
///
/// type B = Autodiff<Flex>;
/// let device = Default::default();
/// let layer: Linear<B> = LinearConfig::new(64, 128).init(&device);
/// let mut optimizer = Moments8Config::adamw().with_weight_decay(0.01).init();
///
/// let x = Tensor::<B, 2>::random([16, 64], Distribution::Default, &device);
/// let grads = GradientsParams::from_grads(layer.forward(x).powi_scalar(2).mean().backward(), &layer);
/// let before = layer.weight.val();
/// let layer = optimizer.step(1e-3, layer, grads);
/// let change = (layer.weight.val() - before).abs().max().into_scalar();
/// assert!(change > 0.9e-3 && change < 1.1e-3);
/// ```
#[derive(Config, Debug)]
pub struct Moments8Config {
    /// The rule.
    pub rule: Rule,
    /// How much of the moments stays.
    #[config(default = "[0.9, 0.999]")]
    pub betas: [f64; 2],
    /// What is added to the root of the second moment.
    #[config(default = 1e-5)]
    pub epsilon: f64,
    /// The weight decay.
    #[config(default = 1e-4)]
    pub weight_decay: f64,
    /// The elements of a block that share a scale, up to 256.
    #[config(default = 256)]
    pub block: usize,
    /// What is kept of the second moment.
    #[config(default = "Second::Root(Fp8Format::E4M3)")]
    pub second: Second,
    /// Second moments, and Lion's, are rounded at random, by a generator with this seed; to the nearest code without it. At random the mean of many steps is right, also where each
    /// changes a moment by less than the distance of two codes. Parameters in bf16 are rounded so too: to the nearest number, most steps would leave one as it is. On backends out of the
    /// host's memory it moves all of these to the host and back.
    pub seed: Option<u64>,
    /// Gradient clipping.
    pub grad_clipping: Option<GradientClippingConfig>,
}

impl Moments8Config {
    /// AdamW, with the defaults of Burn's `AdamWConfig`.
    pub fn adamw() -> Self {
        Self::new(Rule::AdamW)
    }

    /// Adam, with the defaults of Burn's `AdamConfig`: no weight decay.
    pub fn adam() -> Self {
        Self::new(Rule::Adam).with_weight_decay(0.0)
    }

    /// Lion, whose paper has betas of 0.9 and 0.99, no weight decay by default, and a learning rate of a third to a tenth of AdamW's.
    pub fn lion() -> Self {
        Self::new(Rule::Lion).with_betas([0.9, 0.99]).with_weight_decay(0.0)
    }

    /// The optimizer of single tensors.
    ///
    /// # Panics
    /// Where a beta is not in `[0, 1)`, a number not finite or negative, or a block has no elements or more than 256.
    #[track_caller]
    pub fn build(&self) -> Moments8 {
        let Self { betas, epsilon, weight_decay, block, .. } = self;
        for beta in betas {
            assert!(
                (0.0..1.0).contains(beta),
                "a beta is {beta}; it must be at least 0 and less than 1"
            );
        }
        for (name, value) in [("epsilon", epsilon), ("the weight decay", weight_decay)] {
            assert!(
                value.is_finite() && *value >= 0.0,
                "{name} is {value}; it must not be negative"
            );
        }
        assert!(
            (1..=MAX_BLOCK).contains(block),
            "a block has {block} elements; it must have 1 to {MAX_BLOCK}"
        );
        Moments8 { config: self.clone() }
    }

    /// The optimizer of a module.
    ///
    /// # Panics
    /// As [`build`](Self::build).
    #[track_caller]
    pub fn init<B, M>(&self) -> OptimizerAdaptor<Moments8, M, B>
    where
        B: AutodiffBackend<InnerBackend: Fp8Engine>,
        M: AutodiffModule<B>,
    {
        let optimizer = OptimizerAdaptor::from(self.build());
        match &self.grad_clipping {
            Some(clipping) => optimizer.with_grad_clipping(clipping.init()),
            None => optimizer,
        }
    }
}

/// Configured by [`Moments8Config`]. In the host's memory (Flex) a step is one pass over parameter, gradient and codes, on all threads; elsewhere it consists of tensor operations,
/// with the same codes.
///
/// A record holds codes and scales, whatever precision a recorder has, and can be loaded by an optimizer with other blocks. [`from_adamw`] makes one of Burn's AdamW.
///
/// # Panics
/// Where the state is that of a parameter of another size.
#[derive(Clone, Debug)]
pub struct Moments8 {
    config: Moments8Config,
}

impl<B: Fp8Engine> SimpleOptimizer<B> for Moments8 {
    type State<const D: usize> = Moments8State<B>;

    fn step<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<B, D>,
        grad: Tensor<B, D>,
        state: Option<Moments8State<B>>,
    ) -> (Tensor<B, D>, Option<Moments8State<B>>) {
        let Moments8Config { rule, betas, epsilon, weight_decay, block, second, seed, .. } =
            self.config;
        let (shape, dtype, device) = (tensor.dims(), tensor.dtype(), tensor.device());
        let elements = shape.iter().product();
        if elements == 0 {
            return (tensor, state);
        }
        let state =
            state.unwrap_or_else(|| Moments8State::new(elements, rule != Rule::Lion, &device));
        assert!(
            state.elements() == elements && state.second.is_some() == (rule != Rule::Lion),
            "the state of an optimizer has {} moments of {} elements; {rule:?} steps a parameter {shape:?}: the record belongs to another model or optimizer",
            1 + usize::from(state.second.is_some()),
            state.elements(),
        );
        let time = state.time + 1;
        let step = Step { rule, betas, epsilon, weight_decay, learning_rate, time };
        let noise = seed.map(|seed| Noise { seed, step: time as u32 });
        let kept = (elements >= FEWEST).then_some(Kept { block, second, noise });
        let [parameter, grad] = [tensor, grad].map(|x| in_f32(x).reshape([elements]));
        let (parameter, state) = match kept {
            Some(kept) if B::FP8_ON_HOST || noise.is_some() => {
                on_host(&step, kept, parameter, grad, state)
            }
            _ => in_operations(&step, kept, parameter, grad, state),
        };
        let parameter = match noise {
            Some(noise) if dtype == DType::BF16 => {
                let mut numbers = parameter.into_data();
                moments::round_to_bf16(numbers.as_mut_slice().expect("f32 now"), noise);
                Tensor::from_data(numbers, (&device, DType::F32))
            }
            _ => parameter,
        };
        let parameter = parameter.reshape(shape);
        let parameter = match dtype {
            DType::F32 => parameter,
            other => parameter.cast(FloatDType::from(other)),
        };
        (parameter, Some(state))
    }

    fn to_device<const D: usize>(state: Moments8State<B>, device: &B::Device) -> Moments8State<B> {
        state.moved_to(device)
    }
}

fn in_f32<B: Fp8Engine, const D: usize>(x: Tensor<B, D>) -> Tensor<B, D> {
    match x.dtype() {
        DType::F32 => x,
        _ => x.cast(FloatDType::F32),
    }
}

/// In one pass over the host's memory: what nothing else holds is changed where it lies.
fn on_host<B: Fp8Engine>(
    step: &Step,
    kept: Kept,
    parameter: Tensor<B, 1>,
    grad: Tensor<B, 1>,
    state: Moments8State<B>,
) -> (Tensor<B, 1>, Moments8State<B>) {
    let Kept { block, second, .. } = kept;
    let device = parameter.device();
    let (mut parameter, grad) = (parameter.into_data(), grad.into_data());
    let parts = |moment: Moment<B>, root: bool, format| {
        moment.kept_in(Some((block, format)), root).into_parts()
    };
    let is_root = matches!(second, Second::Root(_));
    let (mut m, mut of_m) = parts(state.first, false, FIRST);
    let (mut v, mut of_v) = match state.second {
        Some(moment) => parts(moment, is_root, second.format()),
        None => Default::default(),
    };
    moments::step(
        step,
        kept,
        parameter.as_mut_slice().expect("f32 now"),
        grad.as_slice().expect("f32 now"),
        [(&mut m, &mut of_m), (&mut v, &mut of_v)]
            .map(|(codes, scales)| moments::Moment { codes, scales }),
    );
    let first = of_codes(m, of_m, block, FIRST, &device);
    let second = (step.rule != Rule::Lion).then(|| {
        let codes = of_codes(v, of_v, block, second.format(), &device);
        if is_root { Moment::Roots(codes) } else { Moment::Codes(codes) }
    });
    let state = Moments8State { time: step.time, first: Moment::Codes(first), second };
    (Tensor::from_data(parameter, (&device, DType::F32)), state)
}

/// The same in operations of the backend, whatever is kept.
fn in_operations<B: Fp8Engine>(
    step: &Step,
    kept: Option<Kept>,
    parameter: Tensor<B, 1>,
    grad: Tensor<B, 1>,
    state: Moments8State<B>,
) -> (Tensor<B, 1>, Moments8State<B>) {
    let Factors { keep, penalty, rate, root: of_root, epsilon, new } = step.factors();
    let grad = match step.rule {
        Rule::Adam => grad + parameter.clone().mul_scalar(penalty),
        Rule::AdamW | Rule::Lion => grad,
    };
    let mean = |old: Tensor<B, 1>, new: Tensor<B, 1>, share: f32| {
        old.clone() + (new - old).mul_scalar(share)
    };
    let decayed = match step.rule {
        Rule::Adam => parameter,
        Rule::AdamW | Rule::Lion => parameter.mul_scalar(keep),
    };
    let (m, block) = (state.first.numbers(), kept.map(|kept| (kept.block, FIRST)));
    let first = |m| Moment::Full(m).kept_in(block, false);
    let Some(second) = state.second else {
        let direction = mean(m.clone(), grad.clone(), new[0]);
        let parameter = decayed - direction.sign().mul_scalar(rate);
        let first = first(mean(m, grad, new[1]));
        return (parameter, Moments8State { time: step.time, first, second: None });
    };
    let m = mean(m, grad.clone(), new[0]);
    let square = mean(second.numbers(), grad.clone() * grad, new[1]);
    let denominator = square.clone().sqrt().mul_scalar(of_root).add_scalar(epsilon);
    let parameter = decayed - m.clone().mul_scalar(rate) / denominator;
    let second = Moment::Full(square).kept_in(
        kept.map(|kept| (kept.block, kept.second.format())),
        kept.is_some_and(|kept| matches!(kept.second, Second::Root(_))),
    );
    (parameter, Moments8State { time: step.time, first: first(m), second: Some(second) })
}

/// The record of an optimizer of modules.
type Records<O, M, B> = <OptimizerAdaptor<O, M, B> as Optimizer<M, B>>::Record;

/// A record of Burn's AdamW as one of [`Moments8`]. Its moments stay f32 until their first step.
///
/// # Errors
/// [`Fp8Error::Invalid`] where AMSGrad was on: its maximum is not kept.
pub fn from_adamw<M, B>(records: Records<AdamW, M, B>) -> Result<Records<Moments8, M, B>, Fp8Error>
where
    B: AutodiffBackend<InnerBackend: Fp8Engine>,
    M: AutodiffModule<B>,
{
    use AdaptorRecordV1::{Rank0, Rank1, Rank2, Rank3, Rank4, Rank5, Rank6, Rank7, Rank8};
    let convert = |AdaptorRecord::V1(record)| {
        let state = match record {
            Rank0(state) => of_adamw(state),
            Rank1(state) => of_adamw(state),
            Rank2(state) => of_adamw(state),
            Rank3(state) => of_adamw(state),
            Rank4(state) => of_adamw(state),
            Rank5(state) => of_adamw(state),
            Rank6(state) => of_adamw(state),
            Rank7(state) => of_adamw(state),
            Rank8(state) => of_adamw(state),
        };
        // A state is the same whatever the rank of its parameter.
        Ok(AdaptorRecord::V1(Rank0(state?)))
    };
    records.into_iter().map(|(id, record)| Ok((id, convert(record)?))).collect()
}

fn of_adamw<B: Fp8Engine, const D: usize>(
    AdamWState { momentum }: AdamWState<B, D>,
) -> Result<Moments8State<B>, Fp8Error> {
    if momentum.max_moment_2.is_some() {
        let reason = "it was made with AMSGrad, whose maximum is not kept in FP8".into();
        return Err(Fp8Error::Invalid { what: "record of AdamW", reason });
    }
    let full = |moment: Tensor<B, D>| {
        let elements = moment.shape().num_elements();
        Moment::Full(in_f32(moment.reshape([elements])))
    };
    let [first, second] = [momentum.moment_1, momentum.moment_2].map(full);
    Ok(Moments8State { time: momentum.time, first, second: Some(second) })
}
