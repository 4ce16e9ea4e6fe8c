//! Frozen layers in safetensors files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::tensor::Bytes;
use burn::tensor::backend::Backend;
use burn_fp8_core::text::shown;
use safetensors::Dtype;

use super::record::Fields;
use super::{FrozenLinear, FrozenLinearRecord};
use crate::Fp8Error;
use crate::file;
use crate::file::{Tensors, little_endian, numbers, parse_block, unexpected};

const WHAT: &str = "file of frozen layers";
const FORMAT: &str = "burn-fp8 frozen layers";
const VERSION: &str = "1";

const WEIGHT: &str = "weight";
const WEIGHT_SCALE: &str = "weight_scale";
const INPUT_SCALE: &str = "input_scale";
const BIAS: &str = "bias";
const BLOCK: &str = "weight_block";
const ACTIVATION: &str = "activation";

/// Writes layers to a safetensors file, whole or not at all.
///
/// For each name it has `NAME.weight`, F8_E4M3 `[d_input, d_output]`, `NAME.weight_scale`, F32 `[1]`, and where the layer has them
/// `NAME.input_scale`, F32 `[1]`, a static scale, and `NAME.bias`, F32 `[d_output]`. Where the weight has a scale for each block, `NAME.weight_scale` is F32
/// `[⌈d_input / rows⌉, ⌈d_output / columns⌉]`, and the metadata have `NAME.weight_block`: `128x128`, say. Where inputs are scaled neither by a static scale nor
/// by their amax, the metadata have `NAME.activation`, as JSON.
///
/// # Errors
/// [`Fp8Error::Invalid`] where a name occurs twice, or names and shapes take more than 16 MiB, [`Fp8Error::Io`] where the file cannot be written.
pub fn save_all<'a, B: Backend, N: AsRef<str>>(
    path: impl AsRef<Path>,
    layers: impl IntoIterator<Item = (N, &'a FrozenLinear<B>)>,
) -> Result<(), Fp8Error> {
    let mut records = BTreeMap::new();
    for (name, layer) in layers {
        let name = name.as_ref().to_owned();
        if records.contains_key(&name) {
            let reason = format!("two layers have the name {}", file::name(&name));
            return Err(Fp8Error::Invalid { what: WHAT, reason });
        }
        records.insert(name, layer.to_record());
    }
    write(path.as_ref(), &records)
}

/// Reads what [`save_all`] has written, at most 64 GiB: the layers by their names.
///
/// # Errors
/// [`Fp8Error::Io`] where the file cannot be read or is no regular one, [`Fp8Error::TooLarge`], and [`Fp8Error::InvalidState`], which tells what is wrong,
/// where it is damaged or something else.
pub fn load_all<B: Backend>(
    path: impl AsRef<Path>,
    device: &B::Device,
) -> Result<BTreeMap<String, FrozenLinear<B>>, Fp8Error> {
    let records = read(path.as_ref())?.into_iter();
    Ok(records.map(|(name, record)| (name, FrozenLinear::from_record(record, device))).collect())
}

impl<B: Backend> FrozenLinear<B> {
    /// Writes the layer to a safetensors file, whole or not at all: as [`save_all`] does, without a name before `weight`,
    /// `weight_scale`, `input_scale` and `bias`.
    ///
    /// # Errors
    /// [`Fp8Error::Io`] where the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), Fp8Error> {
        save_all(path, [("", self)])
    }

    /// Reads what [`save`](Self::save) has written.
    ///
    /// # Errors
    /// As [`load_all`]; also [`Fp8Error::InvalidState`] where the file holds several layers, or one with a name.
    pub fn load(path: impl AsRef<Path>, device: &B::Device) -> Result<Self, Fp8Error> {
        let path = path.as_ref();
        let mut records = read(path)?;
        match (records.remove(""), records.is_empty()) {
            (Some(record), true) => Ok(Self::from_record(record, device)),
            _ => {
                let reason = match records.len() {
                    0 => "it holds no layer".into(),
                    _ => {
                        format!(
                            "it holds the layers {}; read it with burn_fp8::nn::frozen::load_all",
                            file::some_names(records.into_keys())
                        )
                    }
                };
                Err(Fp8Error::InvalidState { path: path.into(), reason })
            }
        }
    }
}

fn read(path: &Path) -> Result<BTreeMap<String, FrozenLinearRecord>, Fp8Error> {
    let tensors = Tensors::read(path, file::MAX_WEIGHTS)?;
    records(&tensors).map_err(|reason| Fp8Error::InvalidState { path: path.into(), reason })
}

fn key(layer: &str, field: &str) -> String {
    match layer {
        "" => field.to_owned(),
        layer => format!("{layer}.{field}"),
    }
}

