//! Batches, broadcasting, views and element types.

mod common;

use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, FloatDType, Tensor};
use burn_fp8::Fp8Format::{E4M3, E5M2};
use burn_fp8::report::HighPrecision;
use burn_fp8::{Fp8Backend, trace};
use common::exact::{Exact, Sums};
use common::{Inner, Outer, Random, every_matmul, reference, tensor, values};

/// `[2, 1, 3, 5] · [1, 4, 5, 2]`, with its gradients for an output gradient `dy`, in f64.
fn check_broadcast<B: AutodiffBackend>() {
    let (b0, b1, m, k, n) = (2, 4, 3, 5, 2);
    let mut random = Random(3);
    let (x, w) = (random.spread(b0 * m * k), random.spread(b1 * k * n));
    let dy = random.spread(b0 * b1 * m * n);
    let left = tensor::<B, 4>(&x, [b0, 1, m, k]).require_grad();
    let right = tensor::<B, 4>(&w, [1, b1, k, n]).require_grad();
    let (y, grads) = every_matmul().scope(|| {
        let y = left.clone().matmul(right.clone());
        let grads = (y.clone() * tensor(&dy, [b0, b1, m, n])).sum().backward();
        (y, grads)
    });

    let (qx, qw) =
        (reference::quantize_dequantize(&x, E4M3), reference::quantize_dequantize(&w, E4M3));
    let qdy = reference::quantize_dequantize(&dy, E5M2);
    // Of each pair of matrices: output, gradients of both.
    let pair = |i: usize, j: usize| {
        let (x, w) = (&qx[i * m * k..][..m * k], &qw[j * k * n..][..k * n]);
        let dy = &qdy[(i * b1 + j) * m * n..][..m * n];
        [
            Exact::product(x, w, [m, k, n]),
            Exact::product(dy, &reference::transpose(w, [k, n]), [m, n, k]),
            Exact::product(&reference::transpose(x, [m, k]), dy, [k, m, n]),
        ]
    };
    let (y, [dx, dw]) =
        (values(y), [left, right].map(|leaf| values(leaf.grad(&grads).expect("tracked"))));
    for (index, y) in y.chunks(m * n).enumerate() {
        pair(index / b1, index % b1)[0].assert(y, Sums::F32, "y");
    }
    let sum = |grads: Vec<Exact>| grads.into_iter().reduce(|a, b| a.plus(&b)).expect("several");
    for (i, dx) in dx.chunks(m * k).enumerate() {
        let exact = sum((0..b1).map(|j| pair(i, j)[1].clone()).collect());
        exact.assert(dx, Sums::F32, "dx");
    }
    for (j, dw) in dw.chunks(k * n).enumerate() {
        let exact = sum((0..b0).map(|i| pair(i, j)[2].clone()).collect());
        exact.assert(dw, Sums::F32, "dw");
    }
}

#[test]
fn batch_dimensions_broadcast() {
    check_broadcast::<Outer<Flex>>();
    #[cfg(feature = "ndarray")]
    check_broadcast::<Outer<burn::backend::NdArray>>();
}

/// A plain left operand times a batch keeps the batch; its gradient sums over it.
#[test]
fn a_plain_left_operand_broadcasts_over_a_batch() {
    type B = Outer<Flex>;
    let (batch, m, k, n) = (3, 4, 5, 6);
    let mut random = Random(9);
    let (a, x) = (random.spread(m * k), random.spread(batch * k * n));
    let left = tensor::<B, 3>(&a, [1, m, k]).require_grad();
    let right = tensor::<B, 3>(&x, [batch, k, n]);
    let grads = every_matmul().scope(|| left.clone().matmul(right).sum().backward());
    let qx = reference::quantize_dequantize(&x, E4M3);
    let ones = vec![1.0; m * n];
    let grads_of_batch = qx
        .chunks(k * n)
        .map(|x| Exact::product(&ones, &reference::transpose(x, [k, n]), [m, n, k]));
    let sum = grads_of_batch.reduce(|a, b| a.plus(&b)).expect("a batch");
    sum.assert(&values(left.grad(&grads).unwrap()), Sums::F32, "da");
}

