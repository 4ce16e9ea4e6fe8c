//! Finding the plan of a native product, which the calling thread does each time: no GPU is needed.

use std::collections::HashMap;
use std::hint::black_box;

use burn_fp8_core::Fp8Format::E4M3;
use burn_fp8_cublaslt::cache::PlanCache;
use burn_fp8_cublaslt::{DataType, ScaledMatmul};

use crate::harness::{Options, Side};
use crate::rows::Row;

/// The name of the group.
pub const GROUP: &str = "plans";

/// Products in the cache, each of which is looked up once a run: a thousandth of the milliseconds of a run is a lookup.
const PRODUCTS: u64 = 1000;

/// Compares lookups with those of a map of the standard library.
pub fn run(options: &Options) -> Vec<Row> {
    let keys: Vec<_> = (1..=PRODUCTS)
        .map(|m| {
            let output = DataType::Bf16;
            ScaledMatmul::new(m, 4096, 16 * (1 + m % 37), E4M3, E4M3, output)
        })
        .collect();
    let mut cache = PlanCache::default();
    let mut map = HashMap::new();
    for key in &keys {
        cache.get_or_try_insert(key, || Ok::<_, ()>(())).expect("made without an error");
        map.insert(*key, ());
    }
    let mut lookups = || {
        for key in &keys {
            let found = cache.get_or_try_insert(black_box(key), || Err(()));
            assert!(black_box(found).is_ok(), "every product is in the cache");
        }
    };
    let mut reference = || {
        for key in &keys {
            assert!(black_box(map.get(black_box(key))).is_some(), "every product is in the map");
        }
    };
    let subject = Side::new("1000 plans, looked up", &mut lookups);
    vec![options.compare((GROUP, 1, None), subject, Side::new("std HashMap", &mut reference))]
}
