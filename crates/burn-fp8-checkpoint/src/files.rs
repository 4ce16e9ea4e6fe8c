//! The files of a checkpoint: where they lie, and all their tensors as one list.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use crate::error::CheckpointError;
use crate::layer::PlainTensor;
use crate::numbers::floats;
use crate::safetensors::{Entry, MAX_TENSORS, Named, Shard, Source, TensorInfo};
use crate::safetensors::{read_small, too_many};
use crate::text;

const MODEL: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The files of a checkpoint.
#[derive(Debug)]
pub(crate) struct Location {
    /// `config.json`.
    pub(crate) config: PathBuf,
    /// `hf_quant_config.json`, if there is one.
    pub(crate) quant_config: Option<PathBuf>,
    weights: Weights,
}

/// Where the tensors are.
#[derive(Debug)]
enum Weights {
    /// In one file.
    File(PathBuf),
    /// In the files that an index names.
    Index(PathBuf),
}

impl Location {
    /// Finds the files of a folder, or those beside a file. Of `model.safetensors` and an index it takes the former, as transformers does.
    pub(crate) fn find(path: &Path) -> Result<Self, CheckpointError> {
        let kind = fs::metadata(path).map_err(|reason| CheckpointError::read(path, reason))?;
        if !kind.is_dir() {
            let folder = path.parent().unwrap_or(Path::new(""));
            return Ok(Self::new(folder, Weights::File(path.into())));
        }
        let (model, index) = (path.join(MODEL), path.join(INDEX));
        match (model.exists(), index.exists()) {
            (true, _) => Ok(Self::new(path, Weights::File(model))),
            (false, true) => Ok(Self::new(path, Weights::Index(index))),
            (false, false) => {
                let found = format!("neither {MODEL} nor {INDEX}");
                let expected = "one of them and config.json in the folder";
                let advice = "give the folder of a checkpoint, or one of its safetensors files";
                Err(CheckpointError::file(path, found, expected, advice))
            }
        }
    }

    fn new(folder: &Path, weights: Weights) -> Self {
        let quant_config = folder.join("hf_quant_config.json");
        let quant_config = quant_config.exists().then_some(quant_config);
        Self { config: folder.join("config.json"), quant_config, weights }
    }
}

/// What is read at once: a multiple of every element's size.
const PIECE: u64 = 4 << 20;

/// The tensors of all shards, by name.
#[derive(Debug)]
pub(crate) struct Tensors {
    sources: Vec<Source>,
    entries: Vec<(Entry, usize)>,
}

/// The place of a tensor in [`Tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id(usize);

impl Tensors {
    /// Opens all shards and reads their headers. Adds to `warnings`.
    pub(crate) fn open(
        location: &Location,
        warnings: &mut Vec<String>,
    ) -> Result<Self, CheckpointError> {
        match &location.weights {
            Weights::File(path) => Self::of_file(path),
            Weights::Index(path) => {
                let index = Index::read(path)?;
                let (mut shards, mut headers, mut count) = (vec![], 0, 0);
                for shard in &index.shards {
                    let path = path.with_file_name(shard);
                    let shard = Shard::open(&path, headers)?;
                    headers += shard.header;
                    count += shard.entries.len();
                    if count > MAX_TENSORS {
                        return Err(too_many(&path, count));
                    }
                    shards.push(shard);
                }
                let tensors = Self::merge(shards)?;
                tensors.check_index(path, &index, warnings)?;
                Ok(tensors)
            }
        }
    }

    /// Opens one file and reads its header.
    pub(crate) fn of_file(path: &Path) -> Result<Self, CheckpointError> {
        Self::merge(vec![Shard::open(path, 0)?])
    }

