//! Runs the program and reads what it prints.

use examples_common::Origin;
use examples_common::testing::{Program, Results};
use serde_json::{Value, json};

fn ladder() -> Program {
    Program::new(env!("CARGO_BIN_EXE_fused_matmul"))
}

fn climb(arguments: &str) -> String {
    ladder().prints(arguments)
}

/// The number behind a word.
fn number(block: &str, word: &str) -> f64 {
    let at = block.find(word).unwrap_or_else(|| panic!("no `{word}` in {block}")) + word.len();
    let number: String =
        block[at..].trim_start().chars().take_while(|c| !c.is_whitespace() && *c != ',').collect();
    number.parse().unwrap_or_else(|_| panic!("`{number}` behind `{word}` is no number: {block}"))
}

fn check(arguments: &str, gemm: &str, in_f32: f64) {
    let text = climb(arguments);
    let blocks: Vec<_> = text.split("\n\n").skip(1).collect();
    assert_eq!(blocks.len(), 7, "{text}");
    for (index, block) in blocks.iter().enumerate() {
        assert!(block.starts_with(&format!("{}. ", index + 1)), "{block}");
        let error = number(block, "with quantization");
        assert!((1e-4..0.2).contains(&error), "{block}");
    }
    for (block, limit) in blocks.iter().zip([in_f32, in_f32, 0.05, 0.05, 0.05, 0.05]) {
        assert!(block.contains(&format!("ran 1 product: scaled_matmul 1 × {gemm}, ")), "{block}");
        let error = number(block, "error");
        assert!(error < limit && error <= number(block, "with quantization"), "{block}");
    }
    let (amax, expected) = (number(blocks[5], "\n    amax"), number(blocks[5], "in f64"));
    assert!((amax - expected).abs() <= 2e-4 + in_f32 * expected, "{}", blocks[5]);
    assert!(blocks[6].contains("ran 2 products"), "{}", blocks[6]);
}

#[test]
fn every_step_is_one_product_near_f64() {
    check("", "64×96×128", 1e-6);
}

#[test]
fn odd_sizes_run_on_other_backends_too() {
    check("--m 33 --n 19 --k 23 --backend ndarray", "33×19×23", 1e-6);
}

#[test]
#[ignore = "needs an NVIDIA GPU of compute capability 8.9 or higher"]
fn every_step_runs_natively_on_a_gpu() {
    // Tensor cores keep 13 bits of a sum.
    check("--backend cuda --execution native", "64×96×128", 1e-3);
}

#[test]
fn the_seed_is_all_that_it_depends_on() {
    assert_eq!(climb("--seed 3"), climb("--seed 3"));
    assert_ne!(climb("--seed 3"), climb("--seed 4"));
}

#[test]
fn native_products_end_the_program_where_there_are_none() {
    // Flex may have a matrix unit; NdArray has nothing.
    let emulated = climb("--backend ndarray --execution fake-quantized");
    assert_eq!(emulated, climb("--backend ndarray"));
    let output = ladder().run("--backend ndarray --execution native");
    assert!(!output.status.success() && !output.stderr.is_empty());
}

#[test]
fn help_and_errors() {
    assert!(climb("--help").contains("--backend"));
    for (arguments, words) in [
        ("--m 0", ["--m", "1..=1024"]),
        ("--n x", ["--n", "x"]),
        ("--backend abacus", ["abacus", "ndarray"]),
        ("--execution fast", ["fast", "auto, fake-quantized, native"]),
        ("more", ["more", "--help"]),
    ] {
        ladder().fails(arguments, &words);
    }
}

/// Whether two texts have the same words, and the same numbers but for what the order of f32 sums changes.
fn alike(a: &str, b: &str) -> bool {
    let same = |(a, b): (&str, &str)| match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => (a - b).abs() <= 0.05 * a.abs().max(b.abs()) || a.max(b) < 1e-6,
        _ => a == b,
    };
    let words =
        |text: &str| text.split([' ', '\n', ',', ';']).map(str::to_owned).collect::<Vec<_>>();
    let (a, b) = (words(a), words(b));
    a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| same((a, b)))
}

/// README.md shows what results/ladder.json holds, and that is what the program prints.
#[test]
fn what_is_told_is_what_is_printed() {
    let results = Results::of(env!("CARGO_MANIFEST_DIR"));
    // Emulated: the same on every machine, but for the order of sums.
    let printed = climb("--execution fake-quantized");
    if Results::renders() {
        let command = "fused_matmul --execution fake-quantized".to_owned();
        let origin = Origin { command, backend: Some("flex".into()), ..Origin::here("", &[]) };
        let record = json!({ "origin": origin, "printed": printed });
        examples_common::write_json(&results.path("ladder.json"), &record).expect("written");
    }
    let record: Value = results.json("ladder.json");
    let origin: Origin = serde_json::from_value(record["origin"].clone()).expect("an origin");
    let committed = record["printed"].as_str().expect("text");
    assert!(alike(&printed, committed), "{printed}");
    assert!(!alike(&printed, &printed.replace("3.8e-2", "4.8e-2")), "numbers count");
    let told = format!("```text\n{committed}```\n\nMade with {origin}.");
    results.check_part("../README.md", "output", &told);
}