/// The same values as transposed, sliced, flipped and expanded views give the same product as contiguous ones, up to the
/// order in which the backend sums: that of their numbers, in f64.
fn check_views<B: Backend>() {
    let mut random = Random(5);
    let (m, k, n) = (6, 10, 8);
    let x = tensor::<B, 2>(&random.spread(m * k), [m, k]);
    let w = tensor::<B, 2>(&random.spread(k * n), [k, n]);
    let contiguous =
        |tensor: &Tensor<B, 2>| Tensor::<B, 2>::from_data(tensor.to_data(), &Default::default());
    let views = [
        ("transposed", tensor::<B, 2>(&random.spread(m * k), [k, m]).transpose()),
        (
            "sliced",
            tensor::<B, 2>(&random.spread(4 * m * k), [2 * m, 2 * k]).slice([3..3 + m, 5..5 + k]),
        ),
        ("flipped", x.clone().flip([0, 1])),
        ("row slice", tensor::<B, 2>(&random.spread(2 * m * k), [2 * m, k]).narrow(0, 2, m)),
        ("expanded", tensor::<B, 2>(&random.spread(k), [1, k]).expand([m, k])),
    ];
    let quantized = |x: &Tensor<B, 2>| reference::quantize_dequantize(&values(x.clone()), E4M3);
    for (what, view) in views {
        let weight = view.clone().transpose();
        for (x, w, shape) in [(&view, &w, [m, k, n]), (&x, &weight, [m, k, m])] {
            let exact = Exact::product(&quantized(x), &quantized(w), shape);
            every_matmul().scope(|| {
                exact.assert(&values(x.clone().matmul(w.clone())), Sums::F32, what);
                let copies = contiguous(x).matmul(contiguous(w));
                exact.assert(&values(copies), Sums::F32, &format!("{what}, copied"));
            });
        }
    }
}

#[test]
fn views_give_what_copies_give() {
    check_views::<Fp8Backend<Flex>>();
    check_views::<Fp8Backend<Autodiff<Flex>>>();
    #[cfg(feature = "ndarray")]
    check_views::<Fp8Backend<burn::backend::NdArray>>();
}

fn half_step<B: AutodiffBackend>(dtype: FloatDType) {
    let mut random = Random(11);
    let x = tensor::<B, 2>(&random.spread(5 * 9), [5, 9]).cast(dtype).require_grad();
    let w = tensor::<B, 2>(&random.spread(9 * 4), [9, 4]).cast(dtype).require_grad();
    let (y, grads) = every_matmul().scope(|| {
        let y = x.clone().matmul(w.clone());
        (y.clone(), y.sum().backward())
    });
    let (dx, dw) = (x.grad(&grads).unwrap(), w.grad(&grads).unwrap());
    assert_eq!([y.dtype(), dx.dtype(), dw.dtype()], [DType::from(dtype); 3]);
    // Against f64 on the rounded inputs: only the result is rounded to the type.
    let (xs, ws) = (values(x), values(w));
    let (qx, qw) =
        (reference::quantize_dequantize(&xs, E4M3), reference::quantize_dequantize(&ws, E4M3));
    let ones = reference::quantize_dequantize(&[1.0; 20], E5M2);
    let expected = [
        Exact::product(&qx, &qw, [5, 9, 4]),
        Exact::product(&ones, &reference::transpose(&qw, [9, 4]), [5, 4, 9]),
        Exact::product(&reference::transpose(&qx, [5, 9]), &ones, [9, 5, 4]),
    ];
    let actual = [values(y), values(dx), values(dw)];
    for ((actual, expected), what) in actual.iter().zip(expected).zip(["y", "dx", "dw"]) {
        expected.rounded(dtype).assert(actual, Sums::F32, what);
    }
}

#[test]
fn half_precision_tensors_keep_their_type() {
    half_step::<Outer<Flex>>(FloatDType::BF16);
    half_step::<Outer<Flex>>(FloatDType::F16);
    half_step::<Inner<Flex>>(FloatDType::BF16);
    half_step::<Inner<Flex>>(FloatDType::F16);
}

#[test]
fn f64_tensors_are_left_alone_and_reported() {
    type B = Outer<Flex>;
    let mut random = Random(1);
    let x = tensor::<B, 2>(&random.spread(32 * 32), [32, 32]).cast(FloatDType::F64);
    let (y, report) = trace(|| x.clone().matmul(x.clone()));
    assert_eq!(y.dtype(), DType::F64);
    let plain =
        Tensor::<Autodiff<Flex>, 2>::from_data(x.to_data(), (&Default::default(), DType::F64));
    assert_eq!(y.to_data(), plain.clone().matmul(plain).to_data());
    let reasons: Vec<_> = report.high_precision().map(|(_, reason)| reason).collect();
    assert_eq!(reasons, [HighPrecision::Dtype(DType::F64)]);
}

#[test]
fn flex_saves_one_byte_an_element() {
    use burn::tensor::TensorPrimitive;
    use burn_fp8::Recipe;
    use burn_fp8::engine::{CodesPrimitive, Fp8Engine, Quantize, ScaleRule};
    let view = tensor::<Flex, 2>(&Random(2).spread(12), [3, 4]).transpose();
    let TensorPrimitive::Float(view) = view.into_primitive() else {
        unreachable!("made of floats")
    };
    for format in [E4M3, E5M2] {
        let scale = ScaleRule::Current(Recipe::current());
        let request = Quantize { format, scale, save: true };
        let quantized = Flex::fp8_quantize(view.clone(), request.clone());
        let Some(CodesPrimitive::Bytes(codes, _)) = quantized.codes else {
            panic!("Flex holds bytes");
        };
        assert_eq!((codes.dtype(), codes.bytes().len()), (DType::U8, 12));
        let not_saved = Flex::fp8_quantize(view.clone(), Quantize { save: false, ..request });
        assert!(not_saved.codes.is_none());
    }
}
