//! What decoding takes: keys and values of a cache in fewer bits, and weights of another type than the input.

use burn::backend::NdArray;
use burn::tensor::{Distribution, Int, TensorData};
use burn_fp8::fused::ops::{AttentionOptions, attention};
use burn_fp8::ops::{assign_rows, attention_to_fp8, linear_mixed};

use crate::common::*;

/// Queries, keys and values, in which not all rows are of one size.
fn heads<A: Backend>(queries: usize) -> [Tensor<A, 4>; 3] {
    let mut random = Random(3);
    [[2, 4, queries, 24], [2, 2, 90, 24], [2, 2, 90, 24]]
        .map(|shape: [usize; 4]| tensor(&random.spread(shape.iter().product()), shape))
}

fn options<A: Backend>() -> AttentionOptions<A> {
    AttentionOptions { causal: true, scale: Some(0.01), ..AttentionOptions::default() }
}

fn to_fp8<A: Fp8Matmul>(queries: usize) -> Vec<f32> {
    let [q, k, v] = heads::<A>(queries);
    let [k, v] = [k, v].map(|x| Fp8Tensor::quantize_rows(x, E4M3).expect("rows"));
    values(attention_to_fp8(q, &k, &v, options()))
}

fn to_dequantized<A: Fp8Matmul>(queries: usize) -> Vec<f32> {
    let [q, k, v] = heads::<A>(queries);
    let [k, v] = [k, v].map(|x| Fp8Tensor::quantize_rows(x, E4M3).expect("rows").dequantize());
    values(attention(q, k, v, options()))
}

#[test]
fn keys_and_values_in_fp8_are_the_numbers_that_they_stand_for() {
    for queries in [1, 70] {
        let exact = to_dequantized::<Flex>(queries);
        assert_eq!(to_fp8::<Flex>(queries), exact);
        assert_eq!(to_fp8::<Fp8Backend<Flex>>(queries), exact);
        let near = |found: Vec<f32>| {
            for (x, exact) in found.iter().zip(&exact) {
                assert!((x - exact).abs() <= 1e-4 * (1.0 + exact.abs()), "{x} {exact}");
            }
        };
        near(to_fp8::<Autodiff<Flex>>(queries));
        #[cfg(feature = "ndarray")]
        near(to_fp8::<burn::backend::NdArray>(queries));
    }
}

#[test]
fn keys_and_values_in_bf16_are_converted_exactly() {
    for queries in [1, 70] {
        let [q, k, v] = heads::<Flex>(queries);
        let [k, v] = [k, v].map(|x| x.cast(DType::BF16));
        let stored = attention(q.clone(), k.clone(), v.clone(), options());
        assert_eq!(stored.dtype(), DType::F32);
        let [k, v] = [k, v].map(|x| x.cast(DType::F32));
        assert_eq!(values(stored), values(attention(q, k, v, options())));
    }
}

