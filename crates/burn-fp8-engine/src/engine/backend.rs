//! The trait by which a backend tells what it does with codes.

use burn_backend::{
    Backend, FloatDType, TensorMetadata,
    tensor::{FloatTensor, IntTensor},
};
use burn_fp8_core::Overflow;
use burn_fp8_core::sums::Sums;

use super::capability::Capability;
use super::launch::{Launched, note};
use super::matrix::{Matrix, MatrixOf, ScaleKind, Scales, WHOLE};
use super::padding::pad_k;
use super::portable;
use super::problem::Problem;
use super::product::{
    Added, EpilogueOf, Operand, OperandOf, OutputType, Product, ProductOf, Run, Target,
};
use super::request::{Request, RequestOf, ScaleRule, Wanted};
use super::scalar::Scalar;
use super::sums;
use super::tensor::add_bias;
use crate::engine::leaf::Leaf;

/// What a backend does with FP8 codes: two verbs, to quantize and to multiply, and what goes with them.
///
/// It knows formats, scales and matrices. It knows nothing of what should run in FP8, of training, or of what is reported.
///
/// Implemented for Burn's backends behind the features of their names. Every method has a portable default, in tensor operations, so that
/// [`fp8_backend!`](crate::fp8_backend) opts another backend in with one line. A backend with something faster overrides how tensors are
/// quantized, perhaps with the slice functions of [`burn_fp8_cpu::slice`](mod@burn_fp8_cpu::slice). Every override must give the same
/// codes and scales, bit for bit; sign and payload of NaN are free.
#[diagnostic::on_unimplemented(
    message = "burn-fp8 does not know the backend `{Self}`",
    label = "no backend that burn-fp8 knows",
    note = "a backend of Burn needs the feature of its name in burn-fp8, too: `flex`, `ndarray`, `wgpu`, `cuda`, …; one of your own opts in with `burn_fp8::fp8_backend!`",
    note = "a backend of another version of Burn is another type: `cargo tree -d` lists what the project has twice",
    note = "`burn::Dispatch` hides its tensors: name the backend that it stands for, as in `Fp8Backend<Autodiff<Flex>>`, with that backend's device"
)]
pub trait Fp8Engine: Backend {
    /// Whether codes are made by kernels: packed, with scales and amaxes left on the device.
    const FP8_KERNELS: bool = false;

    /// Whether a tensor's elements can be taken out of it, changed and put back without a copy, and a product reads codes `[K, N]` where they lie,
    /// emulated or on the matrix unit of the CPU, fastest column by column. Flex can; NdArray, though in the host's memory, copies.
    const FP8_ON_HOST: bool = false;

    /// Codes, one byte each, where they lie in the host's memory, row by row; none where they lie otherwise.
    fn fp8_codes(codes: &IntTensor<Self>) -> Option<&[u8]> {
        let _ = codes;
        None
    }

    /// What names a tensor's memory while it lasts; `None` where that cannot be told.
    fn fp8_memory(tensor: &FloatTensor<Self>) -> Option<Leaf> {
        let _ = tensor;
        None
    }

    /// What this device can do in FP8; with a product for tensor cores, whether they have an algorithm for it, else why not. Asked for each product, on
    /// the calling thread: the answer must be at hand.
    fn fp8_capability(device: &Self::Device, problem: Option<&Problem>) -> Capability {
        let _ = (device, problem);
        Capability::FakeQuantized { reason: "burn-fp8 has no native path for this backend".into() }
    }

    /// Quantizes a non-empty tensor `[…, R, C]` of type f32, f16, bf16 or flex32, in any layout; with one scale also of one dimension.
    fn fp8_quantize(tensor: FloatTensor<Self>, request: RequestOf<Self>) -> MatrixOf<Self> {
        quantize::<Self>(tensor, request)
    }

    /// The numbers that codes and scales stand for, f32 `[…, R, C]`, each rounded once.
    fn fp8_dequantize(matrix: MatrixOf<Self>) -> FloatTensor<Self> {
        dequantize::<Self>(matrix)
    }

    /// Multiplies `lhs` `[…, M, K]` by `rhs` `[…, K, N]`, of one rank, neither empty, whose leading dimensions broadcast; with what the epilogue
    /// asks for. Of two float tensors, matrices may be of several types: the product has that of `lhs`. Where the target does not take the product it is emulated, or refused as [`Run::otherwise`] says.
    fn fp8_multiply(
        lhs: OperandOf<Self>,
        rhs: OperandOf<Self>,
        epilogue: EpilogueOf<Self>,
        run: Run,
    ) -> ProductOf<Self> {
        multiply::<Self>(lhs, rhs, epilogue, run)
    }

