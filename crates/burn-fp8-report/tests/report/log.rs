//! Logs: written, read, cut off, damaged.

use std::path::PathBuf;

use crate::common::{entry, header};
use burn_fp8_report::Observations;
use burn_fp8_report::log::{Header, Operands, Products, SiteEntry, Writer, read};
use burn_fp8_report::sample::OperandStats;

fn written(folder: &tempfile::TempDir, steps: u64) -> PathBuf {
    let path = folder.path().join("run.jsonl");
    let mut log = Writer::create(&path, &header()).expect("created");
    for step in 0..steps {
        log.append(&[entry(10 * step, 1, "up", 1.0), entry(10 * step, 2, "down", 1e4)])
            .expect("appended");
    }
    path
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let read = read(&written(&folder, 3)).expect("read");
    assert_eq!((read.steps, read.span, read.cut_line), (3, Some([0, 20]), None));
    let names: Vec<_> = read.sites.iter().map(|site| site.label()).collect();
    assert_eq!(names, ["up #1", "down #2"]);
    let last = entry(20, 2, "down", 1e4);
    let site = &read.sites[1];
    assert_eq!(
        site.last.operands.input.as_ref().unwrap().histogram,
        last.operands.input.unwrap().histogram
    );
    let [written, read_back] = [&last.products, &site.last.products]
        .map(|products| products.output.as_ref().unwrap().sqnr.decibels().unwrap());
    assert!((written - read_back).abs() < 1e-9, "{written} {read_back}");
    assert_eq!(site.points.iter().map(|point| point.step).collect::<Vec<_>>(), [0, 10, 20]);
    // Ranked worst first, and the table has every product.
    let ranked = read.ranked();
    assert_eq!((ranked.len(), ranked[0].site.label()), (6, "down #2".into()));
    assert!(ranked.windows(2).all(|pair| pair[0].sqnr <= pair[1].sqnr));
    assert!((ranked.iter().map(|ranked| ranked.flops).sum::<f64>() - 1.0).abs() < 1e-9);
    assert_eq!(read.to_string().lines().count(), 1 + 6 + 1);
}

#[test]
fn names_cannot_command_a_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("run.jsonl");
    let mut log = Writer::create(&path, &header()).expect("created");
    let named = entry(0, 1, "a\u{1b}]0;title\u{7}\nb", 1.0);
    let mut unnamed = entry(0, 2, "", 1.0);
    unnamed.kind = "linear\u{1b}[2J".into();
    // Escaped it is six times as long.
    let long = entry(0, 3, &"\u{1b}".repeat(512), 1.0);
    log.append(&[named, unnamed, long]).expect("appended");
    let read = read(&path).expect("read");
    assert_eq!(read.sites[0].label(), "a\\u{1b}]0;title\\u{7}\\nb #1");
    assert_eq!(read.sites[1].label(), "linear\\u{1b}[2J #2 (16→16)");
    let label = read.sites[2].label();
    assert!(label.starts_with("\\u{1b}\\u{1b}") && label.ends_with(" #3"), "{label}");
    assert!((100..=170).contains(&label.chars().count()), "{label}");
    let table = read.to_string();
    assert_eq!(table.lines().count(), 1 + 9 + 1);
    assert!(!table.contains(|c: char| c.is_control() && c != '\n'), "{table:?}");
    assert!(!read.to_html().contains(['\u{1b}', '\u{7}']));
}

#[test]
fn a_log_is_not_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = written(&folder, 1);
    let before = std::fs::read(&path).expect("there");
    let error = Writer::create(&path, &header()).unwrap_err().to_string();
    assert!(error.contains("cannot create") && error.contains("run.jsonl"), "{error}");
    assert!(error.contains("give another name, or remove the old one"), "{error}");
    assert_eq!(std::fs::read(&path).expect("there"), before);
}

