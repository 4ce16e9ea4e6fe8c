//! Many products one after the other on one pool: each is right, and memory does not grow.

use crate::common::{FORMATS, PAIRS, PLAIN, Random, Runner, alone, integers, number, pool};
use burn_fp8_cpu::{Codes, Output};

const PRODUCTS: usize = 100_000;

/// After these, all scratch memory has the size that it keeps.
const WARM_UP: usize = 5_000;

/// Bytes that memory may grow by afterwards, for what allocators and other tests of this process do.
const GROWTH: usize = 32 << 20;

/// Multiplications of a product; of one in `LARGE`, so many that threads share it.
const WORK: usize = 40_000;
const LARGE: usize = 200;
const LARGE_WORK: usize = 3_000_000;

/// AMX emulated takes part in one of as many.
const SIMULATED: usize = 64;

/// Resident memory, where Linux tells.
fn resident_bytes() -> Option<usize> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    // A page has 4 KiB at least; where it has more, growth counts for less than it is.
    Some(pages.split(' ').nth(1)?.parse::<usize>().ok()? * 4096)
}

/// The integers that codes stand for.
fn integers_of(codes: &[u8], table: &[i32; 256]) -> Vec<i32> {
    codes.iter().map(|code| table[usize::from(*code)]).collect()
}

/// The product in integers, whose sums f32 holds exactly.
fn product(a: &[i32], b: &[i32], [m, n, k]: [usize; 3], sums: &mut Vec<i32>) {
    sums.clear();
    sums.resize(m * n, 0);
    for row in 0..m {
        let sums = &mut sums[row * n..][..n];
        for (a, b) in a[row * k..][..k].iter().zip(b.chunks_exact(n)) {
            sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
        }
    }
}

fn shape(random: &mut Random, index: usize) -> [usize; 3] {
    let mut left = if index.is_multiple_of(LARGE) { LARGE_WORK } else { WORK };
    let mut shape = [0; 3];
    let first = random.below(3);
    for dimension in [first, (first + 1) % 3, (first + 2) % 3] {
        // Small values more often: the largest is some power of two.
        let limit = left.min(2 << random.below(11));
        shape[dimension] = 1 + random.below(limit.min(left));
        if index.is_multiple_of(LARGE) {
            shape[dimension] = (left / 4).clamp(1, 100 + random.below(80));
        }
        left = (left / shape[dimension]).max(1);
    }
    shape
}

#[test]
fn a_hundred_thousand_products_are_exact_and_leave_no_memory_behind() {
    alone(|| {
        let pool = pool(4);
        let (units, emulated) = (Runner::units(), Runner::emulated());
        let kinds = FORMATS.map(|format| {
            let value = |code: usize| match number(code as u8, format) {
                x if x.is_finite() => x as i32,
                _ => 0,
            };
            (integers(format), std::array::from_fn::<_, 256, _>(value))
        });
        let kind = |format| &kinds[FORMATS.iter().position(|other| *other == format).unwrap()];
        let mut random = Random(1);
        let (mut sums, mut transposed) = (Vec::new(), Vec::new());
        let (mut before, mut work) = (None, 0);
        for index in 0..PRODUCTS {
            if index == WARM_UP {
                before = resident_bytes();
            }
            let [m, n, k] = shape(&mut random, index);
            work += m * n * k;
            let [left, right] = random.pick(&PAIRS);
            let ((a_codes, a_table), (b_codes, b_table)) = (kind(left), kind(right));
            let (a, b) = (random.picks(a_codes, m * k), random.picks(b_codes, k * n));
            product(&integers_of(&a, a_table), &integers_of(&b, b_table), [m, n, k], &mut sums);
            let lhs = Codes::rows(&a, left, [m, k]);
            let rhs = match index % 2 {
                0 => Codes::rows(&b, right, [k, n]),
                _ => {
                    transposed.clear();
                    transposed.extend((0..n * k).map(|index| b[index % k * n + index / k]));
                    Codes::rows(&transposed, right, [n, k]).transpose()
                }
            };
            let mut runner = units[index % units.len()];
            if index % SIMULATED == 1 && m * n * k <= WORK {
                runner = emulated.unwrap_or(runner);
            }
            let mut y = vec![f32::NAN; m * n];
            pool.install(|| runner.run(lhs, rhs, &PLAIN, Output::F32(&mut y)));
            let wrong = y.iter().zip(&sums).position(|(y, sum)| *y != *sum as f32);
            assert_eq!(wrong, None, "product {index}: {runner:?} {m}×{n}×{k} {left} {right}");
        }
        let growth =
            before.zip(resident_bytes()).map(|(before, after)| after.saturating_sub(before));
        let billions = work as f64 / 1e9;
        println!(
            "{PRODUCTS} products, {billions:.2} billion multiplications, memory grew by {growth:?} bytes"
        );
        assert!(growth.is_none_or(|bytes| bytes < GROWTH), "memory grew by {growth:?} bytes");
        assert!(growth.is_some() || !cfg!(target_os = "linux"), "Linux tells");
    });
}
