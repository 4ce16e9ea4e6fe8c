//! Attention as one operation, forward and backward: scores exist one tile at a time, in the cache.
//!
//! The algorithm is FlashAttention-2's (Dao, 2023): tiles of 64 rows and 64 keys, a softmax that is corrected as keys go by, and a
//! backward pass that computes tiles anew from the logarithm of each row's sum. Heads are read where they lie, in any layout whose rows
//! are contiguous.
//!
//! What is added up, and in which order, depends on shapes alone: results do not depend on the number of threads.
#![allow(unsafe_code, reason = "tasks write to disjoint rows of one result")]

mod backward;
mod forward;
mod operand;
mod pairs;
mod product;
mod tile;

use core::marker::PhantomData;
use core::ops::Deref;

pub use burn_fp8_core::AttentionPrecision;
use burn_fp8_core::{AttentionShape, AttentionShapeError, Dropout, Fp8Format};
use half::bf16;
use pulp::{Simd, WithSimd};

use crate::share::IN_F32;
use crate::slice;
use crate::unit::Unit;
use crate::unit::arch;

pub use backward::{Gradients, attention_backward};
pub use forward::attention;

/// Queries and keys of a tile, which have one scale.
const TILE: usize = AttentionPrecision::BLOCK;

/// Queries are padded to a multiple of it: whole vectors.
const PADDING: usize = 16;

/// As many with what pads them.
fn padded(count: usize) -> usize {
    count.next_multiple_of(PADDING)
}

/// What attention does: `softmax(scale · q · kᵀ, capped, + bias, masked) · v`.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// What scores are multiplied by; usually one over the square root of the width of a head.
    pub scale: f32,
    /// Whether the last query sees all keys, the one before it all but the last, and so on.
    pub causal: bool,
    /// Scores become `cap · tanh(score / cap)`.
    pub softcap: Option<f32>,
    /// What is added to scores, `[batch, heads, queries, keys]`.
    pub bias: Option<Broadcast<'a, f32>>,
    /// Where a mask is not 0, the query does not see the key, `[batch, heads, queries, keys]`. A query that sees none gives 0.
    pub masks: &'a [Broadcast<'a, u8>],
    /// Which probabilities become 0; the others are multiplied by [`Dropout::factor`]. The row of a probability is
    /// `(batch · heads + head) · queries + query`, its column the key.
    pub dropout: Option<Dropout>,
    /// Which numbers are multiplied.
    pub precision: AttentionPrecision,
    /// What multiplies them where they are no f32 numbers. The portable unit rounds to the same numbers, and multiplies those in f32.
    pub unit: Unit,
}

impl Attention<'_> {
    /// With heads of this width: scores are multiplied by one over its square root, nothing is masked or dropped, products are f32.
    pub fn new(width: usize) -> Self {
        Self {
            scale: (1.0 / (width.max(1) as f64).sqrt()) as f32,
            causal: false,
            softcap: None,
            bias: None,
            masks: &[],
            dropout: None,
            precision: AttentionPrecision::High,
            unit: Unit::Portable,
        }
    }
}

/// Heads of queries, keys or values: `[batch, heads, length, width]`, of which only the width must be contiguous.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    numbers: HeadNumbers<'a>,
    shape: [usize; 4],
    strides: [usize; 3],
}

/// The numbers of heads as they are held. Those of a cache are converted a tile at a time.
#[derive(Clone, Copy, Debug)]
pub enum HeadNumbers<'a> {
    /// As they are multiplied.
    F32(&'a [f32]),
    /// In two bytes.
    Bf16(&'a [bf16]),
    /// Codes, and the scale of each row: that of the row which begins at element `i · width` of the codes is scale `i`.
    E4m3(&'a [u8], &'a [f32]),
}

impl HeadNumbers<'_> {
    /// How many there are.
    fn len(&self) -> usize {
        match self {
            Self::F32(numbers) => numbers.len(),
            Self::Bf16(numbers) => numbers.len(),
            Self::E4m3(codes, _) => codes.len(),
        }
    }
}

impl<'a> Heads<'a> {
    /// Contiguous ones.
    ///
    /// # Panics
    /// If there are too few values.
    #[track_caller]
    pub fn new(values: &'a [f32], shape @ [_, heads, length, width]: [usize; 4]) -> Self {
        let strides = [heads * length * width, length * width, width];
        Self::strided(HeadNumbers::F32(values), shape, strides)
    }

