//! What [`Moments8`](super::Moments8) keeps, and how it is stored.

use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::Backend;
use burn::tensor::{Bytes, Tensor, TensorData};
use burn_fp8::Fp8Tensor;
use burn_fp8::engine::Fp8Engine;
use burn_fp8_core::{Fp8Format, Recipe};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// The moments of a parameter, and how many steps they are made of.
#[derive(Clone, Debug)]
pub struct Moments8State<B: Backend> {
    pub(super) time: usize,
    pub(super) first: Moment<B>,
    pub(super) second: Option<Moment<B>>,
}

/// A moment of a parameter, in the order of its elements.
#[derive(Clone, Debug)]
pub(super) enum Moment<B: Backend> {
    /// In f32.
    Full(Tensor<B, 1>),
    /// In FP8, `[1, elements]`.
    Codes(Fp8Tensor<B, 2>),
    /// Its root in FP8.
    Roots(Fp8Tensor<B, 2>),
}

impl<B: Fp8Engine> Moments8State<B> {
    /// Before the first step.
    pub(super) fn new(elements: usize, has_second: bool, device: &B::Device) -> Self {
        let zeros = || Moment::Full(Tensor::zeros([elements], device));
        Self { time: 0, first: zeros(), second: has_second.then(zeros) }
    }

    pub(super) fn moved_to(self, device: &B::Device) -> Self {
        let moved = |moment| match moment {
            Moment::Full(numbers) => Moment::Full(numbers.to_device(device)),
            Moment::Codes(codes) => Moment::Codes(codes.to_device(device)),
            Moment::Roots(codes) => Moment::Roots(codes.to_device(device)),
        };
        Self { time: self.time, first: moved(self.first), second: self.second.map(moved) }
    }
}

impl<B: Backend> Moments8State<B> {
    /// The elements of the parameter.
    pub fn elements(&self) -> usize {
        match &self.first {
            Moment::Full(numbers) => numbers.dims()[0],
            Moment::Codes(codes) | Moment::Roots(codes) => codes.dims()[1],
        }
    }

    /// The bytes that the moments take.
    pub fn bytes_held(&self) -> usize {
        let bytes = |moment: &Moment<B>| match moment {
            Moment::Full(numbers) => 4 * numbers.dims()[0],
            Moment::Codes(codes) | Moment::Roots(codes) => {
                codes.bytes_held() + 4 * codes.scales().shape().num_elements()
            }
        };
        bytes(&self.first) + self.second.as_ref().map_or(0, bytes)
    }
}

impl<B: Fp8Engine> Moment<B> {
    /// In f32.
    pub(super) fn numbers(self) -> Tensor<B, 1> {
        match self {
            Self::Full(numbers) => numbers,
            Self::Codes(codes) => flat(codes.dequantize()),
            Self::Roots(codes) => {
                let roots = flat(codes.dequantize());
                roots.clone() * roots
            }
        }
    }

    /// The same moment, or its root, in FP8 with so many elements in a block; in f32 without a block.
    pub(super) fn kept_in(self, kept: Option<(usize, Fp8Format)>, root: bool) -> Self {
        let Some((block, format)) = kept else { return Self::Full(self.numbers()) };
        let fits =
            |codes: &Fp8Tensor<B, 2>| codes.format() == format && codes.block() == Some([1, block]);
        match self {
            Self::Codes(codes) if !root && fits(&codes) => return Self::Codes(codes),
            Self::Roots(codes) if root && fits(&codes) => return Self::Roots(codes),
            _ => {}
        }
        let numbers = self.numbers();
        let elements = numbers.dims()[0];
        let quantized = |numbers: Tensor<B, 1>| {
            let row = numbers.reshape([1, elements]);
            Fp8Tensor::quantize_blocks(row, format, [1, block], Recipe::current())
                .expect("a row has blocks")
        };
        if !root {
            return Self::Codes(quantized(numbers));
        }
        let roots = numbers.sqrt();
        let codes = quantized(roots.clone());
        // What is not 0 is at least the smallest number of its block.
        let scales = codes.scales().swap_dims(0, 1).repeat_dim(1, block);
        let least = flat(scales).narrow(0, 0, elements).mul_scalar(format.min_positive_subnormal());
        let small = roots.clone().greater_elem(0.0).bool_and(roots.clone().lower(least.clone()));
        Self::Roots(quantized(roots.mask_where(small, least)))
    }