fn write(path: &Path, records: &BTreeMap<String, FrozenLinearRecord>) -> Result<(), Fp8Error> {
    let mut numbers = vec![];
    let mut codes = vec![];
    let mut metadata: Vec<(String, String)> =
        vec![("format".into(), FORMAT.into()), ("version".into(), VERSION.into())];
    for (name, record) in records {
        let fields = record.fields();
        let shape = [fields.d_input, fields.d_output];
        codes.push((key(name, WEIGHT), shape.to_vec(), &fields.codes[..]));
        let mut number = |field, shape, values: &[f32]| {
            numbers.push((key(name, field), shape, little_endian(values)));
        };
        match fields.block {
            None => number(WEIGHT_SCALE, vec![1], &[fields.weight_scale]),
            Some(block) => {
                let grid = [0, 1].map(|dim| shape[dim].div_ceil(block[dim]));
                number(WEIGHT_SCALE, grid.to_vec(), &fields.scales);
                metadata.push((key(name, BLOCK), format!("{}x{}", block[0], block[1])));
            }
        }
        if let Some(scale) = fields.input_scale {
            number(INPUT_SCALE, vec![1], &[scale]);
        }
        if let Some(bias) = &fields.bias {
            number(BIAS, vec![bias.len()], bias);
        }
        if let Some(activation) = &fields.activation {
            let json = serde_json::to_string(activation).expect("names and numbers");
            metadata.push((key(name, ACTIVATION), json));
        }
    }
    let codes =
        codes.iter().map(|(key, shape, bytes)| (&key[..], Dtype::F8_E4M3, shape.clone(), *bytes));
    let numbers =
        numbers.iter().map(|(key, shape, bytes)| (&key[..], Dtype::F32, shape.clone(), &bytes[..]));
    let metadata: Vec<_> =
        metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    file::write_safetensors(path, WHAT, codes.chain(numbers), &metadata)
}

fn records(tensors: &Tensors) -> Result<BTreeMap<String, FrozenLinearRecord>, String> {
    // The layout of the weight is not in the file: other tools write [d_output, d_input].
    match tensors.entry("format") {
        Some(FORMAT) => tensors.check_version(VERSION)?,
        _ => return Err(format!("its metadata does not say `format`: `{FORMAT}`")),
    }
    let mut left: BTreeSet<_> = tensors.names().into_iter().collect();
    let layers: Vec<_> = left
        .iter()
        .filter_map(|key| match key.as_str() {
            WEIGHT => Some(String::new()),
            key => key.strip_suffix(".weight").map(String::from),
        })
        .collect();
    let mut records = BTreeMap::new();
    for layer in layers {
        let view = tensors.get(&key(&layer, WEIGHT)).expect("its name is one of them");
        let &[d_input, d_output] = view.shape() else {
            return Err(unexpected(&key(&layer, WEIGHT), &view, "F8_E4M3 [d_input, d_output]"));
        };
        if view.dtype() != Dtype::F8_E4M3 {
            return Err(unexpected(&key(&layer, WEIGHT), &view, "F8_E4M3 [d_input, d_output]"));
        }
        let numbers = |field, len| numbers(tensors, &key(&layer, field), len);
        let missing = || format!("it has no {}", file::name(&key(&layer, WEIGHT_SCALE)));
        let block = match tensors.entry(&key(&layer, BLOCK)) {
            Some(block) => Some(parse_block(block, &key(&layer, WEIGHT_SCALE))?),
            None => None,
        };
        let (weight_scale, scales) = match block {
            None => (numbers(WEIGHT_SCALE, 1)?.ok_or_else(missing)?[0], vec![]),
            Some(_) => {
                let scale = key(&layer, WEIGHT_SCALE);
                let view = tensors.get(&scale).ok_or_else(missing)?;
                if view.dtype() != Dtype::F32 || view.shape().len() != 2 {
                    return Err(unexpected(&scale, &view, "F32 of 2 dimensions"));
                }
                (1.0, file::f32s(&view))
            }
        };
        let activation = match tensors.entry(&key(&layer, ACTIVATION)) {
            Some(json) => Some(serde_json::from_str(json).map_err(|error| {
                let json = shown(json, file::MAX_TEXT);
                format!("{} is {json}: {error}", file::name(&key(&layer, ACTIVATION)))
            })?),
            None => None,
        };
        let fields = Fields {
            d_input,
            d_output,
            codes: Bytes::from_bytes_vec(view.data().to_vec()),
            weight_scale,
            input_scale: numbers(INPUT_SCALE, 1)?.map(|scale| scale[0]),
            bias: numbers(BIAS, d_output)?,
            block,
            scales,
            activation,
        };
        for field in [WEIGHT, WEIGHT_SCALE, INPUT_SCALE, BIAS] {
            left.remove(&key(&layer, field));
        }
        let record = FrozenLinearRecord::try_from(fields)
            .map_err(|reason| format!("{}: {reason}", file::name(&key(&layer, WEIGHT))))?;
        records.insert(layer, record);
    }
    match left.pop_first() {
        Some(key) => Err(format!("it has {}, which belongs to no layer", file::name(&key))),
        None => Ok(records),
    }
}
