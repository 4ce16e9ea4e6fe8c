//! The product of a layer on tensor cores: the three GEMMs of [`crate::matmul`]'s native products, with scales chosen as in Flax.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, Shape, TensorMetadata};
use burn_fp8_core::{Fp8Format, Gemm, GemmRole, Layouts, ProductKind};

use super::{Backward, DotOptions, Forward, gemm};
use crate::matmul::{
    GemmOptions, MeasuredMatrix, MeasuredOperand, Otherwise, SavedOperand, native_gemm, new_note,
    reshape,
};
use crate::ops::QdqOptions;
use crate::ops::flax;
use crate::report::{self, Pending, PendingOperand, PendingRan};
use crate::{Fp8Matmul, config};

pub(super) fn forward<B: Fp8Matmul>(
    x: FloatTensor<B>,
    kernel: FloatTensor<B>,
    [input_state, kernel_state]: [[FloatTensor<B>; 2]; 2],
    options: DotOptions,
    save: [bool; 2],
) -> Forward<B> {
    let dtype = kernel.dtype();
    let shapes = [x.shape(), kernel.shape()];
    let qdq = options.qdq(Fp8Format::E4M3, dtype);
    let x_layouts = Layouts::of(true, save[0]).expect("the rows");
    let kernel_layouts = Layouts::of(save[1], true).expect("the transpose");
    let (x, input_state) = quantize::<B>(x, input_state, qdq, x_layouts);
    let (kernel, kernel_state) = quantize::<B>(kernel, kernel_state, qdq, kernel_layouts);
    let saved = [
        save[0].then(|| SavedOperand::Matrix(x.by_columns())),
        save[1].then(|| SavedOperand::Matrix(kernel.by_rows())),
    ];
    let product = Product { dtype, forward: gemm(&shapes) };
    let output = product.multiply(GemmRole::Output, x.by_rows(), kernel.by_columns());
    let [mut shape, kernel_shape] = shapes;
    let last = shape.num_dims() - 1;
    shape[last] = kernel_shape[1];
    let states = [input_state, kernel_state];
    Forward { output: reshape::<B>(output, shape), saved, states, tap: None }
}

pub(super) fn backward<B: Fp8Matmul>(
    output_grad: FloatTensor<B>,
    [x, kernel]: [Option<SavedOperand<B>>; 2],
    shapes: [Shape; 2],
    state: [FloatTensor<B>; 2],
    options: DotOptions,
) -> Backward<B> {
    let dtype = output_grad.dtype();
    let qdq = options.qdq(Fp8Format::E5M2, dtype);
    let layouts = Layouts::of(kernel.is_some(), x.is_some()).expect("an operand was saved");
    let (grad, state) = quantize::<B>(output_grad, state, qdq, layouts);
    let product = Product { dtype, forward: gemm(&shapes) };
    let [x_shape, kernel_shape] = shapes;

    let grad_x = kernel.map(|kernel| {
        let grad = product.multiply(GemmRole::GradInput, grad.by_rows(), matrix(kernel));
        reshape::<B>(grad, x_shape)
    });
    let grad_kernel = x.map(|x| {
        let grad = product.multiply(GemmRole::GradWeight, matrix(x), grad.by_columns());
        reshape::<B>(grad, kernel_shape)
    });
    Backward { operands: [grad_x, grad_kernel], state }
}

fn matrix<B: Fp8Matmul>(saved: SavedOperand<B>) -> MeasuredOperand<B> {
    match saved {
        SavedOperand::Matrix(operand) => operand,
        _ => unreachable!("a native product of a layer saves matrices of codes"),
    }
}

/// Quantizes a tensor with its new scale, and updates its state.
fn quantize<B: Fp8Matmul>(
    tensor: FloatTensor<B>,
    state: [FloatTensor<B>; 2],
    options: QdqOptions,
    layouts: Layouts,
) -> (MeasuredMatrix<B>, [FloatTensor<B>; 2]) {
    let [scale, history] = flax::update::<B>(&tensor, state, options);
    let compute_dtype = options.compute_dtype.unwrap_or_else(|| tensor.dtype().into());
    let matrix =
        flax::quantize_matrix::<B>(&tensor, scale.clone(), options.format, compute_dtype, layouts);
    (MeasuredMatrix::new(&tensor, matrix), [scale, history])
}

struct Product {
    dtype: DType,
    forward: Gemm,
}

impl Product {
    fn multiply<B: Fp8Matmul>(
        &self,
        role: GemmRole,
        lhs: MeasuredOperand<B>,
        rhs: MeasuredOperand<B>,
    ) -> FloatTensor<B> {
        let gemm = self.forward.for_role(role);
        let note = new_note();
        if let Some(note) = &note {
            report::record(|| Pending {
                kind: ProductKind::Linear,
                role,
                gemm,
                operands: Some([&lhs, &rhs].map(PendingOperand::of_matrix)),
                site: None,
                ran: PendingRan::noted::<B>(note, B::int_device(&lhs.operand.words)),
            });
        }
        let options = GemmOptions {
            k: gemm.k,
            dtype: self.dtype,
            fast_accumulation: role == GemmRole::Output,
            otherwise: Otherwise::of(config::current().config.execution),
            note,
        };
        native_gemm::<B>(lhs.operand, rhs.operand, options)
    }
}
