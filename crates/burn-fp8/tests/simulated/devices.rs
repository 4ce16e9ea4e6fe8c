//! Two devices in one process. Burn's `Learner` over several devices is not among it: CubeCL 0.10 moves tensors between devices by NCCL, and without
//! it panics on its own thread ("Communicator for this ID should exist"), as seen here; what is read then is what nothing has written.

use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{Tensor, TensorData};
use burn_cubecl::cubecl::cuda::CudaDevice;
use burn_fp8::{Execution, Fp8Matmul};
use burn_fp8_test_support::faults::with_variable;

use crate::common::{Outer, values};
use crate::{Fused, SHAPE, Unfused, config, device, expected, integers, is_native, product};

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
    let tensor = |seed, shape: [usize; 2]| {
        let data = TensorData::new(integers(seed, shape[0] * shape[1]), shape);
        Tensor::<B, 2>::from_data(data, &device(index))
    };
    let (x, w) = (tensor(1, [m, k]).require_grad(), tensor(2, [k, n]).require_grad());
    let grads = (x.clone().matmul(w.clone()) * tensor(3, [m, n])).sum().backward();
    [x, w].map(|leaf| values(leaf.grad(&grads).expect("tracked")))
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

macro_rules! on_two_devices {
    ($($check:ident),*) => {
        mod unfused { $(on_two_devices! { test $check, super::Unfused })* }
        mod fused { $(on_two_devices! { test $check, super::Fused })* }
    };
    (test $check:ident, $backend:ty) => {
        #[test]
        #[ignore = "needs the simulated device: cargo xtask sim"]
        fn $check() {
            super::with_variable(super::DEVICES, "2", super::$check::<$backend>);
        }
    };
}
on_two_devices!(multiply_alike, train_alike);
