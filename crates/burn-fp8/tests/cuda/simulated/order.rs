//! A product between operations of another stream, whose memory is reused at once: `cargo xtask sim` also runs it with the events of the
//! context switched off, one after the other, and the simulation has to complain.

use burn_cubecl::cubecl::cuda::CudaDevice;

use super::{config, device, is_native};
use crate::common::*;
use crate::support::integers;

/// Operands that are made by kernels, multiplied, freed, and whose memory is written again; the result is read by a kernel.
fn between_kernels<B: Fp8Matmul<Device = CudaDevice>>() {
    let size = 48;
    let half = |seed| {
        let data = TensorData::new(integers(seed, size * size, 2), [size, size]);
        Tensor::<Fp8Backend<B>, 2>::from_data(data, &device(0))
    };
    let (x, w) = (half(1), half(2));
    config(Execution::Native).scope(|| {
        for _ in 0..3 {
            let (y, report) = trace(|| {
                let (x, w) = (x.clone() + x.clone(), w.clone() + w.clone());
                let y = x.matmul(w);
                let overwrite =
                    Tensor::<Fp8Backend<B>, 2>::full([size, size], f32::NAN, &device(0)) * 2.0;
                drop(overwrite);
                values(y * 0.25)
            });
            assert!(is_native(&report));
            let sum: f32 = (0..size)
                .map(|i| integers(1, size * size, 2)[i] * integers(2, size * size, 2)[i * size])
                .sum();
            assert_eq!(y[0], sum);
        }
    });
}

on_simulated!([between_kernels]);
