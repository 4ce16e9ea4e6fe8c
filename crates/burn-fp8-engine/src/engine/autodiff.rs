//! Codes of `Autodiff<B>`: those of `B`, constants of the graph.

use burn_autodiff::{Autodiff, checkpoint::strategy::CheckpointStrategy};
use burn_backend::tensor::FloatTensor;

use super::backend::{self, Fp8Engine};
use super::capability::Capability;
use super::matrix::{MatrixOf, Scales};
use super::portable;
use super::problem::Problem;
use super::product::{EpilogueOf, Operand, OperandOf, ProductOf, Run};
use super::request::RequestOf;
use crate::engine::leaf::Leaf;
use crate::host;

/// A tensor of `Autodiff<B>`; burn-autodiff does not export the name.
type AutodiffTensor<B, C> = FloatTensor<Autodiff<B, C>>;

impl<B: Fp8Engine, C: CheckpointStrategy> Fp8Engine for Autodiff<B, C> {
    const FP8_ON_HOST: bool = B::FP8_ON_HOST;

    fn fp8_memory(tensor: &FloatTensor<Self>) -> Option<Leaf> {
        B::fp8_memory(&host::untracked(tensor.clone()))
    }

    fn fp8_capability(device: &Self::Device, problem: Option<&Problem>) -> Capability {
        B::fp8_capability(device, problem)
    }

    // Quantized tensors are constants of the graph: those of `B`, untracked. Products quantize on `B`; only
    // `Autodiff<Autodiff<B>>` comes here with tracked tensors.
    fn fp8_quantize(tensor: FloatTensor<Self>, request: RequestOf<Self>) -> MatrixOf<Self> {
        assert!(
            !tensor.is_tracked(),
            "a tensor with a gradient cannot be quantized here: FP8 products have no second derivative; run this part in \
             burn_fp8::high_precision, or detach the tensor"
        );
        let request = request.map(host::untracked);
        let matrix = B::fp8_quantize(host::untracked(tensor), request);
        matrix.map(&mut (), |_, x| AutodiffTensor::<B, C>::new(x), |_, x| x)
    }

    fn fp8_dequantize(matrix: MatrixOf<Self>) -> FloatTensor<Self> {
        let matrix = matrix.map(&mut (), |_, x| host::untracked(x), |_, x| x);
        AutodiffTensor::<B, C>::new(B::fp8_dequantize(matrix))
    }

    fn fp8_multiply(
        lhs: OperandOf<Self>,
        rhs: OperandOf<Self>,
        epilogue: EpilogueOf<Self>,
        run: Run,
    ) -> ProductOf<Self> {
        let is_tracked = |operand: &OperandOf<Self>| match operand {
            Operand::Float(tensor) => tensor.is_tracked(),
            Operand::Matrix(_) => false,
        };
        if is_tracked(&lhs) || is_tracked(&rhs) {
            return backend::multiply::<Self>(lhs, rhs, epilogue, run);
        }
        let [lhs, rhs] =
            [lhs, rhs].map(|operand| operand.map(&mut (), |_, x| host::untracked(x), |_, x| x));
        let epilogue = epilogue.map(&mut (), |_, x| host::untracked(x));
        let product = B::fp8_multiply(lhs, rhs, epilogue, run);
        product.map(&mut (), |_, x| AutodiffTensor::<B, C>::new(x), |_, x| x)
    }

    fn fp8_rescale(
        product: FloatTensor<Self>,
        scales: [Scales<FloatTensor<Self>>; 2],
    ) -> FloatTensor<Self> {
        if product.is_tracked() {
            return portable::rescale::<Self>(product, scales);
        }
        let scales = scales.map(|scales| scales.map(host::untracked));
        AutodiffTensor::<B, C>::new(B::fp8_rescale(host::untracked(product), scales))
    }

    fn fp8_amax(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        AutodiffTensor::<B, C>::new(B::fp8_amax(host::untracked(tensor)))
    }
}
