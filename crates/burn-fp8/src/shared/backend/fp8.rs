//! What products in FP8 need of a backend, for `Fp8Backend<B>`: it is what `B` does. Nothing is quantized twice.

use burn_backend::tensor::{FloatTensor, IntTensor};

use crate::backend::{Fp8Backend, Fp8Matmul};
use crate::engine::{
    Capability, EpilogueOf, Fp8Engine, Graph, Leaf, MatrixOf, OperandOf, Problem, ProductOf,
    RequestOf, Run, Scales, Settings, Step,
};
use crate::product::route;

// The tensors are those of `B`, so the structs of the engine are, too.
impl<B: Fp8Matmul> Fp8Engine for Fp8Backend<B> {
    const FP8_KERNELS: bool = B::FP8_KERNELS;
    const FP8_ON_HOST: bool = B::FP8_ON_HOST;

    fn fp8_codes(codes: &IntTensor<Self>) -> Option<&[u8]> {
        B::fp8_codes(codes)
    }

    fn fp8_memory(tensor: &FloatTensor<Self>) -> Option<Leaf> {
        B::fp8_memory(tensor)
    }

    fn fp8_capability(device: &Self::Device, problem: Option<&Problem>) -> Capability {
        B::fp8_capability(device, problem)
    }

    fn fp8_quantize(tensor: FloatTensor<Self>, request: RequestOf<Self>) -> MatrixOf<Self> {
        B::fp8_quantize(tensor, request)
    }

    fn fp8_dequantize(matrix: MatrixOf<Self>) -> FloatTensor<Self> {
        B::fp8_dequantize(matrix)
    }

    fn fp8_multiply(
        lhs: OperandOf<Self>,
        rhs: OperandOf<Self>,
        epilogue: EpilogueOf<Self>,
        run: Run,
    ) -> ProductOf<Self> {
        B::fp8_multiply(lhs, rhs, epilogue, run)
    }

    fn fp8_rescale(
        product: FloatTensor<Self>,
        scales: [Scales<FloatTensor<Self>>; 2],
    ) -> FloatTensor<Self> {
        B::fp8_rescale(product, scales)
    }

    fn fp8_amax(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        B::fp8_amax(tensor)
    }
}

// The graph is that of `B`, under the configuration.
impl<B: Fp8Matmul> Graph for Fp8Backend<B> {
    const HAS_GRAPH: bool = B::HAS_GRAPH;

    type Inner = B::Inner;

    fn is_tracked(tensor: &FloatTensor<Self>) -> bool {
        B::is_tracked(tensor)
    }

    fn value(tensor: FloatTensor<Self>) -> FloatTensor<B::Inner> {
        B::value(tensor)
    }

    fn constant(value: FloatTensor<B::Inner>) -> FloatTensor<Self> {
        B::constant(value)
    }

    fn leaf(tensor: &FloatTensor<Self>) -> Option<Leaf> {
        B::leaf(tensor)
    }

    fn parameter(tensor: &FloatTensor<Self>) -> Option<u64> {
        B::parameter(tensor)
    }

    fn require_leaf(tensor: &FloatTensor<Self>) {
        B::require_leaf(tensor);
    }

    fn record<S: Step<B::Inner, N>, const N: usize>(
        operands: [&FloatTensor<Self>; N],
        run: impl FnOnce() -> (FloatTensor<B::Inner>, S),
    ) -> FloatTensor<Self> {
        B::record(operands, run)
    }

    fn settings() -> Settings {
        route::settings()
    }
}
