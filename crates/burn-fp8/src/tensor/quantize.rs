//! Quantizes a tensor: with one scale, with those of rows, or with those of blocks.

use burn::tensor::{DType, FloatDType, Tensor};
use burn_fp8_core::{Fp8Format, Overflow, Recipe, Scaling};

use super::handle::{Fp8Tensor, Shown, check_block, grid, invalid};
use crate::Fp8Error;
use crate::engine::portable::codes;
use crate::engine::{
    Fp8Engine, Matrix, Request, Scalar, ScalarOf, ScaleRule, ScaleRuleOf, WHOLE, Wanted, usable,
};
use crate::host::{constant, primitive};

impl<B: Fp8Engine, const D: usize> Fp8Tensor<B, D> {
    /// Quantizes with current scaling: the scale is `amax / max` of the format, over the finite elements of the tensor; 1 where those
    /// are all zero, or where there are none.
    ///
    /// Takes f32, f16, bf16; f64 is rounded to f32 first. NaN stays NaN. An infinite element becomes NaN in E4M3 and stays infinite
    /// in E5M2. Nothing is read back from the device. The codes take one byte an element where the device has u8 or the backend packs them, as CUDA,
    /// Wgpu and their like do; else their values stay in f32 ([`bytes_held`](Self::bytes_held) tells, and codes made [from bytes](Self::from_bytes) take one byte there too).
    pub fn quantize(tensor: Tensor<B, D>, format: Fp8Format) -> Self {
        Self::quantize_by(tensor, format, ScaleRule::Current(Recipe::current()), WHOLE)
    }

    /// Quantizes with a given scale, an `f32` or a tensor `[1]`: a static one, or one of earlier tensors.
    ///
    /// Finite elements beyond the largest number times the scale saturate; the rest is as for [`quantize`](Self::quantize).
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where the scale is not a finite number of at least 2^-126, or not of shape `[1]`. The value of a scale on the device is not
    /// looked at.
    pub fn quantize_with(
        tensor: Tensor<B, D>,
        format: Fp8Format,
        scale: impl Into<ScalarOf<B>>,
    ) -> Result<Self, Fp8Error> {
        let (scale, device) = (scale.into(), tensor.device());
        scale.check_scale("the scale").map_err(invalid)?;
        let scale = scale.map(|scale| B::float_to_device(scale, &device));
        let rule = ScaleRule::Given(scale, Overflow::SaturateFinite);
        Ok(Self::quantize_by(tensor, format, rule, WHOLE))
    }

    /// Quantizes with a scale for each row, the elements along the last dimension: `amax / max` of the row's finite elements.
    ///
    /// The right operand of a product `[K, N]` has one for each column: it is the [`transpose`](Self::transpose) of rows `[N, K]`.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where the tensor has one dimension.
    pub fn quantize_rows(tensor: Tensor<B, D>, format: Fp8Format) -> Result<Self, Fp8Error> {
        Self::quantize_blocks(tensor, format, [1, usize::MAX], Recipe::current())
    }

    /// Quantizes with a scale for each block of the last two dimensions, given as its rows and columns; blocks at their ends are cut off.
    ///
    /// The recipe says how a scale follows from the amax of a block: [`Recipe::mxfp8`] and blocks `[1, 32]`, [`Recipe::blockwise`] and blocks `[1, 128]` or
    /// `[128, 128]`, or [`Recipe::current`] for `amax / max` in f32. The rest is as for [`quantize`](Self::quantize).
    ///
    /// ```
    /// use burn::backend::Flex;
    /// use burn::tensor::{Distribution, Tensor};
    /// use burn_fp8::{Fp8Format, Fp8Tensor, Recipe, ScaledMatmulOptions, scaled_matmul};
    ///
    /// let device = Default::default();
    /// let random = |shape| Tensor::<Flex, 2>::random(shape, Distribution::Default, &device);
    /// let mx = |tensor| Fp8Tensor::quantize_blocks(tensor, Fp8Format::E4M3, [1, 32], Recipe::mxfp8());
    ///
    /// let (a, weight) = (mx(random([16, 64]))?, mx(random([8, 64]))?); // [M, K] and [N, K]
    /// assert_eq!((a.block(), a.scales().dims()), (Some([1, 32]), [16, 2]));
    /// let y = scaled_matmul(&a, &weight.transpose(), &ScaledMatmulOptions::default())?.into_float();
    /// assert_eq!(y.dims(), [16, 8]);
    /// # Ok::<(), burn_fp8::Fp8Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where the tensor has one dimension, a block has no elements, blocks of 32 along a row have scales that are no powers of two, or
    /// the recipe is not valid or has delayed scaling.
    pub fn quantize_blocks(
        tensor: Tensor<B, D>,
        format: Fp8Format,
        block: [usize; 2],
        recipe: Recipe,
    ) -> Result<Self, Fp8Error> {
        let (dims, device) = (tensor.dims(), tensor.device());
        check_block(dims, block).map_err(invalid)?;
        recipe.validate().map_err(|error| invalid(error.to_string()))?;
        if let Scaling::Delayed(_) = recipe.scaling {
            return Err(invalid(format!(
                "the recipe is {recipe}: a scale for each block is that of the tensor itself, without a history; use Recipe::current(), Recipe::mxfp8() or \
                 Recipe::blockwise()"
            )));
        }
        if block == [1, 32] && dims[D - 1] > 32 && !recipe.has_powers_of_two() {
            return Err(invalid(format!(
                "blocks {} have scales that are powers of two, one byte each: use Recipe::mxfp8()",
                Shown(block)
            )));
        }
        if tensor.shape().num_elements() == 0 {
            let scales = Tensor::zeros(grid(dims, block), &device);
            return Self::from_blocks(vec![], dims, format, scales, block, &device);
        }
        Ok(Self::quantize_by(tensor, format, ScaleRule::Current(recipe), block))
    }

    fn quantize_by(
        tensor: Tensor<B, D>,
        format: Fp8Format,
        rule: ScaleRuleOf<B>,
        block: [usize; 2],
    ) -> Self {
        let device = tensor.device();
        usable::<B>(&device).unwrap_or_else(|error| panic!("{error}"));
        if tensor.shape().num_elements() == 0 {
            let scale = match rule {
                ScaleRule::Given(scale, _) => scale,
                _ => Scalar::Host(1.0),
            };
            return Self::from_bytes(vec![], tensor.dims(), format, scale, &device)
                .expect("no bytes for no elements");
        }
        let tensor = match tensor.dtype() {
            DType::F64 => tensor.cast(FloatDType::F32),
            _ => tensor,
        };
        let request = Request { format, block, rule, wanted: Wanted::Codes };
        let matrix = B::fp8_quantize(primitive(constant(tensor)), request);
        let codes = matrix.codes.map(|codes| codes::compact::<B>(codes, format));
        Self::new(Matrix { codes, ..matrix })
    }
}
