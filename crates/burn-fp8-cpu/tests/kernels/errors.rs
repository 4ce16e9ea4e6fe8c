//! What does not fit is refused with the numbers that do not fit; what is empty is a result all the same.

use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};
use burn_fp8_cpu::{
    Activation, BlockScales, Codes, Epilogue, OperandScales, Output, Powers, matmul_with_amax,
};
use burn_fp8_test_support::panic_of;

use crate::common::{FORMATS, PLAIN, Runner};

const HUGE: usize = usize::MAX;

/// Asserts that a call panics with a message that has all these parts.
#[track_caller]
fn refused(parts: &[&str], call: impl FnOnce()) {
    let message = panic_of(call);
    for part in parts {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

#[test]
fn codes_that_are_no_matrix_are_refused() {
    let codes = [0u8; 12];
    for format in FORMATS {
        refused(&["12 codes", "3 × 5"], || _ = Codes::rows(&codes, format, [3, 5]));
        refused(&["12 codes", "3 matrices 2 × 3"], || _ = Codes::batch(&codes, format, 3, [2, 3]));
        // 2^64 · 12 is 12 to a multiplication that wraps.
        refused(&["12 codes"], || _ = Codes::rows(&codes, format, [HUGE, HUGE]));
        refused(&["12 codes"], || _ = Codes::rows(&codes, format, [HUGE / 2 + 7, 2]));
        refused(&["12 codes"], || _ = Codes::batch(&codes, format, HUGE, [HUGE, 12]));
        // Rows overlap, or the last one ends beyond.
        refused(&["3 × 4", "stride of 3"], || _ = Codes::strided(&codes, format, [3, 4], 3));
        refused(&["3 × 4", "stride of 5"], || _ = Codes::strided(&codes, format, [3, 4], 5));
        refused(&["stride of"], || _ = Codes::strided(&codes, format, [3, 4], HUGE));
        refused(&["stride of"], || _ = Codes::strided(&codes, format, [HUGE, 4], 4));
        refused(&["stride of"], || _ = Codes::strided(&codes, format, [1, HUGE], HUGE));
    }
    let batch = Codes::batch(&codes, E4M3, 2, [2, 3]);
    refused(&["batch of 2", "broadcast"], || _ = batch.broadcast(2));
    refused(&["batch of 2"], || _ = batch.starting_at(&[0]));
    let matrix = Codes::strided(&codes, E4M3, [2, 3], 4);
    assert_eq!(matrix.starting_at(&[0, 5, 1]).shape(), [2, 3]);
    refused(&["2 × 3", "6"], || _ = matrix.starting_at(&[0, 6]));
    refused(&["2 × 3"], || _ = matrix.starting_at(&[HUGE]));
    assert_eq!(matrix.transpose().starting_at(&[5]).shape(), [3, 2]);
    refused(&["3 × 2"], || _ = matrix.transpose().starting_at(&[6]));
    // The last row needs no gap behind it.
    assert_eq!(Codes::strided(&codes, E4M3, [2, 4], 8).shape(), [2, 4]);
    assert_eq!(Codes::strided(&codes, E4M3, [1, 4], HUGE).shape(), [1, 4]);
}

#[test]
fn powers_that_do_not_fit_a_matrix_are_refused() {
    let codes = [0x38u8; 130];
    let zeros = [0i16; 12];
    for format in FORMATS {
        let matrix = Codes::rows(&codes, format, [2, 65]);
        let with = |exponents: &[i16], block| _ = matrix.with_powers(Powers { exponents, block });
        with(&zeros[..6], [1, 32]);
        for count in [0, 2, 4, 5, 7, 12] {
            let parts = [&*format!("{count} exponents"), "2 × 3 blocks 1 × 32", "2 × 65"];
            refused(&parts, || with(&zeros[..count], [1, 32]));
        }
        // Blocks of the transpose are another grid.
        let powers = Powers { exponents: &zeros[..6], block: [32, 1] };
        refused(&["6 exponents", "1 × 65 blocks 32 × 1"], || _ = matrix.with_powers(powers));
        assert_eq!(matrix.transpose().with_powers(powers).shape(), [65, 2]);
        with(&zeros[..1], [HUGE, HUGE]);
        for block in [[0, 32], [1, 0]] {
            let part = format!("{} × {}", block[0], block[1]);
            refused(&[&part], || with(&zeros[..6], block));
        }
        let lowest = Powers::lowest(format);
        for exponent in [1, i16::MAX, lowest - 1, i16::MIN] {
            let parts = [&*exponent.to_string(), &format!("{format} is not from {lowest} to 0")];
            refused(&parts, || with(&[0, exponent], [2, 64]));
        }
        with(&[0, lowest], [2, 64]);
        let powers = Powers { exponents: &zeros[..2], block: [1, 32] };
        let batch = Codes::batch(&codes[..4], format, 2, [2, 1]);
        refused(&["batch of 2", "powers"], || _ = batch.with_powers(powers));
        refused(&["batch of 0", "powers"], || _ = matrix.broadcast(0).with_powers(powers));
        let matrix = Codes::rows(&codes[..4], format, [2, 2]).with_powers(powers);
        refused(&["powers"], || _ = matrix.starting_at(&[0]));
    }
}

#[test]
fn blocks_that_begin_between_the_steps_of_a_product_are_refused() {
    let codes = [0x38u8; 130];
    let (lhs, rhs) =
        (Codes::rows(&codes, E4M3, [2, 65]), Codes::rows(&codes, E4M3, [2, 65]).transpose());
    for runner in Runner::all() {
        let mut y = [0f32; 4];
        for along in [1, 16, 31, 33, 65, 100] {
            let exponents = vec![0; 65usize.div_ceil(along)];
            let left = Powers { exponents: &exponents, block: [2, along] };
            let right = Powers { exponents: &exponents, block: [along, 2] };
            let parts = [&*format!("{along} elements along K"), "multiple of 32"];
            let (a, b) = (lhs.with_powers(left), rhs.with_powers(right));
            let part = ["left operand"];
            refused(&parts, || runner.run(a, rhs, &PLAIN, Output::F32(&mut y)));
            refused(&part, || runner.run(a, rhs, &PLAIN, Output::F32(&mut y)));
            refused(&parts, || runner.run(lhs, b, &PLAIN, Output::F32(&mut y)));
            refused(&["right operand"], || runner.run(lhs, b, &PLAIN, Output::F32(&mut y)));
        }
        assert_eq!(y, [0.0; 4], "nothing is written");
    }
}

#[test]
fn scales_of_blocks_that_do_not_fit_are_refused() {
    let codes = [0x38; 64 * 64];
    let scales = [1.0; 64 * 64];
    let matrix = Codes::rows(&codes, E4M3, [64, 64]);
    let with = |block: [usize; 2]| {
        let count: usize = block.map(|size| 64usize.div_ceil(size)).iter().product();
        matrix.with_scales(BlockScales { scales: &scales[..count], block })
    };
    let powers = matrix.with_powers(Powers { exponents: &[0; 128], block: [1, 32] });
    let one = "one operand has scales of blocks";
    for runner in Runner::all() {
        for (lhs, rhs, part) in [
            (with([1, 32]), matrix, one),
            (matrix, with([32, 1]), one),
            (powers, with([32, 1]), one),
            (with([1, 32]), with([64, 1]), "32 elements along K in the left operand and 64 in"),
            (with([1, 16]), with([16, 1]), "no multiple of 32"),
        ] {
            let mut y = [0f32; 64 * 64];
            refused(&[part], || runner.run(lhs, rhs, &PLAIN, Output::F32(&mut y)));
        }
    }
    let few = BlockScales { scales: &scales[..5], block: [1, 32] };
    refused(&["5 scales for 64 × 2 blocks"], || _ = matrix.with_scales(few));
    refused(&["powers or scales does not begin anew"], || _ = with([1, 32]).starting_at(&[0]));
    let batch = Codes::batch(&codes, E4M3, 2, [64, 32]);
    refused(&["batch of 2", "scales of blocks"], || _ = batch.with_scales(few));
}

#[test]
fn operands_that_do_not_fit_each_other_are_refused() {
    let codes = [0x38u8; 12];
    let mut y = [0f32; 16];
    let [wide, tall] = [[3, 4], [4, 3]].map(|shape| Codes::rows(&codes, E4M3, shape));
    for runner in Runner::all() {
        refused(&["3 × 4", "4 and 3"], || runner.run(wide, wide, &PLAIN, Output::F32(&mut y)));
        let (a, b) = (wide.broadcast(2), tall.broadcast(3));
        refused(&["2 matrices", "by 3"], || runner.run(a, b, &PLAIN, Output::F32(&mut y)));
        let a = wide.broadcast(0);
        refused(&["0 matrices", "by 1"], || runner.run(a, tall, &PLAIN, Output::F32(&mut [])));
        assert_eq!(y, [0.0; 16], "nothing is written");
    }
}

#[test]
fn outputs_of_another_length_are_refused_whatever_their_type() {
    let codes = [0x38u8; 12];
    let (a, b) = (Codes::rows(&codes, E4M3, [3, 4]), Codes::rows(&codes, E5M2, [4, 3]));
    for runner in Runner::all() {
        for len in [0, 8, 10, 12] {
            let (mut y, mut codes) = (vec![0f32; len], vec![0; len]);
            let (mut bf16, mut f16) = (vec![half::bf16::ZERO; len], vec![half::f16::ZERO; len]);
            let parts = [&*format!("the output has {len} elements"), "3 × 3"];
            refused(&parts, || runner.run(a, b, &PLAIN, Output::F32(&mut y)));
            refused(&parts, || runner.run(a, b, &PLAIN, Output::Add(&mut y)));
            refused(&parts, || runner.run(a, b, &PLAIN, Output::Bf16(&mut bf16)));
            refused(&parts, || runner.run(a, b, &PLAIN, Output::F16(&mut f16)));
            let fp8 = Output::Fp8 { codes: &mut codes, format: E4M3, factor: 1.0 };
            refused(&parts, || runner.run(a, b, &PLAIN, fp8));
        }
        let mut y = [0f32; 18];
        let (a, b) = (a.broadcast(HUGE), b.broadcast(HUGE));
        refused(&["18 elements"], || runner.run(a, b, &PLAIN, Output::F32(&mut y)));
    }
}

#[test]
fn scales_and_biases_of_another_length_are_refused() {
    let codes = [0x38u8; 12];
    let (a, b) = (Codes::rows(&codes, E4M3, [2, 6]), Codes::rows(&codes[..6], E4M3, [6, 1]));
    let (a, b) = (a.broadcast(3), b.broadcast(3));
    let ones = [1f32; 9];
    for runner in Runner::all() {
        let mut y = [0f32; 6];
        for len in [0, 2, 3, 6] {
            let epilogue = Epilogue { bias: Some(&ones[..len]), ..PLAIN };
            let parts = [&*format!("bias has {len} elements"), "1 columns"];
            refused(&parts, || runner.run(a, b, &epilogue, Output::F32(&mut y)));
        }
        for (lhs, rhs, name) in [
            (0, 1, "0 scales of the left"),
            (1, 1, "1 scales of the left"),
            (3, 1, "3 scales of the left"),
            (4, 1, "4 scales of the left"),
            (7, 3, "7 scales of the left"),
            (2, 0, "0 scales of the right"),
            (6, 2, "2 scales of the right"),
            (6, 6, "6 scales of the right"),
        ] {
            let scales = OperandScales::Rows { lhs: &ones[..lhs], rhs: &ones[..rhs] };
            let epilogue = Epilogue { scales, ..PLAIN };
            refused(&[name], || runner.run(a, b, &epilogue, Output::F32(&mut y)));
        }
        assert_eq!(y, [0.0; 6], "nothing is written");
        for (lhs, rhs) in [(2, 1), (6, 1), (2, 3), (6, 3)] {
            let scales = OperandScales::Rows { lhs: &ones[..lhs], rhs: &ones[..rhs] };
            runner.run(a, b, &Epilogue { scales, ..PLAIN }, Output::F32(&mut y));
            assert_eq!(y, [6.0; 6]);
        }
    }
}

#[test]
fn products_without_elements_are_empty() {
    let codes = [0x38u8; 20];
    let matrix = |format: Fp8Format, shape: [usize; 2]| {
        Codes::rows(&codes[..shape[0] * shape[1]], format, shape)
    };
    for runner in Runner::all() {
        for [m, n, k] in [[0, 5, 4], [4, 0, 5], [0, 0, 3], [0, 0, 0], [0, 4, 0], [4, 0, 0]] {
            let (bias, ones) = (vec![1f32; n], vec![1f32; m]);
            let scales = OperandScales::Rows { lhs: &ones, rhs: &bias };
            let epilogue = Epilogue { scales, bias: Some(&bias), activation: Activation::Gelu };
            for epilogue in [epilogue, PLAIN] {
                let (lhs, rhs) = (matrix(E4M3, [m, k]), matrix(E5M2, [k, n]));
                runner.run(lhs, rhs, &epilogue, Output::F32(&mut []));
                let (lhs, rhs) = (matrix(E4M3, [k, m]), matrix(E5M2, [n, k]));
                let (lhs, rhs) = (lhs.transpose().broadcast(3), rhs.transpose().broadcast(3));
                runner.run(lhs, rhs, &epilogue, Output::Add(&mut []));
                if let Runner::Unit(unit) = runner {
                    let amax = matmul_with_amax(unit, lhs, rhs, &epilogue, Output::F16(&mut []));
                    assert_eq!(amax, 0.0);
                }
            }
        }
        let (lhs, rhs) = (matrix(E4M3, [3, 4]).broadcast(0), matrix(E4M3, [4, 3]).broadcast(0));
        runner.run(lhs, rhs, &PLAIN, Output::F32(&mut []));
        runner.run(matrix(E4M3, [3, 4]).starting_at(&[]), rhs, &PLAIN, Output::F32(&mut []));
    }
}

/// Shapes whose sizes are no numbers of elements, of matrices without elements.
#[test]
fn empty_products_may_be_as_long_as_they_like() {
    let empty = |batch, shape| Codes::batch(&[], E4M3, batch, shape);
    for runner in Runner::all() {
        for (batch, [m, n, k]) in [
            (1, [HUGE, 0, 0]),
            (1, [0, HUGE, 0]),
            (1, [0, 0, HUGE]),
            (HUGE, [0, 0, 0]),
            (0, [2, 3, HUGE]),
        ] {
            let (lhs, rhs) = (empty(batch, [m, k]), empty(batch, [k, n]));
            runner.run(lhs, rhs, &PLAIN, Output::F32(&mut []));
        }
    }
}

#[test]
fn products_without_depth_are_the_epilogue_of_zeros() {
    // Few rows have a way of their own.
    for shape in [[37, 70], [16, 70], [1, 5], [4, 600]] {
        without_depth(shape);
    }
}

fn without_depth([m, n]: [usize; 2]) {
    let batch = 3;
    let bias: Vec<_> = (0..n).map(|x| x as f32 - 20.0).collect();
    let relu: Vec<f32> = bias.iter().map(|x| x.max(0.0)).collect();
    let ones = vec![f32::MAX; batch * m];
    let columns = vec![f32::MAX; n];
    for runner in Runner::all() {
        for scales in [PLAIN.scales, OperandScales::Rows { lhs: &ones, rhs: &columns }] {
            let epilogue = Epilogue { scales, bias: Some(&bias), activation: Activation::Relu };
            let (lhs, rhs) =
                (Codes::batch(&[], E4M3, batch, [m, 0]), Codes::rows(&[], E4M3, [0, n]));
            let transposed = Codes::batch(&[], E5M2, batch, [0, m]).transpose();
            let other = Codes::rows(&[], E5M2, [n, 0]).transpose();
            for (lhs, rhs) in [(lhs, rhs.broadcast(batch)), (transposed, other.broadcast(batch))] {
                // Whatever was there, and whatever the thread's memory still holds.
                let mut y = vec![f32::NAN; batch * m * n];
                runner.run(lhs, rhs, &epilogue, Output::F32(&mut y));
                assert!(y.chunks(n).all(|row| row == relu), "{runner:?}");
                runner.run(lhs, rhs, &epilogue, Output::Add(&mut y));
                assert!(y.chunks(n).flatten().zip(relu.iter().cycle()).all(|(y, x)| *y == 2.0 * x));
                if let Runner::Unit(unit) = runner {
                    let amax = matmul_with_amax(unit, lhs, rhs, &epilogue, Output::F32(&mut y));
                    assert_eq!(amax, relu[n - 1]);
                }
                runner.run(lhs, rhs, &PLAIN, Output::F32(&mut y));
                assert!(y.iter().all(|y| *y == 0.0), "{runner:?}");
            }
        }
    }
}