    /// With the distances between batches, heads and rows.
    ///
    /// # Panics
    /// If an element is outside of the numbers, or if rows of codes do not begin where they have scales.
    #[track_caller]
    pub fn strided(numbers: HeadNumbers<'a>, shape: [usize; 4], strides: [usize; 3]) -> Self {
        let last = shape.iter().zip(strides.iter().chain([&1]));
        let last = last.fold(0, |last, (size, stride)| {
            size.saturating_sub(1).saturating_mul(*stride).saturating_add(last)
        });
        assert!(
            shape.contains(&0) || last < numbers.len(),
            "heads {shape:?} with strides {strides:?} reach to element {last}, but there are {}",
            numbers.len()
        );
        if let HeadNumbers::E4m3(codes, scales) = numbers {
            let width = shape[3].max(1);
            assert!(
                strides.iter().all(|stride| stride % width == 0)
                    && scales.len() >= codes.len().div_ceil(width),
                "rows of {width} codes with strides {strides:?} have no scale of {} each",
                scales.len()
            );
        }
        Self { numbers, shape, strides }
    }

    /// Batches, heads, rows of a head, width.
    pub fn shape(&self) -> [usize; 4] {
        self.shape
    }

    /// Where a row begins.
    fn start(&self, [batch, head, row]: [usize; 3]) -> usize {
        let [b, h, r] = self.strides;
        batch * b + head * h + row * r
    }

    /// The numbers from the first of a row on, where they are f32.
    fn from(&self, batch: usize, head: usize, row: usize) -> &'a [f32] {
        match self.numbers {
            HeadNumbers::F32(numbers) => &numbers[self.start([batch, head, row])..],
            _ => panic!("these heads must be f32"),
        }
    }

    fn row(&self, batch: usize, head: usize, row: usize) -> &'a [f32] {
        &self.from(batch, head, row)[..self.shape[3]]
    }

    /// Converts a row to f32.
    fn convert(&self, place: [usize; 3], out: &mut [f32]) {
        let start = self.start(place);
        let row = start..start + out.len();
        match self.numbers {
            HeadNumbers::F32(numbers) => out.copy_from_slice(&numbers[row]),
            HeadNumbers::Bf16(numbers) => arch().dispatch(Widen(&numbers[row], out)),
            HeadNumbers::E4m3(codes, scales) => {
                let scale = scales[start / self.shape[3]];
                slice::decode(&codes[row], scale, Fp8Format::E4M3, out);
            }
        }
    }
}

/// Numbers in bf16 as f32, of which they are the upper half.
struct Widen<'a>(&'a [bf16], &'a mut [f32]);

impl WithSimd for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (x, y) in self.0.iter().zip(self.1) {
            *y = f32::from_bits(u32::from(x.to_bits()) << 16);
        }
    }
}

/// Heads that a result is written to: f32 `[batch, heads, length, width]`, whose rows do not overlap.
#[derive(Debug)]
pub struct HeadsMut<'a> {
    start: *mut f32,
    shape: [usize; 4],
    strides: [usize; 3],
    values: PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for a slice of f32 that it has borrowed for itself; through a shared one, rows are written by `row` alone, whose callers
// promise that no two threads have the same one.
unsafe impl Sync for HeadsMut<'_> {}

impl<'a> HeadsMut<'a> {
    /// Contiguous ones.
    ///
    /// # Panics
    /// If there are more or fewer values than the shape has.
    #[track_caller]
    pub fn new(values: &'a mut [f32], shape @ [_, heads, length, width]: [usize; 4]) -> Self {
        Self::strided(values, shape, [heads * length * width, length * width, width])
    }

    /// In the memory of `[batch, length, heads, width]`, as a linear layer gives and takes them.
    ///
    /// # Panics
    /// If there are more or fewer values than the shape has.
    #[track_caller]
    pub fn joined(values: &'a mut [f32], shape @ [_, heads, length, width]: [usize; 4]) -> Self {
        Self::strided(values, shape, [heads * length * width, width, heads * width])
    }

    /// Three in the memory of `[batch, length, heads of all three, width]`, side by side: of one batch, length and width.
    ///
    /// # Panics
    /// If the shapes differ in more than their heads, or there are more or fewer values than they have.
    #[track_caller]
    pub fn side_by_side(values: &'a mut [f32], shapes: [[usize; 4]; 3]) -> [Self; 3] {
        let [batch, _, length, width] = shapes[0];
        let heads = shapes.iter().try_fold(0usize, |all, [_, heads, ..]| all.checked_add(*heads));
        let fits = shapes.iter().all(|[b, _, l, w]| [*b, *l, *w] == [batch, length, width]);
        let (Some(heads), true) = (heads, fits) else {
            panic!("heads {shapes:?} do not lie side by side");
        };
        let all = Self::joined(values, [batch, heads, length, width]);
        let mut before = 0;
        shapes.map(|shape| {
            // SAFETY: at most one past the end; heads before this one's are those of others.
            let start =
                unsafe { all.start.add((before * width).min(batch * length * heads * width)) };
            before += shape[1];
            Self { start, shape, ..all }
        })
    }

