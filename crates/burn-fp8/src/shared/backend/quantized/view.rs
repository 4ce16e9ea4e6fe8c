//! The same codes in another shape or order.

use burn_backend::quantization::QuantScheme;
use burn_backend::tensor::{FloatTensor, IntTensor, QuantizedTensor};
use burn_backend::{DType, Shape, Slice, TensorMetadata, try_read_sync};
use burn_fp8_core::Fp8Format;

use super::make::as_matrix;
use super::scheme::{Scheme, with_block};
use super::{Fp8QTensor, QCodes};
use crate::backend::{Fp8Matmul, quantized};
use crate::engine::portable::codes;
use crate::engine::tensor::reshape;
use crate::engine::{Codes, Matrix, Request, Scales, Wanted};
use crate::host;

type CodesOf<B> = Codes<FloatTensor<B>, IntTensor<B>>;

/// What moves elements and changes none.
pub(crate) enum View<'a, B: Fp8Matmul> {
    Reshape(Shape),
    Swap(usize, usize),
    Permute(&'a [usize]),
    Flip(&'a [usize]),
    Expand(Shape),
    Select(usize, IntTensor<B>),
    Gather(usize, IntTensor<B>),
    Slice(&'a [Slice]),
}

impl<B: Fp8Matmul> View<'_, B> {
    fn of_ints(&self, x: IntTensor<B>) -> IntTensor<B> {
        match self {
            Self::Reshape(shape) => B::int_reshape(x, shape.clone()),
            Self::Swap(a, b) => B::int_swap_dims(x, *a, *b),
            Self::Permute(axes) => B::int_permute(x, axes),
            Self::Flip(axes) => B::int_flip(x, axes),
            Self::Expand(shape) => B::int_expand(x, shape.clone()),
            Self::Select(dim, indices) => B::int_select(x, *dim, indices.clone()),
            Self::Gather(dim, indices) => B::int_gather(*dim, x, indices.clone()),
            Self::Slice(slices) => B::int_slice(x, slices),
        }
    }

    fn of_floats(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        match self {
            Self::Reshape(shape) => B::float_reshape(x, shape.clone()),
            Self::Swap(a, b) => B::float_swap_dims(x, *a, *b),
            Self::Permute(axes) => B::float_permute(x, axes),
            Self::Flip(axes) => B::float_flip(x, axes),
            Self::Expand(shape) => B::float_expand(x, shape.clone()),
            Self::Select(dim, indices) => B::float_select(x, *dim, indices.clone()),
            Self::Gather(dim, indices) => B::float_gather(*dim, x, indices.clone()),
            Self::Slice(slices) => B::float_slice(x, slices),
        }
    }

    fn of_quantized(&self, x: QuantizedTensor<B>) -> QuantizedTensor<B> {
        match self {
            Self::Reshape(shape) => B::q_reshape(x, shape.clone()),
            Self::Swap(a, b) => B::q_swap_dims(x, *a, *b),
            Self::Permute(axes) => B::q_permute(x, axes),
            Self::Flip(axes) => B::q_flip(x, axes),
            Self::Expand(shape) => B::q_expand(x, shape.clone()),
            Self::Select(dim, indices) => B::q_select(x, *dim, indices.clone()),
            Self::Gather(dim, indices) => B::q_gather(*dim, x, indices.clone()),
            Self::Slice(slices) => B::q_slice(x, slices),
        }
    }

    /// What Burn calls a scheme then, but for blocks.
    fn of_scheme(&self, scheme: QuantScheme, rank: usize) -> QuantScheme {
        match self {
            Self::Swap(a, b) => {
                let mut axes: Vec<usize> = (0..rank).collect();
                axes.swap(*a, *b);
                quantized::permuted(scheme, &axes)
            }
            Self::Permute(axes) => quantized::permuted(scheme, axes),
            Self::Reshape(shape) => quantized::reshaped(scheme, shape.num_dims()),
            _ => scheme,
        }
    }

    /// Of codes: bytes move as they are; others become numbers of the format and codes again, which is exact.
    pub(crate) fn of_codes(&self, codes: CodesOf<B>, format: Fp8Format) -> CodesOf<B> {
        match codes {
            Codes::Bytes(codes) => Codes::Bytes(self.of_ints(codes)),
            Codes::Packed(words, _) if let Self::Reshape(shape) = self => {
                Codes::Packed(words, shape.clone())
            }
            codes => {
                let device = match &codes {
                    Codes::Values(values) => host::float_device::<B>(values),
                    Codes::Bytes(ints) | Codes::Packed(ints, _) | Codes::Padded(ints, _) => {
                        host::int_device::<B>(ints)
                    }
                };
                let moved = self.of_floats(codes::values::<B>(codes, format));
                let shape = moved.shape();
                if shape.num_elements() == 0 {
                    return codes::from_bytes::<B>(vec![], shape, format, &device);
                }
                let matrix = B::fp8_quantize(moved, Request::exact(format, Wanted::Codes));
                codes::compact::<B>(matrix.codes.expect("codes were asked for"), format)
            }
        }
    }

    /// Of the scales of blocks of `size`, one size for each dimension of a tensor of `shape`: the scales, and the sizes that blocks have then. None where blocks
    /// do not stay whole.
    fn of_scales(
        &self,
        scales: FloatTensor<B>,
        shape: &Shape,
        size: &[usize],
    ) -> Option<(FloatTensor<B>, Vec<usize>)> {
        let rank = size.len();
        let mut moved = size.to_vec();
        let scales = match self {
            Self::Swap(a, b) => {
                moved.swap(*a, *b);
                self.of_floats(scales)
            }
            Self::Permute(axes) => {
                moved = axes.iter().map(|axis| size[*axis]).collect();
                self.of_floats(scales)
            }
            Self::Flip(_) => self.of_floats(scales),
            Self::Select(dim, _) if size[*dim] == 1 => self.of_floats(scales),
            Self::Slice(slices) => {
                let of_blocks = slices.iter().zip(shape.iter()).zip(size);
                let of_blocks: Option<Vec<_>> = of_blocks
                    .map(|((slice, dim), size)| match size {
                        1 => Some(*slice),
                        _ if slice.step != 1 => None,
                        _ => {
                            let range = slice.to_range(*dim);
                            let whole = range.start % size == 0 && range.end % size == 0;
                            whole.then(|| Slice::from(range.start / size..range.end / size))
                        }
                    })
                    .collect();
                B::float_slice(scales, &of_blocks?)
            }
            Self::Expand(target) => {
                moved = vec![1; target.num_dims() - rank];
                moved.extend(size);
                // Dimensions that grow had one element, and so have one block.
                let sizes = target.iter().zip(&moved).map(|(dim, size)| dim / size);
                B::float_expand(scales, sizes.collect())
            }
            Self::Reshape(target) => {
                let last = target.num_dims().checked_sub(1)?;
                let rows_stay = last > 0
                    && rank > 1
                    && shape.as_slice()[rank - 2..] == target.as_slice()[last - 1..];
                let [rows, columns] =
                    [rank.checked_sub(2).map_or(1, |at| size[at]), size[rank - 1]];
                if !rows_stay && (rows != 1 || target[last] % columns != 0) {
                    return None;
                }
                moved = vec![1; last + 1];
                moved[last] = columns;
                if rows_stay {
                    moved[last - 1] = rows;
                }
                let sizes = target.iter().zip(&moved).map(|(dim, size)| dim / size);
                reshape::<B>(scales, sizes.collect())
            }
            Self::Select(..) | Self::Gather(..) => return None,
        };
        let at_the_end = moved[..moved.len().saturating_sub(2)].iter().all(|size| *size == 1);
        at_the_end.then_some((scales, moved))
    }
}

impl<B: Fp8Matmul> QCodes<B> {
    /// Moves codes, and scales of blocks with them.
    pub(super) fn view(self, view: View<'_, B>) -> Fp8QTensor<B> {
        let rank = self.shape.num_dims();
        let named = view.of_scheme(self.scheme, rank);
        let sides = as_matrix(&self.shape);
        if let View::Reshape(target) = &view
            && sides.is_some()
            && sides == as_matrix(target)
        {
            let blocks = [(&self.scheme, rank), (&named, target.num_dims())];
            let [before, now] = blocks.map(|(scheme, rank)| Scheme::block_of(scheme, rank));
            if before == now {
                // The same rows and columns: what a product has moved stays where it is.
                return Fp8QTensor::Fp8(Self { shape: target.clone(), scheme: named, ..self });
            }
        }
        let matrix = self.matrix();
        let swaps = match view {
            View::Swap(a, b) => a != b && a.min(b) + 2 == rank,
            View::Permute(axes) => axes == [1, 0],
            _ => false,
        };
        if swaps && sides.is_some() {
            let mut shape = self.shape;
            shape.swap(rank - 2, rank - 1);
            let scheme = match matrix.scales.block() {
                [usize::MAX, usize::MAX] => named,
                [rows, columns] => with_block(named, rank, [columns, rows]),
            };
            return Fp8QTensor::Fp8(Self::new(shape, scheme, matrix.transpose::<B>()));
        }
        let as_is = |codes: CodesOf<B>| match codes.shape() == self.shape {
            true => codes,
            false => View::<B>::Reshape(self.shape.clone()).of_codes(codes, matrix.format),
        };
        let (scales, scheme) = match matrix.scales.clone() {
            Scales::One(scale) => (Scales::One(scale), named),
            Scales::Grid { scales, block, kind } => {
                let mut size = vec![1; rank];
                size[rank - 1] = block[1];
                if rank > 1 {
                    size[rank - 2] = block[0];
                }
                let grid = self.shape.iter().zip(&size).map(|(dim, size)| dim / size);
                let scales = reshape::<B>(scales, grid.collect());
                match view.of_scales(scales, &self.shape, &size) {
                    Some((scales, size)) => {
                        let (rank, scales) = (size.len(), in_rows::<B>(scales));
                        let now = [rank.checked_sub(2).map_or(1, |at| size[at]), size[rank - 1]];
                        if quantized::INSIDE_IS_RIGHT
                            && let View::Reshape(target) | View::Expand(target) = &view
                            && Scheme::of(&named, target).is_some_and(|it| it.block != now)
                        {
                            // One dimension became several, and the scheme has blocks of those.
                            return self.torn(&view);
                        }
                        let scheme = with_block(named, rank, now);
                        (Scales::Grid { scales, block: now, kind }, scheme)
                    }
                    None => return self.torn(&view),
                }
            }
        };
        let codes = view.of_codes(as_is(matrix.row_by_row::<B>(false)), matrix.format);
        let shape = codes.shape();
        let codes = match shape.num_dims() {
            1 => View::<B>::Reshape(Shape::new([1, shape[0]])).of_codes(codes, matrix.format),
            _ => codes,
        };
        Fp8QTensor::Fp8(Self::new(shape, scheme, Matrix::new(codes, scales, matrix.format)))
    }

    /// A view that tears blocks apart: that of the backend inside where it is right, else the numbers are quantized again, as Burn's backends do.
    ///
    /// # Panics
    /// Where no blocks of the scheme fit any more.
    fn torn(self, view: &View<'_, B>) -> Fp8QTensor<B> {
        if quantized::INSIDE_IS_RIGHT {
            let device = self.device.clone();
            let moved = view.of_quantized(B::q_from_data(self.into_data(), &device));
            let DType::QFloat(scheme) = moved.dtype() else { unreachable!("it is quantized") };
            let Some(of_fp8) = Scheme::of(&scheme, &moved.shape()) else {
                return Fp8QTensor::Other(moved);
            };
            let data = try_read_sync(B::q_into_data(moved))
                .expect("a view is read where blocking on the device is possible")
                .expect("a tensor can be read from its device");
            return Fp8QTensor::Fp8(Self::from_data(data, &scheme, of_fp8, &device));
        }
        let scheme = Scheme::of(&self.scheme, &self.shape).expect("a scheme of FP8");
        let moved = view.of_floats(self.numbers());
        let [rows, columns] = scheme.block;
        assert!(
            scheme.divides(&moved.shape()),
            "a view {:?} of a quantized tensor {:?} tears its blocks of {rows}×{columns} apart: dequantize it first",
            moved.shape().as_slice(),
            self.shape.as_slice()
        );
        Fp8QTensor::Fp8(Self::dynamic(moved, &self.scheme, scheme))
    }
}

/// `[n]` as `[1, n]`.
fn in_rows<B: Fp8Matmul>(x: FloatTensor<B>) -> FloatTensor<B> {
    let shape = x.shape();
    match shape.num_dims() {
        1 => reshape::<B>(x, Shape::new([1, shape[0]])),
        _ => x,
    }
}
