//! The backend decorator of burn-fp8, as the server of a [`device`](crate::device) runs it. Of float tensors only plain products reach it, since Autodiff lies on the
//! client; quantized ones come as they are.
//!
//! `delegate` forwards every method of Burn's backend traits to `B`; it is generated. `convert`, `fp8` and `common` are files of burn-fp8.

/// Keeps what `delegate` has for this version of Burn.
macro_rules! burn_0_22 {
    ($($item:tt)*) => { $($item)* };
}

/// Drops what it has for others.
macro_rules! burn_0_21 {
    ($($item:tt)*) => {};
}

#[macro_use]
#[path = "../shared/backend/forward.rs"]
mod forward;
mod collective;
#[macro_use]
#[path = "../shared/backend/mod.rs"]
mod common;
#[path = "../shared/backend/delegate.rs"]
mod delegate;
mod gradient;
mod intercept;
mod ir;
pub(crate) mod quantized;
pub(crate) mod session;

use core::marker::PhantomData;

#[cfg(feature = "burn-0-23")]
use burn_backend::ops::{AttentionBackward, MaxPool3dBackward, MaxPool3dWithIndices};
use burn_backend::ops::{BatchNormTrain, BatchNormTrainBackward};
use burn_backend::quantization::QuantizationParametersPrimitive;
use burn_backend::tensor::FloatTensor;
use burn_flex::{Flex, FlexTensor};

use crate::engine::Graph;
pub(crate) use common::{convert, convolution};
use convert::{Rewrap, SameTensors};
use quantized::{Fp8QTensor, QCodes};

/// A backend on which products run in FP8, and which can tell tensors apart.
pub(crate) trait Fp8Matmul: Graph {
    /// What two tensors have in common only where they are the same elements in the same order.
    fn identity(tensor: &FloatTensor<Self>) -> Identity;
}

/// The memory that a tensor lies in, and how.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Identity {
    pub(crate) memory: usize,
    layout: burn_flex::Layout,
}

impl Fp8Matmul for Flex {
    fn identity(tensor: &FlexTensor) -> Identity {
        Identity { memory: tensor.bytes().as_ptr().addr(), layout: tensor.layout().clone() }
    }
}

/// A backend that runs the matrix products of `B` in FP8, and everything else on `B`; GELU and, without gradients, attention and layer normalization as one
/// operation each where the configuration says so of attention.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fp8Backend<B> {
    backend: PhantomData<B>,
}

convert::rewrap_fields! {
    BatchNormTrain { output, mean, variance }
    QuantizationParametersPrimitive { scales, global }
    BatchNormTrainBackward { x_grad, gamma_grad, beta_grad }
}
#[cfg(feature = "burn-0-23")]
convert::rewrap_fields! {
    AttentionBackward { query_grad, key_grad, value_grad }
    MaxPool3dBackward { x_grad }
    MaxPool3dWithIndices { output, indices }
}