/// A cache grows row by row, and what is read of it is what was written.
#[test]
fn rows_are_written_and_read() {
    let device = Default::default();
    let [_, keys, _] = heads::<Flex>(1);
    let all = Fp8Tensor::quantize_rows(keys.clone(), E4M3).expect("rows");
    let (room, scales) = (vec![0; 2 * 2 * 100 * 24], Tensor::ones([2, 2, 100, 1], &device));
    let room = Fp8Tensor::<Flex, 4>::from_blocks(
        room,
        [2, 2, 100, 24],
        E4M3,
        scales,
        [1, usize::MAX],
        &device,
    );
    let mut cache = room.expect("as many codes as the shape has");
    for (start, end) in [(0, 50), (50, 51), (51, 90)] {
        let new = keys.clone().narrow(2, start, end - start);
        let new = Fp8Tensor::quantize_rows(new, E4M3).expect("rows");
        cache = cache.with_rows(start, new).expect("rows have scales");
    }
    for rows in [0..90, 3..4, 40..90] {
        let read = cache.rows(rows.clone()).expect("rows have scales");
        assert_eq!(read.dims(), [2, 2, rows.len(), 24]);
        let expected = all.dequantize().narrow(2, rows.start, rows.len());
        assert_eq!(values(read.dequantize()), values(expected));
        // Views of a room are read where they lie.
        let [q, _, v] = heads::<Flex>(1);
        let v = v.narrow(2, rows.start, rows.len());
        let dequantized = attention(q.clone(), read.dequantize(), v.clone(), options());
        let v = Fp8Tensor::quantize_rows(v, E4M3).expect("rows");
        let exact = attention(q.clone(), read.dequantize(), v.dequantize(), options());
        assert_eq!(values(attention_to_fp8(q, &read, &v, options())), values(exact.clone()));
        assert_ne!(values(exact), values(dequantized), "values are rounded");
    }
    let other = Fp8Tensor::quantize_rows(keys.clone(), E5M2).expect("rows");
    let error = cache.clone().with_rows(0, other).expect_err("another format").to_string();
    assert!(error.contains("rows in E5M2 cannot be put among rows in E4M3"), "{error}");
    let one = Fp8Tensor::quantize(keys, E4M3);
    for error in [one.rows(0..1).err(), cache.clone().with_rows(0, one).err()] {
        let error = error.expect("rows have no scales of their own").to_string();
        assert!(error.contains("have a scale each"), "{error}");
    }
}

/// Rows 2 and 3 of 5, in each of two matrices, of floats, of bf16 and of integers; from a view, and while another tensor has the same memory.
fn assigned<A: Fp8Matmul>() {
    let device = Default::default();
    let ints = |from: i64, shape: [usize; 3]| {
        let count = shape.iter().product::<usize>() as i64;
        Tensor::<A, 1, Int>::arange(from..from + count, &device).reshape(shape)
    };
    let expected: Vec<f32> = (0..30)
        .map(|index| match index / 3 % 5 {
            2 | 3 => 100.0 + (index / 15 * 6 + index % 15 - 6) as f32,
            _ => index as f32,
        })
        .collect();
    let (all, rows) = (ints(0, [2, 5, 3]), ints(100, [2, 2, 3]));
    let written = assign_rows(all.clone(), 2, rows.clone());
    assert_eq!(values(written.float()), expected);
    assert_eq!(values(all.clone().float()), (0..30).map(|x| x as f32).collect::<Vec<_>>());
    for dtype in [FloatDType::F32, FloatDType::BF16] {
        if !A::supports_dtype(&device, dtype.into()) {
            continue;
        }
        // The lower half of a tensor twice as wide, and rows that lie transposed.
        let wide = Tensor::cat(vec![all.clone().float(), all.clone().float()], 2).cast(dtype);
        let rows = rows.clone().float().cast(dtype).swap_dims(1, 2).clone().swap_dims(1, 2);
        let written = assign_rows(wide.clone().narrow(2, 0, 3), 2, rows.clone());
        assert_eq!(written.dtype(), dtype.into());
        assert_eq!(values(written.clone().cast(FloatDType::F32)), expected);
        // In place, and no row at all.
        let none = Tensor::zeros([2, 0, 3], (&device, DType::from(dtype)));
        let written = assign_rows(written, 4, none);
        assert_eq!(values(written.cast(FloatDType::F32)), expected);
    }
}

#[test]
fn rows_are_assigned_as_slices_are() {
    assigned::<Flex>();
    assigned::<Fp8Backend<Flex>>();
    assigned::<Autodiff<Flex>>();
    assigned::<NdArray>();
}

