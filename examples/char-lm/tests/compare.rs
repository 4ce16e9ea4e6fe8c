//! Commands that train several times, at the size for tests.

mod common;

use std::fs;

use common::{fails, folder, json, number, run, succeeds, text};

#[test]
fn a_comparison_has_all_runs_and_is_not_trained_twice() {
    let folder = folder();
    let out = folder.path().join("comparison");
    let arguments = [
        "compare",
        "--size",
        "smoke",
        "--epochs",
        "2",
        "--precision",
        "fp8-current",
        "--seed",
        "1,2",
        "--out",
        text(&out),
    ];
    let (stdout, stderr) = succeeds(&arguments);
    assert!(stderr.contains("run 4/4: fp8-current-2"), "{stderr}");
    let comparison = json(out.join("comparison.json"));
    let runs = comparison["runs"].as_array().expect("runs");
    let names: Vec<_> =
        runs.iter().map(|run| (run["precision"].as_str(), run["seed"].as_u64())).collect();
    let (f32, fp8) = (Some("f32"), Some("fp8-current"));
    assert_eq!(names, [(f32, Some(1)), (fp8, Some(1)), (f32, Some(2)), (fp8, Some(2))]);
    for run in runs {
        let losses = run["outcome"]["losses"].as_array().expect("losses");
        assert_eq!(losses.len(), 2);
        assert_eq!(number(run, "final_loss"), number(&losses[1], "valid_loss"));
        assert!(number(&run["outcome"], "tokens_per_second") > 0.0);
        assert_eq!(number(&run["outcome"], "fp8_share") > 0.0, run["precision"] == "fp8-current");
        if cfg!(target_os = "linux") {
            // The text alone takes some.
            assert!(number(&run["outcome"], "peak_memory") > f64::from(10 << 20));
        }
    }
    // Means by hand.
    let loss = |index: usize| number(&runs[index], "final_loss");
    let means = comparison["means"].as_array().expect("means");
    assert!((number(&means[0], "final_loss") - (loss(0) + loss(2)) / 2.0).abs() < 1e-12);
    let against = (loss(1) + loss(3)) / (loss(0) + loss(2)) - 1.0;
    assert!((number(&means[1], "against_f32") - against).abs() < 1e-12);
    // At this size nothing is promised.
    assert_eq!(comparison["goals"], serde_json::json!([]));

    let table = fs::read_to_string(out.join("table.md")).expect("a table");
    assert!(stdout.contains(&table));
    assert_eq!(
        table.lines().filter(|line| line.starts_with("| f32") || line.starts_with("| fp8")).count(),
        6
    );
    assert!(table.contains("char-lm compare --size smoke"), "the command: {table}");
    let picture = fs::read_to_string(out.join("loss.svg")).expect("a picture");
    for words in ["<svg", "bigram model", "f32, 2 seeds", "fp8-current, 2 seeds"] {
        assert!(picture.contains(words), "`{words}` is missing in loss.svg");
    }

    // Its mean and the interval by hand: 12.7062 is Student's t of one degree of freedom.
    let of_seeds = [loss(1) / loss(0) - 1.0, loss(3) / loss(2) - 1.0].map(|share| 100.0 * share);
    let (middle, half) =
        (of_seeds.iter().sum::<f64>() / 2.0, 12.7062 * (of_seeds[0] - of_seeds[1]).abs() / 2.0);
    let differences = fs::read_to_string(out.join("differences.md")).expect("a table");
    let row = differences.lines().find(|line| line.contains("| fp8-current")).expect("a row");
    let cell = |index: usize| row.split('|').nth(index).expect("a cell").trim().to_owned();
    assert_eq!((cell(2), cell(4)), ("2".into(), format!("{middle:+.2}%")));
    let interval: Vec<f64> = cell(5)
        .split(" … ")
        .map(|end| end.trim_end_matches('%').parse().expect("a number"))
        .collect();
    let near = |a: f64, b: f64| (a - b).abs() < 0.0051 + 1e-4 * half;
    assert!(near(interval[0], middle - half) && near(interval[1], middle + half), "{row}");
    let picture = fs::read_to_string(out.join("differences.svg")).expect("a picture");
    for words in ["<svg", "fp8-current"] {
        assert!(picture.contains(words), "`{words}` is missing in differences.svg");
    }

    let weights = out.join("runs/f32-1/weights.safetensors");
    let written = |path| fs::metadata(path).and_then(|file| file.modified()).expect("a file");
    let before = written(&weights);
    succeeds(&arguments);
    assert_eq!(written(&weights), before, "finished runs are found");
}

