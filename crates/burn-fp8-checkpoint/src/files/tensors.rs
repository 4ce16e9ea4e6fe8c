//! All tensors of a checkpoint, whichever file they are in.

use std::path::Path;

use super::index::Index;
use super::location::{Location, Weights};
use crate::error::CheckpointError;
use crate::numbers::floats;
use crate::safetensors::{Entry, Shard, Source};
use crate::text;

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
            Weights::File(path) => Self::merge(vec![Shard::open(path)?]),
            Weights::Index(path) => {
                let index = Index::read(path)?;
                let beside = |shard: &String| Shard::open(&path.with_file_name(shard));
                let shards = index.shards.iter().map(beside).collect::<Result<_, _>>()?;
                let tensors = Self::merge(shards)?;
                tensors.check_index(path, &index, warnings)?;
                Ok(tensors)
            }
        }
    }

    fn merge(shards: Vec<Shard>) -> Result<Self, CheckpointError> {
        let (mut sources, mut entries) = (vec![], vec![]);
        for (place, shard) in shards.into_iter().enumerate() {
            sources.push(shard.source);
            entries.extend(shard.entries.into_iter().map(|entry| (entry, place)));
        }
        entries.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        let tensors = Self { sources, entries };
        match tensors.entries.windows(2).find(|two| two[0].0.name == two[1].0.name) {
            Some(twice) => {
                let (first, second) = (&tensors.sources[twice[0].1], &tensors.sources[twice[1].1]);
                let found = format!("it here and in {}", text::path(&first.path));
                let (path, name) = (&second.path, &twice[0].0.name);
                Err(CheckpointError::tensor(path, name, found, "it in one file", ""))
            }
            None => Ok(tensors),
        }
    }

    fn check_index(
        &self,
        path: &Path,
        index: &Index,
        warnings: &mut Vec<String>,
    ) -> Result<(), CheckpointError> {
        for (name, shard) in &index.tensors {
            let found = self.find(name).map(|id| self.entries[id.0].1);
            if found != Some(*shard as usize) {
                let shard = text::name(&index.shards[*shard as usize]);
                let found = match found {
                    Some(other) => format!("it in {}", text::path(&self.sources[other].path)),
                    None => "it in no shard".into(),
                };
                let expected = format!("it in {shard}, as the index says");
                let advice = "index and shards are of different checkpoints: fetch all of them";
                return Err(CheckpointError::tensor(path, name, found, expected, advice));
            }
        }
        let listed = |name: &str| index.tensors.binary_search_by(|(n, _)| n[..].cmp(name)).is_ok();
        let names = self.entries.iter().map(|(entry, _)| &entry.name[..]);
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
        self.entries.binary_search_by(|(entry, _)| entry.name[..].cmp(name)).ok().map(Id)
    }

    pub(crate) fn entry(&self, id: Id) -> &Entry {
        &self.entries[id.0].0
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
        CheckpointError::tensor(self.path(id), &self.entry(id).name, found, expected, advice)
    }

    /// Hands all bytes of a tensor to `take`, some megabytes at a time, with the place of the first of them.
    pub(crate) fn pieces(
        &self,
        id: Id,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let entry = self.entry(id);
        let mut piece = vec![0; entry.bytes.min(PIECE) as usize];
        let mut done = 0;
        while done < entry.bytes {
            let piece = &mut piece[..(entry.bytes - done).min(PIECE) as usize];
            self.source(id).read_at(piece, entry.begin + done)?;
            take(done, piece)?;
            done += piece.len() as u64;
        }
        Ok(())
    }

    /// All bytes of a tensor. Its range was checked against the length of the file; memory is taken as bytes arrive.
    pub(crate) fn read(&self, id: Id) -> Result<Vec<u8>, CheckpointError> {
        let entry = self.entry(id);
        let mut bytes = self.reserve(id, entry.bytes)?;
        while (bytes.len() as u64) < entry.bytes {
            let done = bytes.len();
            let piece = (entry.bytes - done as u64).min(PIECE) as usize;
            bytes.resize(done + piece, 0);
            self.source(id).read_at(&mut bytes[done..], entry.begin + done as u64)?;
        }
        Ok(bytes)
    }

    /// The numbers of a tensor of F32, BF16, F16 or F8_E8M0, or of E8M0 bytes in U8.
    pub(crate) fn numbers(&self, id: Id) -> Result<Vec<f32>, CheckpointError> {
        let entry = self.entry(id);
        let mut numbers = self.reserve(id, entry.bytes * 8 / entry.dtype.bits())?;
        self.pieces(id, |_, bytes| {
            numbers.extend(floats(entry.dtype, bytes));
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
                tensor: self.entry(id).name.clone(),
                bytes: length.saturating_mul(size_of::<T>() as u64),
            }),
        }
    }
}
