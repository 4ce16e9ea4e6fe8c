//! What a frozen layer is, as plain data: for Burn's recorders.

use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::Backend;
use burn::tensor::{Bytes, DType, Tensor, TensorData};
use burn_fp8_core::Fp8Format;
use serde::{Deserialize, Serialize};

use super::check::read_bias;
use super::{ActivationScale, FrozenLinear};
use crate::engine::check_scale;
use crate::engine::tensor::read;
use crate::host::primitive;
use crate::product::frozen_layer::{check_finite, check_shape};
use crate::tensor::Fp8Tensor;

/// The record of a [`FrozenLinear`]: the codes as bytes, the rest in f32. Always valid: one that is read from a file
/// is checked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct FrozenLinearRecord(Fields);

/// The fields, not checked yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    d_input: usize,
    d_output: usize,
    codes: Bytes,
    weight_scale: f32,
    input_scale: Option<f32>,
    bias: Option<Vec<f32>>,
    /// Where the weight has several scales: rows and columns of a block, and the scales row by row. `weight_scale` is 1 then.
    #[serde(default)]
    block: Option<[usize; 2]>,
    #[serde(default)]
    scales: Vec<f32>,
    /// Where inputs are scaled neither by `input_scale` nor by their amax.
    #[serde(default)]
    activation: Option<ActivationScale>,
}

impl TryFrom<Fields> for FrozenLinearRecord {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let Fields { d_input, d_output, codes, weight_scale, input_scale, bias, .. } = &fields;
        if d_input.checked_mul(*d_output) != Some(codes.len()) {
            return Err(format!("{} codes for a weight [{d_input}, {d_output}]", codes.len()));
        }
        check_shape([*d_input, *d_output])?;
        check_scale("weight_scale", *weight_scale)?;
        if let Some(scale) = input_scale {
            check_scale("input_scale", *scale)?;
        }
        if let Some(bias) = bias
            && bias.len() != *d_output
        {
            return Err(format!("a bias of {} elements for {d_output} outputs", bias.len()));
        }
        let [rows, columns] = fields.block.unwrap_or([usize::MAX; 2]);
        if rows == 0 || columns == 0 {
            return Err(format!("blocks {rows}×{columns} have no elements"));
        }
        let grid = d_input.div_ceil(rows).saturating_mul(d_output.div_ceil(columns));
        let expected = if fields.block.is_some() { grid } else { 0 };
        if fields.scales.len() != expected {
            let found = fields.scales.len();
            return Err(format!("{found} scales for a grid of {expected} blocks"));
        }
        if let Some(scale) =
            fields.scales.iter().find(|scale| !(scale.is_finite() && **scale > 0.0))
        {
            return Err(format!(
                "a scale of the weight is {scale:e}; it must be a finite, positive number"
            ));
        }
        if let Some(activation) = fields.activation {
            activation.check()?;
        }
        check_finite([*d_input, *d_output], codes, bias.as_deref())?;
        Ok(Self(fields))
    }
}

impl<B: Backend> FrozenLinear<B> {
    /// The record. Waits for the device.
    pub fn to_record(&self) -> FrozenLinearRecord {
        let [d_input, d_output] = self.dims();
        let bias = read_bias(&self.bias);
        let (input_scale, activation) = match self.activation {
            ActivationScale::Static(scale) => (Some(scale), None),
            ActivationScale::Current => (None, None),
            other => (None, Some(other)),
        };
        let weight = self.weight.get();
        let codes = Bytes::from_bytes_vec(weight.to_bytes());
        let block = weight.block();
        let scales = read::<B>(primitive(weight.scales()));
        let (weight_scale, scales) = match block {
            None => (scales[0], vec![]),
            Some(_) => (1.0, scales),
        };
        FrozenLinearRecord(Fields {
            d_input,
            d_output,
            codes,
            weight_scale,
            input_scale,
            bias,
            block,
            scales,
            activation,
        })
    }

    /// The layer of a record.
    pub fn from_record(record: FrozenLinearRecord, device: &B::Device) -> Self {
        let Fields {
            d_input,
            d_output,
            codes,
            weight_scale,
            input_scale,
            bias,
            block,
            scales,
            activation,
        } = record.0;
        let codes = codes.try_into_vec().unwrap_or_else(|bytes| bytes.to_vec());
        let (shape, format) = ([d_input, d_output], Fp8Format::E4M3);
        let options = (device, DType::F32);
        let weight = match block {
            None => Fp8Tensor::from_bytes(codes, shape, format, weight_scale, device),
            Some(block) => {
                let grid = [0, 1].map(|dim| shape[dim].div_ceil(block[dim]));
                let scales = Tensor::from_data(TensorData::new(scales, grid), options);
                Fp8Tensor::from_blocks(codes, shape, format, scales, block, device)
            }
        };
        let bias = bias.map(|bias| Tensor::from_data(TensorData::new(bias, [d_output]), options));
        let by_amax = input_scale.map_or(ActivationScale::Current, ActivationScale::Static);
        weight
            .and_then(|weight| Self::checked(weight, bias, activation.unwrap_or(by_amax)))
            .expect("a record is valid")
    }
}

impl<B: Backend> Record<B> for FrozenLinearRecord {
    type Item<S: PrecisionSettings> = Self;

    fn into_item<S: PrecisionSettings>(self) -> Self {
        self
    }

    fn from_item<S: PrecisionSettings>(item: Self, _device: &B::Device) -> Self {
        item
    }
}
