//! What each recipe costs in precision: signal-to-quantization-noise ratios of the three products, as good as the definition gives them, and as
//! `docs/which-recipe.md` has them.

use crate::common::blocks::mx;
use crate::common::*;

/// M, K, N.
const SHAPE: [usize; 3] = [128, 256, 256];

/// Data by their name in the table.
const DATA: [&str; 3] = ["Gaussian", "Student-t(3)", "outliers"];

/// Recipes by their name in the table.
fn recipes() -> [(&'static str, Recipe); 9] {
    [
        ("`current`", Recipe::current()),
        ("`current`, E4M3 for all", Recipe::current().with_formats(Formats::E4M3)),
        ("`rowwise`, E4M3 for all", Recipe::rowwise().with_formats(Formats::E4M3)),
        ("`blockwise`", Recipe::blockwise()),
        ("`blockwise`, f32 scales", Recipe::blockwise().with_power_of_two(false)),
        ("`mxfp8`", Recipe::mxfp8()),
        ("`mxfp8`, `Floor`", mx(ScaleRounding::Floor)),
        ("`mxfp8`, `Ceil`", mx(ScaleRounding::Ceil)),
        ("`mxfp8`, `Even`", mx(ScaleRounding::Even)),
    ]
}

fn normal(random: &mut Random) -> f64 {
    // Box and Muller; the logarithm never sees a zero.
    let uniform = |random: &mut Random| (f64::from(random.unit()) + 1.0 + 2f64.powi(-24)) / 2.0;
    let (u, v) = (uniform(random).min(1.0), uniform(random));
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

fn data(kind: &str, seed: u64, count: usize) -> Vec<f32> {
    let mut random = Random(seed);
    (0..count)
        .map(|_| {
            let x = normal(&mut random);
            let x = match kind {
                "Gaussian" => x,
                "Student-t(3)" => {
                    let chi: f64 = (0..3).map(|_| normal(&mut random).powi(2)).sum();
                    x / (chi / 3.0).sqrt()
                }
                // One of a thousand is a hundred times as large.
                _ if random.bits().is_multiple_of(1000) => 100.0 * x,
                _ => x,
            };
            x as f32
        })
        .collect()
}

#[test]
fn recipes_are_as_precise_as_their_definition_and_as_the_chapter_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/which-recipe.md");
    let chapter = std::fs::read_to_string(path).expect("the chapter is in the repository");
    let [m, k, n] = SHAPE;
    let mut rows = recipes().map(|(name, _)| format!("| {name} |"));
    let mut measured: Vec<Vec<f64>> = vec![vec![]; rows.len()];
    for kind in DATA {
        let inputs = [data(kind, 1, m * k), data(kind, 2, k * n), data(kind, 3, m * n)];
        let inputs = inputs.each_ref().map(Vec::as_slice);
        let [x, w, g] = inputs.map(wide);
        let exact = Exact::step([&x, &w, &g], SHAPE);
        for (index, (name, recipe)) in recipes().into_iter().enumerate() {
            let ideal = exact_step_under(recipe, inputs, SHAPE);
            let config = every_matmul().with_recipe(recipe);
            let ours = config.scope(|| matrix_step::<Outer<Flex>>(inputs, SHAPE));
            for role in 0..3 {
                let found = sqnr(&exact[role].values, &wide(&ours[role]));
                let best = sqnr(&exact[role].values, &ideal[role].values);
                let place = format!("{name}, {kind}, {}", GemmRole::ALL[role]);
                assert!((found - best).abs() <= 0.1, "{place}: {found:.2} dB, ideal {best:.2} dB");
                rows[index] += &format!(" {found:.1} |");
                measured[index].push(found);
            }
        }
    }
    println!("{}", rows.join("\n"));
    for ((name, _), measured) in recipes().iter().zip(measured) {
        let row = chapter.lines().find(|line| line.starts_with(&format!("| {name} |")));
        let row = row.unwrap_or_else(|| panic!("{path} has no row for {name}"));
        let stated: Vec<f64> = row.split('|').filter_map(|cell| cell.trim().parse().ok()).collect();
        assert_eq!(stated.len(), 9, "{row}");
        for (stated, measured) in stated.iter().zip(measured) {
            assert!((stated - measured).abs() <= 0.1, "{path}: {row}: {stated} is {measured:.2}");
        }
    }
}
