//! Layers whose products run in FP8.

mod attention;
mod frozen;
mod mlp;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn_fp8_core::Filter;

pub use attention::{AttentionInput, Fp8Attention, Fp8AttentionConfig};
pub use burn_fp8_core::MlpActivation;
pub use frozen::FrozenLinear;
pub use mlp::{Fp8Mlp, Fp8MlpConfig};

use crate::Fp8Error;
use crate::config::{Fp8Config, Weights, high_precision};
use crate::ops::{self, is_here};
pub use crate::product::ActivationScale;

/// An [`nn::Linear`](Linear) whose three products run in FP8 where the configuration says so. Its fields have the names of `Linear`'s, so that
/// records of either load into the other.
#[derive(Module, Debug)]
pub struct Fp8Linear {
    /// `[inputs, outputs]`.
    pub weight: Param<Tensor<2>>,
    /// `[outputs]`.
    pub bias: Option<Param<Tensor<1>>>,
}

impl Fp8Linear {
    /// `[…, inputs]` to `[…, outputs]`.
    ///
    /// # Panics
    /// Where the input does not fit, and on devices of backends whose feature is off.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let run = || ops::linear(input, self.weight.val(), self.bias.as_ref().map(Param::val));
        match Fp8Config::current().filter {
            Filter { except: [], .. } => run(),
            // Refuses the scope that the exceptions are of.
            _ if !is_here(&self.weight.lazy_device()) => run(),
            filter if filter.excepts(self.weight.id.val()) => high_precision(run),
            // The layer knows its weight: no other one of its shape concerns it.
            filter => Fp8Config::scope_with(
                |config| config.with_filter(Filter { except: &[], ..filter }),
                run,
            ),
        }
    }
}

impl From<Linear> for Fp8Linear {
    fn from(Linear { weight, bias, .. }: Linear) -> Self {
        Self { weight, bias }
    }
}

impl Fp8Config {
    /// The same configuration, which leaves the layers of these names in high precision: output heads, say, as PyTorch's and NVIDIA's recipes do.
    ///
    /// A name is a path in the model or a part of one, in whole words: `head`, `blocks.3`, `mlp.up`; `up` means all that are called so. It stands for each
    /// weight of two dimensions below it. An [`Fp8Linear`] knows its weight, by the id that Burn gave it and keeps in records: so take the names after the
    /// model has loaded its record. [`ops::matmul`] and [`ops::linear`] know a weight by its K and N, and leave all products alone that have both.
    ///
    /// The list of weights is kept until the process ends.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] for a name that no weight has, with those that there are.
    pub fn except<M: Module>(
        self,
        model: &M,
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, Fp8Error> {
        let mut all = Weights::default();
        model.visit(&mut all);
        self.excepting(all, names)
    }
}

impl ModuleVisitor for Weights {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.take(param.id.val(), &param.lazy_shape());
    }
}
