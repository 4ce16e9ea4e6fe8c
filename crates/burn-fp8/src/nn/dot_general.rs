//! A product in FP8 with delayed scaling.

use burn::config::Config;
use burn::module::{
    AutodiffModule, Content, Devices, HasAutodiffModule, Module, ModuleDisplay,
    ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
};
use burn::record::Record;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Shape, Tensor, TensorPrimitive};
use burn_fp8_core::{AmaxChoice, Fp8Format, Recipe};

use super::state::{Fp8State, Fp8StateRecord};
use crate::backend::Fp8Matmul;
use crate::config::Fp8Config;
use crate::engine::nothing;
use crate::ops::{DotMode, DotOptions, QdqOptions, dot, flax};

const CONTAINER: &str = "Struct:Fp8DotGeneral";

/// How to make an [`Fp8DotGeneral`].
#[derive(Config, Debug, PartialEq)]
pub struct Fp8DotGeneralConfig {
    /// How many steps an amax history holds, from 1.
    #[config(default = 1024)]
    pub amax_history_length: usize,
    /// Scales are multiplied by 2 to this power: room for values larger than those of the history.
    #[config(default = 0)]
    pub margin: i32,
    /// Which amax of a history counts.
    #[config(default = "AmaxChoice::Maximum")]
    pub amax_choice: AmaxChoice,
    /// How the operands are multiplied.
    #[config(default = "DotMode::Direct")]
    pub mode: DotMode,
}

impl Fp8DotGeneralConfig {
    /// A product whose state has seen nothing.
    ///
    /// # Panics
    /// Where the history would have no entry, or more than [`Recipe::MAX_HISTORY_LENGTH`], and where the margin
    /// is outside -64..=64.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Fp8DotGeneral<B> {
        if let Err(error) = Recipe::current().with_margin(self.margin).validate() {
            panic!("this Fp8DotGeneralConfig cannot be used: {error}");
        }
        let state = || Fp8State::new(self.amax_history_length, device);
        Fp8DotGeneral {
            input: state(),
            kernel: state(),
            output_grad: state(),
            margin: self.margin,
            amax_choice: self.amax_choice,
            mode: self.mode,
        }
    }
}

/// The product of an input and a kernel in E4M3, its output gradient in E5M2, each with delayed scaling and state of its own.
///
/// Bit for bit the arithmetic of Flax's `Fp8DotGeneralOp` or `Fp8DirectDotGeneralOp`, see [`DotMode`], up to the order in which a
/// product sums. Products are summed in f32 and rounded once; where the kernel is bf16 or f16 Flax rounds a direct product before it
/// applies the scales as well.
///
/// # Records
/// A record that has nothing for this module, as that of an [`nn::Linear`](burn::nn::Linear) in a format with names, leaves the state as
/// it is.
#[derive(Clone, Debug)]
pub struct Fp8DotGeneral<B: Backend> {
    /// The state of the input.
    pub input: Fp8State<B>,
    /// The state of the kernel.
    pub kernel: Fp8State<B>,
    /// The state of the gradient of the output.
    pub output_grad: Fp8State<B>,
    /// Scales are multiplied by 2 to this power.
    pub margin: i32,
    /// Which amax of a history counts.
    pub amax_choice: AmaxChoice,
    /// How the operands are multiplied.
    pub mode: DotMode,
}

impl<B: Fp8Matmul> Fp8DotGeneral<B> {
    /// `x` `[…, K]`, cast to the type of the kernel, times `kernel` `[K, N]`: `[…, N]`, of that type.
    ///
    /// Gradients pass straight through the quantization: `grad_x = q(g) · q(kernel)ᵀ`, `grad_kernel = q(x)ᵀ · q(g)`. The state
    /// receives its new values; see [`Fp8State`], also for what happens where it is not tracked.
    ///
    /// A plain product, with the state untouched, where FP8 is off ([`high_precision`](crate::high_precision)) and for f64. Of empty tensors nothing, or
    /// zeros, with the state untouched as well.
    ///
    /// # Panics
    /// Where the shapes do not fit; where the state is tracked but not a leaf of the graph, as after
    /// [`Module::to_device`] on a tracked model (use [`Module::fork`]); and where the ambient configuration asks for native
    /// execution on a device that has none.
    pub fn forward<const D: usize>(&self, x: Tensor<B, D>, kernel: Tensor<B, 2>) -> Tensor<B, D> {
        let (x_dims, kernel_dims) = (x.dims(), kernel.dims());
        assert!(
            x_dims[D - 1] == kernel_dims[0],
            "x has shape {x_dims:?} and the kernel {kernel_dims:?}; the last dimension of x must be the first of the kernel"
        );
        let dtype = kernel.dtype();
        let x = match x.dtype() == dtype {
            true => x,
            false => x.cast(dtype),
        };
        if x_dims.contains(&0) || kernel_dims.contains(&0) {
            let mut shape = Shape::from(x_dims);
            shape[D - 1] = kernel_dims[1];
            let [x, kernel] = [x.into_primitive().tensor(), kernel.into_primitive().tensor()];
            let nothing = nothing::<B, 2>([&x, &kernel], shape);
            return Tensor::from_primitive(TensorPrimitive::Float(nothing));
        }
        let config = Fp8Config::current();
        let supported = matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Flex32);
        if !config.enabled || !supported {
            return burn::tensor::module::linear(x, kernel, None);
        }
        if let Err(error) = config.check::<B>(&kernel.device()) {
            panic!("{error}");
        }
        let states = [&self.input, &self.kernel, &self.output_grad].map(Fp8State::leaves);
        let [x, kernel] = [x.into_primitive().tensor(), kernel.into_primitive().tensor()];
        let options =
            DotOptions { mode: self.mode, margin: self.margin, amax_choice: self.amax_choice };
        Tensor::from_primitive(TensorPrimitive::Float(dot::<B>(x, kernel, states, options)))
    }
}

