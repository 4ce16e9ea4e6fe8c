//! A tile of AMX and its product, as Intel's manual defines them: for the emulation of instructions, and for the tests inside of the crate, which take
//! this file, too.

pub const ROWS: usize = 16;
pub const COLUMNS: usize = 16;

/// Numbers of 32 bits: pairs of bf16, or sums.
pub type Tile = [[u32; COLUMNS]; ROWS];

fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// The two bf16 of an element of a tile, as f32: the lower bits first.
fn pair(element: u32) -> [f32; 2] {
    [element << 16, element & 0xFFFF_0000].map(|bits| flush(f32::from_bits(bits)))
}

/// TDPBF16PS: for each pair of products, those of first and of second elements are summed apart, fused; both sums are added, then the tile's.
///
/// Each sum is rounded to the nearest, subnormal numbers are zeros. Where there is AMX, `sums_have_the_bits_of_their_definition` finds these bits.
#[inline(always)]
pub fn dot(sums: &mut Tile, left: &Tile, right: &Tile) {
    for (sums, left) in sums.iter_mut().zip(left) {
        let mut halves = [[0f32; COLUMNS]; 2];
        for (left, right) in left.iter().zip(right) {
            let a = pair(*left);
            for (column, b) in right.iter().enumerate() {
                let b = pair(*b);
                for half in 0..2 {
                    let sum = &mut halves[half][column];
                    *sum = flush(a[half].mul_add(b[half], *sum));
                }
            }
        }
        for (column, sum) in sums.iter_mut().enumerate() {
            let both = flush(halves[0][column] + halves[1][column]);
            *sum = flush(flush(f32::from_bits(*sum)) + both).to_bits();
        }
    }
}
