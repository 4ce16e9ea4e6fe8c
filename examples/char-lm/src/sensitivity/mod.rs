//! What FP8 costs, and where: the same short training with one role, one kind of layer or one block kept in high precision in turn.

mod plot;
mod ranking;

use std::fmt::Write;

use anyhow::{Result, ensure};
use comfy_table::presets;
use examples_common::{Origin, once, table, write, write_json};

use crate::args::Sensitivity;
use crate::arm::Arm;
use crate::child;
use crate::high::High;
use crate::precision::{Precision, Setup};
use crate::run::{Outcome, PROGRAM, mean};

pub use ranking::{Ranking, Variant};

/// Trains all variants and writes `sensitivity.json`, `sensitivity.md` and `sensitivity.svg`.
pub fn sensitivity(args: &Sensitivity) -> Result<String> {
    ensure!(
        args.precision.is_fp8(),
        "--precision {}: only FP8 has something to leave out",
        args.precision
    );
    let seeds = once(args.seeds.iter().copied());
    let arms = arms(args);
    let shape = args.common.size.shape();
    let epochs = args.common.epochs.map_or(shape.epochs.div_ceil(3), |epochs| epochs as usize);
    let plan: Vec<_> = arms.iter().flat_map(|arm| seeds.iter().map(|seed| (*arm, *seed))).collect();
    let outcomes = child::train_all(&plan, epochs, &args.out.join("runs"), &args.common)?;
    let of_seeds: Vec<_> = outcomes.chunks(seeds.len()).collect();
    let losses = |of_seeds: &[Outcome]| of_seeds.iter().map(Outcome::final_loss).collect();
    // All in FP8 comes first.
    let all: Vec<f64> = losses(of_seeds[0]);
    let variant = |(&arm, &of_seeds): (&Arm, &&[Outcome])| {
        let losses: Vec<f64> = losses(of_seeds);
        let gains = all.iter().zip(&losses).map(|(all, loss)| all - loss).collect();
        let fp8_share = mean(of_seeds.iter().map(|outcome| outcome.fp8_share));
        Variant::new(arm, losses, gains, fp8_share)
    };
    let mut ranked: Vec<_> = arms.iter().zip(&of_seeds).map(variant).collect();
    // Runs that diverged, whose gain is no number, last.
    let key = |variant: &Variant| {
        if variant.mean_gain.is_nan() { f64::NEG_INFINITY } else { variant.mean_gain }
    };
    ranked.sort_by(|a, b| key(b).total_cmp(&key(a)));
    let ranking = Ranking {
        origin: Origin::here(PROGRAM, &["--out"]).with_backend(args.common.backend),
        precision: args.precision,
        size: args.common.size,
        seeds,
        epochs,
        variants: ranked,
    };
    let table = markdown(&ranking);
    write_json(&args.out.join("sensitivity.json"), &ranking)?;
    write(&args.out.join("sensitivity.md"), &table)?;
    write(&args.out.join("sensitivity.svg"), plot::bars(&ranking)?)?;
    Ok(format!("{table}\n{}\n", args.out.display()))
}

/// Everything in FP8, then nothing, then all that can be left out.
fn arms(args: &Sensitivity) -> Vec<Arm> {
    let (precision, blocks) = (args.precision, args.common.size.shape().layers);
    let layers = High::each_layer(blocks).filter(|_| args.each_layer);
    let parts = High::all(blocks).into_iter().chain(layers);
    let parts = parts.filter(|high| can_leave_out(precision, *high));
    let parts = parts.map(|high| Arm { precision, high: Some(high) });
    [precision.into(), precision.without_fp8().into()].into_iter().chain(parts).collect()
}

fn can_leave_out(precision: Precision, high: High) -> bool {
    Setup::new(precision, Some(high)).is_ok()
}

