//! Frozen layers in safetensors files.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use burn::tensor::Bytes;
use burn::tensor::backend::Backend;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::record::Fields;
use super::{FrozenLinear, FrozenLinearRecord};
use crate::error::Fp8Error;
use crate::file;
use crate::file::{little_endian, numbers, unexpected};

const FORMAT: &str = "burn-fp8 frozen layers";
const VERSION: &str = "1";

const WEIGHT: &str = "weight";
const WEIGHT_SCALE: &str = "weight_scale";
const INPUT_SCALE: &str = "input_scale";
const BIAS: &str = "bias";

/// Writes layers to a safetensors file, whole or not at all.
///
/// For each name it has `NAME.weight`, F8_E4M3 `[d_input, d_output]`, `NAME.weight_scale`, F32 `[1]`, and where the layer has them
/// `NAME.input_scale`, F32 `[1]`, a static scale, and `NAME.bias`, F32 `[d_output]`.
///
/// # Errors
/// [`Fp8Error::Invalid`] where a name occurs twice, [`Fp8Error::Io`] where the file cannot be written.
pub fn save_all<'a, B: Backend, N: AsRef<str>>(
    path: impl AsRef<Path>,
    layers: impl IntoIterator<Item = (N, &'a FrozenLinear<B>)>,
) -> Result<(), Fp8Error> {
    let mut records = BTreeMap::new();
    for (name, layer) in layers {
        let name = name.as_ref().to_owned();
        if records.contains_key(&name) {
            let reason = format!("two layers have the name `{name}`");
            return Err(Fp8Error::Invalid { what: "file of frozen layers", reason });
        }
        records.insert(name, layer.to_record());
    }
    file::write(path.as_ref(), &to_bytes(&records))
}

/// Reads what [`save_all`] has written, at most 64 GiB: the layers by their names.
///
/// # Errors
/// [`Fp8Error::Io`] where the file cannot be read, [`Fp8Error::TooLarge`], and [`Fp8Error::InvalidState`], which tells what is wrong,
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
                let names: Vec<_> = records.into_keys().map(|name| format!("`{name}`")).collect();
                let reason = match names.is_empty() {
                    true => "it holds no layer".into(),
                    false => {
                        format!(
                            "it holds the layers {}; read it with burn_fp8::nn::frozen::load_all",
                            names.join(", ")
                        )
                    }
                };
                Err(Fp8Error::InvalidState { path: path.into(), reason })
            }
        }
    }
}

fn read(path: &Path) -> Result<BTreeMap<String, FrozenLinearRecord>, Fp8Error> {
    let bytes = file::read_safetensors(path, file::MAX_WEIGHTS)?;
    from_bytes(&bytes).map_err(|reason| Fp8Error::InvalidState { path: path.into(), reason })
}

fn key(layer: &str, field: &str) -> String {
    match layer {
        "" => field.to_owned(),
        layer => format!("{layer}.{field}"),
    }
}

fn to_bytes(records: &BTreeMap<String, FrozenLinearRecord>) -> Vec<u8> {
    let mut numbers = vec![];
    let mut codes = vec![];
    for (name, record) in records {
        let Fields { d_input, d_output, codes: bytes, weight_scale, input_scale, bias } =
            record.fields();
        codes.push((key(name, WEIGHT), vec![*d_input, *d_output], &bytes[..]));
        numbers.push((key(name, WEIGHT_SCALE), little_endian(&[*weight_scale])));
        if let Some(scale) = input_scale {
            numbers.push((key(name, INPUT_SCALE), little_endian(&[*scale])));
        }
        if let Some(bias) = bias {
            numbers.push((key(name, BIAS), little_endian(bias)));
        }
    }
    let codes = codes.into_iter().map(|(key, shape, bytes)| (key, Dtype::F8_E4M3, shape, bytes));
    let numbers = numbers
        .iter()
        .map(|(key, bytes)| (key.clone(), Dtype::F32, vec![bytes.len() / 4], &bytes[..]));
    let views = codes.chain(numbers).map(|(key, dtype, shape, bytes)| {
        (key, TensorView::new(dtype, shape, bytes).expect("the bytes are those of the shape"))
    });
    let metadata = HashMap::from([
        ("format".to_string(), FORMAT.to_string()),
        ("version".to_string(), VERSION.to_string()),
    ]);
    safetensors::serialize(views, Some(metadata)).expect("names, shapes and bytes are consistent")
}

fn from_bytes(bytes: &[u8]) -> Result<BTreeMap<String, FrozenLinearRecord>, String> {
    let invalid = |error| format!("not a complete safetensors file ({error})");
    let tensors = SafeTensors::deserialize(bytes).map_err(invalid)?;
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(invalid)?;
    // The layout of the weight is not in the file: other tools write [d_output, d_input].
    let entry = |key| metadata.metadata().as_ref().and_then(|entries| entries.get(key));
    match (entry("format").map(String::as_str), entry("version").map(String::as_str)) {
        (Some(FORMAT), Some(VERSION)) => {}
        (Some(FORMAT), version) => {
            let version = version.unwrap_or("none");
            return Err(format!("it has version {version}; this burn-fp8 reads {VERSION}"));
        }
        _ => return Err(format!("its metadata does not say `format`: `{FORMAT}`")),
    }
    let mut left: BTreeSet<_> = tensors.names().into_iter().map(String::from).collect();
    let layers: Vec<_> = left
        .iter()
        .filter_map(|key| match key.as_str() {
            WEIGHT => Some(String::new()),
            key => key.strip_suffix(".weight").map(String::from),
        })
        .collect();
    let mut records = BTreeMap::new();
    for layer in layers {
        let view = tensors.tensor(&key(&layer, WEIGHT)).map_err(invalid)?;
        let &[d_input, d_output] = view.shape() else {
            return Err(unexpected(&key(&layer, WEIGHT), &view, "F8_E4M3 [d_input, d_output]"));
        };
        if view.dtype() != Dtype::F8_E4M3 {
            return Err(unexpected(&key(&layer, WEIGHT), &view, "F8_E4M3 [d_input, d_output]"));
        }
        let numbers = |field, len| numbers(&tensors, &key(&layer, field), len);
        let fields = Fields {
            d_input,
            d_output,
            codes: Bytes::from_bytes_vec(view.data().to_vec()),
            weight_scale: numbers(WEIGHT_SCALE, 1)?
                .ok_or_else(|| format!("it has no `{}`", key(&layer, WEIGHT_SCALE)))?[0],
            input_scale: numbers(INPUT_SCALE, 1)?.map(|scale| scale[0]),
            bias: numbers(BIAS, d_output)?,
        };
        for field in [WEIGHT, WEIGHT_SCALE, INPUT_SCALE, BIAS] {
            left.remove(&key(&layer, field));
        }
        let record = FrozenLinearRecord::try_from(fields)
            .map_err(|reason| format!("`{}`: {reason}", key(&layer, WEIGHT)))?;
        records.insert(layer, record);
    }
    match left.pop_first() {
        Some(key) => Err(format!("it has `{key}`, which belongs to no layer")),
        None => Ok(records),
    }
}
