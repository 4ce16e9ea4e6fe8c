//! Zeros along the dimension that is summed over, for CubeCL's own matmul.
//!
//! cubek-matmul 0.2.0, which Burn 0.21 multiplies with on CubeCL backends, reads past the end of its operands and adds what lies there, where
//! its stages fill K and their number is odd (tracel-ai/cubek#434). With K a multiple of 256 it is even for stages of up to 128.

use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, TensorMetadata};

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
    let zeros = B::float_zeros(shape, &B::float_device(&tensor), FloatDType::F32);
    B::float_cat(vec![tensor, zeros], dim)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::{Distribution, Tensor, TensorPrimitive};

    use super::*;
    use crate::engine::tensor::primitive;

    /// Products of small integers are exact, in whatever order they are summed.
    #[test]
    fn a_padded_product_is_the_product() {
        let device = Default::default();
        for k in [1, 48, 255, 256, 257] {
            let random = |shape: [usize; 3]| {
                let distribution = Distribution::Uniform(-8.0, 8.0);
                Tensor::<Flex, 3>::random(shape, distribution, &device).round()
            };
            let (lhs, rhs) = (random([2, 3, k]), random([1, k, 5]));
            let [padded_lhs, padded_rhs] =
                pad_k::<Flex>(primitive(lhs.clone()), primitive(rhs.clone()));
            assert_eq!(padded_lhs.shape().as_slice(), [2, 3, k.next_multiple_of(256)]);
            assert_eq!(padded_rhs.shape().as_slice(), [1, k.next_multiple_of(256), 5]);
            let [padded_lhs, padded_rhs] = [padded_lhs, padded_rhs]
                .map(|tensor| Tensor::<Flex, 3>::from_primitive(TensorPrimitive::Float(tensor)));
            let difference = padded_lhs.matmul(padded_rhs) - lhs.clone().matmul(rhs);
            assert_eq!(difference.abs().max().into_scalar(), 0.0, "K {k}");
            assert!(lhs.abs().max().into_scalar() > 0.0);
        }
    }
}
