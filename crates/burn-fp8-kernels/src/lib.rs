//! FP8 quantization as CubeCL kernels, generic over the runtime.
//!
//! | function | what it does | launches |
//! |---|---|---|
//! | [`amax`] | the largest magnitude of a tensor | 2 |
//! | [`quantize`] | codes, their values or both, in row-major order | 3, or 1 with a given scale |
//! | [`quantize_matrix`] | padded codes of a matrix, of the transposed matrix or both | 3, or 1 with a given scale |
//! | [`quantize_dequantize`] | values times the scale, in one type of three | 1 |
//! | [`dequantize`] | codes to numbers, times a scale if wanted | 1 |
//! | [`quantize_blocks`] | codes, and a scale for each block of a matrix | 1 or 2 |
//! | [`dequantize_blocks`] | codes times the scales of their blocks | 1 |
//! | [`tile_e8m0`] | scales of MXFP8 as cuBLASLt reads them | 1 |
//! | [`rescale`] | a product of values times both scales, in one type of three | 1 |
//!
//! Tensors come as an [`Input`]: f32, f16 or bf16, of any shape and strides. Scales and amaxes stay on the device; nothing is read
//! back. Codes are bytes, and buffers of codes are whole u32 words, so that shading languages without bytes can write them.
//!
//! ```no_run
//! use burn_fp8_kernels::{Element, Input, KernelError, Layouts, ScaleRule, quantize_matrix};
//! use burn_fp8_core::{Fp8Format, Recipe};
//! use cubecl::prelude::*;
//! use cubecl::server::Handle;
//!
//! /// The codes of `x` `[M, K]` and those of `x` transposed.
//! fn both<R: Runtime>(
//!     client: &ComputeClient<R>,
//!     x: &Handle,
//!     [m, k]: [usize; 2],
//! ) -> Result<[Option<Handle>; 2], KernelError> {
//!     let input = Input { handle: x, shape: &[m, k], strides: &[k, 1], element: Element::Bf16 };
//!     let rule = ScaleRule::Current(Recipe::current());
//!     let x = quantize_matrix(client, &input, Fp8Format::E4M3, &rule, Layouts::Both)?;
//!     Ok([x.rows, x.transposed])
//! }
//! ```
//!
//! # Numbers
//! Codes, values, scales and amaxes are those of [`burn_fp8_core`], bit for bit but for payloads of NaN, where the device divides
//! f32 as IEEE 754 has it and keeps f32 subnormals: CUDA does, and Mesa's lavapipe, on which the tests run. Elsewhere a quotient
//! may be off by an ulp or two, and a code beside a tie by one; subnormal f32 may count as zero.
//!
//! All conversions between f32, f16, bf16 and FP8 are integer operations, so no device has to know the narrow types, and tests on
//! one device cover what runs on another. CUDA divides in another way than others, with the same results: see `bits::division`.
//!
//! # Features
//! None is needed by users. They are for the tests of this crate: with `wgpu` kernels run through WGSL, with `vulkan` through
//! SPIR-V; with `cuda` their CUDA C++ is compiled with NVRTC, and the test target `gpu` runs them on an NVIDIA GPU.

mod amax;
mod bits;
mod blocks;
mod dequantize;
mod element;
mod error;
mod launch;
mod layout;
mod matrix;
mod quantize;
mod reduce;
mod rescale;
mod scale;
mod strided;
mod tensor;
mod tile_e8m0;
mod unit;

pub use amax::{NonFinite, amax};
pub use blocks::{BlockCodes, QuantizedBlocks, dequantize_blocks, quantize_blocks};
pub use burn_fp8_core::{Layouts, PADDING};
pub use dequantize::dequantize;
pub use element::Element;
pub use error::KernelError;
pub use matrix::{QuantizedMatrix, quantize_matrix};
pub use quantize::{Outputs, Quantized, quantize, quantize_dequantize};
pub use rescale::rescale;
pub use scale::ScaleRule;
pub use tensor::{Input, Scalar};
pub use tile_e8m0::tile_e8m0;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
