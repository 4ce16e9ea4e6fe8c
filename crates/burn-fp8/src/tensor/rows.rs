//! Rows of tensors that have a scale for each row: what a cache of keys and values needs.

use core::ops::Range;

use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorPrimitive};
use burn_backend::{DType, Shape, Slice, tensor::FloatTensor};

use super::assign_rows;
use super::handle::{Fp8Tensor, invalid};
use crate::Fp8Error;
use crate::engine::{Codes, Fp8Engine, Matrix, ScaleKind, Scales};
use crate::host::primitive;

impl<B: Backend, const D: usize> Fp8Tensor<B, D> {
    /// Some rows, of the last dimension but one, where each has a scale: `[…, rows, C]`. Memory is shared where the backend does so.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where rows have no scales of their own, where their codes do not lie row by row, or the backend packs them: CubeCL does.
    ///
    /// # Panics
    /// Where there are fewer rows.
    pub fn rows(&self, rows: Range<usize>) -> Result<Self, Fp8Error> {
        let (codes, scales) = self.by_rows()?;
        let slices = self.slices(rows);
        let codes = match codes.clone() {
            Codes::Bytes(codes) => Codes::Bytes(B::int_slice(codes, &slices)),
            Codes::Values(values) => Codes::Values(B::float_slice(values, &slices)),
            packed => packed,
        };
        Ok(self.with(codes, B::float_slice(scales.clone(), &slices)))
    }

    /// The same with other rows from row `first` on, in place where [`assign_rows`] does so.
    ///
    /// # Errors
    /// As [`rows`](Self::rows), of both tensors; and where they are in two formats.
    ///
    /// # Panics
    /// Where the rows do not fit.
    pub fn with_rows(self, first: usize, rows: Self) -> Result<Self, Fp8Error>
    where
        B: Fp8Engine,
    {
        self.by_rows()?;
        rows.by_rows()?;
        if self.format() != rows.format() {
            return Err(invalid(format!(
                "rows in {} cannot be put among rows in {}: quantize them to that",
                rows.format(),
                self.format()
            )));
        }
        let Matrix { codes, scales, format, .. } = self.matrix;
        let new = rows.matrix;
        let codes = match (codes.expect("checked"), new.codes.expect("checked")) {
            (Codes::Bytes(codes), Codes::Bytes(new)) => {
                let [codes, new] = [codes, new].map(Tensor::<B, D, Int>::from_primitive);
                Codes::Bytes(assign_rows(codes, first, new).into_primitive())
            }
            (Codes::Values(codes), Codes::Values(new)) => {
                Codes::Values(floats::<B, D>(codes, first, new))
            }
            _ => return Err(invalid("codes of two kinds cannot be in one tensor".into())),
        };
        let (Scales::Grid { scales, block, kind }, Scales::Grid { scales: new, .. }) =
            (scales, new.scales)
        else {
            unreachable!("checked")
        };
        let scales = floats::<B, D>(scales, first, new);
        Ok(Self { matrix: Matrix::new(codes, Scales::Grid { scales, block, kind }, format) })
    }

    /// The same with codes `[…, R, C]` and the scales of rows, `[…, R]`, changed where they lie, under the conditions of [`assign_rows`].
    ///
    /// # Errors
    /// As [`rows`](Self::rows); and where the backend holds no codes of one byte.
    pub fn changed(self, change: impl FnOnce(&mut [u8], &mut [f32])) -> Result<Self, Fp8Error> {
        self.by_rows()?;
        let device = self.device();
        let Matrix { codes: Some(Codes::Bytes(codes)), scales, format, .. } = self.matrix else {
            return Err(invalid("this backend holds no codes of one byte".into()));
        };
        let Scales::Grid { scales, block, .. } = scales else { unreachable!("checked") };
        let mut codes = Tensor::<B, D, Int>::from_primitive(codes).into_data();
        let scales = Tensor::<B, D>::from_primitive(TensorPrimitive::Float(scales));
        let mut scales = scales.into_data();
        change(
            codes.as_mut_slice().expect("codes are u8"),
            scales.as_mut_slice().expect("scales are f32"),
        );
        let codes = Tensor::<B, D, Int>::from_data(codes, (&device, DType::U8)).into_primitive();
        let scales = primitive(Tensor::<B, D>::from_data(scales, (&device, DType::F32)));
        // Whatever they were, they may be any numbers now.
        let scales = Scales::Grid { scales, block, kind: ScaleKind::F32 };
        Ok(Self { matrix: Matrix::new(Codes::Bytes(codes), scales, format) })
    }

    /// Codes and scales, `[…, R, C]` and `[…, R, 1]`.
    #[allow(clippy::type_complexity, reason = "the parts of a matrix")]
    fn by_rows(
        &self,
    ) -> Result<(&Codes<FloatTensor<B>, B::IntTensorPrimitive>, &FloatTensor<B>), Fp8Error> {
        let width = self.dims()[D - 1];
        match (&self.matrix.codes, &self.matrix.scales) {
            (
                Some(codes @ (Codes::Bytes(_) | Codes::Values(_))),
                Scales::Grid { scales, block: [1, columns], .. },
            ) if *columns >= width => Ok((codes, scales)),
            (Some(Codes::Packed(..) | Codes::Padded(..)), _) => {
                Err(invalid("this backend packs codes: rows cannot be taken apart".into()))
            }
            _ => Err(invalid(format!(
                "rows of {width} codes must lie row by row and have a scale each, as `quantize_rows` makes them"
            ))),
        }
    }

    /// These rows, all of the other dimensions.
    fn slices(&self, rows: Range<usize>) -> Vec<Slice> {
        let shape: Shape = self.shape();
        let all =
            |dim: usize| if dim == D - 1 { Slice::full() } else { Slice::from(0..shape[dim]) };
        (0..D).map(|dim| if dim == D - 2 { Slice::from(rows.clone()) } else { all(dim) }).collect()
    }

    fn with(
        &self,
        codes: Codes<FloatTensor<B>, B::IntTensorPrimitive>,
        scales: FloatTensor<B>,
    ) -> Self {
        let Scales::Grid { block, kind, .. } = self.matrix.scales else { unreachable!("checked") };
        let scales = Scales::Grid { scales, block, kind };
        Self { matrix: Matrix::new(codes, scales, self.matrix.format) }
    }
}

fn floats<B: Fp8Engine, const D: usize>(
    x: FloatTensor<B>,
    first: usize,
    rows: FloatTensor<B>,
) -> FloatTensor<B> {
    let tensor = |x| Tensor::<B, D>::from_primitive(TensorPrimitive::Float(x));
    primitive(assign_rows(tensor(x), first, tensor(rows)))
}
