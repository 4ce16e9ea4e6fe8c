//! Decoders: from a folder to logits.

mod awake;
mod cache;
mod host;
mod layer;
mod projection;
mod rope;

use std::cell::RefCell;
use std::collections::BTreeSet;

use anyhow::{Result, bail, ensure};
use burn::module::{Module, Param};
use burn::nn::{RmsNorm, RmsNormConfig};
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Int, Tensor, TensorData};
use burn_fp8::Fp8Matmul;
use burn_fp8::nn::FrozenLinear;
use burn_fp8_checkpoint::Checkpoint;
use burn_fp8_cpu::decoder::{Next, rms_norm};

use awake::awake;
pub use cache::CacheType;
use cache::LayerCache;
use host::{OnSlices, numbers};
pub(crate) use layer::Step;
use layer::{Layer, MATRICES, NORMS, hidden_padding, norm};
pub(crate) use projection::Projection;
pub(crate) use projection::in_rows;
use projection::{Plain, Reader, WIDTH, in_fp8};
pub(crate) use rope::Frequencies;

use crate::config::Config;
use crate::lora::{Adapters, LoraLinear};

/// How inputs of quantized layers are multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Inputs {
    /// Quantized as the file declares
    #[default]
    File,
    /// As they are: only weights are FP8
    High,
}

/// In which numbers the head is held, where the file does not quantize it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Head {
    /// In the type of the file, f32 where the backend has none such
    #[default]
    Own,
    /// In E4M3, quantized while it is loaded, with a scale for each token of the vocabulary
    Fp8,
}

/// What is decided when a model is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct LoadOptions {
    /// How inputs of quantized layers are multiplied.
    pub inputs: Inputs,
    /// In which numbers the head is held.
    pub head: Head,
}

/// A decoder: tokens to logits of the token after each.
#[derive(Debug)]
pub struct Decoder<B: Backend> {
    config: Config,
    frequencies: Frequencies,
    weights: Weights<B>,
    on_slices: OnSlices<B>,
    device: B::Device,
    warnings: Vec<String>,
}

/// The matrices and norms of a decoder.
#[derive(Module, Debug)]
pub(crate) struct Weights<B: Backend> {
    pub(crate) embedding: Plain<B>,
    pub(crate) layers: Vec<Layer<B>>,
    pub(crate) norm: RmsNorm<B>,
    /// None where it is the embedding.
    pub(crate) head: Option<Projection<B>>,
}

/// Modules with their names.
type Modules<'a, M> = Vec<(String, &'a mut M)>;