#[test]
fn a_comparison_that_misses_a_goal_exits_with_1() {
    let folder = folder();
    let out = folder.path().join("comparison");
    // One epoch is not enough to beat the bigram model by as much as `tiny` promises.
    let output = run(&[
        "compare",
        "--size",
        "tiny",
        "--epochs",
        "1",
        "--precision",
        "f32",
        "--seed",
        "1",
        "--quiet",
        "--out",
        text(&out),
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("Goal MISSED: f32 below the bigram model")
    );
    let comparison = json(out.join("comparison.json"));
    let goal = &comparison["goals"][0];
    assert_eq!((&goal["reached"], number(goal, "limit")), (&false.into(), 0.5));
    let loss = number(&comparison["runs"][0], "final_loss");
    assert!((number(goal, "value") - (number(&comparison, "bigram_loss") - loss)).abs() < 1e-12);
}

#[test]
fn losses_are_compared_with_those_of_the_same_seed() {
    let folder = folder();
    let out = folder.path().join("comparison");
    // Runs that have ended, with losses that are made up.
    let runs = [("f32", 2.0), ("fp8-current", 2.1)];
    for (precision, loss) in runs {
        let run = out.join(format!("runs/{precision}-1"));
        succeeds(&[
            "train",
            "--size",
            "smoke",
            "--epochs",
            "1",
            "--precision",
            precision,
            "--quiet",
            "--out",
            text(&run),
        ]);
        edit(&run.join("outcome.json"), |outcome| outcome["losses"][0]["valid_loss"] = loss.into());
    }
    let smoke = [
        "compare",
        "--size",
        "smoke",
        "--epochs",
        "1",
        "--precision",
        "fp8-current",
        "--seed",
        "1",
        "--out",
    ];
    let (stdout, _) = succeeds(&[&smoke[..], &[text(&out)]].concat());
    assert!(stdout.contains("+5.00%"), "{stdout}");

    // What a run says of itself comes through.
    let outcome = out.join("runs/fp8-current-1/outcome.json");
    fs::write(&outcome, "{\n\"loss\": 1}").expect("written");
    fails(
        &[&smoke[..], &[text(&out), "--quiet"]].concat(),
        &["the run in", "fp8-current-1 failed", "outcome.json: unknown field `loss`"],
    );

    // Runs of another size are not taken for those asked for.
    let out = text(&out);
    fails(
        &["compare", "--size", "tiny", "--epochs", "1", "--seed", "1", "--quiet", "--out", out],
        &["size \"smoke\" instead of \"tiny\""],
    );
}

/// Changes a file of JSON.
fn edit(path: &std::path::Path, change: impl FnOnce(&mut serde_json::Value)) {
    let mut value = json(path);
    change(&mut value);
    fs::write(path, value.to_string()).expect("written");
}

#[test]
fn a_ranking_has_every_part() {
    let folder = folder();
    let out = folder.path().join("sensitivity");
    let (stdout, _) = succeeds(&[
        "sensitivity",
        "--size",
        "smoke",
        "--epochs",
        "1",
        "--seed",
        "1",
        "--out",
        text(&out),
    ]);
    let ranking = json(out.join("sensitivity.json"));
    let variants = ranking["variants"].as_array().expect("variants");
    let mut parts: Vec<_> =
        variants.iter().map(|variant| variant["high"].as_str().unwrap_or("")).collect();
    let gains: Vec<f64> = variants.iter().map(|variant| number(variant, "mean_gain")).collect();
    assert!(gains.windows(2).all(|pair| pair[0] >= pair[1]), "ranked: {gains:?}");
    parts.sort_unstable();
    let expected = [
        "",
        "",
        "block0",
        "block1",
        "down",
        "grad_input",
        "grad_weight",
        "head",
        "output",
        "projection",
        "qkv",
        "up",
    ];
    assert_eq!(parts, expected);
    let find = |part: Option<&str>, precision: &str| {
        let found =
            variants.iter().find(|v| v["high"].as_str() == part && v["precision"] == precision);
        found.unwrap_or_else(|| panic!("{part:?} is missing"))
    };
    let share = |part: &str| number(find(Some(part), "fp8-current"), "fp8_share");
    let all = number(find(None, "fp8-current"), "fp8_share");
    assert_eq!(number(find(None, "fp8-current"), "mean_gain"), 0.0);
    assert_eq!(number(find(None, "f32"), "fp8_share"), 0.0);
    // What each part takes out of FP8: a third for a role; of 12 parts of a block's linear layers qkv is 3, projection 1, up and down 4 each.
    for role in ["output", "grad_input", "grad_weight"] {
        assert!((share(role) - all * 2.0 / 3.0).abs() < 1e-9, "{role}");
    }
    let one = all - share("projection");
    assert!(one > 0.0);
    for (part, size) in [("qkv", 3.0), ("up", 4.0), ("down", 4.0), ("block0", 6.0), ("block1", 6.0)]
    {
        assert!((all - share(part) - size * one).abs() < 1e-9, "{part}");
    }
    // Each part is another training.
    let mut losses: Vec<u64> =
        variants.iter().map(|v| v["losses"][0].as_f64().expect("a loss").to_bits()).collect();
    losses.sort_unstable();
    losses.dedup();
    assert!(losses.len() == 12);
    assert!(stdout.contains("one seed"), "which says nothing about noise");
    assert!(stdout.contains("everything (f32)") && stdout.contains("grad_weight"));
    assert!(
        fs::read_to_string(out.join("sensitivity.svg")).expect("a picture").contains("projection")
    );
    assert!(
        fs::read_to_string(out.join("sensitivity.md")).expect("a table").contains("| projection")
    );
}

#[test]
fn several_runs_that_cannot_be() {
    let folder = folder();
    fails(&["compare", "--precision", "f32,fp4"], &["fp4"]);
    fails(&["compare", "--seed", "1,x"], &["x"]);
    let out = folder.path().join("twice");
    for (list, first, second) in [
        ("p=f32,c=f32,o=f32", "f32", "p=f32,c=f32,o=f32"),
        ("bf16,c=bf16,o=f32,m=high", "bf16", "p=f32,c=bf16,o=f32,m=high"),
    ] {
        fails(
            &["compare", "--size", "smoke", "--precision", list, "--out", text(&out)],
            &[&format!("--precision {second} computes what {first} computes"), "name only one"],
        );
        assert!(!out.exists(), "nothing was begun");
    }
    fails(
        &["sensitivity", "--precision", "bf16", "--out", text(folder.path())],
        &["bf16", "only FP8"],
    );
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    fails(&["compare", "--size", "smoke", "--out", text(&file)], &["cannot make the folder"]);
}
