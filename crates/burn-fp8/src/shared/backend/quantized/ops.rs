//! The operations that Burn's traits ask for.

use core::marker::PhantomData;

use burn_backend::ops::{QTensorOps, TransactionPrimitive, TransactionPrimitiveData};
use burn_backend::quantization::{QuantScheme, QuantizationParametersPrimitive};
use burn_backend::tensor::{Device, FloatTensor, IntTensor};
use burn_backend::{
    ExecutionError, FloatDType, IntDType, Shape, Slice, TensorData, TensorMetadata,
    TensorPrimitive, get_device_settings,
};
use burn_fp8_core::{GemmRole, ProductKind};

use super::make::as_matrix;
use super::scheme::Scheme;
use super::view::View;
use super::{Fp8QTensor, Own, QCodes, is_fp8, other};
use crate::backend::convert::Rewrap;
use crate::backend::{Fp8Backend, Fp8Matmul, quantized};
use crate::engine::nothing;
use crate::engine::tensor::reshape;
use crate::product::frozen_layer::{self, InputNumbers};
use crate::product::plan::{fitting_gemm, product_shape};
use crate::product::route;
use crate::report::{HighPrecision, record_high_precision};

type Primitive<B> = TensorPrimitive<Fp8Backend<B>>;

/// Burn's operations on tensors of which one at least holds FP8: what is not here is Burn's default, which dequantizes, computes in floats, and quantizes again
/// where the result is to be quantized.
pub(crate) struct OnCodes<B>(PhantomData<B>);

impl<B: Fp8Matmul> QTensorOps<Fp8Backend<B>> for OnCodes<B> {
    fn q_from_data(data: TensorData, device: &Device<B>) -> Fp8QTensor<B> {
        q_from_data(data, device)
    }

    fn quantize(
        tensor: FloatTensor<B>,
        scheme: &QuantScheme,
        qparams: QuantizationParametersPrimitive<Fp8Backend<B>>,
    ) -> Fp8QTensor<B> {
        quantize(tensor, scheme, qparams)
    }

    fn quantize_dynamic(tensor: FloatTensor<B>, scheme: &QuantScheme) -> Fp8QTensor<B> {
        quantize_dynamic(tensor, scheme)
    }

    fn dequantize(tensor: Fp8QTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
        match tensor {
            Fp8QTensor::Fp8(codes) => B::float_cast(codes.numbers(), dtype),
            Fp8QTensor::Other(tensor) => B::dequantize(tensor, dtype),
        }
    }

    burn_0_21! {
        fn q_device(tensor: &Fp8QTensor<B>) -> Device<B> {
            quantized::q_device(tensor)
        }
    }

    fn q_to_device(tensor: Fp8QTensor<B>, device: &Device<B>) -> Fp8QTensor<B> {
        let QCodes { shape, scheme, held, .. } = fp8(tensor);
        Fp8QTensor::Fp8(QCodes::new(shape, scheme, held.get().moved_to::<B>(device)))
    }

    async fn q_into_data(tensor: Fp8QTensor<B>) -> Result<TensorData, ExecutionError> {
        Ok(fp8(tensor).into_data())
    }

    fn q_reshape(tensor: Fp8QTensor<B>, shape: Shape) -> Fp8QTensor<B> {
        view(tensor, View::Reshape(shape))
    }

    fn q_expand(tensor: Fp8QTensor<B>, shape: Shape) -> Fp8QTensor<B> {
        view(tensor, View::Expand(shape))
    }

    fn q_swap_dims(tensor: Fp8QTensor<B>, dim1: usize, dim2: usize) -> Fp8QTensor<B> {
        view(tensor, View::Swap(dim1, dim2))
    }

    fn q_permute(tensor: Fp8QTensor<B>, axes: &[usize]) -> Fp8QTensor<B> {
        view(tensor, View::Permute(axes))
    }

    fn q_flip(tensor: Fp8QTensor<B>, axes: &[usize]) -> Fp8QTensor<B> {
        view(tensor, View::Flip(axes))
    }

    fn q_select(tensor: Fp8QTensor<B>, dim: usize, indices: IntTensor<B>) -> Fp8QTensor<B> {
        view(tensor, View::Select(dim, indices))
    }

    fn q_gather(dim: usize, tensor: Fp8QTensor<B>, indices: IntTensor<B>) -> Fp8QTensor<B> {
        view(tensor, View::Gather(dim, indices))
    }

    fn q_slice(tensor: Fp8QTensor<B>, slices: &[Slice]) -> Fp8QTensor<B> {
        view(tensor, View::Slice(slices))
    }