#[test]
fn gradients_go_through_rows_that_are_assigned() {
    type A = Autodiff<Flex>;
    let device = Default::default();
    let x = Tensor::<A, 2>::ones([3, 2], &device).require_grad();
    let rows = Tensor::<A, 2>::ones([1, 2], &device).require_grad();
    let gradients = (assign_rows(x.clone(), 1, rows.clone()) * 3.0).sum().backward();
    let of = |tensor: Tensor<A, 2>| tensor.grad(&gradients).expect("a gradient").into_data();
    assert_eq!(of(x).to_vec::<f32>().unwrap(), [3.0, 3.0, 0.0, 0.0, 3.0, 3.0]);
    assert_eq!(of(rows).to_vec::<f32>().unwrap(), [3.0, 3.0]);
}

#[test]
#[should_panic(expected = "do not go into [3, 2]")]
fn rows_that_are_assigned_fit() {
    let device = Default::default();
    let rows = Tensor::<Flex, 2>::ones([2, 2], &device);
    let _ = assign_rows(Tensor::<Flex, 2>::ones([3, 2], &device), 2, rows);
}

#[test]
fn attention_to_codes_refuses_what_it_does_not_do() {
    let run = |precision| {
        let [q, k, v] = heads::<Flex>(1);
        let [k, v] = [k, v].map(|x| Fp8Tensor::quantize_rows(x, E4M3).expect("rows"));
        attention_to_fp8(q, &k, &v, AttentionOptions { precision, ..options() })
    };
    let message = panic_of(move || run(burn_fp8::AttentionPrecision::Fp8));
    assert!(message.contains("neither dropout nor another precision"), "{message}");
}

/// `x` `[1, rows, K]` times a weight `[N, K]` of this type, and the gradient of `x`.
fn mixed<A>(dtype: DType, [n, k]: [usize; 2])
where
    A: AutodiffBackend<InnerBackend: Fp8Matmul> + Fp8Matmul,
{
    let weight = random::<A, 2>(5, [n, k]).cast(dtype);
    let w = wide(&values(weight.clone().cast(DType::F32)));
    for rows in [1, 6] {
        let x = random::<A, 3>(6, [1, rows, k]);
        let plain = linear_mixed(x.clone().inner(), weight.clone().inner());
        assert_eq!((plain.dims(), plain.dtype()), ([1, rows, n], DType::F32));
        let x = x.require_grad();
        let y = linear_mixed(x.clone(), weight.clone());
        let gradient = grad(&x, &y.clone().sum().backward());
        let exact = Exact::product(&wide(&values(x)), &transpose(&w, [n, k]), [rows, k, n]);
        for y in [values(y), values(plain)] {
            exact.assert(&y, Sums::F32, &format!("{dtype:?}"));
        }
        let exact = Exact::product(&vec![1.0; rows * n], &w, [rows, n, k]);
        exact.assert(&gradient, Sums::F32, &format!("gradient, {dtype:?}"));
    }
}

#[test]
fn a_weight_of_another_type_is_multiplied_as_it_is() {
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        mixed::<Autodiff<Flex>>(dtype, [40, 70]);
        mixed::<Autodiff<Fp8Backend<Flex>>>(dtype, [40, 70]);
    }
    // More than is converted at a time where gradients are tracked.
    mixed::<Autodiff<Flex>>(DType::BF16, [600, 2100]);
    #[cfg(feature = "ndarray")]
    mixed::<Autodiff<burn::backend::NdArray>>(DType::F64, [600, 2100]);
}

#[test]
fn nothing_gives_nothing() {
    let device = Default::default();
    let weight = Tensor::<Flex, 2>::random([5, 3], Distribution::Default, &device);
    let x = Tensor::<Flex, 2>::from_data(TensorData::new(Vec::<f32>::new(), [0, 3]), &device);
    assert_eq!(linear_mixed(x, weight.clone()).dims(), [0, 5]);
    let x = Tensor::<Flex, 2>::zeros([2, 4], &device);
    let message = panic_of(move || linear_mixed(x, weight));
    assert!(message.contains("a weight of [5, 3] takes […, 3], not [2, 4]"), "{message}");
}