/// Parts of each layer by the names of their modules.
fn named<L, P: IntoIterator, const N: usize>(
    layers: impl IntoIterator<Item = L>,
    names: [&'static str; N],
    parts: impl Fn(L) -> P,
) -> impl Iterator<Item = (String, P::Item)> {
    layers.into_iter().enumerate().flat_map(move |(index, layer)| {
        let name = move |part| format!("model.layers.{index}.{part}");
        names.into_iter().map(name).zip(parts(layer))
    })
}

const HEAD: &str = "lm_head";
const EMBEDDING: &str = "model.embed_tokens";

impl<B: Fp8Matmul> Weights<B> {
    /// Random ones, with a head that is the embedding.
    pub(crate) fn random(config: &Config, device: &B::Device) -> Self {
        let norm = RmsNormConfig::new(config.hidden).with_epsilon(config.epsilon);
        Self {
            embedding: Plain::random([config.vocabulary, config.hidden], WIDTH, device),
            layers: (0..config.layers())
                .map(|index| Layer::random(config, index, device))
                .collect(),
            norm: norm.init(device),
            head: None,
        }
    }

    /// The matrices of layers by the names of their modules.
    pub(crate) fn matrices(&self) -> impl Iterator<Item = (String, &Projection<B>)> {
        named(&self.layers, MATRICES, |layer| &layer.matrices[..])
    }

    /// The norms of layers, likewise.
    pub(crate) fn norms(&self) -> impl Iterator<Item = (String, &RmsNorm<B>)> {
        named(&self.layers, NORMS, |layer| &layer.norms[..])
    }

    /// Puts adapters beside quantized layers: those that `adapter` gives for a layer's name. Returns how many.
    pub(crate) fn adapt(
        &mut self,
        mut adapter: impl FnMut(&str, &FrozenLinear<B>) -> Result<Option<LoraLinear<B>>>,
    ) -> Result<usize> {
        let mut count = 0;
        for (name, matrix) in named(&mut self.layers, MATRICES, |layer| &mut layer.matrices[..]) {
            if let Projection::Frozen(base) = &*matrix
                && let Some(adapter) = adapter(&name, base)?
            {
                *matrix = Projection::Adapted(adapter);
                count += 1;
            }
        }
        Ok(count)
    }

    /// The same in f32, with what adapters add: weights that can be trained, and quantized anew.
    pub(crate) fn dense(mut self) -> Self {
        for matrix in self.layers.iter_mut().flat_map(|layer| &mut layer.matrices) {
            *matrix = Projection::Plain(matrix.dense());
        }
        let head = self.head.map(|head| Projection::Plain(head.dense()));
        Self { embedding: self.embedding.dense(), head, ..self }
    }

    /// The adapters that there are, by the names of their layers.
    pub(crate) fn adapters(&self) -> Vec<(String, &LoraLinear<B>)> {
        let adapted = self.matrices().filter_map(|(name, matrix)| match matrix {
            Projection::Adapted(adapter) => Some((name, adapter)),
            _ => None,
        });
        adapted.collect()
    }

    /// What is not in FP8, to be changed: matrices and norms by the names of their modules.
    pub(crate) fn whole_mut(&mut self) -> (Modules<'_, Plain<B>>, Modules<'_, RmsNorm<B>>) {
        let mut matrices = vec![(EMBEDDING.to_owned(), &mut self.embedding)];
        if let Some(Projection::Plain(head)) = &mut self.head {
            matrices.push((HEAD.to_owned(), head));
        }
        let mut norms = vec![("model.norm".to_owned(), &mut self.norm)];
        norms.extend(named(&mut self.layers, NORMS, |layer| &mut layer.norms[..]));
        (matrices, norms)
    }

    /// What the layers make of tokens `[batch, tokens]`: `[batch, tokens, hidden]`.
    pub(crate) fn hidden(&self, tokens: Tensor<B, 2, Int>, step: &Step<B>) -> Tensor<B, 3> {
        let layer = |x, layer: &Layer<B>| layer.forward(x, step, None);
        self.layers.iter().fold(self.embedding.rows(tokens), layer)
    }

    /// Logits of what the layers made.
    pub(crate) fn logits(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        self.head(self.norm.forward(x))
    }

    /// Logits of what the last norm made.
    fn head(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        match &self.head {
            Some(head) => head.forward(x),
            None => self.embedding.forward(x),
        }
    }
}

impl<B: Fp8Matmul> Decoder<B> {
    /// Reads the layers of a model; after each part, `progress` is told how many of how many there are.
    ///
    /// Where the configuration says that the head is the embedding, the file may have either, or both. Both are compared, as transformers 5.24 does: a head of its own
    /// is taken, and [`warnings`](Self::warnings) say so.
    ///
    /// # Errors
    /// Where a tensor is missing, of another shape than the configuration means, or has numbers that are not finite: it is named.
    pub fn load(
        checkpoint: &Checkpoint,
        mut config: Config,
        options: LoadOptions,
        device: &B::Device,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Self> {
        let high = options.inputs == Inputs::High;
        let reader = Reader { checkpoint, device, high, read: RefCell::default() };
        let (layers, table) = (config.layers(), [config.vocabulary, config.hidden]);
        let mut parts = 0;
        let mut done = || {
            parts += 1;
            progress(parts, layers + 2);
        };
        let of_head = config.tied && !reader.has(EMBEDDING) && reader.has(HEAD);
        let embedding = reader.plain(if of_head { HEAD } else { EMBEDDING }, table, false)?;
        done();
        let read = |index| Layer::read(&reader, &config, index).inspect(|_| done());
        let read_layers = (0..layers).map(read).collect::<Result<_>>()?;
        let mut warnings = vec![];
        let own = match config.tied && (of_head || !reader.has(HEAD)) {
            true => None,
            false => Some(reader.projection(HEAD, table, false)?),
        };
        let own = own.filter(|head| !config.tied || !head.is(&embedding.weight()));
        if config.tied && own.is_some() {
            warnings.push(
                "config.json says that the head is the embedding, but the file has an lm_head with other numbers, which is taken, as by transformers: set tie_word_embeddings to false".to_owned(),
            );
            config.tied = false;
        }
        let head = match (own, options.head) {
            (None, Head::Own) => None,
            (None, Head::Fp8) => Some(in_fp8(embedding.weight(), device)?),
            (Some(Projection::Plain(head)), Head::Fp8) => Some(in_fp8(head.weight(), device)?),
            (Some(head), _) => Some(head),
        };
        let norm = norm(&reader, "model.norm", config.hidden, config.epsilon)?;
        warnings.extend(reader.check_all_read()?);
        done();
        let weights = Weights { embedding, layers: read_layers, norm, head };
        let frequencies = Frequencies::new(&config);
        let (on_slices, device) = (OnSlices::default(), device.clone());
        Ok(Self { frequencies, weights, on_slices, config, device, warnings })
    }

    /// Puts adapters of PEFT beside the layers that they are for.
    ///
    /// # Errors
    /// Where a matrix has another shape than its layer, or the model has no quantized layer of a name.
    pub fn adapt(&mut self, adapters: &Adapters) -> Result<()> {
        self.on_slices = OnSlices::default();
        let mut missing: BTreeSet<&str> = adapters.names().collect();
        self.weights.adapt(|name, base| match missing.remove(name) {
            true => Ok(Some(adapters.apply(name, base.clone())?)),
            false => Ok(None),
        })?;
        if let Some(name) = missing.first() {
            bail!(
                "the adapter is for another model: it has {} layers that this one does not have in FP8, such as {name}",
                missing.len()
            );
        }
        self.put_whole(adapters)
    }

    /// Puts what was trained beside adapters in the place of what the model has.
    fn put_whole(&mut self, adapters: &Adapters) -> Result<()> {
        let mut missing: BTreeSet<&str> = adapters.whole().collect();
        let (tied, device) = (self.config.tied, self.device.clone());
        let place = (&device, DType::F32);
        let name = |module: &str| format!("{module}.weight");
        if tied && missing.contains(&name(EMBEDDING)[..]) && !missing.contains(&name(HEAD)[..]) {
            // PEFT trains a copy of the embedding: the head stays as it was.
            let embedding = self.weights.embedding.weight();
            self.weights.head.get_or_insert_with(|| Projection::Plain(Plain::new(embedding)));
        }
        let (matrices, norms) = self.weights.whole_mut();
        for (module, matrix) in matrices {
            if missing.remove(&name(&module)[..]) {
                let data = adapters.whole_tensor(&name(&module), &matrix.weight().dims())?;
                matrix.replace(Tensor::from_data(data, place));
            }
        }
        for (module, norm) in norms {
            if missing.remove(&name(&module)[..]) {
                let data = adapters.whole_tensor(&name(&module), &norm.gamma.dims())?;
                norm.gamma = Param::from_tensor(Tensor::from_data(data, place));
            }
        }
        let Weights { embedding, head, .. } = &mut self.weights;
        if missing.remove(&name(HEAD)[..]) {
            let shape = embedding.weight().dims();
            let data = adapters.whole_tensor(&name(HEAD), &shape)?;
            let weight = Tensor::from_data(data, place);
            *head = match head {
                // The embedding, of which PEFT has a copy.
                None if tied && embedding.is(&weight) => None,
                None => Some(Projection::Plain(Plain::new(weight))),
                Some(_) => Some(in_fp8(weight, &device)?),
            };
        }
        match missing.first() {
            None => Ok(()),
            Some(name) => bail!("the adapter is for another model: this one has no {name}"),
        }
    }

    /// Its weights alone.
    pub(crate) fn into_weights(self) -> Weights<B> {
        self.weights
    }

    /// What is odd about the file, and yet no error.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What the model is.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Where it is.
    pub fn device(&self) -> &B::Device {
        &self.device
    }

    /// Bytes of its matrices on the device.
    pub fn bytes(&self) -> usize {
        let Weights { embedding, head, .. } = &self.weights;
        let layers: usize = self.weights.matrices().map(|(_, matrix)| matrix.bytes()).sum();
        embedding.bytes() + layers + head.as_ref().map_or(0, Projection::bytes)
    }

    /// Those of them that are looked up, not multiplied: of each, a token reads one row.
    pub fn embedding_bytes(&self) -> usize {
        self.weights.head.as_ref().map_or(0, |_| self.weights.embedding.bytes())
    }

    /// A cache for rows of tokens, of which the first few are padding: as many as `padding` says for each.
    pub fn cache(&self, kind: CacheType, padding: Vec<usize>) -> Cache<B> {
        let layer = || LayerCache::new(kind, &self.device);
        Cache { layers: (0..self.config.layers()).map(|_| layer()).collect(), padding }
    }

    /// Takes the next tokens, as many for each row, and gives the logits `[batch, tokens, vocabulary]` after each of them, or with `last` after the last alone.
    ///
    /// # Errors
    /// Where there are more tokens than the model has positions, or one that is not in its vocabulary.
    ///
    /// # Panics
    /// Where there are more or fewer rows than the cache has, or rows of several lengths.
    pub fn forward(
        &self,
        tokens: &[Vec<u32>],
        cache: &mut Cache<B>,
        last: bool,
    ) -> Result<Tensor<B, 3>> {
        let (before, count) = (cache.length(), tokens.first().map_or(0, Vec::len));
        let Config { positions, vocabulary, .. } = self.config;
        let rows = cache.padding.len();
        assert!(
            tokens.len() == rows && tokens.iter().all(|row| row.len() == count),
            "the cache has {rows} rows: give as many, of one length"
        );
        ensure!(count > 0, "there are no tokens to go on from");
        let shortest = cache.padding.iter().min().copied().unwrap_or(0);
        ensure!(
            (before + count).saturating_sub(shortest) <= positions,
            "the text is longer than the {positions} positions of the model"
        );
        if let Some(token) = tokens.iter().flatten().find(|token| **token as usize >= vocabulary) {
            bail!("token {token} is not in the model's vocabulary of {vocabulary}");
        }
        let place =
            |padding: usize| (before..before + count).map(move |at| at.saturating_sub(padding));
        let at: Vec<Vec<usize>> = cache.padding.iter().map(|row| place(*row).collect()).collect();
        let ids: Vec<i64> = tokens.iter().flatten().map(|token| i64::from(*token)).collect();
        let ids = TensorData::new(ids, [rows, count]);
        let ids = Tensor::from_data(ids, &self.device);
        Ok(match B::FP8_ON_HOST && !B::ad_enabled(&self.device) {
            true => awake(count == 1, || self.on_host(ids, &at, cache, last)),
            false => self.in_tensors(ids, &at, cache, last),
        })
    }

    /// The same on slices, where these are tokens `[batch, tokens]` at positions `[batch][tokens]`.
    fn on_host(
        &self,
        tokens: Tensor<B, 2, Int>,
        positions: &[Vec<usize>],
        cache: &mut Cache<B>,
        last: bool,
    ) -> Tensor<B, 3> {
        let (Self { weights, config, device, .. }, [rows, count]) = (self, tokens.dims());
        let (at, limit) = (cache.length(), cache.limit(config));
        let turns = self.frequencies.tables(positions);
        let turns = turns.each_ref().map(|table| &table[..]);
        let next = Next { tokens: count, turns, at, padding: &cache.padding };
        let mut x = numbers(weights.embedding.rows(tokens));
        self.on_slices.forward(&weights.layers, &mut x, next, &mut cache.layers, limit, device);
        let (hidden, seen) = (config.hidden, if last { 1 } else { count });
        if last {
            let of_rows = x.chunks_exact(count * hidden);
            x = of_rows.flat_map(|x| &x[(count - 1) * hidden..]).copied().collect();
        }
        rms_norm(&mut x, &numbers(weights.norm.gamma.val()), weights.norm.epsilon as f32);
        let x = TensorData::new(x, [rows, seen, hidden]);
        weights.head(Tensor::from_data(x, (device, DType::F32)))
    }

    /// The same in operations of the framework, on a device.
    fn in_tensors(
        &self,
        tokens: Tensor<B, 2, Int>,
        positions: &[Vec<usize>],
        cache: &mut Cache<B>,
        last: bool,
    ) -> Tensor<B, 3> {
        let (Self { weights, device, .. }, [_, count]) = (self, tokens.dims());
        let step = Step {
            turns: self.frequencies.turns(positions, device),
            padding: hidden_padding(&cache.padding, cache.length() + count, device),
            limit: cache.limit(&self.config),
        };
        let mut x = weights.embedding.rows(tokens);
        for (layer, cache) in weights.layers.iter().zip(&mut cache.layers) {
            x = layer.forward(x, &step, Some(cache));
        }
        weights.logits(if last { x.narrow(1, count - 1, 1) } else { x })
    }
}

/// Keys and values of all layers, for some rows of tokens.
#[derive(Clone, Debug)]
pub struct Cache<B: Backend> {
    layers: Vec<LayerCache<B>>,
    padding: Vec<usize>,
}

impl<B: Fp8Matmul> Cache<B> {
    /// Keeps these rows alone, in this order.
    ///
    /// # Panics
    /// Where one is not there.
    pub fn keep(&mut self, rows: &[usize]) {
        self.padding = rows.iter().map(|row| self.padding[*row]).collect();
        self.layers.iter_mut().for_each(|layer| layer.keep(rows));
    }

    /// Tokens of each row that were seen, padding included.
    pub fn length(&self) -> usize {
        self.layers.first().map_or(0, LayerCache::length)
    }

    /// Forgets all tokens but the first `length`.
    pub fn truncate(&mut self, length: usize) {
        self.layers.iter_mut().for_each(|layer| layer.truncate(length));
    }

    /// Tokens of each row that it may have, padding included.
    fn limit(&self, config: &Config) -> usize {
        config.positions + self.padding.iter().max().copied().unwrap_or(0)
    }

    /// In which numbers keys and values are held.
    pub fn kind(&self) -> CacheType {
        self.layers[0].kind()
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(LayerCache::bytes).sum()
    }
}
