//! What only a simulated CUDA device shows of the native path: faults on demand, several devices, and that its events are needed.
//!
//! `cargo xtask sim` runs it; nothing of it needs, or has run on, a GPU.

/// Makes tests of checks that are generic over the backend, for CUDA without and with Fusion.
macro_rules! on_simulated {
    ($checks:tt) => {
        crate::common::tests_on!(unfused: crate::Unfused, $checks,
            needs "the simulated device: cargo xtask sim");
        crate::common::tests_on!(fused: burn::backend::Cuda, $checks,
            needs "the simulated device: cargo xtask sim");
    };
}

mod devices;
mod faults;
mod order;

use burn_cubecl::cubecl::cuda::CudaDevice;

use crate::Unfused;
use crate::common::*;
use crate::support::integers;

/// CUDA with Fusion.
type Fused = burn::backend::Cuda;

/// M, K, N: none a multiple of 16.
const SHAPE: [usize; 3] = [19, 40, 33];

/// Every product in FP8. Small integers have exact codes.
fn config(execution: Execution) -> Fp8Config {
    every_matmul()
        .with_recipe(Recipe { power_of_two: true, ..Recipe::current() })
        .with_execution(execution)
}

/// The same on a device, and what ran it.
fn product<B: Fp8Matmul>(config: &Fp8Config, device: &B::Device) -> (Vec<f32>, Report) {
    let [m, k, n] = SHAPE;
    let tensor = |seed, shape: [usize; 2]| {
        let data = TensorData::new(integers(seed, shape[0] * shape[1], 2), shape);
        Tensor::<Fp8Backend<B>, 2>::from_data(data, device)
    };
    config.scope(|| trace(|| values(tensor(1, [m, k]).matmul(tensor(2, [k, n])))))
}

/// A product of integers from -2 to 2 on the host.
fn expected() -> Vec<f32> {
    let [m, k, n] = SHAPE;
    let [x, w] = [(1, m * k), (2, k * n)].map(|(seed, count)| wide(&integers(seed, count, 2)));
    Exact::product(&x, &w, SHAPE).values.into_iter().map(|y| y as f32).collect()
}

fn is_native(report: &Report) -> bool {
    assert_eq!(report.products.len(), 1, "{report}");
    matches!(report.products[0].ran, Implementation::Native { .. })
}

fn device(index: usize) -> CudaDevice {
    CudaDevice { index }
}
