//! How checkpoints are written: whole, or not at all.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use burn::record::{
    FileRecorder, FullPrecisionSettings, NamedMpkFileRecorder, Recorder, RecorderError,
};
use burn::tensor::backend::Backend;
use serde::Serialize;
use serde::de::DeserializeOwned;

type Inner = NamedMpkFileRecorder<FullPrecisionSettings>;

/// Burn's named MessagePack, written beside its place and then renamed: a process that is killed leaves no half file under the name of
/// a whole one.
#[derive(Clone, Debug, Default)]
pub struct WholeFileRecorder(Inner);

/// The bytes of a checksum.
const TRAILER: usize = 4;

/// What is written behind the bytes of a file: their CRC-32, for a flipped bit of a weight is a weight as well.
fn trailer(bytes: &[u8]) -> [u8; TRAILER] {
    crc32fast::hash(bytes).to_le_bytes()
}

/// Where a file is while it is written.
fn part(file: &Path) -> PathBuf {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.with_file_name(format!("part-{name}"))
}

impl<B: Backend> Recorder<B> for WholeFileRecorder {
    type Settings = FullPrecisionSettings;
    type RecordArgs = PathBuf;
    type RecordOutput = ();
    type LoadArgs = PathBuf;

    fn save_item<I: Serialize>(&self, item: I, file: PathBuf) -> Result<(), RecorderError> {
        let part = part(&file);
        Recorder::<B>::save_item(&self.0, item, part.clone())?;
        let extension = <Self as FileRecorder<B>>::file_extension();
        let part = part.with_extension(extension);
        fs::read(&part)
            .and_then(|bytes| {
                OpenOptions::new().append(true).open(&part)?.write_all(&trailer(&bytes))
            })
            .and_then(|()| fs::rename(&part, file.with_extension(extension)))
            .map_err(|error| RecorderError::Unknown(format!("{}: {error}", part.display())))
    }

    fn load_item<I: DeserializeOwned>(&self, file: &mut PathBuf) -> Result<I, RecorderError> {
        let extension = <Self as FileRecorder<B>>::file_extension();
        let bytes = fs::read(file.with_extension(extension))
            .map_err(|error| RecorderError::Unknown(error.to_string()))?;
        match bytes.split_last_chunk::<TRAILER>() {
            Some((bytes, end)) if *end == trailer(bytes) => {}
            _ => {
                let reason = "its checksum is not that of its bytes";
                return Err(RecorderError::DeserializeError(reason.into()));
            }
        }
        // MessagePack tells where it ends: Burn does not read the checksum behind it.
        Recorder::<B>::load_item(&self.0, file)
    }
}

impl<B: Backend> FileRecorder<B> for WholeFileRecorder {
    fn file_extension() -> &'static str {
        <Inner as FileRecorder<B>>::file_extension()
    }
}
