//! What only AMX has: the order of its sums, tiles that are configured and released, and Linux's permission, which depends on the stacks of signal
//! handlers: it must be refused where one is too small for tiles, and one that is just large enough must do.
//!
//! Each case of stacks runs in a process of its own, since the permission is for good. On a machine without AMX they are skipped, and counted; tiles are
//! emulated there.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(unsafe_code, reason = "signal stacks and handlers are set by system calls")]

use std::sync::atomic::{AtomicUsize, Ordering};

use burn_fp8_core::Fp8Format::E4M3;
use burn_fp8_cpu::{Codes, Epilogue, Output, Unit, matmul};
use burn_fp8_test_support::{skip, with_variable};

use crate::common::{LAYOUTS, Operand, PAIRS, Random, Runner, alone, finite};

/// Runs a test alone in a process, which no variable tells its unit, where there is AMX.
fn with_amx(test: impl FnOnce()) {
    match Unit::available().contains(&Unit::AmxBf16) {
        true => with_variable("BURN_FP8_CPU_UNIT", "", || alone(test)),
        false => skip("no AMX"),
    }
}

/// Gives this thread a stack of this size for signal handlers, for good.
fn set_signal_stack(bytes: usize) {
    let memory = Box::leak(vec![0u8; bytes].into_boxed_slice());
    let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: bytes };
    // SAFETY: the memory is never freed; nothing is written through the second pointer.
    let result = unsafe { libc::sigaltstack(&raw const stack, std::ptr::null_mut()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// A product of ones, small enough to run on the calling thread.
fn product_is_exact(unit: Unit) {
    const SHAPE: [usize; 3] = [33, 47, 256];
    let [m, n, k] = SHAPE;
    let one = E4M3.encode(1.0, burn_fp8_core::Overflow::Saturate);
    let (a, b, mut c) = (vec![one; m * k], vec![one; k * n], vec![0f32; m * n]);
    let (lhs, rhs) = (Codes::rows(&a, E4M3, [m, k]), Codes::rows(&b, E4M3, [k, n]));
    matmul(unit, lhs, rhs, &Epilogue::scaled(1.0, 1.0), Output::F32(&mut c));
    assert!(c.iter().all(|c| *c == 256.0));
}

#[test]
fn a_signal_stack_that_is_too_small_means_the_next_unit() {
    with_amx(|| {
        set_signal_stack(libc::MINSIGSTKSZ);
        assert_eq!(Unit::expected(), Unit::AmxBf16);
        let unit = Unit::current();
        assert_ne!(unit, Unit::AmxBf16);
        assert_eq!(Unit::expected(), unit);
        let reasons = Unit::why_not_faster();
        assert!(reasons[0].starts_with("AMX-BF16: Linux refuses AMX"), "{reasons:?}");
        product_is_exact(unit);
    });
}

static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn handle(_: libc::c_int) {
    HANDLED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn signals_are_handled_on_the_smallest_stack_allowed() {
    with_amx(|| {
        // SAFETY: asks for a number.
        let smallest = unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize;
        assert!(smallest > 8 << 10, "room for tiles: {smallest}");
        set_signal_stack(smallest);
        // SAFETY: all zeros is a valid value; the handler does nothing but count.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()), 0);
        }
        assert_eq!(Unit::current(), Unit::AmxBf16);
        // SAFETY: names this thread, which outlives the other one.
        let this = unsafe { libc::pthread_self() };
        std::thread::scope(|scope| {
            let sender = scope.spawn(move || {
                for _ in 0..2000 {
                    // SAFETY: the thread waits for the end of this one.
                    unsafe { libc::pthread_kill(this, libc::SIGUSR1) };
                    std::thread::sleep(std::time::Duration::from_micros(50));
                }
            });
            while !sender.is_finished() {
                product_is_exact(Unit::AmxBf16);
            }
        });
        assert!(HANDLED.load(Ordering::Relaxed) > 0);
    });
}

/// The sum of products `a[l] · b[l]` as Intel's manual defines TDPBF16PS, for 32 of K at a time: fused products are summed from zero, those of even
/// elements and those of odd ones apart; both sums are added to each other, then to the tile. Subnormal results are zeros.
fn defined(a: impl Fn(usize) -> f32, b: impl Fn(usize) -> f32, k: usize) -> f32 {
    let flush = |x: f32| if x.is_subnormal() { 0f32.copysign(x) } else { x };
    (0..k).step_by(32).fold(0f32, |sum, start| {
        let mut halves = [0f32; 2];
        for l in start..start + 32 {
            let [a, b] = if l < k { [a(l), b(l)] } else { [0.0; 2] };
            halves[l % 2] = flush(a.mul_add(b, halves[l % 2]));
        }
        flush(sum + flush(halves[0] + halves[1]))
    })
}

/// On AMX, or where it is emulated: whatever is packed, cut and put aside on the way.
#[test]
fn sums_have_the_bits_of_their_definition() {
    let amx = |runner: &Runner| *runner != Runner::Unit(Unit::Avx512Bf16);
    let runner = Runner::all().into_iter().filter(amx).find(|r| *r != Runner::Unit(Unit::Portable));
    let Some(runner) = runner else {
        skip("no AMX, nor its emulation");
        return;
    };
    let mut random = Random(17);
    // More rows than those whose products need no tiles; whole tiles and parts of them, several blocks of K.
    for [m, n, k] in [[17, 5, 31], [33, 47, 257], [64, 96, 1100], [130, 33, 600]] {
        for [left, right] in PAIRS {
            let layouts = [random.pick(&LAYOUTS), random.pick(&LAYOUTS)];
            let lhs = Operand::random(&mut random, &finite(left), left, [m, k], layouts[0]);
            let rhs = Operand::random(&mut random, &finite(right), right, [k, n], layouts[1]);
            let y = runner.product(&lhs, &rhs, &Epilogue::scaled(3e-3, 0.7));
            for (at, y) in y.iter().enumerate() {
                let a = |l| left.decode(lhs.codes[at / n * k + l]);
                let b = |l| right.decode(rhs.codes[l * n + at % n]);
                let expected = defined(a, b, k) * (3e-3 * 0.7);
                assert_eq!(y.to_bits(), expected.to_bits(), "{m}×{n}×{k} {left} {right} [{at}]");
            }
        }
    }
}

/// Whoever runs next on a thread must find its tiles as they were: the emulation counts, and refuses to configure them twice.
#[cfg(target_env = "gnu")]
#[test]
fn every_task_releases_the_tiles_that_it_configures() {
    alone(|| {
        use crate::common::{Layout, PLAIN, emulated, exact, integers};
        if !emulated::ready() {
            skip("AMX is not emulated");
            return;
        }
        let pool = crate::common::pool(4);
        let mut random = Random(11);
        let [left, right] = PAIRS[1];
        // Two tasks, of two blocks of K; and one.
        for [m, n, k] in [[130, 520, 600], [9, 31, 40]] {
            let before = emulated::instructions();
            let lhs = Operand::random(&mut random, &integers(left), left, [m, k], Layout::Rows);
            let rhs = Operand::random(&mut random, &integers(right), right, [k, n], Layout::Rows);
            let y = pool.install(|| Runner::EmulatedAmx.product(&lhs, &rhs, &PLAIN));
            assert_eq!(exact(&lhs, &rhs).inexact(&y), None);
            assert!(emulated::instructions() > before, "AMX's code has run");
            assert_eq!(emulated::configured(), 0, "tiles are released");
        }
    });
}
