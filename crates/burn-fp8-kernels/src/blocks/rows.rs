//! Blocks of one row that lie side by side in memory, in whole 16-byte units: measured and encoded in one read.

use cubecl::prelude::*;

use super::rule::{Factors, Request, Rule, factors, scale_bits};
use crate::amax::{NonFinite, counted};
use crate::bits::{self, Encoding, Quad};
use crate::element::Element;
use crate::launch::{CUBE, Words, array, cube_dim, grid};
use crate::layout::{Strided, View};
use crate::unit::{packed, quantize_unit};

/// What a kernel does, known when it is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Job {
    pub(super) element: Element,
    pub(super) encoding: Encoding,
    pub(super) rule: Rule,
    /// How many units of a cube share a block.
    team: usize,
    /// How many loads each of them has in flight.
    loads: usize,
}

impl Job {
    /// Where blocks are those of rows, and a few units of a cube can share one.
    pub(super) fn new(request: &Request<'_>) -> Option<Self> {
        const MOST_LOADS: usize = 4;
        const LARGEST_TEAM: usize = 32;
        let Request { input, block: [_, block], blocks, encoding, rule, .. } = *request;
        let element = input.element;
        if blocks.block[0] > 1 || !View::new(input).in_units(input) {
            return None;
        }
        let units = block / element.per_unit();
        let suits = block.is_multiple_of(element.per_unit()) && units.is_power_of_two();
        let loads = units.min(MOST_LOADS);
        let job = suits.then(|| Self { element, encoding, rule, team: units / loads, loads })?;
        (job.team <= LARGEST_TEAM).then_some(job)
    }
}

pub(super) fn launch<R: Runtime>(
    client: &ComputeClient<R>,
    request: &Request<'_>,
    job: Job,
    [codes, scales]: [&Words; 2],
) {
    let Request { input, blocks, format, recipe, address, .. } = *request;
    let per_unit = input.element.per_unit();
    let view = View::new(input);
    // SAFETY: `Input::check` holds the tensor to its buffer, and only units of rows that there are are read; the outputs were made
    // for the codes of all of these, and for the scales of all blocks.
    #[allow(unsafe_code, reason = "indices are checked once, where it costs nothing")]
    unsafe {
        encode_row_blocks::launch_unchecked(
            client,
            grid(client, (blocks.count() * job.team).div_ceil(CUBE as usize)),
            cube_dim(),
            address,
            per_unit / 4,
            array(input.handle),
            codes.arg(),
            scales.arg(),
            factors(format, recipe),
            blocks.count(),
            blocks.grid()[1],
            view.columns.0 / per_unit,
            view.rows.arg(),
            job,
        );
    }
}

/// Codes row by row, `W` words at a time, and a scale for each block.
///
/// The units of a block read side by side, and hold what they read until all of them know its scale.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn encode_row_blocks<W: Size>(
    input: &Array<Quad>,
    codes: &mut Array<Vector<u32, W>>,
    scales: &mut Array<u32>,
    factors: Factors,
    blocks: usize,
    blocks_of_row: usize,
    columns: usize,
    rows: Strided,
    #[comptime] job: Job,
) {
    let (team, loads) = comptime!((job.team, job.loads));
    let per_unit = comptime!(job.element.per_unit());
    let block = ABSOLUTE_POS / team;
    let member = UNIT_POS % comptime!(team as u32);
    let row = block / blocks_of_row;
    let first = (block % blocks_of_row) * comptime!(team * loads) + member as usize;
    let start = rows.offset_of(row) / per_unit;
    let mut loaded = Sequence::<Quad>::new();
    #[unroll]
    for i in 0..loads {
        let column = first + comptime!(i * team).runtime();
        let mut words = Quad::new(0u32);
        if block < blocks && column < columns {
            words = input[start + column];
        }
        loaded.push(words);
    }
    let mut amax = 0u32;
    #[unroll]
    for i in 0..loads {
        let magnitudes = bits::magnitudes(*loaded.index(i), job.element);
        amax = max(amax, counted(&magnitudes, NonFinite::Excluded));
    }
    if comptime!(team > 1) {
        let mut found = SharedMemory::<u32>::new(comptime!(CUBE as usize));
        found[UNIT_POS as usize] = amax;
        sync_cube();
        let of_team = (UNIT_POS - member) as usize;
        #[unroll]
        for i in 0..team {
            amax = max(amax, found[of_team + i]);
        }
    }
    let scale = scale_bits(amax, &factors, job.rule);
    if block < blocks && member == 0 {
        scales[block] = scale;
    }
    let divisor = bits::divisor(f32::reinterpret(scale), job.encoding.division);
    #[unroll]
    for i in 0..loads {
        let column = first + comptime!(i * team).runtime();
        let words = *loaded.index(i);
        let quantized = quantize_unit(words, &divisor, job.element, job.encoding, false);
        if block < blocks && column < columns {
            codes[row * columns + column] = packed(&quantized, words, job.element);
        }
    }
}
