//! CUDA, ROCm, and Wgpu with its variants Vulkan, Metal and WebGpu: quantization in kernels of CubeCL, products on tensor cores
//! where CUDA has them.

mod capability;
#[cfg(feature = "cuda")]
mod cuda;
mod gemm;
mod tensor;
#[cfg(all(test, feature = "wgpu", feature = "flex"))]
mod tests;

use burn::tensor::backend::DeviceOps;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, TensorMetadata};
use burn_cubecl::cubecl::server::ComputeServer;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime, FloatElement, IntElement};
use burn_fp8_core::Fp8Format;
use burn_fp8_kernels::{self as kernels, Element, NonFinite, Outputs};

use super::backend::{self, Fp8Engine, Untracked};
use super::blocks::{BlockCodes, QuantizeBlocks};
use super::capability::{Capability, Fallback};
use super::codes::CodesPrimitive;
use super::matrix::{GemmOperand, GemmOptions, QuantizeMatrix, QuantizedMatrix};
use super::padding::pad_k;
use super::portable;
use super::problem::NativeProblem;
use super::quantize::{Quantize, Quantized, ScaleRule};
use super::scalar::Scalar;
use super::scaled::{ScaledOperand, ScaledProduct, ScaledRequest};
use super::tensor::matrix_shape;
use tensor::{elements, number, output, rule, run, scalar, unwrap};

impl<R, F, I, B> Untracked for CubeBackend<R, F, I, B>
where
    R: CubeRuntime,
    R::Server: ComputeServer,
    R::Device: DeviceOps,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
}