    /// Multiplies an f32 tensor `[…, M, N]`, a product of codes, by the scales of both operands, which are one for each row of the left and each
    /// column of the right one at most.
    ///
    /// The scales are multiplied with each other first, in f32, and kept finite.
    fn fp8_rescale(
        product: FloatTensor<Self>,
        scales: [Scales<FloatTensor<Self>>; 2],
    ) -> FloatTensor<Self> {
        portable::rescale::<Self>(product, scales)
    }

    /// The largest magnitude of a tensor of any float type; NaN and infinities propagate. f32, shape `[1]`.
    fn fp8_amax(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        portable::scale::amax_with_non_finite::<Self>(tensor)
    }
}

/// Codes and scales in tensor operations.
pub fn quantize<B: Fp8Engine>(tensor: FloatTensor<B>, request: RequestOf<B>) -> MatrixOf<B> {
    let tensor = portable::in_f32::<B>(tensor);
    match request.block == WHOLE {
        true => portable::with_one_scale::<B>(tensor, request),
        false => in_blocks::<B>(tensor, request),
    }
}

/// Codes as the backend makes them of quotients, and the scales that these were divided by.
pub fn in_blocks<B: Fp8Engine>(tensor: FloatTensor<B>, request: RequestOf<B>) -> MatrixOf<B> {
    let Request { format, block, rule, wanted } = request;
    let recipe = rule.of_blocks();
    let [quotient, scales] =
        portable::grid::divide::<B>(portable::in_f32::<B>(tensor), block, format, recipe);
    // The division is done: what is left to quantize has the scale 1, and dividing by that is exact.
    let exact = B::fp8_quantize(quotient, Request::exact(format, wanted));
    let kind = ScaleKind::of(&recipe);
    Matrix { scales: Scales::Grid { scales, block, kind }, amax: None, ..exact }
}

/// Numbers times scales in tensor operations.
pub fn dequantize<B: Fp8Engine>(matrix: MatrixOf<B>) -> FloatTensor<B> {
    match matrix.scales.clone() {
        Scales::One(Scalar::Host(1.0)) => portable::values::<B>(&matrix),
        one @ Scales::One(_) => {
            B::fp8_rescale(decode::<B>(matrix), [one, Scales::One(Scalar::Host(1.0))])
        }
        Scales::Grid { .. } => {
            let scales = matrix.spread_scales::<B>();
            B::float_mul(decode::<B>(matrix), scales)
        }
    }
}

/// The numbers that the codes of a matrix stand for, without scales, as the backend decodes them.
pub fn decode<B: Fp8Engine>(matrix: MatrixOf<B>) -> FloatTensor<B> {
    match matrix.values {
        Some(values) => values,
        None => B::fp8_dequantize(Matrix { scales: Scales::One(Scalar::Host(1.0)), ..matrix }),
    }
}

/// Codes are multiplied with the sums of tensor cores where these are asked for; else in f32 whatever the type of the result (products of codes overflow f16), the product then by the scales; by the scales
/// first where elements that are summed have several.
pub fn multiply<B: Fp8Engine>(
    lhs: OperandOf<B>,
    rhs: OperandOf<B>,
    epilogue: EpilogueOf<B>,
    run: Run,
) -> ProductOf<B> {
    let [lhs, rhs] = match (lhs, rhs) {
        (Operand::Matrix(lhs), Operand::Matrix(rhs)) if run.sums != Sums::F32 => {
            let (added, epilogue) = epilogue.split_added();
            return finish::<B>(sums::multiply::<B>([lhs, rhs], added, &run), epilogue);
        }
        operands => operands.into(),
    };
    note(&run.note, || match &run.target {
        Target::Emulation(Some(fallback)) => Launched::Fallback(fallback.clone()),
        _ => Launched::FakeQuantized,
    });
    let product = match (lhs, rhs) {
        (Operand::Float(lhs), Operand::Float(rhs)) if run.in_bf16 => {
            in_bf16::<B>([lhs, rhs], &epilogue)
        }
        (Operand::Float(lhs), Operand::Float(rhs)) => portable::matmul_mixed::<B>(lhs, rhs),
        (lhs, rhs)
            if portable::is_constant::<B>(&lhs, 1) && portable::is_constant::<B>(&rhs, 0) =>
        {
            let [(lhs, of_lhs), (rhs, of_rhs)] = [lhs, rhs].map(split::<B>);
            B::fp8_rescale(matmul::<B>(lhs, rhs), [of_lhs, of_rhs])
        }
        (lhs, rhs) => {
            let [lhs, rhs] = [lhs, rhs].map(|operand| match operand {
                Operand::Matrix(matrix) => B::fp8_dequantize(matrix),
                Operand::Float(tensor) => tensor,
            });
            matmul::<B>(lhs, rhs)
        }
    };
    finish::<B>(product, epilogue)
}

