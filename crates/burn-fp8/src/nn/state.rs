//! The state of one operand of an FP8 layer.

use std::cell::RefCell;

use burn::module::{
    AutodiffModule, Content, Devices, HasAutodiffModule, Module, ModuleDisplay,
    ModuleDisplayDefault, ModuleMapper, ModuleVisitor, Param, ParamId,
};
use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Tensor, TensorData};
use burn_fp8_core::Recipe;
use serde::{Deserialize, Serialize};

use crate::config::scope::{innermost, within};

const CONTAINER: &str = "Struct:Fp8State";
const SCALE: &str = "scale";
const AMAX_HISTORY: &str = "amax_history";

/// The scale and the amax history of one operand of a layer: parameters whose gradients are their new values.
///
/// A backward pass gives each of them a gradient of two rows: the new value, and its square root.
/// [`Fp8Optimizer`](crate::optim::Fp8Optimizer) overwrites the parameter with the first row. A plain optimizer would step it, which
/// this module notices, and panics.
///
/// # State that stands still
/// What is not tracked has no gradient, and so no new value: all state of a layer under [`Module::no_grad`], or a part of it.
///
/// | the product | scale of an operand whose history is not tracked |
/// |---|---|
/// | gradients pass through it | from the operand itself, as in current scaling: a history that cannot follow would be wrong sooner or later |
/// | inference | from the history as it is; from the operand itself where the state is what [`new`](Self::new) makes |
///
/// State that is tracked, but whose layer the optimizer does not step, keeps what it has: put such layers under [`Module::no_grad`].
///
/// The state is f32 whatever the types of the model and of the recorder; a mapper that gives it another type has no effect on it.
/// It does not count as parameters of the model ([`Module::num_params`]).
///
/// # Panics
/// [`Module::map`] where the mapper changes a shape, as a plain optimizer does. [`Module::load_record`] where the record has a history of
/// another length, or something that is no scale or no amax.
#[derive(Clone, Debug)]
pub struct Fp8State<B: Backend> {
    /// The dequantization multiplier, `x ≈ code × scale`: `[1, 1]`, at first 1.
    pub scale: Param<Tensor<B, 2>>,
    /// The amaxes of earlier steps, `[1, H]`, at first 0. Entry 0 is the newest, entry 1 the oldest.
    pub amax_history: Param<Tensor<B, 2>>,
}

impl<B: Backend> Fp8State<B> {
    /// State that has seen nothing.
    ///
    /// # Panics
    /// Where the history would have no entry, or more than [`Recipe::MAX_HISTORY_LENGTH`].
    pub fn new(amax_history_length: usize, device: &B::Device) -> Self {
        assert!(
            (1..=Recipe::MAX_HISTORY_LENGTH).contains(&amax_history_length),
            "amax_history_length is {amax_history_length}; it must be between 1 and {}",
            Recipe::MAX_HISTORY_LENGTH
        );
        let options = (device, DType::F32);
        // Not lazily: clones of a layer must share the leaves of the graph.
        let param = |value: Tensor<B, 2>| Param::initialized(ParamId::new(), value.require_grad());
        Self {
            scale: param(Tensor::ones([1, 1], options)),
            amax_history: param(Tensor::zeros([1, amax_history_length], (device, DType::F32))),
        }
    }

    /// Both as tensors: the leaves of the graph.
    pub(crate) fn leaves(&self) -> [FloatTensor<B>; 2] {
        [&self.scale, &self.amax_history].map(|param| param.val().into_primitive().tensor())
    }
}

thread_local! {
    static VISITING: RefCell<Vec<()>> = const { RefCell::new(Vec::new()) };
}

/// Whether the float parameter that a visitor or mapper is given on this thread is FP8 state ([`Fp8State`]): `scale` or `amax_history`, as it is told.
pub fn is_fp8_state() -> bool {
    innermost(&VISITING).is_some()
}

/// Runs `f`; float parameters that are visited meanwhile on this thread are FP8 state.
fn visiting<R>(f: impl FnOnce() -> R) -> R {
    within(&VISITING, (), f).0
}

fn map<B: Backend, M: ModuleMapper<B>>(
    param: Param<Tensor<B, 2>>,
    name: &str,
    mapper: &mut M,
) -> Param<Tensor<B, 2>> {
    let before = param.clone();
    mapper.enter_module(name, CONTAINER);
    let mapped = visiting(|| mapper.map_float(param));
    mapper.exit_module(name, CONTAINER);
    let (shape, expected) = (mapped.lazy_shape(), before.lazy_shape());
    assert!(
        shape == expected,
        "FP8 state was stepped by a plain optimizer: wrap the optimizer in burn_fp8::optim::Fp8Optimizer \
         (`{name}` came back with shape {:?} instead of {:?})",
        shape.as_slice(),
        expected.as_slice()
    );
    match mapped.val().dtype() {
        DType::F32 => mapped,
        // A mapper that turns a model to half precision or quantizes it: the state would lose what it is for.
        _ => before,
    }
}

impl<B: Backend> Module<B> for Fp8State<B> {
    type Record = Option<Fp8StateRecord>;

    fn collect_devices(&self, devices: Devices<B>) -> Devices<B> {
        self.amax_history.collect_devices(self.scale.collect_devices(devices))
    }

    fn fork(self, device: &B::Device) -> Self {
        let Self { scale, amax_history } = self;
        Self { scale: scale.fork(device), amax_history: amax_history.fork(device) }
    }

