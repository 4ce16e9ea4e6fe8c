//! AMX and its stand-in in plain Rust give the same bits: what tests of the stand-in show on other machines holds on AMX.

mod common;

use burn_fp8_cpu::{Epilogue, Output, Unit, matmul, matmul_on_simulated_tiles};
use common::{FORMATS, LAYOUTS, Operand, PLAIN, Random, finite};

#[test]
fn amx_gives_the_bits_of_its_simulation() {
    if !Unit::available().contains(&Unit::AmxBf16) {
        burn_fp8_test_support::skip("no AMX");
        return;
    }
    let mut random = Random(17);
    // More rows than those whose products need no tiles; whole tiles and parts of them, several blocks of K.
    for [m, n, k] in [[17, 5, 31], [33, 47, 257], [64, 96, 1100], [130, 33, 600]] {
        for lhs_format in FORMATS {
            for rhs_format in FORMATS {
                let layouts = [random.pick(&LAYOUTS), random.pick(&LAYOUTS)];
                let codes = [finite(lhs_format), finite(rhs_format)];
                let lhs = Operand::random(&mut random, &codes[0], lhs_format, [m, k], layouts[0]);
                let rhs = Operand::random(&mut random, &codes[1], rhs_format, [k, n], layouts[1]);
                for epilogue in [PLAIN, Epilogue::scaled(3e-3, 0.7)] {
                    let mut y = [vec![f32::NAN; m * n], vec![f32::NAN; m * n]];
                    let [amx, simulated] = &mut y;
                    matmul(Unit::AmxBf16, lhs.view(), rhs.view(), &epilogue, Output::F32(amx));
                    let output = Output::F32(simulated);
                    matmul_on_simulated_tiles(lhs.view(), rhs.view(), &epilogue, output);
                    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
                    let differing = amx.iter().zip(&*simulated).filter(|pair| differs(*pair));
                    assert_eq!(differing.count(), 0, "{m}×{n}×{k} {lhs_format} {rhs_format}");
                }
            }
        }
    }
}
