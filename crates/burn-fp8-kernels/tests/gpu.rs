//! Every check on CUDA.
//!
//! `cargo test -p burn-fp8-kernels --release --features cuda --test gpu -- --ignored --test-threads=1`

#[macro_use]
mod checks;

type TestRuntime = cubecl::cuda::CudaRuntime;

tests!(#[ignore = "needs an NVIDIA GPU"]);
