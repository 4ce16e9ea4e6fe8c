//! Each program does what its first line says, in seconds.

use std::process::Command;

/// What a program prints, line by line.
fn lines(path: &str) -> Vec<String> {
    let output = Command::new(path).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(String::from).collect()
}

/// The number after these words.
fn number(line: &str, words: &str) -> f64 {
    let (_, rest) = line.split_once(words).unwrap_or_else(|| panic!("no {words} in {line}"));
    let number = rest.split([' ', '%', ',']).next().expect("one part");
    number.parse().unwrap_or_else(|_| panic!("{number} in {line}"))
}

#[test]
fn train_ends_in_fp8_where_f32_ends() {
    let lines = lines(env!("CARGO_BIN_EXE_train"));
    let [high, fp8] = [0, 1].map(|line| number(&lines[line], "loss "));
    assert!(high < 0.1 && fp8 < 0.1 && high != fp8, "{lines:?}");
    // The teacher's two, the model's two, and the gradients of both weights and of the hidden layer.
    assert_eq!(number(&lines[1], "steps, "), 200.0 * 7.0);
}

#[test]
fn layers_learn_and_are_frozen_to_a_byte_a_weight() {
    let lines = lines(env!("CARGO_BIN_EXE_layers"));
    let [first, last] = [0, 1].map(|line| number(&lines[line], "loss "));
    assert!(last < 0.5 * first, "{lines:?}");
    assert_eq!(lines[2], "frozen: 4608 bytes for 4096 weights and 128 biases");
    assert_eq!(lines[3], "an answer of [1, 128]");
}

#[test]
fn serve_reads_a_published_model() {
    let lines = lines(env!("CARGO_BIN_EXE_serve"));
    // Seven of each of four blocks.
    assert_eq!(lines[0], "28 layers in FP8");
    // Codes of 3 × 192 × 448, and a scale for each output.
    let bytes = 3 * 192 * 448 + 4 * (448 + 448 + 192);
    assert_eq!(lines[1], format!("block 0: 192 → 448 → 192 in {bytes} bytes"));
    // Of two roundings in a row, of 2^-4 at most each.
    let error = number(&lines[2], "costs ");
    assert!(error > 0.5 && error < 12.5, "{lines:?}");
}

#[test]
fn peers_end_with_one_model() {
    let lines = lines(env!("CARGO_BIN_EXE_peers"));
    let sums = [0, 1].map(|peer| {
        let sum = lines[peer].strip_prefix(&format!("peer {peer} of 2: weights sum to "));
        sum.expect("a line for each").to_owned()
    });
    assert_eq!(sums[0], sums[1]);
}

#[test]
fn look_names_the_product_that_suffers() {
    let lines = lines(env!("CARGO_BIN_EXE_look"));
    // The one with the row of large numbers, and what helps it.
    let worst = &lines[1];
    assert!(worst.contains("first") && worst.contains("row-wise scales"), "{lines:?}");
}

/// What Burn 0.21 gets wrong by itself is part of it: a Burn that does not is good news, and wants other documents.
#[test]
fn quantize_shows_what_burn_lacks() {
    let lines = lines(env!("CARGO_BIN_EXE_quantize"));
    assert!(lines[0].ends_with("[127.0, 127.0, 3.0, 0.0]"), "{lines:?}");
    let [integers, alone, ours] =
        ["Q8S ", "E4M3 ", "Fp8Backend "].map(|words| number(&lines[1].replace(';', ","), words));
    assert!(integers < 0.02 && alone > 0.2 && ours < 0.04 && ours > 0.01, "{lines:?}");
    assert_eq!(lines[3], "Burn's Autodiff quantizes a weight: false");
    assert_eq!(lines[4], "Fp8Backend: 1 product in FP8, gradient of the input [32, 2048]");
}

/// Codes take less than the activations that they are of: the peak of the backward pass, fourth in its row, is lower.
#[test]
fn memory_has_a_table_of_phases_which_codes_make_smaller() {
    let lines = lines(env!("CARGO_BIN_EXE_memory-phases"));
    let rows = lines.iter().filter(|line| line.starts_with("| backward |"));
    let peak = |row: &String| row.split('|').nth(4).expect("four columns").trim().parse();
    let peaks: Vec<f64> = rows.map(|row| peak(row).expect("a number")).collect();
    assert!(peaks.len() == 2 && peaks[1] < 0.9 * peaks[0], "{lines:?}");
}

#[test]
fn programs_stay_short_and_begin_with_what_they_show() {
    for name in ["train", "layers", "serve", "peers", "look", "quantize", "memory"] {
        let path = format!("{}/{name}.rs", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("a program");
        assert!(text.starts_with("//! ") && text.lines().count() <= 100, "{name}");
    }
}
