//! The plan cache: equal keys hit, every field of the key counts, and it does not grow without end.

mod common;

use std::cell::Cell;

use burn_fp8_core::Fp8Format::{E4M3, E5M2};
use burn_fp8_cublaslt::cache::{CAPACITY, Key, PlanCache};
use burn_fp8_cublaslt::*;
use common::HOPPER;

fn key() -> Key {
    let bias = Some(Bias { dtype: DataType::F16, batch_stride: 64 });
    let kind = AuxKind::GeluInput { dtype: DataType::Fp8(E4M3), scaled: false, amax: false };
    let aux = Some(Aux { kind, ld: 64, batch_stride: 2048 });
    let mut problem = ScaledMatmul::new(32, 64, 128, E4M3, E4M3, DataType::Fp8(E4M3)).batched(2);
    problem.c = Some(Matrix { dtype: DataType::F16, ld: 64, batch_stride: 2048 });
    problem.epilogue = Epilogue { activation: Activation::Gelu, bias, aux };
    Key { problem, capability: HOPPER, workspace: 1 << 20 }
}

/// One change for each field of the key, in the order of the structs. Destructuring makes a new field fail to compile here.
fn changes() -> Vec<Key> {
    let Key { problem, capability, workspace: _ } = key();
    let ScaledMatmul {
        shape: Shape { m: _, n: _, k: _, batch: _ },
        a: Operand { format: _, ld: _, batch_stride: _ },
        b: Operand { .. },
        c: _,
        d: Matrix { dtype: _, ld: _, batch_stride: _ },
        scales: _,
        scaled_d: _,
        amax_d: _,
        epilogue: Epilogue { activation: _, bias: _, aux: _ },
        accumulation: _,
        alignment: Alignment { a: _, b: _, c: _, d: _, bias: _, aux: _ },
    } = problem;
    let Capability {
        compute: ComputeCapability { major: _, minor: _ },
        library: LibraryVersion { major: _, minor: _, patch: _ },
        driver: DriverVersion { major: _, minor: _ },
    } = capability;
    let edits: Vec<fn(&mut Key)> = vec![
        |k| k.problem.shape.m += 1,
        |k| k.problem.shape.n += 1,
        |k| k.problem.shape.k += 1,
        |k| k.problem.shape.batch += 1,
        |k| k.problem.a.format = E5M2,
        |k| k.problem.a.ld += 1,
        |k| k.problem.a.batch_stride += 1,
        |k| k.problem.b.format = E5M2,
        |k| k.problem.b.ld += 1,
        |k| k.problem.b.batch_stride += 1,
        |k| k.problem.c = None,
        |k| k.problem.c.as_mut().unwrap().dtype = DataType::Bf16,
        |k| k.problem.c.as_mut().unwrap().ld += 1,
        |k| k.problem.c.as_mut().unwrap().batch_stride += 1,
        |k| k.problem.d.dtype = DataType::Fp8(E5M2),
        |k| k.problem.d.ld += 1,
        |k| k.problem.d.batch_stride += 1,
        |k| k.problem.scales = Scales::PerRow,
        |k| k.problem.scales = common::SCALES[3],
        |k| k.problem.scales = common::SCALES[4],
        |k| k.problem.scales = Scales::None,
        |k| k.problem.scaled_d = true,
        |k| k.problem.amax_d = true,
        |k| k.problem.epilogue.activation = Activation::Relu,
        |k| k.problem.epilogue.bias = None,
        |k| k.problem.epilogue.bias.as_mut().unwrap().dtype = DataType::Bf16,
        |k| k.problem.epilogue.bias.as_mut().unwrap().batch_stride += 1,
        |k| k.problem.epilogue.aux = None,
        |k| k.problem.epilogue.aux.as_mut().unwrap().kind = AuxKind::ReluMask,
        |k| k.problem.epilogue.aux.as_mut().unwrap().ld += 1,
        |k| k.problem.epilogue.aux.as_mut().unwrap().batch_stride += 1,
        |k| {
            k.problem.epilogue.aux.as_mut().unwrap().kind =
                AuxKind::GeluInput { dtype: DataType::F16, scaled: false, amax: false };
        },
        |k| {
            k.problem.epilogue.aux.as_mut().unwrap().kind =
                AuxKind::GeluInput { dtype: DataType::Fp8(E4M3), scaled: true, amax: false };
        },
        |k| {
            k.problem.epilogue.aux.as_mut().unwrap().kind =
                AuxKind::GeluInput { dtype: DataType::Fp8(E4M3), scaled: false, amax: true };
        },
        |k| k.problem.accumulation = Accumulation::Fast,
        |k| k.problem.alignment.a = 16,
        |k| k.problem.alignment.b = 16,
        |k| k.problem.alignment.c = 16,
        |k| k.problem.alignment.d = 16,
        |k| k.problem.alignment.bias = 16,
        |k| k.problem.alignment.aux = 16,
        |k| k.capability.compute.major += 1,
        |k| k.capability.compute.minor += 1,
        |k| k.capability.library.major += 1,
        |k| k.capability.library.minor += 1,
        |k| k.capability.library.patch += 1,
        |k| k.capability.driver.major += 1,
        |k| k.capability.driver.minor += 1,
        |k| k.workspace += 1,
    ];
    edits
        .into_iter()
        .map(|edit| {
            let mut key = key();
            edit(&mut key);
            key
        })
        .collect()
}

#[test]
fn every_field_of_the_key_counts() {
    let mut cache = PlanCache::default();
    let keys: Vec<_> = [key()].into_iter().chain(changes()).collect();
    for (value, key) in keys.iter().enumerate() {
        assert_eq!(cache.get_or_try_insert(key, || Ok::<_, ()>(value)), Ok(&mut value.clone()));
    }
    assert_eq!((cache.hits(), cache.misses(), cache.len()), (0, keys.len() as u64, keys.len()));
    for (value, key) in keys.iter().enumerate() {
        let found = cache.get_or_try_insert(key, || Err("made again"));
        assert_eq!(found, Ok(&mut value.clone()));
    }
    assert_eq!((cache.hits(), cache.misses()), (keys.len() as u64, keys.len() as u64));
}

#[test]
fn errors_are_not_kept_and_insertions_replace() {
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
    cache.insert(key(), 7);
    assert_eq!(cache.get_or_try_insert(&key(), make), Ok(&mut 7));
}

#[test]
fn what_was_used_longest_ago_is_forgotten() {
    let mut cache = PlanCache::default();
    let key = |m: usize| {
        let mut key = key();
        key.problem.shape.m = m as u64;
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
