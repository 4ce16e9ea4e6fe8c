//! The plan cache: equal products hit, every field of them counts, and it does not grow without end.

use std::cell::Cell;

use burn_fp8_core::Fp8Format::E4M3;
use burn_fp8_cublaslt::cache::{CAPACITY, PlanCache};
use burn_fp8_cublaslt::*;

fn key() -> ScaledMatmul {
    let mut key = ScaledMatmul::new(32, 64, 128, E4M3, E4M3, DataType::Fp8(E4M3));
    key.c = Some(Matrix { dtype: DataType::F16, ld: 64 });
    key.epilogue = Epilogue { activation: Activation::Gelu, bias: Some(DataType::F16) };
    key
}

/// All that the types of a product compare.
#[test]
fn all_of_the_key_counts() {
    let edits: [fn(&mut ScaledMatmul); 4] = [
        |_| {},
        |key| key.shape.k += 1,
        |key| key.epilogue.bias = None,
        |key| key.alignment.bias = 16,
    ];
    let keys = edits.map(|edit| {
        let mut key = key();
        edit(&mut key);
        key
    });
    let mut cache = PlanCache::default();
    for (mut value, key) in keys.iter().enumerate() {
        assert_eq!(cache.get_or_try_insert(key, || Ok::<_, ()>(value)), Ok(&mut value));
    }
    assert_eq!((cache.hits(), cache.misses(), cache.len()), (0, 4, 4));
    for (mut value, key) in keys.iter().enumerate() {
        assert_eq!(cache.get_or_try_insert(key, || Err("made again")), Ok(&mut value));
    }
    assert_eq!((cache.hits(), cache.misses()), (4, 4));
}

#[test]
fn errors_are_not_kept() {
    let mut cache = PlanCache::default();
    assert!(cache.is_empty());
    assert_eq!(cache.get_or_try_insert(&key(), || Err("transient")), Err("transient"));
    assert!(cache.is_empty());
    let made = Cell::new(0);
    let make = || {
        made.set(made.get() + 1);
        Ok::<_, ()>(made.get())
    };
    assert_eq!(cache.get_or_try_insert(&key(), make), Ok(&mut 1));
    assert_eq!(cache.get_or_try_insert(&key(), make), Ok(&mut 1));
}

#[test]
fn what_was_used_longest_ago_is_forgotten() {
    let mut cache = PlanCache::default();
    let key = |m: usize| {
        let mut key = key();
        key.shape.m = m as u64;
        key
    };
    for m in 0..CAPACITY.get() {
        cache.get_or_try_insert(&key(m), || Ok::<_, ()>(m)).unwrap();
    }
    // Used again, so that the second one is the oldest.
    assert_eq!(cache.get_or_try_insert(&key(0), || Err(())), Ok(&mut 0));
    cache.get_or_try_insert(&key(CAPACITY.get()), || Ok::<_, ()>(1)).unwrap();
    assert_eq!(cache.len(), CAPACITY.get());
    assert_eq!(cache.get_or_try_insert(&key(0), || Err("forgotten")), Ok(&mut 0));
    assert_eq!(cache.get_or_try_insert(&key(1), || Err("forgotten")), Err("forgotten"));
}
