//! Every check on CUDA, and what NVRTC makes of the kernels' CUDA C++, which needs no GPU.
//!
//! `cargo test -p burn-fp8-kernels --release --features cuda --test gpu -- --ignored --test-threads=1`

#[macro_use]
#[path = "../checks/mod.rs"]
mod checks;
mod nvrtc;

type TestRuntime = cubecl::cuda::CudaRuntime;

tests!(#[ignore = "needs an NVIDIA GPU"]);