impl<B: Fp8Matmul> Fp8DotGeneral<B> {
    /// The scale that the history gives the next input. Waits for the device.
    pub fn input_scale(&self) -> f32 {
        let [scale, history] = self.input.leaves();
        let scale = flax::next_scale::<B>(scale, &flax::vector::<B>(history), self.input_qdq());
        scale.into_data().convert::<f32>().to_vec::<f32>().expect("f32 now")[0]
    }

    fn input_qdq(&self) -> QdqOptions {
        QdqOptions::new(Fp8Format::E4M3).with_margin(self.margin).with_amax_choice(self.amax_choice)
    }
}

/// The state of an [`Fp8DotGeneral`] as data. A part that is missing leaves that state as it is.
#[derive(Record, Debug)]
pub struct Fp8DotGeneralRecord {
    /// The state of the input.
    pub input: Option<Fp8StateRecord>,
    /// The state of the kernel.
    pub kernel: Option<Fp8StateRecord>,
    /// The state of the gradient of the output.
    pub output_grad: Option<Fp8StateRecord>,
}

impl<B: Backend> Fp8DotGeneral<B> {
    fn states(&self) -> [(&'static str, &Fp8State<B>); 3] {
        [("input", &self.input), ("kernel", &self.kernel), ("output_grad", &self.output_grad)]
    }

    /// The same product with each state put through `f`.
    fn map_states<C: Backend>(
        self,
        mut f: impl FnMut(&'static str, Fp8State<B>) -> Fp8State<C>,
    ) -> Fp8DotGeneral<C> {
        let Self { input, kernel, output_grad, margin, amax_choice, mode } = self;
        Fp8DotGeneral {
            input: f("input", input),
            kernel: f("kernel", kernel),
            output_grad: f("output_grad", output_grad),
            margin,
            amax_choice,
            mode,
        }
    }
}

impl<B: Backend> Module<B> for Fp8DotGeneral<B> {
    type Record = Option<Fp8DotGeneralRecord>;

    fn collect_devices(&self, devices: Devices<B>) -> Devices<B> {
        self.states().iter().fold(devices, |devices, (_, state)| state.collect_devices(devices))
    }

    fn fork(self, device: &B::Device) -> Self {
        self.map_states(|_, state| state.fork(device))
    }

    fn to_device(self, device: &B::Device) -> Self {
        self.map_states(|_, state| state.to_device(device))
    }

    fn num_params(&self) -> usize {
        0
    }

    fn visit<V: ModuleVisitor<B>>(&self, visitor: &mut V) {
        for (name, state) in self.states() {
            visitor.enter_module(name, CONTAINER);
            state.visit(visitor);
            visitor.exit_module(name, CONTAINER);
        }
    }

    fn map<M: ModuleMapper<B>>(self, mapper: &mut M) -> Self {
        self.map_states(|name, state| {
            mapper.enter_module(name, CONTAINER);
            let state = state.map(mapper);
            mapper.exit_module(name, CONTAINER);
            state
        })
    }

    fn load_record(self, record: Self::Record) -> Self {
        let Some(Fp8DotGeneralRecord { input, kernel, output_grad }) = record else { return self };
        let mut records = [input, kernel, output_grad].into_iter();
        self.map_states(|_, state| state.load_record(records.next().flatten()))
    }

    fn into_record(self) -> Self::Record {
        let Self { input, kernel, output_grad, .. } = self;
        Some(Fp8DotGeneralRecord {
            input: input.into_record(),
            kernel: kernel.into_record(),
            output_grad: output_grad.into_record(),
        })
    }
}

impl<B: AutodiffBackend> AutodiffModule<B> for Fp8DotGeneral<B> {
    type InnerModule = Fp8DotGeneral<B::InnerBackend>;

    fn valid(&self) -> Self::InnerModule {
        self.clone().map_states(|_, state| state.valid())
    }

    fn from_inner(module: Self::InnerModule) -> Self {
        module.map_states(|_, state| Fp8State::from_inner(state))
    }
}

impl<B: AutodiffBackend> HasAutodiffModule<B> for Fp8DotGeneral<B::InnerBackend> {
    type TrainModule = Fp8DotGeneral<B>;
}

impl<B: Backend> ModuleDisplayDefault for Fp8DotGeneral<B> {
    fn content(&self, content: Content) -> Option<Content> {
        let [_, steps] = self.input.amax_history.dims();
        content
            .set_top_level_type("Fp8DotGeneral")
            .add("amax_history_length", &steps)
            .add("margin", &self.margin)
            .add_debug_attribute("amax_choice", &self.amax_choice)
            .add_debug_attribute("mode", &self.mode)
            .optional()
    }
}

impl<B: Backend> ModuleDisplay for Fp8DotGeneral<B> {}