    fn q_argmax(tensor: Fp8QTensor<B>, dim: usize, out_dtype: IntDType) -> IntTensor<B> {
        B::float_argmax(fp8(tensor).numbers(), dim, out_dtype)
    }

    fn q_argmin(tensor: Fp8QTensor<B>, dim: usize, out_dtype: IntDType) -> IntTensor<B> {
        B::float_argmin(fp8(tensor).numbers(), dim, out_dtype)
    }
}

fn fp8<B: Fp8Matmul>(tensor: Fp8QTensor<B>) -> QCodes<B> {
    match tensor {
        Fp8QTensor::Fp8(codes) => codes,
        Fp8QTensor::Other(_) => unreachable!("it goes to the backend inside"),
    }
}

fn view<B: Fp8Matmul>(tensor: Fp8QTensor<B>, view: View<'_, B>) -> Fp8QTensor<B> {
    fp8(tensor).view(view)
}

pub(crate) fn q_from_data<B: Fp8Matmul>(data: TensorData, device: &Device<B>) -> Fp8QTensor<B> {
    match quantized::scheme(&data) {
        Some(named) if let Some(scheme) = Scheme::of(&named, quantized::sizes(&data)) => {
            Fp8QTensor::Fp8(QCodes::from_data(data, &named, scheme, device))
        }
        _ => B::q_from_data(data, device).own(),
    }
}

pub(crate) fn quantize<B: Fp8Matmul>(
    tensor: FloatTensor<B>,
    scheme: &QuantScheme,
    qparams: QuantizationParametersPrimitive<Fp8Backend<B>>,
) -> Fp8QTensor<B> {
    match Scheme::of(scheme, &tensor.shape()) {
        Some(of_fp8) => Fp8QTensor::Fp8(QCodes::given(tensor, scheme, of_fp8, qparams.scales)),
        None => B::quantize(tensor, scheme, qparams.rewrap()).own(),
    }
}

pub(crate) fn quantize_dynamic<B: Fp8Matmul>(
    tensor: FloatTensor<B>,
    scheme: &QuantScheme,
) -> Fp8QTensor<B> {
    match Scheme::of(scheme, &tensor.shape()) {
        Some(of_fp8) => Fp8QTensor::Fp8(QCodes::dynamic(tensor, scheme, of_fp8)),
        None => B::quantize_dynamic(tensor, scheme).own(),
    }
}

pub(crate) async fn q_into_data<B: Fp8Matmul>(
    tensor: Fp8QTensor<B>,
) -> Result<TensorData, ExecutionError> {
    match tensor {
        Fp8QTensor::Fp8(codes) => Ok(codes.into_data()),
        Fp8QTensor::Other(tensor) => B::q_into_data(tensor).await,
    }
}

pub(crate) fn q_is_require_grad<B: Fp8Matmul>(tensor: &Fp8QTensor<B>) -> bool {
    match tensor {
        Fp8QTensor::Fp8(_) => false,
        Fp8QTensor::Other(tensor) => B::q_is_require_grad(tensor),
    }
}

pub(crate) fn q_cat<B: Fp8Matmul>(tensors: Vec<Fp8QTensor<B>>, dim: usize) -> Fp8QTensor<B> {
    match tensors.iter().any(is_fp8) {
        true => OnCodes::<B>::q_cat(tensors, dim),
        false => B::q_cat(tensors.into_iter().map(other).collect(), dim).own(),
    }
}

/// Reads tensors at once; quantized ones by themselves where one of them is in FP8. (Transactions of Burn's own lose them on CubeCL, and Fusion refuses them.)
pub(crate) async fn tr_execute<B: Fp8Matmul>(
    transaction: TransactionPrimitive<Fp8Backend<B>>,
) -> Result<TransactionPrimitiveData, ExecutionError> {
    let TransactionPrimitive { read_floats, read_qfloats, read_ints, read_bools, .. } = transaction;
    let (one_by_one, together) = match read_qfloats.iter().any(is_fp8) {
        true => (read_qfloats, vec![]),
        false => (vec![], read_qfloats.into_iter().map(other).collect()),
    };
    // The private field `orders` starts empty: whoever executes a transaction has taken the orders out.
    let transaction = TransactionPrimitive::<B>::new(read_floats, together, read_ints, read_bools);
    let mut data = B::tr_execute(transaction).await?;
    for tensor in one_by_one {
        data.read_qfloats.push(q_into_data(tensor).await?);
    }
    Ok(data)
}

