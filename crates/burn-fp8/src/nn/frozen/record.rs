//! What a frozen layer is, as plain data: for Burn's recorders and for files.

use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::Backend;
use burn::tensor::{Bytes, Tensor, TensorData};
use burn_fp8_core::Fp8Format;
use serde::{Deserialize, Serialize};

use super::check::{check_finite, check_shape, read_bias};
use super::{ActivationScale, FrozenLinear};
use crate::engine::check_scale;
use crate::scaled::Fp8Codes;

/// The record of a [`FrozenLinear`]: the codes as bytes, the rest in f32. Always valid: one that is read from a file
/// is checked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Fields")]
pub struct FrozenLinearRecord(Fields);

/// The fields, not checked yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fields {
    pub d_input: usize,
    pub d_output: usize,
    pub codes: Bytes,
    pub weight_scale: f32,
    pub input_scale: Option<f32>,
    pub bias: Option<Vec<f32>>,
}

impl TryFrom<Fields> for FrozenLinearRecord {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        let Fields { d_input, d_output, codes, weight_scale, input_scale, bias } = &fields;
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
        check_finite([*d_input, *d_output], codes, bias.as_deref())?;
        Ok(Self(fields))
    }
}

impl FrozenLinearRecord {
    pub(super) fn fields(&self) -> &Fields {
        &self.0
    }
}

impl<B: Backend> FrozenLinear<B> {
    /// The record. Waits for the device.
    pub fn to_record(&self) -> FrozenLinearRecord {
        let [d_input, d_output] = self.dims();
        let bias = read_bias(&self.bias);
        let input_scale = match self.activation {
            ActivationScale::Static(scale) => Some(scale),
            ActivationScale::Current => None,
        };
        let codes = Bytes::from_bytes_vec(self.weight.get().to_bytes());
        let weight_scale = self.weight_scale;
        FrozenLinearRecord(Fields { d_input, d_output, codes, weight_scale, input_scale, bias })
    }

    /// The layer of a record.
    pub fn from_record(record: FrozenLinearRecord, device: &B::Device) -> Self {
        let Fields { d_input, d_output, codes, weight_scale, input_scale, bias } = record.0;
        let codes = codes.try_into_vec().unwrap_or_else(|bytes| bytes.to_vec());
        let shape = [d_input, d_output];
        let weight = Fp8Codes::from_bytes(codes, shape, Fp8Format::E4M3, device);
        let tensor = |bias| {
            Tensor::from_data(TensorData::new(bias, [d_output]), (device, burn::tensor::DType::F32))
        };
        let activation = input_scale.map_or(ActivationScale::Current, ActivationScale::Static);
        weight
            .and_then(|weight| Self::checked(weight, weight_scale, bias.map(tensor), activation))
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
