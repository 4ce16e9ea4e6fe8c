//! The simulated cuBLASLt against what mmaemu has computed, which was compared with cards: `tensor_cores` of burn-fp8-core. Its sums were written a
//! second time, in C++.

use burn_fp8_core::Fp8Format::{self, E4M3};
use burn_fp8_core::sums::{self, dot};
use burn_fp8_cublaslt::*;
use burn_fp8_test_support::Golden;

use crate::data::{Case, Inputs};
use crate::device::{Gpu, OnDevice};
use crate::model::accumulator;

/// Rows of `from` codes each, padded with zeros to `to`, and zero rows to a multiple of 16: cuBLASLt asks for it, and it changes no sum.
fn padded(codes: &[u8], from: usize, to: usize) -> Vec<u8> {
    let mut rows: Vec<u8> =
        codes.chunks(from).flat_map(|row| [row, &vec![0; to - from][..]].concat()).collect();
    rows.resize((rows.len() / to).next_multiple_of(16) * to, 0);
    rows
}

/// The first `n` elements of each of the first `m` rows of D, of so many bytes each.
fn multiply<const BYTES: usize>(
    gpu: &Gpu,
    problem: ScaledMatmul,
    inputs: &Inputs,
    [m, n]: [usize; 2],
) -> Vec<[u8; BYTES]> {
    let case = Case { alpha: 1.0, ..Case::new(problem) };
    let device = OnDevice::new(&case, inputs);
    // SAFETY: the buffers cover the product and live until the synchronization.
    unsafe { gpu.lt.run(&problem, &device.pointers, 1.0, 0.0) }.expect("a product");
    gpu.synchronize();
    let d = device.d.read();
    let (elements, _) = d.as_chunks();
    let rows = elements.chunks(problem.d.ld as usize).take(m);
    rows.flat_map(|row| row[..n].to_vec()).collect()
}

#[test]
#[ignore = "needs the simulated device: cargo xtask sim"]
fn sums_and_results_are_those_of_mmaemu_or_of_the_model() {
    let gpu = Gpu::new();
    let compute = gpu.lt.capability().compute;
    let accumulator = accumulator(compute).expect("a card whose sums are known");
    let card = match compute {
        ComputeCapability::SM_89 => Some("ada"),
        ComputeCapability::SM_90 => Some("hopper"),
        _ => None,
    };
    let golden = Golden::read(env!("CARGO_MANIFEST_DIR"), "tensor_cores");
    let (mut of_sums, mut of_results) = (0, 0);
    for case in golden.cases("cases") {
        let name = case["name"].as_str().expect("a name");
        let size = |key: &str| case[key].as_u64().expect("a size") as usize;
        let number = |key: &str| case[key].as_f64().expect("a number") as f32;
        let format = |key: &str| -> Fp8Format {
            case[key].as_str().expect("a format").parse().expect("one that is known")
        };
        let (formats, [m, n, k]) = ([format("a"), format("b")], ["m", "n", "k"].map(size));
        let [rows, columns, length] = [m, n, k].map(|size| size.next_multiple_of(16));
        let [a, b] = ["a", "b"].map(|operand| golden.u8s(&format!("{name}/{operand}")));
        let mut inputs = Inputs {
            a: padded(&a, k, length),
            b: padded(&b, k, length),
            c: vec![],
            c_bytes: vec![],
            bias: vec![],
            bias_bytes: vec![],
            scale_a: vec![1.0],
            scale_b: vec![1.0],
            inverse_scale_d: 1.0,
        };
        for (mode, accumulation, of_model) in [
            ("fast", Accumulation::Fast, sums::Accumulation::Fast),
            ("slow", Accumulation::Precise, sums::Accumulation::Split),
        ] {
            let [rows, columns, length] = [rows, columns, length].map(|size| size as u64);
            let [of_a, of_b] = formats;
            let problem = |d| ScaledMatmul {
                accumulation,
                ..ScaledMatmul::new(rows, columns, length, of_a, of_b, d)
            };
            [inputs.scale_a, inputs.scale_b] = [vec![1.0], vec![1.0]];
            let got = multiply(&gpu, problem(DataType::F32), &inputs, [m, n]);
            let got: Vec<u32> = got.into_iter().map(u32::from_le_bytes).collect();
            let of_card = |card: &str, of: &str| format!("{name}/{card}.{mode}{of}");
            let expected = match card {
                Some(card) => golden.u32s(&of_card(card, "")),
                None => {
                    let sum = |a, b| dot(accumulator, [a, b], formats, of_model, None).to_bits();
                    a.chunks(k).flat_map(|a| b.chunks(k).map(move |b| sum(a, b))).collect()
                }
            };
            assert_eq!(got, expected, "{name} {mode}");
            of_sums += got.len();
            let is_scaled = case["scaled"].as_bool().expect("a truth");
            let Some(card) = card.filter(|_| is_scaled) else { continue };
            let golden_of = |of: &str| of_card(card, of);
            [inputs.scale_a, inputs.scale_b] =
                ["scale_a", "scale_b"].map(|scale| vec![number(scale)]);
            let got = multiply(&gpu, problem(DataType::F32), &inputs, [m, n]);
            let got: Vec<u32> = got.into_iter().map(u32::from_le_bytes).collect();
            assert_eq!(got, golden.u32s(&golden_of(".f32")), "{name} {mode} f32");
            for (of, d) in [(".bf16", DataType::Bf16), (".f16", DataType::F16)] {
                let got = multiply(&gpu, problem(d), &inputs, [m, n]);
                let got: Vec<u16> = got.into_iter().map(u16::from_le_bytes).collect();
                assert_eq!(got, golden.u16s(&golden_of(of)), "{name} {mode} {of}");
            }
            inputs.inverse_scale_d = number("scale_result");
            let in_e4m3 = ScaledMatmul { scaled_d: true, ..problem(DataType::Fp8(E4M3)) };
            let got: Vec<[u8; 1]> = multiply(&gpu, in_e4m3, &inputs, [m, n]);
            assert_eq!(got.as_flattened(), golden.u8s(&golden_of(".e4m3fn")), "{name} {mode} E4M3");
            of_results += 4 * got.len();
        }
    }
    println!("{of_sums} sums and {of_results} results of {compute:?}");
    assert!(of_sums > 20_000 && (card.is_none() || of_results > 20_000));
}