fn markdown(ranking: &Ranking) -> String {
    let header = [
        "kept out of FP8",
        "validation loss",
        "lower by",
        "from … to",
        "FP8 share of FLOPs",
        "all seeds agree",
    ];
    let rows = ranking.variants.iter().map(|variant| {
        let (low, high) = variant.range();
        let is_reference = variant.high.is_none() && variant.precision == ranking.precision;
        [
            variant.name(),
            format!("{:.4}", mean(variant.losses.iter().copied())),
            format!("{:+.4}", variant.mean_gain),
            format!("{low:+.4} … {high:+.4}"),
            format!("{:.1}%", 100.0 * variant.fp8_share),
            match variant.seeds_agree {
                _ if is_reference => "–".into(),
                None => "one seed".into(),
                Some(true) => "yes".into(),
                Some(false) => "no".into(),
            },
        ]
    });
    let table = table(presets::ASCII_MARKDOWN, header, rows, &[0]);
    let mut text = format!("{table}\n\n");
    let names = |names: &mut dyn Iterator<Item = String>| names.collect::<Vec<_>>().join(", ");
    let Ranking { origin, precision, size, seeds, epochs, .. } = ranking;
    let seeds = names(&mut seeds.iter().map(u64::to_string));
    let _ = writeln!(
        text,
        "Final validation loss in nats a character after {epochs} epochs, mean over the seeds {seeds}; “lower by” is against everything in {precision} \
         with the same seed. All rows of a seed are measured against that one run: where it ended badly, all of them are too high at once, \
         and seeds that agree on the sign are no evidence. Compare rows with each other, not with 0. Where seeds disagree on the sign, the \
         difference is noise. Size {}; {origin}.",
        size.as_str()
    );
    let not_asked = High::all(0).into_iter().filter(|high| !can_leave_out(*precision, *high));
    let not_asked = names(&mut not_asked.map(|high| high.to_string()));
    if !not_asked.is_empty() {
        let _ =
            writeln!(text, "\nNot in the table: {not_asked}, which {precision} cannot leave out.");
    }
    text
}

#[cfg(test)]
mod tests {
    use examples_common::BackendName;
    use examples_common::testing::Results;

    use super::*;
    use crate::args::Common;
    use crate::size::Size;

    fn variant(gains: &[f64]) -> Variant {
        Variant::new(Precision::FP8_CURRENT.into(), vec![], gains.to_vec(), 0.0)
    }

    #[test]
    fn seeds_that_disagree_are_noise() {
        assert_eq!(variant(&[0.1, 0.2]).seeds_agree, Some(true));
        assert_eq!(variant(&[-0.1, -0.2]).seeds_agree, Some(true));
        assert_eq!(variant(&[0.1, -0.2]).seeds_agree, Some(false));
        assert_eq!(variant(&[0.1]).seeds_agree, None);
        assert_eq!(variant(&[0.25, -0.75]).mean_gain, -0.25);
        assert_eq!(variant(&[0.1, -0.2, 0.0]).range(), (-0.2, 0.1));
    }

    fn results() -> Results {
        Results::of(env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn what_is_committed_is_drawn_from_the_committed_numbers() {
        let ranking: Ranking = results().json("sensitivity.json");
        results().check("sensitivity.md", &markdown(&ranking));
        results().check("sensitivity.svg", &plot::bars(&ranking).expect("drawn"));
        for variant in ranking.variants {
            let arm = Arm { precision: variant.precision, high: variant.high };
            let again = Variant::new(arm, variant.losses, variant.gains, variant.fp8_share);
            assert_eq!(again.mean_gain, variant.mean_gain);
            assert_eq!(again.seeds_agree, variant.seeds_agree);
        }
    }

    fn args(precision: Precision, each_layer: bool) -> Sensitivity {
        let common =
            Common { size: Size::Smoke, backend: BackendName::Flex, epochs: None, quiet: true };
        Sensitivity { common, precision, each_layer, seeds: vec![1], out: "out".into() }
    }

    #[test]
    fn layers_are_asked_about_one_by_one_where_that_is_wanted() {
        let names = |each_layer| {
            let parts = arms(&args(Precision::FP8_CURRENT, each_layer)).into_iter();
            parts.filter_map(|arm| Some(arm.high?.to_string())).collect::<Vec<_>>()
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
        let parts: Vec<_> = arms(&args(Precision::Fp8Layers, false));
        assert!(parts.iter().all(|arm| !matches!(arm.high, Some(High::Role(_)))));
        assert_eq!(parts.len(), 2 + 5 + 2);
        let told =
            |precision| markdown(&Ranking { precision, ..results().json("sensitivity.json") });
        let line =
            "Not in the table: output, grad_input, grad_weight, which fp8-layers cannot leave out.";
        assert!(told(Precision::Fp8Layers).lines().any(|told| told == line));
        assert!(!told(Precision::FP8_CURRENT).contains("Not in the table"));
    }
}
