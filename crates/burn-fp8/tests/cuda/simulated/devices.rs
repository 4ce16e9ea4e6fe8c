//! Two devices in one process. Burn's `Learner` over several devices is not among it: CubeCL 0.10 moves tensors between devices by NCCL, and without
//! it panics on its own thread ("Communicator for this ID should exist"), as seen here; what is read then is what nothing has written.

use burn_cubecl::cubecl::cuda::CudaDevice;
use burn_fp8_test_support::with_variable;

use super::{SHAPE, config, device, expected, is_native, product};
use crate::common::*;
use crate::support::integers;

const DEVICES: &str = "SIM_DEVICES";

/// Products on both, from one thread and from two at a time.
fn multiply_alike<B: Fp8Matmul<Device = CudaDevice>>() {
    let check = |index| {
        let (values, report) = product::<B>(&config(Execution::Native), &device(index));
        assert!(is_native(&report), "{report}");
        assert_eq!(values, expected(), "device {index}");
    };
    for index in [0, 1, 0, 1] {
        check(index);
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || (0..10).for_each(|_| check(thread % 2)));
        }
    });
}

/// Gradients of the product of two integer matrices.
fn gradients<B: AutodiffBackend<Device = CudaDevice>>(index: usize) -> [Vec<f32>; 2] {
    let [m, k, n] = SHAPE;
    let tensors = [(1, [m, k]), (2, [k, n]), (3, [m, n])].map(|(seed, shape)| {
        let data = TensorData::new(integers(seed, shape[0] * shape[1], 2), shape);
        Tensor::<B, 2>::from_data(data, &device(index))
    });
    let [_, dx, dw] = step(tensors).map(values);
    [dx, dw]
}

/// Two threads that train at once, each on its device.
fn train_alike<B>()
where
    B: Fp8Matmul<Device = CudaDevice>,
    Outer<B>: AutodiffBackend<Device = CudaDevice>,
{
    let expected = config(Execution::FakeQuantized).scope(|| gradients::<Outer<B>>(0));
    assert!(expected.iter().all(|grad| grad.iter().any(|value| *value != 0.0)));
    std::thread::scope(|scope| {
        for index in 0..2 {
            let expected = &expected;
            scope.spawn(move || {
                config(Execution::Native).scope(|| {
                    for _ in 0..10 {
                        assert_eq!(&gradients::<Outer<B>>(index), expected, "device {index}");
                    }
                });
            });
        }
    });
}

fn multiply_alike_on_two<B: Fp8Matmul<Device = CudaDevice>>() {
    with_variable(DEVICES, "2", multiply_alike::<B>);
}

fn train_alike_on_two<B>()
where
    B: Fp8Matmul<Device = CudaDevice>,
    Outer<B>: AutodiffBackend<Device = CudaDevice>,
{
    with_variable(DEVICES, "2", train_alike::<B>);
}

on_simulated!([multiply_alike_on_two, train_alike_on_two]);