/// The numbers of an operand without its scales, and these.
pub fn split<B: Fp8Engine>(operand: OperandOf<B>) -> (FloatTensor<B>, Scales<FloatTensor<B>>) {
    match operand {
        Operand::Matrix(matrix) => {
            let scales = matrix.scales.clone();
            (decode::<B>(matrix), scales)
        }
        Operand::Float(tensor) => (tensor, Scales::One(Scalar::Host(1.0))),
    }
}

/// Multiplies numbers in f32.
fn matmul<B: Fp8Engine>(lhs: FloatTensor<B>, rhs: FloatTensor<B>) -> FloatTensor<B> {
    let [lhs, rhs] = match B::FP8_KERNELS {
        true => pad_k::<B>(lhs, rhs),
        false => [lhs, rhs],
    };
    B::float_matmul(lhs, rhs)
}

/// Multiplies numbers that are rounded to bf16, in f32.
fn in_bf16<B: Fp8Engine>(
    operands: [FloatTensor<B>; 2],
    epilogue: &EpilogueOf<B>,
) -> FloatTensor<B> {
    let [lhs, rhs] = operands.map(|x| B::float_cast(x, FloatDType::BF16));
    match epilogue.output {
        // The product of a device that has bf16 is rounded to it once, too.
        OutputType::Float(FloatDType::BF16) => B::float_matmul(lhs, rhs),
        _ => {
            let [lhs, rhs] = [lhs, rhs].map(|x| B::float_cast(x, FloatDType::F32));
            matmul::<B>(lhs, rhs)
        }
    }
}

/// What is asked for beside a product: what is added, bias, activation, amax, the type of the result.
pub fn finish<B: Fp8Engine>(product: FloatTensor<B>, epilogue: EpilogueOf<B>) -> ProductOf<B> {
    let product = match epilogue.added {
        Some(Added { c, beta }) => {
            let c = B::float_mul_scalar(B::float_cast(c, FloatDType::F32), beta.into());
            B::float_add(product, c)
        }
        None => product,
    };
    let bias = epilogue.bias.map(|bias| B::float_cast(bias, FloatDType::F32));
    let product =
        portable::epilogue::activate::<B>(add_bias::<B>(product, bias), epilogue.activation);
    let amax = epilogue.amax.then(|| B::fp8_amax(product.clone()));
    let result = match epilogue.output {
        OutputType::Float(dtype) if product.dtype() == dtype.into() => Operand::Float(product),
        OutputType::Float(dtype) => Operand::Float(B::float_cast(product, dtype)),
        OutputType::Fp8 { format, scale } => {
            let (factor, one) =
                (portable::epilogue::reciprocal::<B>(scale.clone()), Scalar::Host(1.0));
            let scaled = B::fp8_rescale(product, [factor, one.clone()].map(Scales::One));
            let rule = ScaleRule::Given(one, Overflow::Saturate);
            let codes = B::fp8_quantize(scaled, Request::whole(format, rule, Wanted::Codes));
            Operand::Matrix(Matrix { scales: Scales::One(scale), ..codes })
        }
    };
    Product { result, amax }
}

/// A backend without gradients of its own: neither `Autodiff<B>` nor a decorator around one.
///
/// FP8 products of such a backend just run. Those of `Autodiff<B>` run on `B` and register their backward steps.
#[diagnostic::on_unimplemented(
    message = "burn-fp8 does not know the backend `{Self}`",
    label = "no backend that burn-fp8 knows",
    note = "a backend of Burn needs the feature of its name in burn-fp8, too: `flex`, `ndarray`, `wgpu`, `cuda`, …; one of your own opts in with `burn_fp8::fp8_backend!`",
    note = "a backend of another version of Burn is another type: `cargo tree -d` lists what the project has twice",
    note = "`burn::Dispatch` hides its tensors: name the backend that it stands for, as in `Fp8Backend<Autodiff<Flex>>`, with that backend's device"
)]
pub trait Untracked: Fp8Engine {}

/// Opts a backend in, with one line: its FP8 products are emulated in tensor operations.
///
/// ```text
/// burn_fp8::fp8_backend!(MyBackend);
/// burn_fp8::fp8_backend!([E: MyElement] MyBackend<E>);
/// burn_fp8::fp8_backend!([E] MyBackend<E> where E: MyElement);
/// ```
///
/// The backend must have no gradients of its own. One with something faster implements [`Fp8Engine`](crate::engine::Fp8Engine) and
/// [`Untracked`](crate::engine::Untracked) itself.
#[macro_export]
macro_rules! fp8_backend {
    ([$($generics:tt)*] $backend:ty $(where $($bounds:tt)*)?) => {
        impl<$($generics)*> $crate::engine::Fp8Engine for $backend $(where $($bounds)*)? {}
        impl<$($generics)*> $crate::engine::Untracked for $backend $(where $($bounds)*)? {}
    };
    ($backend:ty) => {
        $crate::fp8_backend!([] $backend);
    };
}
