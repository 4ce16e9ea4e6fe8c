//! 34 malformed checkpoints: each is refused, with the file, the tensor or key, what was found and what was expected.

use std::collections::BTreeSet;
use std::fs;

use burn_fp8_checkpoint::Checkpoint;

use crate::common::{assert_says, golden, refusal};

const Q: &str = "`model.layers.0.self_attn.q_proj.weight`";
const K: &str = "`model.layers.0.self_attn.k_proj.weight`";
const Q_SCALE: &str = "`model.layers.0.self_attn.q_proj.weight_scale`";
const Q_SCALE_INV: &str = "`model.layers.0.self_attn.q_proj.weight_scale_inv`";
const INPUT_SCALE: &str = "`model.layers.0.self_attn.q_proj.input_scale`";
const O: &str = "`model.layers.0.self_attn.o_proj.weight`";
const O_SCALE_INV: &str = "`model.layers.0.self_attn.o_proj.weight_scale_inv`";
const MODEL: &str = "model.safetensors";
const CONFIG: &str = "config.json";

/// What is refused at opening, and the words that its message must have: file, tensor or key, found, expected.
const AT_OPENING: [(&str, &[&str]); 29] = [
    ("missing_weight_scale", &[MODEL, Q_SCALE, "no such tensor", "[64, 1]"]),
    ("missing_weight_scale_inv", &[MODEL, Q_SCALE_INV, "no such tensor", "[1, 2]"]),
    ("missing_input_scale", &[MODEL, INPUT_SCALE, "no such tensor", "static"]),
    ("missing_weight", &[MODEL, Q_SCALE, Q, "without"]),
    ("channel_scale_too_long", &[MODEL, Q_SCALE, "found BF16 [65, 1]", "[64, 1]"]),
    ("channel_scale_transposed", &[MODEL, Q_SCALE, "found BF16 [1, 64]", "[64, 1]"]),
    ("channel_scale_per_input", &[MODEL, Q_SCALE, "found BF16 [1, 96]", "[64, 1]"]),
    ("block_scale_transposed", &[MODEL, Q_SCALE_INV, "found F32 [2, 1]", "[1, 2]", "128×128"]),
    ("block_scale_floor", &[MODEL, O_SCALE_INV, "found F32 [2, 0]", "[2, 1]", "128×128"]),
    ("block_scale_scalar", &[MODEL, Q_SCALE_INV, "found F32 []", "[1, 2]", "128×128"]),
    ("e5m2_weight", &[MODEL, Q, "found F8_E5M2", "F8_E4M3"]),
    ("e5m2_weight_fmt_e4m3", &[MODEL, Q, "found F8_E5M2", "F8_E4M3"]),
    ("int8_weight", &[MODEL, Q, "found I8", "F8_E4M3"]),
    (
        "unknown_quant_method",
        &[CONFIG, "`quantization_config.quant_method`", "\"fp9\"", "modelopt"],
    ),
    (
        "block_size_zero",
        &[CONFIG, "`quantization_config.weight_block_size`", "[128,0]", "positive"],
    ),
    ("no_quantization_config", &[CONFIG, "`quantization_config`", "no such key", "F8_E4M3", O]),
    ("overlapping_ranges", &[MODEL, K, "begin at 368", "begin at 384"]),
    ("range_beyond_file", &[MODEL, Q, "[4456, 10600]", "9600 bytes"]),
    ("hole_between_tensors", &[MODEL, Q, "hole of 64 bytes", "begin at 3456"]),
    ("range_not_shape", &[MODEL, Q, "6144 bytes", "6048 bytes", "[63, 96]"]),
    ("range_reversed", &[MODEL, Q, "[9600, 3456]", "an end that is not before the begin"]),
    ("shape_overflows", &[MODEL, Q, "[8589934592, 8589934592]", "64 bits"]),
    ("duplicate_key", &[MODEL, Q, "twice", "once"]),
    ("truncated_data", &[MODEL, Q, "[3456, 9600]", "9500 bytes"]),
    ("truncated_header", &[MODEL, "header of 632 bytes", "at most 192"]),
    ("header_length_huge", &[MODEL, "header of 9223372036854775807 bytes", "at most 100000000"]),
    ("header_not_json", &[MODEL, "begins with \"[", "JSON object"]),
    ("empty_file", &[MODEL, "0 bytes", "begins with 8 bytes"]),
    ("unknown_dtype", &[MODEL, K, "`F8_E9M9`", "`F8_E4M3`"]),
];

/// What is refused when the layer is read.
const AT_READING: [(&str, &[&str]); 5] = [
    ("scale_zero", &[MODEL, Q_SCALE, "found 0 at [5, 0]", "positive, finite"]),
    ("scale_nan", &[MODEL, Q_SCALE, "found NaN at [5, 0]", "positive, finite"]),
    ("scale_inf", &[MODEL, Q_SCALE, "found inf at [5, 0]", "positive, finite"]),
    ("scale_negative", &[MODEL, Q_SCALE, "found -", "at [5, 0]", "positive, finite"]),
    ("weight_nan_code", &[MODEL, Q, "0x7F, NaN at [", "E4M3 codes of numbers"]),
];

fn assert_tells(case: &str, message: String, words: &[&str]) {
    assert!(!message.contains('\n') && message.len() < 1100, "{case}: {message}");
    assert_says(&message, &[&format!("{case}/")]);
    assert_says(&message, words);
}

#[test]
fn every_case_is_looked_at() {
    let folders = fs::read_dir(golden("bad")).unwrap().map(|entry| entry.unwrap());
    let folders = folders.filter(|entry| entry.path().is_dir());
    let folders: BTreeSet<_> =
        folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    let cases = AT_OPENING.iter().chain(&AT_READING).map(|(case, _)| case.to_string());
    assert_eq!(cases.collect::<BTreeSet<_>>(), folders);
    assert_eq!(folders.len(), 34);
}

#[test]
fn what_headers_and_configurations_show_is_refused_at_opening() {
    for (case, words) in AT_OPENING {
        assert_tells(case, refusal(golden("bad").join(case)), words);
    }
}

#[test]
fn what_values_show_is_refused_when_the_layer_is_read_and_by_verify() {
    for (case, words) in AT_READING {
        let checkpoint = Checkpoint::open(golden("bad").join(case)).unwrap();
        let error = checkpoint.linear("model.layers.0.self_attn.q_proj").unwrap_err();
        assert_tells(case, error.to_string(), words);
        assert_tells(case, checkpoint.verify().unwrap_err().to_string(), words);
        // The layer beside it is sound.
        checkpoint.linear("model.layers.0.self_attn.k_proj").unwrap();
    }
}
