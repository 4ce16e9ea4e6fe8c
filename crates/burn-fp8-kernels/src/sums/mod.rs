//! Products of codes with the sums of tensor cores: those of [`burn_fp8_core::sums::dot`], bit for bit, on any device.
//!
//! All is done in u32, additions in f32 included: no device is asked how it rounds, nor for 64 bits. The terms of a block are added by their signs, in
//! two sums, so that 32 bits hold what would take 33.

mod block;
mod float;
mod step;

use burn_fp8_core::Fp8Format;
use burn_fp8_core::sums::{Accumulation, Accumulator};
use cubecl::prelude::*;
use cubecl::server::Handle;

use crate::error::KernelError;
use crate::launch::{CUBE, Words, address_type, array, cube_dim, grid};
use crate::tensor::check_codes;
use block::{Block, Operand, OperandLaunch};
use float::{add, with_class};
use step::add_block;

/// Codes whose rows are multiplied with those of another such matrix.
#[derive(Clone, Copy, Debug)]
pub struct RowCodes<'a> {
    /// The codes, row by row, one byte each, in whole u32 words.
    pub codes: &'a Handle,
    /// How many rows there are.
    pub rows: usize,
    /// The distance from a row to the next, in codes. The fastest are multiples of 4.
    pub stride: usize,
    /// The format of the codes.
    pub format: Fp8Format,
}

/// `a` `[M, K]` times `b` `[N, K]`, as a matrix unit adds: the accumulators `[M, N]` before any scale, f32, in row-major order. One launch.
///
/// Of each row the first `k` codes are multiplied; zeros that pad it change nothing. The sums are those of [`burn_fp8_core::sums::dot`] bit for bit,
/// NaN included, without a split of K over thread blocks.
///
/// # Errors
/// If there are no codes, more than a buffer holds, or more than can be addressed; if the accumulator is out of range, or so wide that 32 bits do
/// not hold the sum of a block.
pub fn multiply<R: Runtime>(
    client: &ComputeClient<R>,
    [a, b]: [RowCodes<'_>; 2],
    k: usize,
    accumulator: Accumulator,
    accumulation: Accumulation,
) -> Result<Handle, KernelError> {
    accumulator.validate()?;
    let formats = [a.format, b.format];
    if step::largest_sum(accumulator, formats) > u64::from(u32::MAX) {
        return Err(KernelError::WideSum { accumulator });
    }
    let [codes_a, codes_b] = [a.check(k)?, b.check(k)?];
    let elements = (a.rows as u64).saturating_mul(b.rows as u64);
    let address = address_type(client, elements.max(codes_a as u64).max(codes_b as u64))?;
    let sums = Words::new(client, a.rows * b.rows);
    let chain = match accumulation {
        Accumulation::Fast => k,
        Accumulation::Split => k.min(accumulator.chain as usize),
    };
    // A chain that is all of K is the only one.
    let next_chain = if chain == k { 0 } else { chain };
    let starts = [a.stride, b.stride, next_chain, accumulator.products as usize];
    let in_words = starts.iter().all(|start| start.is_multiple_of(4));
    let job = Job { formats, accumulator, in_words };
    let tiles = [a.rows, b.rows].map(|rows| rows.div_ceil(TILE));
    // SAFETY: `RowCodes::check` holds the codes to their buffers, and only those of rows and columns that there are are read; sums beyond the matrix
    // are not written.
    #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
    unsafe {
        sum_products::launch_unchecked(
            client,
            grid(client, tiles[0] * tiles[1]),
            cube_dim(),
            address,
            a.arg(),
            b.arg(),
            sums.arg(),
            k,
            chain,
            tiles[1],
            job,
        );
    }
    Ok(sums.into_handle())
}

impl RowCodes<'_> {
    /// Checks that there are `k` codes in each row, and returns how many lie between the first and the last one.
    fn check(&self, k: usize) -> Result<usize, KernelError> {
        let Self { codes, rows, stride, format: _ } = *self;
        if rows == 0 || k == 0 {
            return Err(KernelError::Empty { shape: vec![rows, k] });
        }
        let len = (rows - 1).saturating_mul(stride).saturating_add(k);
        check_codes(codes, len)?;
        Ok(len)
    }

    fn arg<R: Runtime>(&self) -> OperandLaunch<R> {
        OperandLaunch::new(array(self.codes), self.rows, self.stride)
    }
}

/// Rows and columns of the sums of a cube, whose units share what they read.
const TILE: usize = 16;
const _: () = assert!(TILE * TILE == CUBE as usize);

/// What a kernel does, known when it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Job {
    formats: [Fp8Format; 2],
    accumulator: Accumulator,
    /// Whether all rows, chains and blocks begin with a word.
    in_words: bool,
}

/// A sum for each unit of a cube.
#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_products(
    a: Operand,
    b: Operand,
    sums: &mut Array<u32>,
    k: usize,
    chain: usize,
    tile_columns: usize,
    #[comptime] job: Job,
) {
    let unit = UNIT_POS as usize;
    let row = (CUBE_POS / tile_columns) * TILE + unit / TILE;
    let column = (CUBE_POS % tile_columns) * TILE + unit % TILE;
    if row < a.rows && column < b.rows {
        let (of_a, of_b) = (row * a.stride, column * b.stride);
        let mut sum = 0u32;
        let mut class = 0u32;
        let mut start = 0usize.runtime();
        while start < k {
            let end = start + min(chain, k - start);
            let mut running = 0u32;
            let mut at = start;
            while at < end {
                let block = Block::read(&a, &b, of_a + at, of_b + at, end - at, job);
                class |= block.class;
                running = add_block(&block.terms, running, job.accumulator, job.formats);
                at += comptime!(job.accumulator.products as usize).runtime();
            }
            sum = add(sum, running);
            start = end;
        }
        sums[row * b.rows + column] = with_class(sum, class);
    }
}