/// A product of quantized tensors, which are not rounded a second time. Those of other schemes alone have that of `B`.
pub(crate) fn q_matmul<B: Fp8Matmul>(lhs: Primitive<B>, rhs: Primitive<B>) -> Primitive<B> {
    use Fp8QTensor::{Fp8, Other};
    use InputNumbers::{AsTheyAre, Quantized};
    use TensorPrimitive::{Float, QFloat};

    let shapes = [lhs.shape(), rhs.shape()];
    let gemm = fitting_gemm(&shapes);
    if route::is_empty([&lhs, &rhs]) {
        return Float(empty_product(lhs, rhs, product_shape(&shapes)));
    }
    let f32_of = |tensor| B::dequantize(tensor, FloatDType::F32);
    let product = match (lhs, rhs) {
        (QFloat(Fp8(lhs)), QFloat(Fp8(rhs))) => of_codes(lhs, rhs),
        (Float(x), QFloat(Fp8(weight))) => by_codes(x, AsTheyAre, weight),
        (QFloat(Other(x)), QFloat(Fp8(weight))) => by_codes(f32_of(x), Quantized, weight),
        (QFloat(Fp8(weight)), Float(x)) => of_left_codes(weight, x, AsTheyAre),
        (QFloat(Fp8(weight)), QFloat(Other(x))) => of_left_codes(weight, f32_of(x), Quantized),
        (lhs, rhs) => {
            let (kind, reason) = (ProductKind::Matmul, HighPrecision::Quantized);
            record_high_precision(kind, GemmRole::Output, gemm, reason);
            let inside = |operand| match operand {
                Float(x) => TensorPrimitive::<B>::Float(x),
                QFloat(tensor) => TensorPrimitive::QFloat(other(tensor)),
            };
            return B::q_matmul(inside(lhs), inside(rhs)).own();
        }
    };
    Float(product)
}

/// Zeros, or nothing: backends may not multiply what is empty.
fn empty_product<B: Fp8Matmul>(
    lhs: Primitive<B>,
    rhs: Primitive<B>,
    shape: Shape,
) -> FloatTensor<B> {
    match (lhs, rhs) {
        (TensorPrimitive::Float(x), _) | (_, TensorPrimitive::Float(x)) => {
            nothing::<B, 1>([&x], shape)
        }
        (TensorPrimitive::QFloat(tensor), _) => {
            let device = quantized::q_device(&tensor);
            let dtype = get_device_settings::<B>(&device).float_dtype;
            B::float_zeros(shape, &device, dtype)
        }
    }
}

/// Codes `[…, M, K]` times numbers: y = w · x is xᵀ · wᵀ, transposed.
fn of_left_codes<B: Fp8Matmul>(
    weight: QCodes<B>,
    x: FloatTensor<B>,
    input: InputNumbers,
) -> FloatTensor<B> {
    let rank = weight.shape.num_dims();
    let Fp8QTensor::Fp8(weight) = weight.view(View::Swap(rank - 2, rank - 1)) else {
        unreachable!("no block is torn apart")
    };
    B::float_transpose(by_codes(B::float_transpose(x), input, weight))
}

/// Numbers times codes `[…, K, N]`.
fn by_codes<B: Fp8Matmul>(
    x: FloatTensor<B>,
    input: InputNumbers,
    weight: QCodes<B>,
) -> FloatTensor<B> {
    let kind = ProductKind::Matmul;
    if as_matrix(&weight.shape).is_some() {
        // Batch and rows of the input are multiplied by it.
        return frozen_layer::by_quantized::<B>(kind, (x, input), weight.held, None);
    }
    let gemm = fitting_gemm(&[x.shape(), weight.shape.clone()]);
    record_high_precision(kind, GemmRole::Output, gemm, HighPrecision::Quantized);
    let numbers = B::float_cast(weight.numbers(), x.dtype().into());
    B::float_matmul(x, numbers)
}

/// Codes times codes, in the float type of their device.
fn of_codes<B: Fp8Matmul>(lhs: QCodes<B>, rhs: QCodes<B>) -> FloatTensor<B> {
    let device = lhs.device.clone();
    let dtype = get_device_settings::<B>(&device).float_dtype;
    let shapes = [lhs.shape.clone(), rhs.shape.clone()];
    match shapes.each_ref().map(as_matrix) {
        [Some(_), Some(_)] => {
            let product = frozen_layer::of_quantized::<B>(lhs.held, rhs.held, dtype);
            reshape::<B>(product, product_shape(&shapes))
        }
        _ => by_codes(B::float_cast(lhs.numbers(), dtype), InputNumbers::Quantized, rhs),
    }
}
