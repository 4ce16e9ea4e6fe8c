//! Casts of tensors and of modules.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, Tensor};
use burn_fp8::Fp8Error;
use burn_fp8::nn::is_fp8_state;

use super::{Policy, PolicyDType, dtype};

impl Policy {
    /// Whether the device has the three dtypes: what a cast panics about is an error here, before the run.
    ///
    /// ```
    /// use burn::backend::Flex;
    /// use burn_fp8_train::policy::Policy;
    ///
    /// let error = Policy::parse("p=f32,c=flex32")?.check::<Flex>(&Default::default()).unwrap_err();
    /// assert_eq!(error.to_string(), "policy: backend `flex` has no flex32; a policy for it can have f32, bf16, f16, f64");
    /// # Ok::<(), burn_fp8::Fp8Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`], which names the first one missing, and those that the device has.
    pub fn check<B: Backend>(&self, device: &B::Device) -> Result<(), Fp8Error> {
        let mut dtypes = [self.param, self.compute, self.output].into_iter();
        dtypes.try_for_each(|dtype| dtype::check::<B>(dtype, device))
    }

    /// The tensor in this dtype, or in the one that the policy has for it. Gradients pass back through the cast.
    pub fn cast<B: Backend, const D: usize>(
        &self,
        tensor: Tensor<B, D>,
        dtype: impl Into<PolicyDType>,
    ) -> Tensor<B, D> {
        cast_tensor(tensor, dtype.into().resolve(Some(self)))
    }

    /// The tensor in the dtype of parameters.
    pub fn cast_to_param<B: Backend, const D: usize>(&self, tensor: Tensor<B, D>) -> Tensor<B, D> {
        self.cast(tensor, PolicyDType::Param)
    }

    /// The tensor in the dtype that the model computes with.
    pub fn cast_to_compute<B: Backend, const D: usize>(
        &self,
        tensor: Tensor<B, D>,
    ) -> Tensor<B, D> {
        self.cast(tensor, PolicyDType::Compute)
    }

    /// The tensor in the dtype that the model gives out.
    pub fn cast_to_output<B: Backend, const D: usize>(&self, tensor: Tensor<B, D>) -> Tensor<B, D> {
        self.cast(tensor, PolicyDType::Output)
    }

    /// The module with its parameters stored in the dtype of parameters: for a module just made or loaded, before it is trained.
    ///
    /// The new parameters are leaves of the graph, with the ids of the old ones. [What is not cast](super#what-is-not-cast).
    pub fn cast_module_to_param<B: Backend, M: Module<B>>(&self, module: M) -> M {
        let kind = Kind::Stored;
        module.map(&mut CastModule { dtype: self.param, kind, containers: vec![] })
    }

    /// A view of the module with parameters in the dtype that the model computes with, for one forward pass: their gradients
    /// arrive at the parameters of the module itself, in its dtype. [What is not cast](super#what-is-not-cast).
    ///
    /// Do not train or save the view; it ends with the pass.
    ///
    /// # Panics
    /// Where the module shares a parameter with its clones, so that the cast of the view has changed it: `RunningState` outside of Burn's
    /// `BatchNorm`.
    pub fn cast_module_to_compute<B: Backend, M: Module<B>>(&self, module: &M) -> M {
        view(module, Some(self.compute))
    }

    /// As [`cast_module_to_compute`](Self::cast_module_to_compute), in the dtype that the model gives out: for a last layer that is
    /// computed in it.
    pub fn cast_module_to_output<B: Backend, M: Module<B>>(&self, module: &M) -> M {
        view(module, Some(self.output))
    }
}

/// [`Policy::cast`] by the policy in force. Without one, a semantic dtype changes nothing; a concrete one holds.
pub fn cast<B: Backend, const D: usize>(
    tensor: Tensor<B, D>,
    dtype: impl Into<PolicyDType>,
) -> Tensor<B, D> {
    cast_tensor(tensor, dtype.into().resolve(Policy::current().as_ref()))
}

/// [`Policy::cast_to_param`] by the policy in force; without one, the tensor as it is.
pub fn cast_to_param<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    cast(tensor, PolicyDType::Param)
}

