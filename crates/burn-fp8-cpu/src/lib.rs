//! Kernels on the host: FP8 conversions, products of FP8 codes on the matrix units of CPUs, and what lies between products.
//!
//! Every number of E4M3 and E5M2 is a bf16 number, and the product of two such numbers is exact in f32. So a unit that multiplies bf16 and
//! sums in f32 multiplies FP8 codes with the numerics of FP8 emulation: exact codes, f32 sums in some order.
//!
//! - [`Unit`]: what a CPU multiplies on: AMX, AVX-512 BF16, or f32 on anything. Found at run time, can be forced.
//! - [`Instructions`]: which vectors kernels use that run on any CPU.
//! - [`Codes`]: a matrix of codes, in rows or transposed, one or a batch of them.
//! - [`Powers`]: scales of blocks of it that are powers of two, as in MXFP8; [`BlockScales`]: others.
//! - [`matmul`]: the product of two, with an [`Epilogue`]: scales, bias, activation; into f32, bf16, f16 or codes.
//! - [`matmul_in_bf16`]: the product of two matrices of [`Numbers`], f32 or bf16, rounded to bf16.
//! - [`attention()`], [`attention_backward`]: attention as one operation, with [`Attention`] for its options; without codes.
//! - [`slice`](mod@slice): numbers to codes and back, with a scale; [`slice::blocks`]: with a scale for each block.
//! - [`matmul_rows`], [`matmul_codes`], [`matmul_block_codes`]: products of rows in f32 and a matrix of codes, decoded while they are multiplied.
//! - [`moments`]: steps of optimizers, and how they keep their moments in FP8.
//! - [`pointwise()`], [`pointwise_backward`]: GELU, SiLU and dropout, whose masks [`dropout`] computes; [`gated`], [`gated_backward`].
//! - [`normalize`], [`normalize_backward`]: layer normalization, and that by the root of the mean square.
//! - [`decoder`]: a layer of a decoder, and its parts.
//!
//! Codes stay codes, one byte each, until they are multiplied: blocks of them are decoded to bf16 in the cache.
//!
//! ```
//! use burn_fp8_core::Fp8Format::E4M3;
//! use burn_fp8_cpu::{Codes, Epilogue, Output, Unit, matmul};
//!
//! // 1 and 2 in E4M3.
//! let (one, two) = (0x38, 0x40);
//! let (a, b) = ([one, two], [two, two, one, one]);
//! let mut c = [0f32; 2];
//! // [1 2] · [2 2; 1 1] = [4 4], then × 0.5.
//! matmul(
//!     Unit::current(),
//!     Codes::rows(&a, E4M3, [1, 2]),
//!     Codes::rows(&b, E4M3, [2, 2]),
//!     &Epilogue::scaled(0.5, 1.0),
//!     Output::F32(&mut c),
//! );
//! assert_eq!(c, [2.0, 2.0]);
//! ```

mod attention;
mod blocks;
mod codes;
pub mod decoder;
mod dispatch;
pub mod dropout;
mod epilogue;
#[cfg(target_arch = "x86_64")]
mod gemm;
#[cfg(target_arch = "x86_64")]
mod kernel;
#[cfg(target_arch = "x86_64")]
mod memory;
pub mod moments;
mod norm;
mod numbers;
#[cfg(target_arch = "x86_64")]
mod pack;
mod packable;
mod pointwise;
mod portable;
mod product;
mod round;
mod rows;
mod share;
pub mod slice;
#[cfg(target_arch = "x86_64")]
mod small;
mod softmax;
mod special;
pub mod sums;
mod unit;

pub use attention::{
    Attention, AttentionPrecision, Broadcast, Gradients, HeadNumbers, Heads, HeadsMut, attention,
    attention_backward,
};
pub use blocks::{BlockScales, Powers};
pub use codes::Codes;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
#[doc(hidden)]
pub use dispatch::matmul_on_tiles;
pub use dispatch::{matmul, matmul_in_bf16, matmul_with_amax};
pub use epilogue::{Activation, Epilogue, OperandScales, Output};
pub use norm::{Normalization, normalize, normalize_backward};
pub use numbers::Numbers;
pub use pointwise::{gated, gated_backward, pointwise, pointwise_backward};
pub use rows::{Rows, matmul_block_codes, matmul_codes, matmul_rows};
pub use softmax::{softmax, softmax_backward};
pub use unit::{Instructions, Unit, UnitError, cpu_name, threads};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
