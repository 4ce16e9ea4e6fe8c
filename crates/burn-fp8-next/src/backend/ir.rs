//! How a server holds the tensors of `Fp8Backend<B>`: as it holds those of `B`, but for codes.

use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor, QuantizedTensor};
use burn_ir::{BackendIr, TensorHandle};

use super::{Fp8Backend, Fp8Matmul, Fp8QTensor, QCodes};

/// A tensor of `Fp8Backend<B>`.
pub(crate) enum Handle<B: BackendIr> {
    OfInside(B::Handle),
    Fp8(QCodes<B>),
}

impl<B: BackendIr> Clone for Handle<B> {
    fn clone(&self) -> Self {
        match self {
            Self::OfInside(handle) => Self::OfInside(handle.clone()),
            Self::Fp8(codes) => Self::Fp8(codes.clone()),
        }
    }
}

fn inside<B: BackendIr>(handle: TensorHandle<Handle<B>>) -> TensorHandle<B::Handle> {
    let TensorHandle { handle, shape } = handle;
    match handle {
        Handle::OfInside(handle) => TensorHandle { handle, shape },
        Handle::Fp8(codes) => unreachable!("{codes:?} is a quantized tensor"),
    }
}

impl<B: Fp8Matmul + BackendIr> BackendIr for Fp8Backend<B> {
    type Handle = Handle<B>;

    fn float_tensor(handle: TensorHandle<Handle<B>>) -> FloatTensor<Self> {
        B::float_tensor(inside(handle))
    }

    fn int_tensor(handle: TensorHandle<Handle<B>>) -> IntTensor<Self> {
        B::int_tensor(inside(handle))
    }

    fn bool_tensor(handle: TensorHandle<Handle<B>>) -> BoolTensor<Self> {
        B::bool_tensor(inside(handle))
    }

    fn quantized_tensor(handle: TensorHandle<Handle<B>>) -> QuantizedTensor<Self> {
        match handle {
            TensorHandle { handle: Handle::Fp8(codes), .. } => Fp8QTensor::Fp8(codes),
            handle => Fp8QTensor::Other(B::quantized_tensor(inside(handle))),
        }
    }

    fn float_tensor_handle(tensor: FloatTensor<Self>) -> Handle<B> {
        Handle::OfInside(B::float_tensor_handle(tensor))
    }

    fn int_tensor_handle(tensor: IntTensor<Self>) -> Handle<B> {
        Handle::OfInside(B::int_tensor_handle(tensor))
    }

    fn bool_tensor_handle(tensor: BoolTensor<Self>) -> Handle<B> {
        Handle::OfInside(B::bool_tensor_handle(tensor))
    }

    fn quantized_tensor_handle(tensor: QuantizedTensor<Self>) -> Handle<B> {
        match tensor {
            Fp8QTensor::Fp8(codes) => Handle::Fp8(codes),
            Fp8QTensor::Other(tensor) => Handle::OfInside(B::quantized_tensor_handle(tensor)),
        }
    }
}