impl<R, F, I, B> Fp8Engine for CubeBackend<R, F, I, B>
where
    R: CubeRuntime,
    R::Server: ComputeServer,
    R::Device: DeviceOps,
    F: FloatElement,
    I: IntElement,
    B: BoolElement,
{
    const FP8_KERNELS: bool = true;

    fn fp8_capability(device: &Self::Device) -> Capability {
        capability::of::<R>(device)
    }

    fn fp8_check_native(device: &Self::Device, problem: &NativeProblem) -> Result<(), Fallback> {
        capability::check::<R>(device, problem)
    }

    fn fp8_quantize(tensor: FloatTensor<Self>, request: Quantize<Self>) -> Quantized<Self> {
        let Quantize { format, scale, save } = request;
        let like = tensor.clone();
        let shape = tensor.shape();
        let rule = rule(&like, &scale);
        let outputs = if save { Outputs::CodesAndValues } else { Outputs::Values };
        let quantized =
            run(tensor, |input| kernels::quantize(&like.client, input, format, &rule, outputs));
        let values = quantized.values.expect("values were asked for");
        let codes = quantized.codes.map(|words| {
            let len = shape.num_elements().div_ceil(4);
            CodesPrimitive::Packed(output(&like, words, [len], DType::I32), shape.clone(), format)
        });
        Quantized {
            values: output(&like, values, shape, DType::F32),
            codes,
            scale: chosen(&like, scale, quantized.scale),
            amax: quantized.amax.map(|amax| Scalar::Device(number(&like, amax))),
            format,
        }
    }

    fn fp8_quantize_codes(
        tensor: FloatTensor<Self>,
        format: Fp8Format,
        scale: ScaleRule<Self>,
    ) -> (CodesPrimitive<Self>, Scalar<Self>) {
        let like = tensor.clone();
        let shape = tensor.shape();
        let rule = rule(&like, &scale);
        let quantized = run(tensor, |input| {
            kernels::quantize(&like.client, input, format, &rule, Outputs::Codes)
        });
        let words = quantized.codes.expect("codes were asked for");
        let words = output(&like, words, [shape.num_elements().div_ceil(4)], DType::I32);
        (CodesPrimitive::Packed(words, shape, format), chosen(&like, scale, quantized.scale))
    }

    fn fp8_values(codes: CodesPrimitive<Self>) -> FloatTensor<Self> {
        match codes {
            CodesPrimitive::Packed(words, shape, format) if shape.num_elements() > 0 => {
                let words = into_contiguous(words);
                let len = shape.num_elements();
                let values = unwrap(kernels::dequantize(
                    &words.client,
                    &words.handle,
                    len,
                    format,
                    None,
                    Element::F32,
                ));
                output(&words, values, shape, DType::F32)
            }
            codes => portable::values::<Self>(codes),
        }
    }

    fn fp8_quantize_blocks(tensor: FloatTensor<Self>, request: QuantizeBlocks) -> BlockCodes<Self> {
        let QuantizeBlocks { block, format, recipe } = request;
        let like = tensor.clone();
        let shape = tensor.shape();
        let quantized = run(tensor, |input| {
            kernels::quantize_blocks(&like.client, input, block, format, recipe)
        });
        let of_scales = portable::blocks::Grid::new(&shape, block).of_scales(&shape);
        let scales = output(&like, quantized.scales, of_scales, DType::F32);
        let len = shape.num_elements().div_ceil(4);
        let words = output(&like, quantized.codes, [len], DType::I32);
        let codes = CodesPrimitive::Packed(words, shape, format);
        BlockCodes { codes, scales, block, format }
    }

    fn fp8_dequantize_blocks(codes: BlockCodes<Self>) -> FloatTensor<Self> {
        match codes {
            BlockCodes {
                codes: CodesPrimitive::Packed(words, shape, format),
                scales,
                block,
                ..
            } if shape.num_elements() > 0 => {
                let [words, scales] = [words, scales].map(into_contiguous);
                let values = unwrap(kernels::dequantize_blocks(
                    &words.client,
                    &kernels::BlockCodes {
                        codes: &words.handle,
                        scales: &scales.handle,
                        shape: &shape,
                        block,
                        format,
                    },
                ));
                output(&words, values, shape, DType::F32)
            }
            codes => backend::dequantize_blocks::<Self>(codes),
        }
    }

    fn fp8_matmul_values(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        let [lhs, rhs] = pad_k::<Self>(lhs, rhs);
        Self::fp8_plain_matmul(lhs, rhs)
    }

    fn fp8_rescale(
        tensor: FloatTensor<Self>,
        lhs: &Scalar<Self>,
        rhs: &Scalar<Self>,
    ) -> FloatTensor<Self> {
        if elements(&tensor) == 0 {
            return tensor;
        }
        let like = tensor.clone();
        let scales = [lhs, rhs].map(scalar);
        let rescaled = run(tensor, |input| {
            kernels::rescale(&like.client, input, scales.each_ref(), Element::F32)
        });
        output(&like, rescaled, like.shape(), DType::F32)
    }

    fn fp8_quantize_matrix(
        tensor: FloatTensor<Self>,
        request: QuantizeMatrix<Self>,
    ) -> QuantizedMatrix<Self> {
        let QuantizeMatrix { format, scale, layouts } = request;
        let like = tensor.clone();
        let shape = matrix_shape(&tensor);
        let rule = rule(&like, &scale);
        let matrix = run(tensor, |input| {
            kernels::quantize_matrix(&like.client, input, format, &rule, layouts)
        });
        let [rows, columns] = matrix.padded;
        let words = |handle, rows: usize, columns: usize| {
            output(&like, handle, [rows, columns / 4], DType::I32)
        };
        QuantizedMatrix {
            rows: matrix.rows.map(|handle| words(handle, rows, columns)),
            transposed: matrix.transposed.map(|handle| words(handle, columns, rows)),
            shape,
            scale: chosen(&like, scale, matrix.scale),
            amax: matrix.amax.map(|amax| Scalar::Device(number(&like, amax))),
            format,
        }
    }

    fn fp8_gemm(
        lhs: GemmOperand<Self>,
        rhs: GemmOperand<Self>,
        options: GemmOptions,
    ) -> FloatTensor<Self> {
        gemm::gemm::<Self, R>(lhs, rhs, options)
    }

    fn fp8_gemm_of_blocks(
        lhs: BlockCodes<Self>,
        rhs: BlockCodes<Self>,
        options: GemmOptions,
    ) -> FloatTensor<Self> {
        gemm::gemm_of_blocks::<Self, R>(lhs, rhs, options)
    }

    fn fp8_scaled_matmul(
        a: ScaledOperand<Self>,
        b_t: ScaledOperand<Self>,
        request: ScaledRequest<Self>,
    ) -> ScaledProduct<Self> {
        #[cfg(feature = "cuda")]
        if let Some(product) = cuda::scaled_matmul::<Self, R>(&a, &b_t, &request) {
            return product;
        }
        Self::fp8_scaled_matmul_emulated(a, b_t, request)
    }

    fn fp8_amax(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        let like = tensor.clone();
        let amax = run(tensor, |input| kernels::amax(&like.client, input, NonFinite::Propagated));
        number(&like, amax)
    }
}

/// The scale that a tensor was quantized with: the one given, or the one that the kernels chose.
fn chosen<B, R: CubeRuntime>(
    like: &CubeTensor<R>,
    rule: ScaleRule<B>,
    scale: kernels::Scalar,
) -> Scalar<B>
where
    B: Fp8Engine<FloatTensorPrimitive = CubeTensor<R>>,
{
    match (rule, scale) {
        (ScaleRule::Given(scale, _), _) => scale,
        (_, kernels::Scalar::Device(handle)) => Scalar::Device(number(like, handle)),
        (_, kernels::Scalar::Host(scale)) => Scalar::Host(scale),
    }
}
