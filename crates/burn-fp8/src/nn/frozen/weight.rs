//! The weight of a frozen layer.

use burn::tensor::backend::{AutodiffBackend, Backend};

use crate::engine::MatrixOf;
use crate::product::Held;
use crate::tensor::Fp8Tensor;

/// A weight `[d_input, d_output]`.
#[derive(Clone, Debug)]
pub(super) struct Weight<B: Backend> {
    dims: [usize; 2],
    held: Held<B>,
}

impl<B: Backend> Weight<B> {
    pub(super) fn new(weight: Fp8Tensor<B, 2>) -> Self {
        Self { dims: weight.dims(), held: Held::new(weight.into_matrix()) }
    }

    pub(super) fn get(&self) -> Fp8Tensor<B, 2> {
        Fp8Tensor::new(self.held.get())
    }

    /// The weight with its codes row by row, or column by column. They stay in this layout.
    pub(super) fn laid_out(&self, of_transpose: bool) -> MatrixOf<B> {
        self.held.laid_out(of_transpose)
    }

    pub(super) fn dims(&self) -> [usize; 2] {
        self.dims
    }

    pub(super) fn to_device(&self, device: &B::Device) -> Self {
        Self::new(self.get().to_device(device))
    }
}

impl<B: AutodiffBackend> Weight<B> {
    pub(super) fn inner(&self) -> Weight<B::InnerBackend> {
        Weight::new(self.get().inner())
    }

    pub(super) fn from_inner(weight: &Weight<B::InnerBackend>) -> Self {
        Self::new(Fp8Tensor::from_inner(weight.get()))
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::Flex;
    use burn_fp8_core::Fp8Format;

    use super::*;
    use crate::engine::Codes;

    /// A view would be copied by every product.
    #[test]
    fn a_layout_is_kept_in_memory() {
        let device = Default::default();
        let bytes: Vec<u8> = (0..15).collect();
        let codes = Fp8Tensor::<Flex, 2>::from_bytes(bytes, [3, 5], Fp8Format::E4M3, 1.0, &device);
        let weight = Weight::new(codes.expect("15 codes"));
        let column_by_column = [0, 5, 10, 1, 6, 11, 2, 7, 12, 3, 8, 13, 4, 9, 14];
        let row_by_row: [u8; 15] = std::array::from_fn(|code| code as u8);
        for (of_transpose, expected) in [(true, column_by_column), (false, row_by_row)] {
            let laid_out = weight.laid_out(of_transpose);
            let codes = match of_transpose {
                true => &laid_out.transposed,
                false => &laid_out.codes,
            };
            let Some(Codes::Bytes(codes)) = codes else { panic!("Flex has u8") };
            assert!(codes.layout().is_contiguous());
            assert_eq!(codes.bytes(), expected);
            assert_eq!(weight.get().is_transposed(), of_transpose);
            assert_eq!(weight.get().to_bytes(), row_by_row);
        }
    }
}