    fn merge(shards: Vec<Shard>) -> Result<Self, CheckpointError> {
        let (mut sources, mut entries) = (vec![], vec![]);
        for (place, shard) in shards.into_iter().enumerate() {
            sources.push(shard.source);
            entries.extend(shard.entries.into_iter().map(|entry| (entry, place)));
        }
        entries.sort_by(|(a, _), (b, _)| a.info.name.cmp(&b.info.name));
        let twice = entries.array_windows().find(|[a, b]| a.0.info.name == b.0.info.name);
        if let Some([(first, one), (_, other)]) = twice {
            let [one, other] = [one, other].map(|place| &sources[*place].path);
            let found = format!("it here and in {}", text::path(one));
            let name = &first.info.name;
            return Err(CheckpointError::tensor(other, name, found, "it in one file", ""));
        }
        Ok(Self { sources, entries })
    }

    fn check_index(
        &self,
        path: &Path,
        index: &Index,
        warnings: &mut Vec<String>,
    ) -> Result<(), CheckpointError> {
        for (name, shard) in &index.tensors {
            let found = self.find(name).map(|id| self.path(id));
            if found.and_then(Path::file_name) != Some(shard.as_ref()) {
                let found = match found {
                    Some(other) => format!("it in {}", text::path(other)),
                    None => "it in no shard".into(),
                };
                let expected = format!("it in {}, as the index says", text::name(shard));
                let advice = "index and shards are of different checkpoints: fetch all of them";
                return Err(CheckpointError::tensor(path, name, found, expected, advice));
            }
        }
        let listed = |name: &str| index.tensors.binary_search_by(|(n, _)| n[..].cmp(name)).is_ok();
        let names = self.entries.iter().map(|(entry, _)| &entry.info.name[..]);
        let unlisted: Vec<_> = names.filter(|name| !listed(name)).collect();
        if !unlisted.is_empty() {
            let names = text::some_names(unlisted);
            warnings.push(format!("{}: shards hold tensors beside it: {names}", text::path(path)));
        }
        Ok(())
    }

    /// All tensors, by name.
    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> {
        (0..self.entries.len()).map(Id)
    }

    /// The tensor of this name.
    pub(crate) fn find(&self, name: &str) -> Option<Id> {
        self.entries.binary_search_by(|(entry, _)| entry.info.name[..].cmp(name)).ok().map(Id)
    }

    /// What a tensor is.
    pub(crate) fn info(&self, id: Id) -> &TensorInfo {
        &self.entries[id.0].0.info
    }

    /// The file that holds a tensor.
    pub(crate) fn path(&self, id: Id) -> &Path {
        &self.source(id).path
    }

    fn source(&self, id: Id) -> &Source {
        &self.sources[self.entries[id.0].1]
    }

    /// An error about a tensor.
    pub(crate) fn error(
        &self,
        id: Id,
        found: impl Into<String>,
        expected: impl Into<String>,
        advice: &str,
    ) -> CheckpointError {
        CheckpointError::tensor(self.path(id), &self.info(id).name, found, expected, advice)
    }

    /// Hands all bytes of a tensor to `take`, some megabytes at a time, with the place of the first of them.
    pub(crate) fn pieces(
        &self,
        id: Id,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let Entry { info, begin } = &self.entries[id.0].0;
        let mut piece = vec![0; info.bytes.min(PIECE) as usize];
        let mut done = 0;
        while done < info.bytes {
            let piece = &mut piece[..(info.bytes - done).min(PIECE) as usize];
            self.source(id).read_at(piece, begin + done)?;
            take(done, piece)?;
            done += piece.len() as u64;
        }
        Ok(())
    }

    /// All bytes of a tensor. Its range was checked against the length of the file; memory is taken as bytes arrive.
    pub(crate) fn read(&self, id: Id) -> Result<Vec<u8>, CheckpointError> {
        let mut bytes = self.reserve(id, self.info(id).bytes)?;
        self.pieces(id, |_, piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// A tensor as it is stored.
    pub(crate) fn plain(&self, id: Id) -> Result<PlainTensor, CheckpointError> {
        Ok(PlainTensor::new(self.info(id).clone(), self.read(id)?, self.path(id).into()))
    }

    /// The bits of a tensor whose elements have two bytes.
    pub(crate) fn halves(&self, id: Id) -> Result<Vec<u16>, CheckpointError> {
        let mut halves = self.reserve(id, self.info(id).bytes / 2)?;
        self.pieces(id, |_, piece| {
            halves.extend(piece.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)));
            Ok(())
        })?;
        Ok(halves)
    }

