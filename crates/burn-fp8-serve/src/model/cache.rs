//! Keys and values of the tokens that a model has seen.

use std::ops::Range;

use burn::tensor::backend::Backend;
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use burn_fp8::ops::assign_rows;
use burn_fp8::{Fp8Format, Fp8Matmul, Fp8Tensor};
use burn_fp8_cpu::decoder;

/// In which numbers keys and values are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "snake_case")]
pub enum CacheType {
    /// As they were computed, four bytes a number
    F32,
    /// Rounded to bf16, two bytes a number; f32 where the backend has no bf16
    #[default]
    Bf16,
    /// E4M3 with a scale for each head and token, one byte a number; bf16 where the backend holds no single codes, as on a GPU
    Fp8,
}

/// Tokens that there is room for at first.
const ROOM: usize = 64;

/// Keys and values of a layer: `[batch, heads, room, width]` each, of which the first tokens are there.
#[derive(Clone, Debug)]
pub(crate) struct LayerCache<B: Backend> {
    kind: CacheType,
    length: usize,
    /// None before there are tokens.
    held: Option<[CacheTensor<B>; 2]>,
}

/// Keys or values as they are held.
#[derive(Clone, Debug)]
pub(super) enum CacheTensor<B: Backend> {
    Float(Tensor<B, 4>),
    Fp8(Fp8Tensor<B, 4>),
}

impl<B: Fp8Matmul> CacheTensor<B> {
    fn new(x: Tensor<B, 4>, kind: CacheType) -> Self {
        match kind {
            CacheType::F32 => Self::Float(x.cast(FloatDType::F32)),
            CacheType::Bf16 => Self::Float(x.cast(FloatDType::BF16)),
            CacheType::Fp8 => {
                let codes = Fp8Tensor::quantize_rows(x, Fp8Format::E4M3);
                Self::Fp8(codes.expect("heads have rows"))
            }
        }
    }

    /// Room for so many tokens, zeros.
    fn zeros(shape: [usize; 4], kind: CacheType, device: &B::Device) -> Self {
        let float = |dtype| Self::Float(Tensor::zeros(shape, (device, dtype)));
        match kind {
            CacheType::F32 => float(DType::F32),
            CacheType::Bf16 => float(DType::BF16),
            CacheType::Fp8 => {
                let codes = vec![0; shape.iter().product()];
                let scales = Tensor::ones([shape[0], shape[1], shape[2], 1], (device, DType::F32));
                let rows = [1, usize::MAX];
                let codes =
                    Fp8Tensor::from_blocks(codes, shape, Fp8Format::E4M3, scales, rows, device);
                Self::Fp8(codes.expect("as many codes and scales as the shape has"))
            }
        }
    }

    fn dims(&self) -> [usize; 4] {
        match self {
            Self::Float(x) => x.dims(),
            Self::Fp8(codes) => codes.dims(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Float(x) => x.shape().num_elements() * x.dtype().size(),
            Self::Fp8(codes) => codes.bytes_held() + codes.scales().shape().num_elements() * 4,
        }
    }

    fn tokens(&self, tokens: Range<usize>) -> Self {
        match self {
            Self::Float(x) => Self::Float(x.clone().narrow(2, tokens.start, tokens.len())),
            Self::Fp8(codes) => Self::Fp8(codes.rows(tokens).expect("rows have scales")),
        }
    }

    /// Some rows of the batch.
    fn select(self, rows: &[usize]) -> Self {
        let select = |x: Tensor<B, 4>| {
            let indices: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
            let indices = Tensor::from_data(TensorData::from(&indices[..]), &x.device());
            x.select(0, indices)
        };
        match self {
            Self::Float(x) => Self::Float(select(x)),
            Self::Fp8(x) => {
                let ([batch, heads, room, width], device) = (x.dims(), x.device());
                let (bytes, scales) = (x.to_bytes(), select(x.scales()));
                let of_row = bytes.len() / batch;
                let of_row = |row: &usize| &bytes[row * of_row..][..of_row];
                let codes = rows.iter().flat_map(of_row).copied().collect();
                let (shape, block) = ([rows.len(), heads, room, width], [1, usize::MAX]);
                let codes =
                    Fp8Tensor::from_blocks(codes, shape, x.format(), scales, block, &device);
                Self::Fp8(codes.expect("as many codes and scales as rows have"))
            }
        }
    }

    /// The same with other tokens from token `start` on.
    fn with(self, start: usize, new: Self) -> Self {
        match (self, new) {
            (Self::Float(x), Self::Float(new)) => Self::Float(assign_rows(x, start, new)),
            (Self::Fp8(codes), Self::Fp8(new)) => {
                Self::Fp8(codes.with_rows(start, new).expect("rows have scales"))
            }
            _ => unreachable!("all are of the cache's type"),
        }
    }
}

impl<B: Fp8Matmul> LayerCache<B> {
    pub(super) fn new(kind: CacheType, device: &B::Device) -> Self {
        let has = |dtype| B::supports_dtype(device, dtype);
        let kind = match kind {
            // Kernels hold four codes in a word.
            CacheType::Fp8 if B::FP8_KERNELS || !has(DType::U8) => CacheType::Bf16,
            kind => kind,
        };
        let kind = match kind {
            CacheType::Bf16 if !has(DType::BF16) => CacheType::F32,
            kind => kind,
        };
        Self { kind, length: 0, held: None }
    }