    /// Codes and scales, without a copy where nothing else holds them.
    pub(super) fn into_parts(self) -> (Vec<u8>, Vec<f32>) {
        let (Self::Codes(codes) | Self::Roots(codes)) = self else {
            panic!("moments in f32 have no codes");
        };
        codes.into_parts()
    }
}

fn flat<B: Backend>(x: Tensor<B, 2>) -> Tensor<B, 1> {
    let elements = x.shape().num_elements();
    x.reshape([elements])
}

/// Codes of a parameter and their scales.
pub(super) fn of_codes<B: Fp8Engine>(
    codes: Vec<u8>,
    scales: Vec<f32>,
    block: usize,
    format: Fp8Format,
    device: &B::Device,
) -> Fp8Tensor<B, 2> {
    let (elements, blocks) = (codes.len(), scales.len());
    let scales = Tensor::from_data(TensorData::new(scales, [1, blocks]), device);
    Fp8Tensor::from_blocks(codes, [1, elements], format, scales, [1, block], device)
        .expect("a scale for each block")
}

/// A [`Moments8State`] as recorders store it: codes as bytes, other numbers in f32, whatever the recorder's precision. One that is read from a file is checked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Moments8Item {
    time: usize,
    #[serde(deserialize_with = "not_a_root")]
    first: MomentItem,
    second: Option<MomentItem>,
}

/// A first moment, which is kept as it is.
fn not_a_root<'de, D: Deserializer<'de>>(file: D) -> Result<MomentItem, D::Error> {
    let item = MomentItem::deserialize(file)?;
    if matches!(item.0, Fields::Fp8 { root: true, .. }) {
        return Err(D::Error::custom("a first moment is said to be kept as its root"));
    }
    Ok(item)
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
struct MomentItem(Fields);

/// The fields, not checked yet.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Fields {
    Full(Vec<f32>),
    Fp8 { format: Fp8Format, root: bool, block: usize, codes: Bytes, scales: Vec<f32> },
}

impl From<MomentItem> for Fields {
    fn from(item: MomentItem) -> Self {
        item.0
    }
}

impl TryFrom<Fields> for MomentItem {
    type Error = String;

    fn try_from(fields: Fields) -> Result<Self, String> {
        if let Fields::Fp8 { block, codes, scales, .. } = &fields {
            let blocks = codes.len().checked_div(*block).map(|_| codes.len().div_ceil(*block));
            if blocks != Some(scales.len()) || codes.is_empty() {
                let (codes, scales) = (codes.len(), scales.len());
                return Err(format!(
                    "a moment has {codes} codes and {scales} scales of blocks of {block}"
                ));
            }
            if let Some(scale) = scales.iter().find(|scale| !(scale.is_normal() && **scale > 0.0)) {
                return Err(format!(
                    "a scale of a moment is {scale:e}; it must be a finite, positive number"
                ));
            }
        }
        Ok(Self(fields))
    }
}

impl<B: Fp8Engine> Record<B> for Moments8State<B> {
    type Item<S: PrecisionSettings> = Moments8Item;

    fn into_item<S: PrecisionSettings>(self) -> Moments8Item {
        let item = |moment| {
            let root = matches!(moment, Moment::Roots(_));
            MomentItem(match moment {
                Moment::Full(numbers) => Fields::Full(numbers.into_data().into_vec().expect("f32")),
                Moment::Codes(tensor) | Moment::Roots(tensor) => {
                    let (format, block) = (tensor.format(), tensor.block());
                    let [_, block] = block.expect("moments have blocks");
                    let (codes, scales) = tensor.into_parts();
                    Fields::Fp8 { format, root, block, codes: Bytes::from_bytes_vec(codes), scales }
                }
            })
        };
        Moments8Item { time: self.time, first: item(self.first), second: self.second.map(item) }
    }

    fn from_item<S: PrecisionSettings>(item: Moments8Item, device: &B::Device) -> Self {
        let moment = |MomentItem(fields)| match fields {
            Fields::Full(numbers) => Moment::Full(Tensor::from_floats(numbers.as_slice(), device)),
            Fields::Fp8 { format, root, block, codes, scales } => {
                let codes = of_codes(codes.to_vec(), scales, block, format, device);
                if root { Moment::Roots(codes) } else { Moment::Codes(codes) }
            }
        };
        Self { time: item.time, first: moment(item.first), second: item.second.map(moment) }
    }
}