    fn to_device(self, device: &B::Device) -> Self {
        let Self { scale, amax_history } = self;
        Self { scale: scale.to_device(device), amax_history: amax_history.to_device(device) }
    }

    fn num_params(&self) -> usize {
        0
    }

    fn visit<V: ModuleVisitor<B>>(&self, visitor: &mut V) {
        for (name, param) in [(SCALE, &self.scale), (AMAX_HISTORY, &self.amax_history)] {
            visitor.enter_module(name, CONTAINER);
            visiting(|| visitor.visit_float(param));
            visitor.exit_module(name, CONTAINER);
        }
    }

    fn map<M: ModuleMapper<B>>(self, mapper: &mut M) -> Self {
        let Self { scale, amax_history } = self;
        let scale = map(scale, SCALE, mapper);
        Self { scale, amax_history: map(amax_history, AMAX_HISTORY, mapper) }
    }

    fn load_record(self, record: Self::Record) -> Self {
        let Some(record) = record else { return self };
        let [_, steps] = self.amax_history.dims();
        if let Err(reason) = record.check(steps) {
            panic!("this record cannot be loaded as FP8 state: {reason}");
        }
        let load = |param: Param<Tensor<B, 2>>, values: Vec<f32>| {
            let data = TensorData::new(values, param.dims());
            param.map(|old| {
                let new = Tensor::from_data(data, (&old.device(), DType::F32));
                new.set_require_grad(old.is_require_grad())
            })
        };
        let Self { scale, amax_history } = self;
        Self {
            scale: load(scale, vec![record.scale]),
            amax_history: load(amax_history, record.amax_history),
        }
    }

    fn into_record(self) -> Self::Record {
        let read = |param: Param<Tensor<B, 2>>| {
            param.val().into_data().convert::<f32>().to_vec::<f32>().expect("FP8 state is f32")
        };
        let Self { scale, amax_history } = self;
        Some(Fp8StateRecord { scale: read(scale)[0], amax_history: read(amax_history) })
    }
}

impl<B: AutodiffBackend> AutodiffModule<B> for Fp8State<B> {
    type InnerModule = Fp8State<B::InnerBackend>;

    fn valid(&self) -> Self::InnerModule {
        Fp8State { scale: self.scale.valid(), amax_history: self.amax_history.valid() }
    }

    fn from_inner(module: Self::InnerModule) -> Self {
        let Fp8State { scale, amax_history } = module;
        Self { scale: Param::from_inner(scale), amax_history: Param::from_inner(amax_history) }
    }
}

impl<B: AutodiffBackend> HasAutodiffModule<B> for Fp8State<B::InnerBackend> {
    type TrainModule = Fp8State<B>;
}

impl<B: Backend> ModuleDisplayDefault for Fp8State<B> {
    fn content(&self, content: Content) -> Option<Content> {
        let [_, steps] = self.amax_history.dims();
        content.set_top_level_type("Fp8State").add("amax_history_length", &steps).optional()
    }
}

impl<B: Backend> ModuleDisplay for Fp8State<B> {}

/// The state of one operand as data.
#[derive(Clone, Debug, PartialEq)]
pub struct Fp8StateRecord {
    /// The dequantization multiplier.
    pub scale: f32,
    /// The amaxes of earlier steps, as in [`Fp8State::amax_history`].
    pub amax_history: Vec<f32>,
}

impl Fp8StateRecord {
    /// Checks that this can be the state of a layer with a history of `steps` entries.
    ///
    /// Infinite and NaN amaxes are valid: they are what a step with such values leaves behind, and freeze the scale.
    fn check(&self, steps: usize) -> Result<(), String> {
        let Self { scale, amax_history } = self;
        // 0 and infinity come from amaxes at the ends of f32's range; the next good amax replaces them.
        if scale.is_nan() || *scale < 0.0 {
            return Err(format!("its scale is {scale}; a scale is not negative and not NaN"));
        }
        if amax_history.len() != steps {
            return Err(format!(
                "its amax history has {} entries and the layer's has {steps}; \
                 set amax_history_length to {}",
                amax_history.len(),
                amax_history.len()
            ));
        }
        match amax_history.iter().position(|amax| *amax < 0.0) {
            Some(index) => Err(format!(
                "entry {index} of its amax history is {}; an amax is not negative",
                amax_history[index]
            )),
            None => Ok(()),
        }
    }
}

/// An [`Fp8StateRecord`] as recorders store it: in f32, whatever their precision.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fp8StateItem {
    /// `[1]`.
    scale: TensorData,
    /// `[H]`.
    amax_history: TensorData,
}

impl<B: Backend> Record<B> for Fp8StateRecord {
    type Item<S: PrecisionSettings> = Fp8StateItem;

    fn into_item<S: PrecisionSettings>(self) -> Fp8StateItem {
        let steps = self.amax_history.len();
        Fp8StateItem {
            scale: TensorData::new(vec![self.scale], [1]),
            amax_history: TensorData::new(self.amax_history, [steps]),
        }
    }

    fn from_item<S: PrecisionSettings>(item: Fp8StateItem, _device: &B::Device) -> Self {
        let values = |data: TensorData| data.convert::<f32>().to_vec::<f32>().unwrap_or_default();
        Self {
            // NaN is refused where the record is loaded.
            scale: values(item.scale).first().copied().unwrap_or(f32::NAN),
            amax_history: values(item.amax_history),
        }
    }
}