/// [`Policy::cast_to_compute`] by the policy in force; without one, the tensor as it is.
pub fn cast_to_compute<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    cast(tensor, PolicyDType::Compute)
}

/// [`Policy::cast_to_output`] by the policy in force; without one, the tensor as it is.
pub fn cast_to_output<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    cast(tensor, PolicyDType::Output)
}

/// [`Policy::cast_module_to_param`] by the policy in force; without one, the module as it is.
pub fn cast_module_to_param<B: Backend, M: Module<B>>(module: M) -> M {
    match Policy::current() {
        Some(policy) => policy.cast_module_to_param(module),
        None => module,
    }
}

/// [`Policy::cast_module_to_compute`] by the policy in force; without one, a clone of the module.
pub fn cast_module_to_compute<B: Backend, M: Module<B>>(module: &M) -> M {
    view(module, Policy::current().map(|policy| policy.compute))
}

/// [`Policy::cast_module_to_output`] by the policy in force; without one, a clone of the module.
pub fn cast_module_to_output<B: Backend, M: Module<B>>(module: &M) -> M {
    view(module, Policy::current().map(|policy| policy.output))
}

fn cast_tensor<B: Backend, const D: usize>(
    tensor: Tensor<B, D>,
    dtype: Option<FloatDType>,
) -> Tensor<B, D> {
    match dtype {
        // Burn's cast to the dtype that a tensor has is not free everywhere, nor does it keep a leaf a leaf.
        Some(dtype) if tensor.dtype() != DType::from(dtype) => to_dtype(tensor, dtype),
        _ => tensor,
    }
}

/// # Panics
/// Where the device has no such dtype: backends panic with less.
fn to_dtype<B: Backend, const D: usize>(tensor: Tensor<B, D>, dtype: FloatDType) -> Tensor<B, D> {
    if let Err(error) = dtype::check::<B>(dtype, &tensor.device()) {
        panic!("{error}");
    }
    tensor.cast(dtype)
}

fn view<B: Backend, M: Module<B>>(module: &M, dtype: Option<FloatDType>) -> M {
    // Burn initializes a parameter when it is first used, and clones made before that each for itself: this uses all of them.
    let mut before = DTypes::default();
    module.visit(&mut before);
    let clone = module.clone();
    let Some(dtype) = dtype else { return clone };
    let view = clone.map(&mut CastModule { dtype, kind: Kind::View, containers: vec![] });
    let mut after = DTypes::default();
    module.visit(&mut after);
    let changed =
        before.dtypes.iter().zip(&after.dtypes).position(|(before, after)| before != after);
    if let Some(index) = changed {
        panic!(
            "parameter {index} of {} is shared by the module with its clones, as `RunningState` is, and has become {:?}: keep the \
             module that has it out of the one that is cast",
            after.dtypes.len(),
            after.dtypes[index]
        );
    }
    view
}

/// The dtypes of all float parameters, in the order of a visit.
#[derive(Default)]
struct DTypes {
    dtypes: Vec<DType>,
}

impl<B: Backend> ModuleVisitor<B> for DTypes {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.dtypes.push(param.val().dtype());
    }
}

/// What becomes of a parameter.
#[derive(Clone, Copy)]
enum Kind {
    /// A new leaf of the graph.
    Stored,
    /// A step of the graph, whose gradient goes on to the parameter that it was cast from.
    View,
}

struct CastModule {
    dtype: FloatDType,
    kind: Kind,
    /// The types of the containers that the mapper is in.
    containers: Vec<String>,
}

impl<B: Backend> ModuleMapper<B> for CastModule {
    fn enter_module(&mut self, _name: &str, container_type: &str) {
        self.containers.push(container_type.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.containers.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        // Clones of a batch norm share its running statistics: a cast of a view would round those of the module.
        let is_batch_norm = self.containers.last().is_some_and(|name| name == "Struct:BatchNorm");
        if is_batch_norm || is_fp8_state() || param.val().dtype() == DType::from(self.dtype) {
            return param;
        }
        match self.kind {
            Kind::View => param.map(|tensor| to_dtype(tensor, self.dtype)),
            Kind::Stored => param.map(|tensor| {
                let is_trained = tensor.is_require_grad();
                to_dtype(tensor, self.dtype).detach().set_require_grad(is_trained)
            }),
        }
    }
}