#[test]
fn a_cut_last_line_is_left_out_and_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = written(&folder, 2);
    let bytes = std::fs::read(&path).expect("there");
    std::fs::write(&path, &bytes[..bytes.len() - 20]).expect("cut");
    let observations = read(&path).expect("readable");
    assert_eq!(observations.cut_line, Some(5));
    assert_eq!((observations.steps, observations.sites[1].samples), (2, 1));
    assert!(observations.to_html().contains("last line, 5, was cut off"));
    // The last step has lost a site, and each site still has its share of what ran.
    let shares: f64 = observations.ranked().iter().map(|ranked| ranked.flops).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    // Complete but for its end of line: nothing is missing.
    std::fs::write(&path, &bytes[..bytes.len() - 1]).expect("cut");
    assert_eq!(read(&path).expect("readable").cut_line, None);
}

#[test]
fn shares_are_numbers_where_the_last_step_has_no_products() {
    let mut observations = Observations::new(header());
    observations.push(entry(0, 1, "up", 1.0)).expect("in order");
    let mut without = entry(10, 2, "down", 1.0);
    without.products = Products::default();
    observations.push(without).expect("in order");
    let shares: Vec<f64> = observations.ranked().iter().map(|ranked| ranked.flops).collect();
    assert_eq!(shares, [1.0 / 3.0; 3]);
}

#[test]
fn malformed_logs_get_one_line_that_names_file_and_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = written(&folder, 1);
    let good = std::fs::read_to_string(&path).expect("text");
    let lines: Vec<&str> = good.lines().collect();
    let replace = |from: &str, to: &str| {
        assert!(lines[1].contains(from), "{from}");
        format!("{}\n{}\n{}\n", lines[0], lines[1].replacen(from, to, 1), lines[2])
    };
    let first = lines[1].find("\"first\":").expect("a histogram");
    let first = &lines[1][first..first + lines[1][first..].find(',').expect("more fields")];
    let max = u64::MAX;
    let long = format!("{}\n{}\n", lines[0], "x".repeat(1 << 19));
    let cases: &[(&str, String, &str)] = &[
        ("line 1", String::new(), "empty"),
        ("line 1", "{}\n".into(), "no header"),
        ("line 1", "not json\n".into(), "no header"),
        ("line 1", "\u{0}\u{1}\u{7f}ELF".into(), "no header"),
        ("line 1", lines[0].replace(":1,", ":2,") + "\n", "version 2"),
        ("line 1", lines[0].replace("\"every\":10", "\"every\":0"), "every = 0"),
        ("line 1", lines[0].replace(":4096", ":0"), "max_elements = 0"),
        ("line 2", format!("{}\n\n{}\n", lines[0], lines[1]), "EOF"),
        ("line 2", replace("\"step\":0", "\"step\":-1"), "invalid value"),
        ("line 2", replace("\"step\":0", "\"stop\":0"), "unknown field `stop`"),
        ("line 2", replace("\"scale\":", "\"scale\":-"), "above 0"),
        ("line 2", replace("\"amax\":", "\"amax\":1e39,\"x\":"), ""),
        ("line 2", replace("\"signal\":", "\"signal\":-"), "power"),
        ("line 2", replace("\"sampled\":256", "\"sampled\":2"), "more elements"),
        ("line 2", replace("\"sampled\":256", "\"sampled\":257"), "257 of 256 elements"),
        ("line 2", replace("256,\"sampled\":256", &format!("{max},\"sampled\":{max}")), "2^53"),
        ("line 2", replace("\"flushed\":", "\"flushed\":999"), "more elements"),
        ("line 2", replace(first, "\"first\":120"), "histogram"),
        ("line 2", replace("\"up\"", &format!("\"{}\"", "n".repeat(600))), "name has 600 bytes"),
        ("line 2", replace("\"e4m3\"", "\"e9m9\""), "unknown variant"),
        ("line 3", replace("\"step\":0", "\"step\":5"), "step 0 after step 5"),
        ("line 4", format!("{good}{}\n", lines[2]), "site 2 of step 0 is there already"),
        ("line 2", long, "longer than"),
    ];
    for (line, text, expected) in cases {
        std::fs::write(&path, text).expect("written");
        let error = read(&path).expect_err(expected).to_string();
        assert!(
            error.contains("run.jsonl") && error.contains(line) && error.contains(expected),
            "{error}"
        );
        assert!(error.lines().count() == 1 && error.len() < 500, "{error}");
    }
    let error = read(&folder.path().join("none.jsonl")).unwrap_err().to_string();
    assert!(error.starts_with("cannot read") && error.lines().count() == 1, "{error}");
}

