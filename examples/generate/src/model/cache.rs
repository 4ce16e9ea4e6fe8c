//! Keys and values of the tokens that a model has seen.

use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, Tensor};
use clap::ValueEnum;

/// In which numbers keys and values are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CacheType {
    /// As they were computed, four bytes a number
    F32,
    /// Rounded to bf16, two bytes a number; f32 where the backend has no bf16
    #[default]
    Bf16,
}

/// Tokens that there is room for at first.
const ROOM: usize = 64;

/// Keys and values of a layer: `[batch, heads, room, width]` each, of which the first tokens are there.
#[derive(Clone, Debug)]
pub(crate) struct LayerCache<B: Backend> {
    dtype: FloatDType,
    length: usize,
    /// None before there are tokens.
    held: Option<[Tensor<B, 4>; 2]>,
}

impl<B: Backend> LayerCache<B> {
    pub(super) fn new(kind: CacheType, device: &B::Device) -> Self {
        let dtype = match kind {
            CacheType::Bf16 if B::supports_dtype(device, DType::BF16) => FloatDType::BF16,
            CacheType::F32 | CacheType::Bf16 => FloatDType::F32,
        };
        Self { dtype, length: 0, held: None }
    }

    /// Tokens that are there.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Forgets all tokens but the first.
    pub(super) fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    pub(super) fn bytes(&self) -> usize {
        let bytes = |x: &Tensor<B, 4>| x.shape().num_elements() * x.dtype().size();
        self.held.iter().flatten().map(bytes).sum()
    }

    /// Adds keys and values `[batch, heads, tokens, width]`, and gives those of all tokens from `first` on, in f32.
    pub(super) fn extend(
        &mut self,
        new: [Tensor<B, 4>; 2],
        first: usize,
        limit: usize,
    ) -> [Tensor<B, 4>; 2] {
        let [batch, heads, tokens, width] = new[0].dims();
        let (start, end) = (self.length, self.length + tokens);
        let device = new[0].device();
        let room = self.held.as_ref().map_or(0, |[keys, _]| keys.dims()[2]);
        let held = match self.held.take() {
            Some(held) if room >= end => held,
            old => {
                // Twice as much as before: a token is copied once or twice in all.
                let room = end.max(2 * room).max(ROOM).min(limit.max(end));
                let zeros =
                    || Tensor::zeros([batch, heads, room, width], (&device, self.dtype.into()));
                match old {
                    None => [zeros(), zeros()],
                    Some(old) => old.map(|old| {
                        let old = old.narrow(2, 0, start);
                        zeros().slice_assign([0..batch, 0..heads, 0..start, 0..width], old)
                    }),
                }
            }
        };
        let place = [0..batch, 0..heads, start..end, 0..width];
        let [keys, values] = held;
        let [new_keys, new_values] = new.map(|new| new.cast(self.dtype));
        let held =
            [keys.slice_assign(place.clone(), new_keys), values.slice_assign(place, new_values)];
        self.length = end;
        let seen = held.clone().map(|x| x.narrow(2, first, end - first).cast(FloatDType::F32));
        self.held = Some(held);
        seen
    }
}