    /// The numbers of a tensor of F32, BF16, F16 or F8_E8M0, or of E8M0 bytes in U8.
    pub(crate) fn numbers(&self, id: Id) -> Result<Vec<f32>, CheckpointError> {
        let TensorInfo { bytes, dtype, .. } = *self.info(id);
        let mut numbers = self.reserve(id, bytes * 8 / dtype.bits())?;
        self.pieces(id, |_, piece| {
            numbers.extend(floats(dtype, piece));
            Ok(())
        })?;
        Ok(numbers)
    }

    fn reserve<T>(&self, id: Id, length: u64) -> Result<Vec<T>, CheckpointError> {
        let mut vec = vec![];
        let reserved = usize::try_from(length).map(|length| vec.try_reserve_exact(length).is_ok());
        match reserved {
            Ok(true) => Ok(vec),
            _ => Err(CheckpointError::Memory {
                path: self.path(id).into(),
                tensor: self.info(id).name.clone(),
                bytes: length.saturating_mul(size_of::<T>() as u64),
            }),
        }
    }
}

/// The largest index, in bytes. That of DeepSeek-V3, with 92 thousand tensors, has 9 MB.
const MAX_INDEX: u64 = 64 << 20;

/// The most shards. The largest models have some hundreds.
const MAX_SHARDS: usize = 10_000;

/// `model.safetensors.index.json`: which shard holds which tensor.
struct Index {
    /// Names of files, sorted, each once.
    shards: Vec<String>,
    /// Tensors and their shards, by name.
    tensors: Vec<(String, String)>,
}

#[derive(Deserialize)]
struct Parsed {
    weight_map: Named<String>,
}

impl Index {
    /// Reads an index. Names of shards are checked: they lie beside it.
    fn read(path: &Path) -> Result<Self, CheckpointError> {
        let json = read_small(path, MAX_INDEX)?;
        let parsed: Parsed = serde_json::from_slice(&json).map_err(|error| {
            let found = format!("JSON that cannot be read ({})", text::reason(error));
            let expected = "an object with `weight_map`, the name of a file for each tensor";
            CheckpointError::file(path, found, expected, "fetch the file again")
        })?;
        let Named { values: mut tensors, count } = parsed.weight_map;
        if count > MAX_TENSORS {
            return Err(too_many(path, count));
        }
        let shards: BTreeSet<_> = tensors.iter().map(|(_, shard)| shard).cloned().collect();
        if let Some(shard) = shards.iter().find(|shard| !is_plain(shard)) {
            let found = format!("the shard {}", text::name(shard));
            let expected = "plain names of files in the same folder";
            let advice = "do not trust this checkpoint: its index points elsewhere";
            return Err(CheckpointError::file(path, found, expected, advice));
        }
        if shards.len() > MAX_SHARDS {
            let (found, expected) =
                (format!("{} shards", shards.len()), format!("at most {MAX_SHARDS}"));
            return Err(CheckpointError::file(path, found, expected, "merge some of them"));
        }
        tensors.sort();
        if let Some([(name, _), _]) = tensors.array_windows().find(|[a, b]| a.0 == b.0) {
            let advice = "the index is damaged: fetch it again";
            return Err(CheckpointError::tensor(path, name, "it twice", "it once", advice));
        }
        Ok(Self { shards: shards.into_iter().collect(), tensors })
    }
}

/// Whether a name is one of a file in a folder, on every system.
fn is_plain(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let first = components.next();
    matches!(first, Some(Component::Normal(only)) if only == name)
        && components.next().is_none()
        && !name.contains(['/', '\\', ':', '\0'])
}
