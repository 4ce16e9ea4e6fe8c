//! The maximum over a cube.

use cubecl::prelude::*;

use crate::launch::CUBE;

/// The largest value of all units of a cube, in all units. Every unit of the cube must come here.
#[cube]
pub(crate) fn cube_max(value: u32) -> u32 {
    let mut values = SharedMemory::<u32>::new(comptime!(CUBE as usize));
    cube_max_in(&mut values, value)
}

/// As [`cube_max`], in shared memory that may still be read: a word for each unit of the cube.
#[cube]
pub(crate) fn cube_max_in(values: &mut SharedMemory<u32>, value: u32) -> u32 {
    let unit = UNIT_POS as usize;
    sync_cube();
    values[unit] = value;
    sync_cube();
    let mut half = comptime!(CUBE as usize / 2).runtime();
    while half > 0 {
        if unit < half {
            values[unit] = max(values[unit], values[unit + half]);
        }
        sync_cube();
        half /= 2;
    }
    values[0]
}

/// Raises `amax` to the largest value of all units of a cube. Every unit of the cube must come here.
#[cube]
pub(crate) fn raise(
    amax: &mut ComptimeOption<Array<Atomic<u32>>>,
    value: u32,
    values: &mut SharedMemory<u32>,
) {
    #[comptime]
    if let ComptimeOption::Some(amax) = amax {
        let value = cube_max_in(values, value);
        // Reading first spares most cubes a write to a place that all of them write to.
        if UNIT_POS == 0 && value > amax[0].load() {
            amax[0].fetch_max(value);
        }
    }
}