    /// In which numbers it holds them.
    pub(super) fn kind(&self) -> CacheType {
        self.kind
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
        self.held.iter().flatten().map(CacheTensor::bytes).sum()
    }

    /// What is held, with room for so many tokens.
    fn grow(
        &mut self,
        [batch, heads, width]: [usize; 3],
        end: usize,
        limit: usize,
        device: &B::Device,
    ) -> [CacheTensor<B>; 2] {
        let room = self.held.as_ref().map_or(0, |[keys, _]| keys.dims()[2]);
        match self.held.take() {
            Some(held) if room >= end => held,
            old => {
                // Twice as much as before: a token is copied once or twice in all.
                let room = end.max(2 * room).max(ROOM).min(limit.max(end));
                let zeros = || CacheTensor::zeros([batch, heads, room, width], self.kind, device);
                match old {
                    None => [zeros(), zeros()],
                    Some(old) => old.map(|old| zeros().with(0, old.tokens(0..self.length))),
                }
            }
        }
    }

    /// Makes room for more tokens, `[batch, heads, width]` each, and has keys and values written where they lie: `[batch, heads, room, width]`.
    pub(super) fn write(
        &mut self,
        shape: [usize; 3],
        tokens: usize,
        limit: usize,
        device: &B::Device,
        write: impl FnOnce([decoder::CachePart<'_>; 2]),
    ) {
        let held = self.grow(shape, self.length + tokens, limit, device);
        self.held = Some(match held {
            [CacheTensor::Fp8(keys), CacheTensor::Fp8(values)] => {
                let mut of_values = None;
                let of_keys = keys.changed(|keys, scales| {
                    let keys = decoder::CachePart::E4m3(keys, scales);
                    of_values = Some(values.changed(|values, scales| {
                        write([keys, decoder::CachePart::E4m3(values, scales)]);
                    }));
                });
                let have_scales = "each token's head has a scale";
                let of_values = of_values.expect("they were written with the keys");
                [of_keys, of_values].map(|held| CacheTensor::Fp8(held.expect(have_scales)))
            }
            held => {
                let mut data = held.map(|held| match held {
                    CacheTensor::Float(x) => x.into_data(),
                    CacheTensor::Fp8(_) => unreachable!("both are of the cache's type"),
                });
                write(data.each_mut().map(|data| match data.dtype {
                    DType::BF16 => decoder::CachePart::Bf16(data.as_mut_slice().expect("bf16")),
                    _ => decoder::CachePart::F32(data.as_mut_slice().expect("f32")),
                }));
                data.map(|data| {
                    let dtype = data.dtype;
                    CacheTensor::Float(Tensor::from_data(data, (device, dtype)))
                })
            }
        });
        self.length += tokens;
    }

    /// Keeps these rows alone, in this order.
    pub(super) fn keep(&mut self, rows: &[usize]) {
        self.held = self.held.take().map(|held| held.map(|held| held.select(rows)));
    }

    /// Adds keys and values `[batch, heads, tokens, width]`, and gives those of all tokens from `first` on, as they are held.
    pub(super) fn extend(
        &mut self,
        new: [Tensor<B, 4>; 2],
        first: usize,
        limit: usize,
    ) -> [CacheTensor<B>; 2] {
        let [batch, heads, tokens, width] = new[0].dims();
        let (start, end) = (self.length, self.length + tokens);
        let held = self.grow([batch, heads, width], end, limit, &new[0].device());
        let [keys, values] = held;
        let [new_keys, new_values] = new.map(|new| CacheTensor::new(new, self.kind));
        let held = [keys.with(start, new_keys), values.with(start, new_values)];
        self.length = end;
        let seen = held.each_ref().map(|x| x.tokens(first..end));
        self.held = Some(held);
        seen
    }
}
