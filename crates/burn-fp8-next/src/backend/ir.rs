//! How a server holds the tensors of `Fp8Backend<B>`: as it holds those of `B`.

use burn_backend::tensor::{BoolTensor, FloatTensor, IntTensor, QuantizedTensor};
use burn_ir::{BackendIr, TensorHandle};

use super::{Fp8Backend, Fp8Matmul};

impl<B: Fp8Matmul + BackendIr> BackendIr for Fp8Backend<B> {
    type Handle = B::Handle;

    fn float_tensor(handle: TensorHandle<Self::Handle>) -> FloatTensor<Self> {
        B::float_tensor(handle)
    }

    fn int_tensor(handle: TensorHandle<Self::Handle>) -> IntTensor<Self> {
        B::int_tensor(handle)
    }

    fn bool_tensor(handle: TensorHandle<Self::Handle>) -> BoolTensor<Self> {
        B::bool_tensor(handle)
    }

    fn quantized_tensor(handle: TensorHandle<Self::Handle>) -> QuantizedTensor<Self> {
        B::quantized_tensor(handle)
    }

    fn float_tensor_handle(tensor: FloatTensor<Self>) -> Self::Handle {
        B::float_tensor_handle(tensor)
    }

    fn int_tensor_handle(tensor: IntTensor<Self>) -> Self::Handle {
        B::int_tensor_handle(tensor)
    }

    fn bool_tensor_handle(tensor: BoolTensor<Self>) -> Self::Handle {
        B::bool_tensor_handle(tensor)
    }

    fn quantized_tensor_handle(tensor: QuantizedTensor<Self>) -> Self::Handle {
        B::quantized_tensor_handle(tensor)
    }
}
