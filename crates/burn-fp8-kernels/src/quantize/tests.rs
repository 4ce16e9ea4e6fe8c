//! What kernels do on CUDA only, on a device that is not CUDA's.

use cubecl::prelude::*;
use cubecl::wgpu::{WgpuDevice, WgpuRuntime};

use super::*;
use crate::bits::Division;
use crate::tensor::Scalar;
use burn_fp8_core::slice;
use burn_fp8_test_support::skip_unless_required;

/// Whether `a·b + c` has one rounding on this device.
#[cube(launch)]
fn fuse(terms: &Array<f32>, sum: &mut Array<f32>) {
    sum[0] = fma(terms[0], terms[1], terms[2]);
}

pub(crate) fn fuses(client: &ComputeClient<WgpuRuntime>) -> bool {
    let a = 1.0 + f32::EPSILON;
    let terms: Vec<u8> = [a, a, -1.0].iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
    let (terms, sum) = (client.create_from_slice(&terms), client.empty(4));
    fuse::launch(
        client,
        CubeCount::Static(1, 1, 1),
        CubeDim::new_1d(1),
        array(&terms),
        array(&sum),
    );
    let sum = client.read_one(sum).expect("the device can be read");
    let sum = f32::from_le_bytes(sum[..4].try_into().expect("four bytes"));
    assert!(sum != 0.0, "the kernel did not run");
    sum == a.mul_add(a, -1.0)
}

#[test]
fn divisions_by_reciprocals_give_the_codes_of_the_core() {
    let client = WgpuRuntime::client(&WgpuDevice::default());
    if !fuses(&client) {
        let why = "this device rounds a fused multiply-add twice";
        return skip_unless_required("BURN_FP8_REQUIRE_FMA", why);
    }
    // Every exponent and sign, the highest six bits of the mantissa, and the lowest around every tie.
    let bits = (0..1u32 << 15).flat_map(|high| {
        [0, 1, 0xFFFF, 0x1_0000, 0x1_0001, 0x1_FFFF].map(|low| (high << 17) | low)
    });
    let x: Vec<f32> = bits.map(f32::from_bits).collect();
    let bytes: Vec<u8> = x.iter().flat_map(|x| x.to_le_bytes()).collect();
    let handle = client.create_from_slice(&bytes);
    let input = Input { handle: &handle, shape: &[x.len()], strides: &[1], element: Element::F32 };
    for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
        for overflow in [Overflow::Saturate, Overflow::SaturateFinite, Overflow::NonSaturating] {
            // In the range of reciprocals, at its ends, and beyond.
            let ends = [2f32.powi(-80), 2f32.powi(100)];
            let beyond = [ends[0].next_down(), ends[1].next_up(), f32::MIN_POSITIVE, f32::MAX];
            let scales = [1.0, 0.1, 3.7e-3, 0.999_999_94, 1.999_999_9, 7.3e-20, 1e15, 1e30];
            for scale in scales.into_iter().chain(ends).chain(beyond) {
                let chosen = Chosen { scale: Scalar::Host(scale), amax: None, measure: false };
                let job = Job {
                    element: Element::F32,
                    encoding: Encoding { format, overflow, division: Division::Reciprocal },
                    codes: true,
                    values: None,
                    measure: false,
                };
                let [codes, _] = launch(&client, &input, &chosen, job).expect("valid");
                let codes = client.read_one(codes.expect("asked for")).expect("readable");
                let mut expected = vec![0; x.len()];
                slice::encode(&x, scale, format, overflow, &mut expected);
                for i in 0..x.len() {
                    assert!(
                        codes[i] == expected[i],
                        "{format} {overflow:?} {:e} ({:#x}) / {scale:e}: {:#x}, not {:#x}",
                        x[i],
                        x[i].to_bits(),
                        codes[i],
                        expected[i]
                    );
                }
            }
        }
    }
}
