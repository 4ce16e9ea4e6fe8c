//! Products by PyTorch.

use burn::tensor::FloatDType;
use burn_fp8::{Activation, Fp8Format::E4M3, Fp8Matmul};

use super::{Case, File, TOLERANCE, bf16_bits, bf16_order};
use crate::common::exact::Sums;
use crate::common::{assert_close, golden};

/// Every product of PyTorch.
pub fn products_of_torch<B: Fp8Matmul>() {
    let file = File::open();
    for case in file.golden.list("torch") {
        let out = golden::dtype(&case["out"]);
        let biased = case["bias"].as_bool().expect("a flag");
        let case = Case::<B>::load(&file, &case, [E4M3; 2], false);
        let d = case.float(out, biased, Activation::None);
        let data = file.data(format!("{}/d", case.name));
        let what = format!("{} of torch", case.name);
        match out {
            FloatDType::BF16 => {
                let expected = bf16_bits(&data);
                assert_eq!(d.len(), expected.len(), "{what}");
                for (index, (d, expected)) in d.iter().zip(&expected).enumerate() {
                    let apart = bf16_order(*d).abs_diff(bf16_order(*expected));
                    assert!(apart <= 1, "{what}[{index}]: {d} instead of {expected}");
                }
            }
            _ => {
                let expected: Vec<f32> = data.to_vec().expect("f32");
                assert_close(&d, &expected, TOLERANCE, &what);
                case.exact(biased, Activation::None).assert(&d, Sums::F32, &what);
            }
        }
        if !biased {
            // It is in the file, though PyTorch takes none with f32 output.
            file.data(format!("{}/bias_bf16", case.name));
        }
    }
    file.check_seen(|name| name.starts_with("torch."));
}
