//! Rows of a tensor that are replaced where they lie.

use burn::tensor::{BasicOps, DType, Slice, Tensor};

use crate::engine::Fp8Engine;

/// `x` `[…, R, C]` with `rows` `[…, rows, C]`, of the same type, from row `first` on: what a cache of keys and values does with each token.
///
/// As `Tensor::slice_assign`, which copies all of `x` on Flex. Here the other rows stay where they are if nothing else holds `x`, on a backend in the host's
/// memory and without gradients.
///
/// ```
/// use burn::backend::Flex;
/// use burn::tensor::Tensor;
/// use burn_fp8::ops::assign_rows;
///
/// let device = Default::default();
/// let cache = Tensor::<Flex, 2>::zeros([3, 2], &device);
/// let cache = assign_rows(cache, 1, Tensor::from_floats([[1.0, 2.0]], &device));
/// assert_eq!(cache.into_data().to_vec::<f32>().unwrap(), [0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
/// ```
///
/// # Panics
/// Where the rows do not fit, or are of another type.
pub fn assign_rows<B: Fp8Engine, const D: usize, K: BasicOps<B>>(
    x: Tensor<B, D, K>,
    first: usize,
    rows: Tensor<B, D, K>,
) -> Tensor<B, D, K> {
    let (shape, of_rows) = (x.dims(), rows.dims());
    let (device, dtype) = (x.device(), x.dtype());
    let count = of_rows[D - 2];
    let fits = |dim: usize| match dim == D - 2 {
        true => first.checked_add(count).is_some_and(|end| end <= shape[dim]),
        false => of_rows[dim] == shape[dim],
    };
    assert!(
        dtype == rows.dtype() && (0..D).all(fits),
        "rows {of_rows:?} of {:?} do not go into {shape:?} of {dtype:?} from row {first} on",
        rows.dtype()
    );
    if of_rows.contains(&0) {
        return x;
    }
    if !B::FP8_ON_HOST || B::ad_enabled(&device) || matches!(dtype, DType::QFloat(_)) {
        let slices: [Slice; D] = core::array::from_fn(|dim| match dim == D - 2 {
            true => Slice::from(first..first + count),
            false => Slice::full(),
        });
        return x.slice_assign(slices, rows);
    }
    let row = shape[D - 1] * dtype.size();
    let (mut data, rows) = (x.into_data(), rows.into_data());
    let matrices = data.bytes.chunks_exact_mut(shape[D - 2] * row);
    for (matrix, rows) in matrices.zip(rows.bytes.chunks_exact(count * row)) {
        matrix[first * row..][..rows.len()].copy_from_slice(rows);
    }
    Tensor::from_data(data, (&device, dtype))
}
