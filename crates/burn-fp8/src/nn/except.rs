//! Layers that stay in high precision, by the names that they have in a model.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_fp8_core::NamedWeight;

use crate::config::Fp8Config;
use crate::error::Fp8Error;
use crate::file::some_names;

impl Fp8Config {
    /// The same configuration, whose filter leaves the layers of these names in high precision, too: output heads, say, as PyTorch's and
    /// NVIDIA's recipes do. FP8 layers obey as well, which no other rule of the filter concerns.
    ///
    /// A name is a path in the model or a part of one, in whole words: `head`, `blocks.3`, `mlp.up`; `up` means all that are called so. It
    /// stands for each weight of two dimensions below it.
    ///
    /// **Products are told by their shape.** FP8 layers ([`nn::Fp8Linear`](crate::nn::Fp8Linear)) know their weight, by the id that Burn gave it and keeps in
    /// records: so take the names after the model has loaded its record. [`Fp8Backend`](crate::Fp8Backend) sees tensors without names. It knows a layer by its
    /// K and N, inputs and outputs, and leaves all products alone that have both, of other layers too: the trace says of which weight. Where two
    /// layers are of one shape and have to be told apart, call the one inside [`high_precision`](crate::high_precision).
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
    pub fn except<B: Backend, M: Module<B>>(
        self,
        model: &M,
        names: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, Fp8Error> {
        let mut all = Weights::default();
        model.visit(&mut all);
        let mut excepted = Vec::new();
        for name in names {
            let name = name.as_ref();
            let is_part = |path: &str| format!(".{path}.").contains(&format!(".{name}."));
            let found = all.found.iter().filter(|weight| is_part(&weight.path));
            let before = excepted.len();
            excepted.extend(found.cloned());
            if excepted.len() == before {
                let paths = all.found.iter().map(|weight| weight.path.clone());
                let reason =
                    format!("no weight is called {name:?}; there are {}", some_names(paths));
                return Err(Fp8Error::Invalid { what: "a filter's exceptions", reason });
            }
        }
        Ok(Self { filter: self.filter.except(excepted), ..self })
    }
}

/// The weights of a model.
#[derive(Default)]
struct Weights {
    /// The names and the types of the containers that the visitor is in.
    path: Vec<[String; 2]>,
    found: Vec<NamedWeight>,
}

impl<B: Backend> ModuleVisitor<B> for Weights {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.path.push([name, container_type].map(String::from));
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let container = self.path.last().map_or("", |[_, container]| container);
        if D != 2 || container == "Struct:Fp8State" {
            return;
        }
        let shape = param.lazy_shape();
        let shape = match container {
            // Where it multiplies, as a head that shares it, it is transposed.
            "Struct:Embedding" => [shape[1], shape[0]],
            _ => [shape[0], shape[1]],
        };
        let path: Vec<_> = self.path.iter().map(|[name, _]| &name[..]).collect();
        self.found.push(NamedWeight { path: path.join("."), id: param.id.val(), shape });
    }
}
