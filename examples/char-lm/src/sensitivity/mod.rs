//! What FP8 costs, and where: the same short training with one role, one kind of layer or one block kept in high precision in turn.

mod plot;
mod ranking;

use std::fmt::Write;

use anyhow::{Result, ensure};
use comfy_table::{CellAlignment, Table, presets};
use examples_common::{Origin, once, write, write_json};
use serde_json::{Value, json};

use crate::args::Sensitivity;
use crate::arm::Arm;
use crate::child::{self, Child, mean};
use crate::high::High;
use crate::precision::{Precision, Setup};
use crate::program::PROGRAM;
use crate::run;

pub use ranking::{Ranking, Variant};

/// Trains all variants and writes `sensitivity.json`, `sensitivity.md` and `sensitivity.svg`.
///
/// # Errors
/// Where a run fails, or a file cannot be written.
pub fn sensitivity(args: &Sensitivity) -> Result<String> {
    ensure!(
        args.precision.is_fp8(),
        "--precision {}: only FP8 has something to leave out",
        args.precision
    );
    let seeds = once(args.seeds.iter().copied());
    let variants = variants(args);
    let runs_folder = args.out.join("runs");
    run::make_folder(&runs_folder)?;
    let shape = args.common.size.shape();
    let epochs = args.common.epochs.map_or(shape.epochs.div_ceil(3), |epochs| epochs as usize);
    let count = variants.len() * seeds.len();
    let mut done = 0;
    let mut ranked: Vec<Variant> = vec![];
    for (precision, high) in variants {
        let arm = Arm { precision, high };
        let mut losses = vec![];
        let mut shares = vec![];
        for &seed in &seeds {
            let name = format!("{arm}-{seed}");
            child::announce(args.common.quiet, done, count, &name);
            let folder = runs_folder.join(name);
            let child = Child { arm, seed, epochs, folder };
            let outcome = child.train(&args.common)?;
            losses.push(outcome.final_loss());
            shares.push(outcome.fp8_share);
            done += 1;
        }
        // All in FP8 comes first.
        let reference = ranked.first().map_or(&losses, |all| &all.losses);
        let gains = reference.iter().zip(&losses).map(|(all, loss)| all - loss).collect();
        ranked.push(Variant { precision, high, losses, gains, fp8_share: mean(shares) });
    }
    // Runs that diverged, whose gain is no number, last.
    let key = |variant: &Variant| {
        Some(variant.gain()).filter(|gain| !gain.is_nan()).unwrap_or(f64::NEG_INFINITY)
    };
    ranked.sort_by(|a, b| key(b).total_cmp(&key(a)));
    let ranking = Ranking {
        origin: Origin::here(PROGRAM, args.common.backend.as_str()),
        precision: args.precision,
        size: args.common.size.as_str().into(),
        seeds,
        epochs,
        variants: ranked,
    };
    let table = markdown(&ranking);
    write_json(&args.out.join("sensitivity.json"), &json(&ranking))?;
    write(&args.out.join("sensitivity.md"), &table)?;
    write(&args.out.join("sensitivity.svg"), plot::bars(&ranking)?)?;
    Ok(format!("{table}\n{}\n", args.out.display()))
}

/// Everything in FP8, then nothing, then all that can be left out.
fn variants(args: &Sensitivity) -> Vec<(Precision, Option<High>)> {
    let blocks = args.common.size.shape().layers;
    let layers = High::each_layer(blocks).filter(|_| args.each_layer);
    let parts = High::all(blocks).into_iter().chain(layers);
    let parts = parts.filter(|high| can_leave_out(args.precision, *high));
    let parts = parts.map(|high| (args.precision, Some(high)));
    [(args.precision, None), (args.precision.without_fp8(), None)]
        .into_iter()
        .chain(parts)
        .collect()
}

fn can_leave_out(precision: Precision, high: High) -> bool {
    Setup::new(precision, Some(high)).is_ok()
}

