//! Batches of the text: drawn anew each epoch for training, always the same for validation.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::probe::StepContext;
use crate::size::Shape;

/// Sequences of characters and, for each position, the character that follows.
#[derive(Clone)]
pub struct Batch<B: Backend> {
    /// `[batch, context]`.
    pub inputs: Tensor<B, 2, Int>,
    /// `[batch, context]`.
    pub targets: Tensor<B, 2, Int>,
    /// What the step that this batch is for has to know.
    pub step: Arc<StepContext>,
}

/// The batch of the sequences that start at these positions of a text.
pub fn batch<B: Backend>(
    text: &[u8],
    starts: &[usize],
    context: usize,
    step: &Arc<StepContext>,
    device: &B::Device,
) -> Batch<B> {
    let numbers = |shift: usize| {
        let rows = starts.iter().flat_map(|start| &text[start + shift..][..context]);
        let numbers: Vec<i32> = rows.map(|number| (*number).into()).collect();
        Tensor::from_data(TensorData::new(numbers, [starts.len(), context]), device)
    };
    Batch { inputs: numbers(0), targets: numbers(1), step: step.clone() }
}

/// Nanoseconds spent between the first and the last batch of training epochs.
pub type Stopwatch = AtomicU64;

/// The batches of a text: for training in each epoch sequences from random places, for validation the same ones each time, spread evenly.
#[derive(Clone)]
pub struct Loader<B: Backend> {
    text: Arc<[u8]>,
    shape: Shape,
    /// The batches of an epoch that this loader gives.
    batches: Range<usize>,
    /// None for validation.
    training: Option<Training>,
    step: Arc<StepContext>,
    device: B::Device,
}

/// What training has to remember from epoch to epoch.
#[derive(Clone)]
struct Training {
    seed: u64,
    /// The epochs that have begun.
    epochs: Arc<AtomicUsize>,
    stopwatch: Arc<Stopwatch>,
}

impl<B: Backend> Loader<B> {
    /// For training; its first epoch is the one after `finished` epochs.
    ///
    /// Both the places and the backend's random numbers, which dropout uses, are seeded from (seed, epoch) when an epoch begins: a resumed
    /// run sees what an uninterrupted one sees. All peers draw the same places, and each takes its part of them; what they drop differs.
    pub fn train(
        text: Arc<[u8]>,
        shape: Shape,
        (seed, finished): (u64, usize),
        step: Arc<StepContext>,
        device: B::Device,
    ) -> Self {
        let epochs = Arc::new(AtomicUsize::new(finished));
        let training = Some(Training { seed, epochs, stopwatch: Arc::default() });
        Self { text, shape, batches: 0..shape.steps, training, step, device }
    }

    /// For validation.
    pub fn valid(text: Arc<[u8]>, shape: Shape, step: Arc<StepContext>, device: B::Device) -> Self {
        Self { text, shape, batches: 0..shape.valid_batches, training: None, step, device }
    }

    /// The epochs that have begun, those before a resume among them, and what measures the time of training; none for validation.
    pub fn progress(&self) -> Option<(Arc<AtomicUsize>, Arc<Stopwatch>)> {
        self.training.as_ref().map(|training| (training.epochs.clone(), training.stopwatch.clone()))
    }
}

/// The seed of an epoch: splitmix64's finalizer (Steele, Lea, Flood, *Fast Splittable Pseudorandom Number Generators*, 2014), so that
/// neighbouring seeds and epochs have nothing in common.
fn epoch_seed(seed: u64, epoch: usize) -> u64 {
    let mix = |z: u64| {
        let z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    mix(mix(seed) ^ epoch as u64)
}

/// Where the sequences of a validation start: spread evenly over the text.
fn valid_starts(text: &[u8], shape: &Shape) -> Vec<usize> {
    let sequences = shape.valid_batches * shape.batch;
    let places = text.len() - shape.context - 1;
    (0..sequences).map(|sequence| sequence * places / sequences).collect()
}

/// Every character that a validation asks for, after the one before it: what a model without context is measured on.
pub fn valid_pairs<'a>(text: &'a [u8], shape: &Shape) -> impl Iterator<Item = [u8; 2]> + 'a {
    let context = shape.context;
    valid_starts(text, shape)
        .into_iter()
        .flat_map(move |start| text[start..=start + context].windows(2))
        .map(|pair| [pair[0], pair[1]])
}

