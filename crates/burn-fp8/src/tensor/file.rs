//! FP8 tensors in safetensors files.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_fp8_core::Fp8Format;
use burn_fp8_core::text::shown;
use safetensors::Dtype;

use super::handle::Fp8Tensor;
use crate::Fp8Error;
use crate::engine::check_scale;
use crate::engine::tensor;
use crate::file;
use crate::file::{Tensors, little_endian, number, parse_block, unexpected};

const WHAT: &str = "file of FP8 tensors";
const FORMAT: &str = "burn-fp8 tensors";
const VERSION: &str = "1";

/// What the name of a scale has after that of its tensor: as in files of frozen layers, `fc1.weight` and `fc1.weight_scale`.
const SCALE: &str = "_scale";

/// What the metadata of a file call the blocks of a tensor: `fc1.weight_block` is `1x32`, its rows and columns.
const BLOCK: &str = "_block";

/// The smallest scale of a block: that of zeros in MXFP8.
const LOWEST: f32 = f32::MIN_POSITIVE / 2.0;

impl<B: Backend, const D: usize> Fp8Tensor<B, D> {
    /// Writes tensors to a safetensors file, whole or not at all. Reads their scales from the device.
    ///
    /// For each name it has `NAME`, F8_E4M3 or F8_E5M2, and `NAME_scale`, F32 `[1]`; or, where there is a scale for each block, F32
    /// `[…, ⌈R / rows⌉, ⌈C / columns⌉]`, and in the metadata `NAME_block`: `1x32`, say.
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`] where a name is empty, `__metadata__` or occurs twice, is that of another one's scale, where names and shapes take more
    /// than 16 MiB, or a scale on the device turns out to be none; [`Fp8Error::Io`] where the file cannot be written.
    pub fn save_all<'a, N: AsRef<str>>(
        path: impl AsRef<Path>,
        tensors: impl IntoIterator<Item = (N, &'a Self)>,
    ) -> Result<(), Fp8Error>
    where
        B: 'a,
    {
        let mut entries = BTreeMap::new();
        let mut metadata: Vec<(String, String)> =
            vec![("format".into(), FORMAT.into()), ("version".into(), VERSION.into())];
        for (name, tensor) in tensors {
            let name = name.as_ref();
            let scales = read_scales(tensor);
            for scale in &scales {
                check(&scale_key(name), *scale, tensor.block().is_some()).map_err(invalid)?;
            }
            let shape = match tensor.block() {
                None => vec![1],
                Some([rows, columns]) => {
                    metadata.push((format!("{name}{BLOCK}"), format!("{rows}x{columns}")));
                    tensor.scales().dims().to_vec()
                }
            };
            let dtype = match tensor.format() {
                Fp8Format::E4M3 => Dtype::F8_E4M3,
                Fp8Format::E5M2 => Dtype::F8_E5M2,
            };
            let codes = (dtype, tensor.dims().to_vec(), tensor.to_bytes());
            let scale = (Dtype::F32, shape, little_endian(&scales));
            if name.is_empty() {
                return Err(invalid("a tensor has no name".into()));
            }
            for (key, entry) in [(name.to_owned(), codes), (scale_key(name), scale)] {
                if entries.insert(key.clone(), entry).is_some() {
                    return Err(invalid(format!(
                        "two tensors of the file have the name {}",
                        file::name(&key)
                    )));
                }
            }
        }
        let tensors = entries
            .iter()
            .map(|(key, (dtype, shape, bytes))| (&key[..], *dtype, shape.clone(), &bytes[..]));
        let metadata: Vec<_> =
            metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        file::write_safetensors(path.as_ref(), WHAT, tensors, &metadata)
    }

    /// Reads every FP8 tensor of a safetensors file of at most 64 GiB, with a header of at most 16 MiB, by name: what
    /// [`save_all`](Self::save_all) has written, or another program in that form.
    ///
    /// # Errors
    /// [`Fp8Error::Io`] where the file cannot be read or is no regular one, [`Fp8Error::TooLarge`], and [`Fp8Error::InvalidState`], which tells what is
    /// wrong, where it is damaged, has a tensor that is neither FP8 of `D` dimensions nor the scale of one, or a scale that cannot be one.
    pub fn load_all(
        path: impl AsRef<Path>,
        device: &B::Device,
    ) -> Result<BTreeMap<String, Self>, Fp8Error> {
        read(path.as_ref(), |file| {
            let names = file.names();
            let is_scale = |key: &str| {
                key.strip_suffix(SCALE)
                    .is_some_and(|name| file.get(name).is_some() && !is_fp8(file, key))
            };
            let tensors = names.into_iter().filter(|key| !is_scale(key));
            tensors.map(|name| Ok((name.clone(), tensor(file, &name, device)?))).collect()
        })
    }

    /// Reads one tensor and its scale of a safetensors file, whatever else is in it.
    ///
    /// # Errors
    /// As [`load_all`](Self::load_all); also [`Fp8Error::InvalidState`] where the file has no tensor of this name.
    pub fn load(path: impl AsRef<Path>, name: &str, device: &B::Device) -> Result<Self, Fp8Error> {
        read(path.as_ref(), |file| tensor(file, name, device))
    }

    /// Writes one tensor: [`save_all`](Self::save_all).
    ///
    /// # Errors
    /// As [`save_all`](Self::save_all).
    pub fn save(&self, path: impl AsRef<Path>, name: &str) -> Result<(), Fp8Error> {
        Self::save_all(path, [(name, self)])
    }
}

fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: WHAT, reason }
}

fn scale_key(name: &str) -> String {
    format!("{name}{SCALE}")
}

fn read<T>(
    path: &Path,
    tensors: impl FnOnce(&Tensors) -> Result<T, String>,
) -> Result<T, Fp8Error> {
    let file = Tensors::read(path, file::MAX_WEIGHTS)?;
    // Files of other programs say nothing about the format, or something of their own.
    let checked = match file.entry("format") {
        Some(FORMAT) => file.check_version(VERSION),
        _ => Ok(()),
    };
    checked
        .and_then(|()| tensors(&file))
        .map_err(|reason| Fp8Error::InvalidState { path: path.into(), reason })
}

fn is_fp8(file: &Tensors, key: &str) -> bool {
    file.get(key).is_some_and(|view| matches!(view.dtype(), Dtype::F8_E4M3 | Dtype::F8_E5M2))
}

fn tensor<B: Backend, const D: usize>(
    file: &Tensors,
    name: &str,
    device: &B::Device,
) -> Result<Fp8Tensor<B, D>, String> {
    let missing = || format!("it has no {}{}", file::name(name), beside(file));
    let view = file.get(name).ok_or_else(missing)?;
    let format = match view.dtype() {
        Dtype::F8_E4M3 => Some(Fp8Format::E4M3),
        Dtype::F8_E5M2 => Some(Fp8Format::E5M2),
        _ => None,
    };
    let (Some(format), Ok(shape)) = (format, <[usize; D]>::try_from(view.shape())) else {
        return Err(unexpected(name, &view, &format!("F8_E4M3 or F8_E5M2 of {D} dimensions")));
    };
    let key = scale_key(name);
    if let Some(block) = file.entry(&format!("{name}{BLOCK}")) {
        let [rows, columns] = parse_block(block, &key)?;
        let scales = scales(file, &key, device)?;
        let bytes = view.data().to_vec();
        return Fp8Tensor::from_blocks(bytes, shape, format, scales, [rows, columns], device)
            .map_err(|error| error.to_string());
    }
    let scale = number(file, &key)?.ok_or_else(|| format!("it has no {}", file::name(&key)))?;
    check_scale(&shown(&key, file::MAX_NAME), scale)?;
    Fp8Tensor::from_bytes(view.data().to_vec(), shape, format, scale, device)
        .map_err(|error| error.to_string())
}

/// The scales of the blocks of a tensor.
fn scales<B: Backend, const D: usize>(
    file: &Tensors,
    key: &str,
    device: &B::Device,
) -> Result<Tensor<B, D>, String> {
    let view = file.get(key).ok_or_else(|| format!("it has no {}", file::name(key)))?;
    let (Dtype::F32, Ok(shape)) = (view.dtype(), <[usize; D]>::try_from(view.shape())) else {
        return Err(unexpected(key, &view, &format!("F32 of {D} dimensions")));
    };
    let scales = file::f32s(&view);
    for scale in &scales {
        check(&shown(key, file::MAX_NAME), *scale, true)?;
    }
    Ok(Tensor::from_data(TensorData::new(scales, shape), (device, DType::F32)))
}

fn read_scales<B: Backend, const D: usize>(q: &Fp8Tensor<B, D>) -> Vec<f32> {
    match q.block() {
        None => vec![q.read_scale()],
        Some(_) => tensor::read::<B>(crate::host::primitive(q.scales())),
    }
}

/// Whether this can be a scale. That of a block of zeros is the lowest that MXFP8 has.
fn check(name: &str, scale: f32, of_block: bool) -> Result<(), String> {
    match of_block && scale == LOWEST {
        true => Ok(()),
        false => check_scale(name, scale),
    }
}

/// Some of the names in a file, to find the right one by.
fn beside(file: &Tensors) -> String {
    let mut names = file.names();
    names.sort_unstable();
    match names.len() {
        0 => ", nor any other tensor".into(),
        _ => format!("; it has {}", file::some_names(names)),
    }
}
