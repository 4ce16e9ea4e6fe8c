//! What goes to stdout.

use anyhow::Result;
use burn_fp8::Report;
use burn_fp8::report::ProductReport;

use crate::ladder::Step;

/// Prints one step.
pub fn step(step: &Step) -> Result<()> {
    let Step { title, formula, operands: [a, b], report, errors, amax } = step;
    let mut text = format!("{title}\n    {formula}\n    a {a}\n    b {b}\n    {}\n", ran(report));
    if let Some([amax, expected]) = amax {
        text += &format!("    amax {amax:.4}, in f64 {expected:.4}\n");
    }
    let [same, before] = errors;
    line(&(text + &format!("    error {same:.1e}, with quantization {before:.1e}\n")))
}

/// What ran, by the trace.
pub fn ran(report: &Report) -> String {
    let product =
        |ProductReport { kind, gemm, ran, .. }: &ProductReport| format!("{kind} {gemm}, {ran}");
    let products: Vec<_> = report.products.iter().map(product).collect();
    let count = match products.len() {
        1 => "1 product".to_string(),
        count => format!("{count} products"),
    };
    format!("ran {count}: {}", products.join("; "))
}

/// Prints a line.
pub fn line(text: &str) -> Result<()> {
    examples_common::print(&format!("{text}\n"))
}