impl<B: Backend> DataLoader<B, Batch<B>> for Loader<B> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Batch<B>> + 'a> {
        let starts = match &self.training {
            Some(Training { seed, epochs, .. }) => {
                let seed = epoch_seed(*seed, epochs.fetch_add(1, Ordering::Relaxed) + 1);
                B::seed(&self.device, seed.wrapping_add(self.step.setup.peers().rank() as u64));
                let mut random = StdRng::seed_from_u64(seed);
                let places = self.text.len() - self.shape.context;
                let sequences = 0..self.shape.steps * self.shape.batch;
                sequences.map(|_| random.random_range(0..places)).collect()
            }
            None => valid_starts(&self.text, &self.shape),
        };
        let timer = self.training.as_ref().map(|training| (Instant::now(), &*training.stopwatch));
        Box::new(Batches { loader: self, starts, next: self.batches.start, timer })
    }

    fn num_items(&self) -> usize {
        self.batches.len() * self.shape.batch
    }

    fn to_device(&self, device: &B::Device) -> Arc<dyn DataLoader<B, Batch<B>>> {
        Arc::new(Self { device: device.clone(), ..self.clone() })
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<B, Batch<B>>> {
        let batch =
            |item: usize| (self.batches.start + item / self.shape.batch).min(self.batches.end);
        Arc::new(Self { batches: batch(start)..batch(end), ..self.clone() })
    }
}

/// The batches of one epoch.
struct Batches<'a, B: Backend> {
    loader: &'a Loader<B>,
    starts: Vec<usize>,
    next: usize,
    timer: Option<(Instant, &'a Stopwatch)>,
}

impl<B: Backend> Iterator for Batches<'_, B> {
    type Item = Batch<B>;

    fn next(&mut self) -> Option<Self::Item> {
        let Loader { text, shape, batches, step, device, .. } = self.loader;
        if self.next >= batches.end {
            // The last step is over: wait for what the device still has to do of it.
            if let Some((start, stopwatch)) = self.timer.take() {
                B::sync(device).expect("the device runs what it was given");
                stopwatch.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
            return None;
        }
        let starts = &self.starts[self.next * shape.batch..][step.setup.part(shape.batch)];
        self.next += 1;
        Some(batch(text, starts, shape.context, step, device))
    }
}

impl<B: Backend> DataLoaderIterator<Batch<B>> for Batches<'_, B> {
    fn progress(&self) -> Progress {
        let Loader { shape, batches, .. } = self.loader;
        Progress::new((self.next - batches.start) * shape.batch, batches.len() * shape.batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::precision::{Precision, Setup};
    use crate::size::Size;
    use burn::backend::Flex;

    fn step() -> Arc<StepContext> {
        let setup = Setup::new(Precision::F32, None).expect("f32 is always there");
        Arc::new(StepContext { setup, observatory: None })
    }

    fn characters(loader: &dyn DataLoader<Flex, Batch<Flex>>) -> Vec<i64> {
        loader
            .iter()
            .flat_map(|batch| batch.inputs.into_data().iter::<i64>().collect::<Vec<_>>())
            .collect()
    }

    fn loader(seed: u64, finished: usize) -> Loader<Flex> {
        let text: Arc<[u8]> = (0..10_000u32).map(|n| (n * 7 % 251) as u8).collect();
        let shape = Size::Smoke.shape();
        Loader::train(text, shape, (seed, finished), step(), Default::default())
    }

    #[test]
    fn a_loader_that_starts_later_gives_what_is_left() {
        let whole = loader(1, 0);
        let epochs: Vec<_> = (0..3).map(|_| characters(&whole)).collect();
        let resumed = loader(1, 2);
        assert_eq!(characters(&resumed), epochs[2]);
        assert_ne!(epochs[0], epochs[1]);
        assert_ne!(characters(&loader(2, 0)), epochs[0]);
    }

    #[test]
    fn targets_are_the_characters_that_follow() {
        let text: Vec<u8> = (0..100).collect();
        let batch = batch::<Flex>(&text, &[3, 50], 4, &step(), &Default::default());
        let numbers =
            |numbers: Tensor<Flex, 2, Int>| numbers.into_data().iter::<i64>().collect::<Vec<_>>();
        assert_eq!(numbers(batch.inputs), [3, 4, 5, 6, 50, 51, 52, 53]);
        assert_eq!(numbers(batch.targets), [4, 5, 6, 7, 51, 52, 53, 54]);
    }

    #[test]
    fn validation_reaches_both_ends_and_repeats() {
        let text: Arc<[u8]> = (0..5000u32).map(|n| (n % 251) as u8).collect();
        let shape = Size::Smoke.shape();
        let pairs = valid_pairs(&text, &shape);
        let firsts: Vec<i64> = pairs.map(|pair: [u8; 2]| pair[0].into()).collect();
        let loader = Loader::<Flex>::valid(text.clone(), shape, step(), Default::default());
        assert_eq!(loader.iter().count(), 4);
        assert_eq!(characters(&loader), firsts, "the pairs are of what the model is asked for");
        assert_eq!(characters(&loader), characters(&loader));
        let starts = valid_starts(&text, &shape);
        let last = starts[starts.len() - 1];
        assert!(starts[0] == 0 && text.len() - last < 2 * text.len() / starts.len(), "{last}");
    }
}
