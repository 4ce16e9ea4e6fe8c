//! What several test files need.

use burn_fp8_core::Fp8Format::{E4M3, E5M2};
use burn_fp8_cublaslt::*;
pub use burn_fp8_test_support::FORMATS;

pub const TYPES: [DataType; 5] =
    [DataType::Bf16, DataType::F16, DataType::F32, DataType::Fp8(E4M3), DataType::Fp8(E5M2)];
pub const ACTIVATIONS: [Activation; 3] = [Activation::None, Activation::Relu, Activation::Gelu];
pub const SCALES: [Scales; 12] = [
    Scales::PerTensor,
    Scales::PerRow,
    Scales::Blocks { a: BlockScale::Row128, b: BlockScale::Row128 },
    Scales::Blocks { a: BlockScale::Row128, b: BlockScale::Square128 },
    Scales::Blocks { a: BlockScale::Square128, b: BlockScale::Row128 },
    Scales::Blocks { a: BlockScale::Square128, b: BlockScale::Square128 },
    Scales::None,
    Scales::Blocks { a: BlockScale::Row32, b: BlockScale::Row32 },
    Scales::Blocks { a: BlockScale::Row32, b: BlockScale::Row128 },
    Scales::Blocks { a: BlockScale::Row128, b: BlockScale::Row32 },
    Scales::Blocks { a: BlockScale::Row32, b: BlockScale::Square128 },
    Scales::Blocks { a: BlockScale::Square128, b: BlockScale::Row32 },
];

pub const fn capability(major: u32, minor: u32, library: (u32, u32)) -> Capability {
    Capability {
        compute: ComputeCapability { major, minor },
        library: LibraryVersion { major: library.0, minor: library.1, patch: 0 },
        driver: DriverVersion { major: 13, minor: 0 },
    }
}

/// Hopper with everything.
pub const HOPPER: Capability = capability(9, 0, (13, 0));

/// Every combination of what has a value of `None` and some values.
pub fn options<T: Copy>(values: &[T]) -> Vec<Option<T>> {
    std::iter::once(None).chain(values.iter().copied().map(Some)).collect()
}

/// All combinations of types and epilogues for one scale mode, valid or not, without the flags of D.
pub fn combinations(scales: Scales, mut visit: impl FnMut(ScaledMatmul)) {
    let (m, n, k) = (32, 64, 128);
    for a in FORMATS {
        for b in FORMATS {
            for d in TYPES {
                for c in options(&TYPES) {
                    for bias in options(&TYPES) {
                        for activation in ACTIVATIONS {
                            let mut problem = ScaledMatmul::new(m, n, k, a, b, d);
                            problem.scales = scales;
                            problem.c = c.map(|dtype| Matrix { dtype, ld: n });
                            problem.epilogue = Epilogue { activation, bias };
                            visit(problem);
                        }
                    }
                }
            }
        }
    }
}

/// All four combinations of the flags of D.
pub fn with_flags(problem: ScaledMatmul) -> impl Iterator<Item = ScaledMatmul> {
    (0..4).map(move |bits| {
        let [scaled_d, amax_d] = [1, 2].map(|bit| bits & bit != 0);
        ScaledMatmul { scaled_d, amax_d, ..problem }
    })
}
