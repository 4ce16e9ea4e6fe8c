//! FP8 layers: delayed scaling with its state in the model, layer by layer.
//!
//! [`Fp8Linear`] takes the place of [`burn::nn::Linear`], on any backend, decorated with [`Fp8Backend`](crate::Fp8Backend) or not.
//! Its three scales and amax histories are parameters whose gradients are their new values. Train it with
//! [`Fp8Optimizer`](crate::optim::Fp8Optimizer), which overwrites them.
//!
//! ```
//! use burn::backend::{Autodiff, Flex};
//! use burn::optim::{GradientsParams, Optimizer, SgdConfig};
//! use burn::tensor::Tensor;
//! use burn_fp8::nn::Fp8LinearConfig;
//! use burn_fp8::optim::Fp8Optimizer;
//!
//! type B = Autodiff<Flex>;
//! let device = Default::default();
//! let layer = Fp8LinearConfig::new(32, 16).init::<B>(&device);
//! let mut optimizer = Fp8Optimizer::new(SgdConfig::new().init());
//!
//! let x = Tensor::<B, 2>::ones([4, 32], &device);
//! let grads = GradientsParams::from_grads(layer.forward(x).sum().backward(), &layer);
//! let layer = optimizer.step(0.1, layer, grads);
//! assert_eq!(layer.dot.input.amax_history.val().into_data().to_vec::<f32>().unwrap()[0], 1.0);
//! ```
//!
//! The layers run in FP8 whatever the filter and the recipe of the ambient [`Fp8Config`](crate::Fp8Config) say, but not where it
//! is switched off, as inside [`high_precision`](crate::high_precision): they are then plain layers, and their state stays
//! as it is. The product inside a layer goes past the decorator, so that nothing is quantized twice.

mod dot_general;
mod except;
pub mod frozen;
mod linear;
mod state;

pub use dot_general::{Fp8DotGeneral, Fp8DotGeneralConfig, Fp8DotGeneralRecord};
pub use frozen::{ActivationScale, FrozenLinear};
pub use linear::{Fp8Linear, Fp8LinearConfig, Fp8LinearRecord};
pub use state::{Fp8State, Fp8StateItem, Fp8StateRecord, is_fp8_state};

pub use crate::ops::DotMode;