#[test]
fn what_no_reader_takes_is_neither_kept_nor_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = written(&folder, 1);
    let spoilt = |spoil: &dyn Fn(&mut OperandStats)| {
        let mut entry = entry(10, 1, "up", 1.0);
        spoil(entry.operands.weight.as_mut().expect("measured"));
        entry
    };
    let cases = [
        // What 1 / (448 / amax) is for an amax whose reciprocal overflows.
        (spoilt(&|stats| stats.scale = 0.0), "scale 0"),
        (spoilt(&|stats| stats.sqnr.noise = f64::NAN), "power"),
    ];
    for (entry, expected) in cases {
        let mut observations = read(&path).expect("whole");
        let before = observations.clone();
        let error = observations.push(entry.clone()).expect_err(expected);
        assert!(error.contains("site 1 of step 10: weight: ") && error.contains(expected));
        assert_eq!(observations, before);
        let path = folder.path().join(format!("{expected}.jsonl"));
        let mut log = Writer::create(&path, &header()).expect("created");
        let error = log.append(&[entry, self::entry(10, 2, "down", 1.0)]).unwrap_err().to_string();
        assert!(error.contains("site 1 of step 10: weight: ") && error.contains(expected));
        assert_eq!(error.lines().count(), 1);
        log.append(&[self::entry(20, 1, "up", 1.0)]).expect("still open");
        let labels: Vec<_> = read(&path).expect("whole").sites.iter().map(|s| s.label()).collect();
        assert_eq!(labels, ["down #2", "up #1"]);
    }
    let path = folder.path().join("header.jsonl");
    let error = Writer::create(&path, &Header { every: 0, ..header() }).unwrap_err().to_string();
    assert!(error.contains("every = 0") && !path.exists(), "{error}");
}

#[test]
fn the_largest_counts_have_a_summary() {
    let mut observations = Observations::new(header());
    let mut sample = entry(0, 1, "up", 1.0);
    let Operands { input, weight, output_grad } = &mut sample.operands;
    for stats in [input, weight, output_grad].into_iter().flatten() {
        (stats.elements, stats.sampled, stats.flushed) = (1 << 53, 1 << 53, 1 << 52);
    }
    // Together more than u64 has.
    for site in 0..1000 {
        observations.push(SiteEntry { site, ..sample.clone() }).expect("within limits");
    }
    assert_eq!(observations.summary().expect("a step").flushed, 0.5);
}

#[test]
fn long_runs_are_thinned_evenly_and_remember_their_worst() {
    let mut observations = Observations::new(header());
    let sample = entry(0, 1, "up", 1.0);
    for step in 0..3000 {
        let mut sample = sample.clone();
        sample.step = step;
        if step == 1001 {
            sample.products.output.as_mut().unwrap().sqnr.line.noise *= 100.0;
        }
        observations.push(sample).expect("in order");
    }
    let site = &observations.sites[0];
    assert_eq!((site.samples, observations.steps, site.last.step), (3000, 3000, 2999));
    assert!((256..=512).contains(&site.points.len()), "{}", site.points.len());
    assert!(site.points.windows(2).all(|pair| pair[1].step - pair[0].step == 8));
    let usual = sample.products.output.unwrap().sqnr.line.decibels().unwrap();
    assert!((site.lowest[0].unwrap() - (usual - 20.0)).abs() < 1e-9, "of all samples");
}

#[test]
fn the_number_of_sites_is_bounded() {
    let mut observations = Observations::new(header());
    let sample = entry(0, 1, "up", 1.0);
    let push = |observations: &mut Observations, site| {
        let mut sample = sample.clone();
        sample.site = site;
        observations.push(sample)
    };
    (0..4096).for_each(|site| push(&mut observations, site).expect("as many as that"));
    let error = push(&mut observations, 4096).unwrap_err();
    assert!(error.contains("4096 sites"), "{error}");
}