    #[track_caller]
    fn strided(values: &'a mut [f32], shape: [usize; 4], strides: [usize; 3]) -> Self {
        let count = shape.iter().try_fold(1usize, |count, size| count.checked_mul(*size));
        assert!(count == Some(values.len()), "heads {shape:?} do not have {} values", values.len());
        Self { start: values.as_mut_ptr(), shape, strides, values: PhantomData }
    }

    /// # Safety
    /// While it lives, nobody else has this row.
    #[allow(
        clippy::mut_from_ref,
        reason = "rows are handed out one by one, as the caller promises"
    )]
    unsafe fn row(&self, batch: usize, head: usize, row: usize) -> &mut [f32] {
        let [batches, heads, length, width] = self.shape;
        assert!(batch < batches && head < heads && row < length);
        let [b, h, r] = self.strides;
        // SAFETY: all constructors give each row of the shape a place of its own inside of the borrowed values; the caller's promise.
        unsafe {
            core::slice::from_raw_parts_mut(self.start.add(batch * b + head * h + row * r), width)
        }
    }
}

/// A tensor `[batch, heads, queries, keys]`, of which each dimension is there or 1.
#[derive(Clone, Copy, Debug)]
pub struct Broadcast<'a, T> {
    values: &'a [T],
    shape: [usize; 4],
    strides: [usize; 4],
}

impl<'a, T: Copy> Broadcast<'a, T> {
    /// A contiguous one.
    ///
    /// # Panics
    /// If there are more or fewer values than the shape has.
    #[track_caller]
    pub fn new(values: &'a [T], shape: [usize; 4]) -> Self {
        let count: usize = shape.iter().product();
        assert!(values.len() == count, "{shape:?} has {count} values, not {}", values.len());
        let [_, heads, queries, keys] = shape;
        let contiguous = [heads * queries * keys, queries * keys, keys, 1];
        let strides = core::array::from_fn(|dim| if shape[dim] == 1 { 0 } else { contiguous[dim] });
        Self { values, shape, strides }
    }

    /// Of the scores of a key, the value of each query from `start` on.
    fn queries(
        &self,
        [batch, head]: [usize; 2],
        start: usize,
        key: usize,
    ) -> impl Iterator<Item = T> + 'a {
        let [b, h, q, k] = self.strides;
        let first = batch * b + head * h + key * k;
        let values = self.values;
        (start..).map(move |query| values[first + query * q])
    }
}

/// The sizes of an attention whose operands fit each other.
#[derive(Clone, Copy)]
struct Sizes(AttentionShape);

impl Deref for Sizes {
    type Target = AttentionShape;

    fn deref(&self) -> &AttentionShape {
        &self.0
    }
}

impl Sizes {
    /// # Panics
    /// If operands, bias or masks do not fit.
    #[track_caller]
    fn check([q, k, v]: [[usize; 4]; 3], options: &Attention<'_>) -> Self {
        let check = || {
            let shape = AttentionShape::new(q, k, v)?;
            options.bias.iter().try_for_each(|bias| shape.check("bias", bias.shape))?;
            options.masks.iter().try_for_each(|mask| shape.check("mask", mask.shape))?;
            Ok::<_, AttentionShapeError>(Self(shape))
        };
        check().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Tiles of queries, of keys.
    fn tiles(&self) -> [usize; 2] {
        [self.queries.div_ceil(TILE), self.keys.div_ceil(TILE)]
    }

    /// Of how many keys a query sees at most the first.
    fn visible(&self, query: usize, causal: bool) -> usize {
        match causal {
            true => (query + 1 + self.keys).saturating_sub(self.queries).min(self.keys),
            false => self.keys,
        }
    }

    /// The first query that sees a key.
    fn first_to_see(&self, key: usize, causal: bool) -> usize {
        match causal {
            true => (key + self.queries).saturating_sub(self.keys),
            false => 0,
        }
    }

    fn threads(&self) -> usize {
        // Few queries take as long as a vector of them.
        let queries = self.queries.max(PADDING);
        let scores = self.batch * self.heads * queries * self.keys;
        match scores * self.width < IN_F32 {
            true => 1,
            false => rayon::current_num_threads(),
        }
    }
}
