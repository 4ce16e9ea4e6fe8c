//! The kernels: tiles of 128 × 128 elements, read along rows.

use cubecl::prelude::*;

use super::job::Job;
use super::tile::{self, Tile, store_columns, store_rows};
use crate::bits::{self, Quad};
use crate::element::Element;
use crate::reduce::raise;
use crate::scale::scale_of;
use crate::strided::offset_of;

/// Rows of 16-byte units. `W` words of row codes are stored at a time.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn quantize_unit_tiles<W: Size>(
    input: &Array<Quad>,
    scale: &ComptimeOption<Array<f32>>,
    codes: &mut ComptimeOption<Array<Vector<u32, W>>>,
    transposed: &mut ComptimeOption<Array<Quad>>,
    amax: &mut ComptimeOption<Array<Atomic<u32>>>,
    given: f32,
    rows: usize,
    columns: usize,
    tile_rows: usize,
    tile_columns: usize,
    sizes: Sequence<usize>,
    strides: Sequence<usize>,
    #[comptime] job: Job,
) {
    if CUBE_POS < tile_rows * tile_columns {
        let width = comptime!(job.element.per_unit());
        let tile = Tile::new(rows, columns, tile_columns, width);
        let divisor = bits::divisor(scale_of(scale, given), job.encoding.division);
        let mut turned = SharedMemory::<u32>::new(comptime!(tile::shared_words(job.transposed)));
        let mut largest = 0u32;
        #[unroll]
        for step in 0..comptime!(tile::steps(width)) {
            let row = tile.row(step);
            let mut loaded = Sequence::<Quad>::new();
            #[unroll]
            for i in 0..4usize {
                let mut words = Quad::new(0u32);
                if row + i < rows && tile.column < columns {
                    words = input[(offset_of(row + i, &sizes, &strides) + tile.column) / width];
                }
                loaded.push(words);
            }
            let found = store_rows::<W>(
                &loaded,
                &tile,
                &divisor,
                codes,
                &mut turned,
                step,
                job.element,
                job,
            );
            largest = max(largest, found);
        }
        store_columns(&tile, &turned, transposed);
        if comptime!(job.measure) {
            raise(amax, largest, &mut turned);
        }
    }
}

/// Elements of any layout.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn quantize_element_tiles(
    input: &Array<u32>,
    scale: &ComptimeOption<Array<f32>>,
    codes: &mut ComptimeOption<Array<Vector<u32, Const<1>>>>,
    transposed: &mut ComptimeOption<Array<Quad>>,
    amax: &mut ComptimeOption<Array<Atomic<u32>>>,
    given: f32,
    rows: usize,
    columns: usize,
    tile_rows: usize,
    tile_columns: usize,
    sizes: Sequence<usize>,
    strides: Sequence<usize>,
    column_stride: usize,
    #[comptime] job: Job,
) {
    if CUBE_POS < tile_rows * tile_columns {
        let tile = Tile::new(rows, columns, tile_columns, 4usize);
        let divisor = bits::divisor(scale_of(scale, given), job.encoding.division);
        let mut turned = SharedMemory::<u32>::new(comptime!(tile::shared_words(job.transposed)));
        let mut largest = 0u32;
        #[unroll]
        for step in 0..comptime!(tile::steps(4)) {
            let row = tile.row(step);
            let mut loaded = Sequence::<Quad>::new();
            #[unroll]
            for i in 0..4usize {
                let mut words = Quad::new(0u32);
                if row + i < rows {
                    let start = offset_of(row + i, &sizes, &strides);
                    #[unroll]
                    for j in 0..4usize {
                        let column = tile.column + j;
                        if column < columns {
                            let index = start + column * column_stride;
                            words[j] = bits::read_element(input, index, job.element);
                        }
                    }
                }
                loaded.push(words);
            }
            let found = store_rows::<Const<1>>(
                &loaded,
                &tile,
                &divisor,
                codes,
                &mut turned,
                step,
                Element::F32,
                job,
            );
            largest = max(largest, found);
        }
        store_columns(&tile, &turned, transposed);
        if comptime!(job.measure) {
            raise(amax, largest, &mut turned);
        }
    }
}