fn markdown(ranking: &Ranking) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header([
        "kept out of FP8",
        "validation loss",
        "lower by",
        "from … to",
        "FP8 share of FLOPs",
        "all seeds agree",
    ]);
    for variant in &ranking.variants {
        let (low, high) = variant.range();
        let is_reference = variant.high.is_none() && variant.precision == ranking.precision;
        table.add_row([
            variant.name(),
            format!("{:.4}", mean(variant.losses.iter().copied())),
            format!("{:+.4}", variant.gain()),
            format!("{low:+.4} … {high:+.4}"),
            format!("{:.1}%", 100.0 * variant.fp8_share),
            match variant.seeds_agree() {
                _ if is_reference => "–".into(),
                None => "one seed".into(),
                Some(true) => "yes".into(),
                Some(false) => "no".into(),
            },
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!("{table}\n\n");
    let names = |names: &mut dyn Iterator<Item = String>| names.collect::<Vec<_>>().join(", ");
    let Ranking { origin, precision, size, seeds, epochs, .. } = ranking;
    let seeds = names(&mut seeds.iter().map(u64::to_string));
    let _ = writeln!(
        text,
        "Final validation loss in nats a character after {epochs} epochs, mean over the seeds {seeds}; “lower by” is against everything in {precision} \
         with the same seed. All rows of a seed are measured against that one run: where it ended badly, all of them are too high at once, \
         and seeds that agree on the sign are no evidence. Compare rows with each other, not with 0. Where seeds disagree on the sign, the \
         difference is noise. Size {size}; {origin}."
    );
    let not_asked = High::all(0).into_iter().filter(|high| !can_leave_out(*precision, *high));
    let not_asked = names(&mut not_asked.map(|high| high.to_string()));
    if !not_asked.is_empty() {
        let _ =
            writeln!(text, "\nNot in the table: {not_asked}, which {precision} cannot leave out.");
    }
    text
}

fn json(ranking: &Ranking) -> Value {
    let variants = ranking.variants.iter().map(|variant| {
        json!({
            "precision": variant.precision.to_string(),
            "high": variant.high.map(|high| high.to_string()),
            "losses": variant.losses,
            "gains": variant.gains,
            "mean_gain": variant.gain(),
            "seeds_agree": variant.seeds_agree(),
            "fp8_share": variant.fp8_share,
        })
    });
    json!({
        "origin": ranking.origin,
        "size": ranking.size,
        "precision": ranking.precision.to_string(),
        "epochs": ranking.epochs,
        "seeds": ranking.seeds,
        "variants": variants.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Common;
    use crate::committed;
    use crate::size::Size;
    use examples_common::BackendName;

    fn variant(gains: &[f64]) -> Variant {
        Variant {
            precision: Precision::FP8_CURRENT,
            high: None,
            losses: vec![],
            gains: gains.to_vec(),
            fp8_share: 0.0,
        }
    }

    #[test]
    fn seeds_that_disagree_are_noise() {
        assert_eq!(variant(&[0.1, 0.2]).seeds_agree(), Some(true));
        assert_eq!(variant(&[-0.1, -0.2]).seeds_agree(), Some(true));
        assert_eq!(variant(&[0.1, -0.2]).seeds_agree(), Some(false));
        assert_eq!(variant(&[0.1]).seeds_agree(), None);
        assert_eq!(variant(&[0.25, -0.75]).gain(), -0.25);
        assert_eq!(variant(&[0.1, -0.2, 0.0]).range(), (-0.2, 0.1));
    }

    /// The ranking in `results`.
    fn committed() -> Ranking {
        let json: Value = committed::read("sensitivity.json");
        let variant = |variant: &Value| Variant {
            precision: committed::text(variant, "precision").parse().expect("a precision"),
            high: variant["high"].as_str().map(|high| high.parse().expect("a part")),
            losses: committed::field(variant, "losses"),
            gains: committed::field(variant, "gains"),
            fp8_share: committed::field(variant, "fp8_share"),
        };
        Ranking {
            origin: committed::field(&json, "origin"),
            precision: committed::text(&json, "precision").parse().expect("a precision"),
            size: committed::field(&json, "size"),
            seeds: committed::field(&json, "seeds"),
            epochs: committed::field(&json, "epochs"),
            variants: json["variants"].as_array().expect("variants").iter().map(variant).collect(),
        }
    }

    #[test]
    fn what_is_committed_is_drawn_from_the_committed_numbers() {
        let ranking = committed();
        committed::results().check("sensitivity.md", &markdown(&ranking));
        committed::results().check("sensitivity.svg", &plot::bars(&ranking).expect("drawn"));
    }

    fn args(precision: Precision, each_layer: bool) -> Sensitivity {
        let common =
            Common { size: Size::Smoke, backend: BackendName::Flex, epochs: None, quiet: true };
        Sensitivity { common, precision, each_layer, seeds: vec![1], out: "out".into() }
    }

    #[test]
    fn layers_are_asked_about_one_by_one_where_that_is_wanted() {
        let names = |each_layer| {
            let parts = variants(&args(Precision::FP8_CURRENT, each_layer)).into_iter();
            parts.filter_map(|(_, high)| Some(high?.to_string())).collect::<Vec<_>>()
        };
        let (few, all) = (names(false), names(true));
        assert_eq!(few.len(), 3 + 5 + 2);
        assert_eq!(all[..few.len()], few);
        let [first, last] = [&all[few.len()], &all[all.len() - 1]];
        assert_eq!((first.as_str(), last.as_str()), ("block0.qkv", "block1.down"));
        assert_eq!(all.len() - few.len(), 2 * 4);
    }

    #[test]
    fn what_a_precision_cannot_leave_out_is_told() {
        let parts: Vec<_> = variants(&args(Precision::Fp8Layers, false));
        assert!(parts.iter().all(|(_, high)| !matches!(high, Some(High::Role(_)))));
        assert_eq!(parts.len(), 2 + 5 + 2);
        let told = |precision| markdown(&Ranking { precision, ..committed() });
        let line =
            "Not in the table: output, grad_input, grad_weight, which fp8-layers cannot leave out.";
        assert!(told(Precision::Fp8Layers).lines().any(|told| told == line));
        assert!(!told(Precision::FP8_CURRENT).contains("Not in the table"));
    }
}
