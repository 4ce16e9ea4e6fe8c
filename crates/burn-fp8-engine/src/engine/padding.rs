//! Zeros along the dimension that is summed over, for CubeCL's own matmul.
//!
//! cubek-matmul 0.2.0, which Burn 0.21 multiplies with on CubeCL backends, reads past the end of its operands and adds what lies there, where
//! its stages fill K and their number is odd (tracel-ai/cubek#434). With K a multiple of 256 it is even for stages of up to 128.

use burn_backend::{Backend, FloatDType, TensorMetadata, tensor::FloatTensor};

use crate::host;

/// What K is padded to a multiple of.
const MULTIPLE: usize = 256;

/// `lhs` `[…, M, K]` and `rhs` `[…, K, N]`, f32, with zeros along K in both: no product that was there changes, and none is NaN.
pub(super) fn pad_k<B: Backend>(lhs: FloatTensor<B>, rhs: FloatTensor<B>) -> [FloatTensor<B>; 2] {
    let (columns, rows) = (lhs.rank() - 1, rhs.rank() - 2);
    [append_zeros::<B>(lhs, columns), append_zeros::<B>(rhs, rows)]
}

fn append_zeros<B: Backend>(tensor: FloatTensor<B>, dim: usize) -> FloatTensor<B> {
    let mut shape = tensor.shape();
    let missing = shape[dim].next_multiple_of(MULTIPLE) - shape[dim];
    if missing == 0 || shape.num_elements() == 0 {
        return tensor;
    }
    shape[dim] = missing;
    let zeros = B::float_zeros(shape, &host::float_device::<B>(&tensor), FloatDType::F32);
    B::float_cat(vec![tensor, zeros], dim)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn_backend::{Shape, TensorData, ops::FloatTensorOps};
    use burn_flex::Flex;

    use super::*;
    use crate::engine::tensor::read;

    /// Products of small integers are exact, in whatever order they are summed.
    #[test]
    fn a_padded_product_is_the_product() {
        let device = Default::default();
        for k in [1, 48, 255, 256, 257] {
            let integers = |shape: [usize; 3], step: usize| {
                let count = shape.iter().product();
                let values: Vec<f32> = (0..count).map(|i| (i * step % 17) as f32 - 8.0).collect();
                Flex::float_from_data(TensorData::new(values, shape), &device)
            };
            let (lhs, rhs) = (integers([2, 3, k], 5), integers([1, k, 5], 7));
            let [padded_lhs, padded_rhs] = pad_k::<Flex>(lhs.clone(), rhs.clone());
            let padded = k.next_multiple_of(256);
            assert_eq!(padded_lhs.shape(), Shape::new([2, 3, padded]));
            assert_eq!(padded_rhs.shape(), Shape::new([1, padded, 5]));
            let product = read::<Flex>(Flex::float_matmul(lhs, rhs));
            assert_eq!(read::<Flex>(Flex::float_matmul(padded_lhs, padded_rhs)), product, "K {k}");
            assert!(product.iter().any(|sum| *sum != 0.0));
        }
    }
}
