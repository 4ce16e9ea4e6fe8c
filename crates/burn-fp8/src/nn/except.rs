//! Layers that stay in high precision, by the names that they have in a model.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorPrimitive};

use crate::Fp8Error;
use crate::backend::Fp8Matmul;
use crate::config::{Fp8Config, Weights};
use crate::weights;

impl Fp8Config {
    /// The same configuration, whose filter leaves the layers of these names in high precision, too: output heads, say, as PyTorch's and
    /// NVIDIA's recipes do. FP8 layers obey as well, which no other rule of the filter concerns.
    ///
    /// A name is a path in the model or a part of one, in whole words: `head`, `blocks.3`, `mlp.up`; `up` means all that are called so. It
    /// stands for each weight of two dimensions below it.
    ///
    /// FP8 layers ([`nn::Fp8Linear`](crate::nn::Fp8Linear)) know their weight, by the id that Burn gave it and keeps in records: so take the names after
    /// the model has loaded its record. [`Fp8Backend`](crate::Fp8Backend) sees tensors without names. It knows a weight that is a leaf of the graph, or lies in
    /// Flex's memory where the model has it, and, in `Fp8Backend<Autodiff<B>>`, what an optimizer makes of it. Any other product, such as that of a weight that is cast before, it knows
    /// by K and N, inputs and outputs: it leaves those alone that have both, of other layers too, and the trace says of which weight. Call such a layer
    /// inside [`high_precision`](crate::high_precision) instead.
    ///
    /// Burn draws a parameter when it is first read, which this is: a model that is compared with another one has to be read in the same order.
    ///
    /// The list of weights is kept until the process ends.
    ///
    /// ```
    /// use burn::backend::{Autodiff, Flex};
    /// use burn::module::Module;
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::{Tensor, backend::Backend};
    /// use burn_fp8::{Fp8Backend, Fp8Config, trace};
    ///
    /// #[derive(Module, Debug)]
    /// struct Model<B: Backend> {
    ///     hidden: Linear<B>,
    ///     head: Linear<B>,
    /// }
    ///
    /// type B = Fp8Backend<Autodiff<Flex>>;
    /// let device = Default::default();
    /// let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init::<B>(&device);
    /// let model = Model { hidden: layer(64, 64), head: layer(64, 32) };
    ///
    /// let config = Fp8Config::default().except(&model, ["head"])?;
    /// let x = Tensor::<B, 2>::ones([16, 64], &device);
    /// let (_, report) = config.scope(|| trace(|| model.head.forward(model.hidden.forward(x))));
    /// assert_eq!(report.fp8().count(), 1);
    /// let (_, reason) = report.high_precision().next().expect("the head");
    /// assert_eq!(reason.to_string(), "excepted: K×N = 64×32, as `head.weight`");
    ///
    /// assert!(Fp8Config::default().except(&model, ["haed"]).is_err());
    /// # Ok::<(), burn_fp8::Fp8Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] for a name that no weight has, with those that there are.
    pub fn except<B: Fp8Matmul, M: Module<B>>(
        self,
        model: &M,
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, Fp8Error> {
        let mut all = Weights::default();
        model.visit(&mut all);
        self.excepting(all, names)
    }
}

impl<B: Fp8Matmul> ModuleVisitor<B> for Weights {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.enter(name, container_type);
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.take(param.id.val(), &param.lazy_shape());
        if let TensorPrimitive::Float(tensor) = param.val().into_primitive() {
            let leaves = [B::leaf(&tensor), B::fp8_memory(&tensor)];
            leaves.iter().flatten().for_each(|leaf| weights::name(leaf, param.id.val()));
        }
    }
}
