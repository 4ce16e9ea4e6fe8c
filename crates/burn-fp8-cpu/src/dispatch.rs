//! Which way a product goes: by the unit, and by how many rows it has.
#![allow(unsafe_code, reason = "instructions are used after they were found")]

use core::sync::atomic::AtomicU32;

use crate::codes::Codes;
use crate::epilogue::{Epilogue, Finish, Output};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use crate::kernel::amx::Amx;
#[cfg(target_arch = "x86_64")]
use crate::kernel::avx512::Avx512;
use crate::numbers::Numbers;
use crate::packable::Packable;
use crate::portable;
use crate::product::{Product, check, sizes};
use crate::unit::Unit;
#[cfg(target_arch = "x86_64")]
use crate::{gemm, small};

/// Multiplies `lhs` `[M, K]` by `rhs` `[K, N]`, or each matrix of two batches, on rayon's current pool.
///
/// Codes are multiplied exactly, as are the powers of two of their blocks ([`Powers`](crate::Powers)), and summed in f32; NaN and infinities
/// come out as IEEE has it. The results of a unit do not depend on the number of threads. `Portable` decodes both operands to f32 and
/// multiplies them with the crate `gemm`.
///
/// # Panics
/// If the machine lacks the unit, or shapes, scales, bias and output do not fit each other.
#[track_caller]
pub fn matmul(
    unit: Unit,
    lhs: Codes<'_>,
    rhs: Codes<'_>,
    epilogue: &Epilogue<'_>,
    output: Output<'_>,
) {
    run(unit, lhs, rhs, epilogue, output, None);
}

/// [`matmul`], and the largest magnitude of the result before it is multiplied by the factor of an FP8 output and rounded.
///
/// NaN, else infinity, if there is one; 0 of an empty result.
///
/// # Panics
/// As [`matmul`].
#[track_caller]
pub fn matmul_with_amax(
    unit: Unit,
    lhs: Codes<'_>,
    rhs: Codes<'_>,
    epilogue: &Epilogue<'_>,
    output: Output<'_>,
) -> f32 {
    let amax = AtomicU32::new(0);
    run(unit, lhs, rhs, epilogue, output, Some(&amax));
    f32::from_bits(amax.into_inner())
}

/// Multiplies numbers, rounded to bf16: `lhs` `[M, K]` by `rhs` `[K, N]`, summed in f32, on rayon's current pool.
///
/// Units flush subnormal numbers to zero, `Portable` does not, which rounds to the same numbers otherwise and multiplies them with the crate `gemm`. The results of a
/// unit do not depend on the number of threads.
///
/// # Panics
/// If the machine lacks the unit, or shapes and output do not fit each other.
#[track_caller]
pub fn matmul_in_bf16(unit: Unit, lhs: Numbers<'_>, rhs: Numbers<'_>, mut output: Output<'_>) {
    if let Err(error) = unit.require() {
        panic!("{error}");
    }
    let [m, n, k] = sizes(lhs.shape(), rhs.shape());
    let product = Product { lhs, rhs, batch: 1, m, n, k, blocks: None };
    let finish = Finish::new(&Epilogue::scaled(1.0, 1.0), &mut output, 1, [m, n], None);
    // SAFETY: `require` has found the instructions.
    unsafe { in_blocks(unit, &product, &finish) };
}

#[track_caller]
fn run(
    unit: Unit,
    lhs: Codes<'_>,
    rhs: Codes<'_>,
    epilogue: &Epilogue<'_>,
    mut output: Output<'_>,
    amax: Option<&AtomicU32>,
) {
    if let Err(error) = unit.require() {
        panic!("{error}");
    }
    let product = check(lhs, rhs);
    let shape = [product.m, product.n];
    let finish = Finish::new(epilogue, &mut output, lhs.batch, shape, amax);
    #[cfg(target_arch = "x86_64")]
    if unit != Unit::Portable && small::suits(unit, &product) {
        // SAFETY: `require` has found the instructions: AMX is not taken without those of AVX-512 BF16.
        return unsafe { small::run(&product, &finish) };
    }
    // SAFETY: `require` has found the instructions.
    unsafe { in_blocks(unit, &product, &finish) };
}

/// Multiplies block by block.
///
/// # Safety
/// The machine must have the unit, and permit it.
unsafe fn in_blocks<O: Packable>(unit: Unit, product: &Product<'_, O>, finish: &Finish<'_>) {
    match unit {
        Unit::Portable => portable::run(product, finish),
        // SAFETY: the caller's promise.
        #[cfg(target_arch = "x86_64")]
        Unit::Avx512Bf16 => unsafe { gemm::run(product, finish, || Avx512::new()) },
        // SAFETY: the caller's promise; a task makes one kernel, which never leaves it.
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        Unit::AmxBf16 => unsafe { gemm::run(product, finish, || Amx::new()) },
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
        _ => unreachable!("`require` refuses the units of other machines"),
    }
}

/// [`matmul`] on AMX's tiles for any number of rows, without asking whether the machine has them: for tests that emulate their instructions.
///
/// # Safety
/// Something executes the instructions of AMX, and the CPU has AVX-512 F, BW, DQ, VL and VBMI.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[doc(hidden)]
#[track_caller]
pub unsafe fn matmul_on_tiles(
    lhs: Codes<'_>,
    rhs: Codes<'_>,
    epilogue: &Epilogue<'_>,
    mut output: Output<'_>,
) {
    let product = check(lhs, rhs);
    let finish = Finish::new(epilogue, &mut output, lhs.batch, [product.m, product.n], None);
    // SAFETY: the caller's promise; a task makes one kernel, which never leaves it.
    unsafe { gemm::run(&product, &finish, || Amx::new()) };
}
