//! Whatever it is given, the program answers with one line that names the problem, and exit code 2.

mod common;

use std::fs;
use std::path::Path;

use common::{fails, folder, run, succeeds, text};

#[test]
fn bad_flags() {
    fails(&["train", "--frobnicate"], &["--frobnicate"]);
    fails(
        &["train", "--precision", "fp4"],
        &[
            "fp4",
            "f32, bf16, fp8-current, fp8-current-e4m3, fp8-delayed, fp8-delayed-e4m3, fp8-row, fp8-row-e4m3, mxfp8, fp8-block, \
             fp8-block-f32, fp8-layers",
        ],
    );
    for (arm, words) in [
        ("fp8-current-without-bias", &["bias: no such", "qkv, projection, up, down, head"][..]),
        ("f32-without-head", &["f32", "head"]),
        ("fp8-current,fp4", &["fp4: no such precision"]),
    ] {
        fails(&["compare", "--precision", arm], &[&["--precision"], words].concat());
    }
    for (policy, words) in [
        ("p=f16", "p=f32"),
        ("c=bf17", "bf17"),
        ("c=bf16,m=fp9", "fp9"),
        ("c=bf16,q=1", "q"),
        ("p=f32,c=", "c="),
    ] {
        fails(&["train", "--precision", policy], &["--precision", words]);
    }
    fails(&["train", "--size", "huge"], &["huge", "smoke, tiny, medium, small, 125m"]);
    fails(&["train", "--backend", "abacus"], &["abacus", "flex, ndarray, wgpu, cuda"]);
    fails(&["train", "--epochs", "0"], &["--epochs", "1..=100000"]);
    fails(&["train", "--seed", "x"], &["--seed"]);
    fails(&["train", "--patience", "0"], &["--patience"]);
    for part in ["bias", "block0.bias", "block0.head", "block01"] {
        let known = ["qkv, projection, up, down, head", "grad_weight", "block0.qkv"];
        fails(&["train", "--high", part], &[&[part], &known[..]].concat());
    }
    for temperature in ["0", "nan", "inf", "warm"] {
        fails(
            &["generate", "--run", ".", "--temperature", temperature],
            &["--temperature", "positive"],
        );
    }
    fails(&["train", "--prompt", "@", "--size", "smoke"], &["--prompt", "'@'"]);
}

#[test]
fn help_and_version_are_no_errors() {
    for flag in ["--help", "--version"] {
        let output = run(&[flag]);
        assert!(output.status.success() && !output.stdout.is_empty() && output.stderr.is_empty());
    }
}

#[test]
#[cfg(not(any(feature = "cuda", feature = "wgpu")))]
fn backends_that_were_not_built() {
    for backend in ["cuda", "wgpu"] {
        fails(&["train", "--size", "smoke", "--backend", backend], &["--features", backend]);
    }
}

#[test]
fn nothing_to_leave_out() {
    let high = ["--high", "output", "--size", "smoke"];
    fails(&[&["train", "--precision", "f32"], &high[..]].concat(), &["--high", "f32"]);
    fails(
        &[&["train", "--precision", "fp8-layers"], &high[..]].concat(),
        &["--high output", "fp8-current"],
    );
    let folder = folder();
    let out = folder.path().join("run");
    for part in ["block2", "block2.qkv"] {
        let train = ["train", "--size", "smoke", "--precision", "fp8-current", "--high", part];
        fails(&[&train[..], &["--out", text(&out)]].concat(), &[part, "2 blocks"]);
        assert!(!out.exists(), "nothing was begun");
    }
}

#[test]
fn types_that_a_backend_does_not_have() {
    let folder = folder();
    let out = folder.path().join("run");
    for (precision, dtype) in [("bf16", "BF16"), ("c=f16,o=f32,m=fp8", "F16")] {
        let train = ["train", "--size", "smoke", "--backend", "ndarray", "--precision", precision];
        let words = ["--precision", "ndarray", &format!("cannot compute in {dtype}")];
        fails(&[&train[..], &["--out", text(&out)]].concat(), &words);
        assert!(!out.exists(), "nothing was begun");
    }
}

#[test]
fn folders_that_hold_no_run_or_another() {
    let folder = folder();
    let out = folder.path().join("run");
    let train = ["train", "--size", "smoke", "--epochs", "1", "--length", "1", "--out", text(&out)];
    fails(&[&train[..], &["--resume"]].concat(), &["no run to go on with", "run.json"]);
    fails(&["generate", "--run", text(folder.path())], &["no run", "run.json"]);
    succeeds(&train);
    fails(&train, &["holds a run already", "--resume", "--out"]);
    // As many parameters are asked for as another size has.
    let other = |arguments: &[&str], words: &[&str]| {
        fails(&[&["train", "--resume", "--out", text(&out)], arguments].concat(), words);
    };
    let smoke = ["--size", "smoke", "--epochs", "1"];
    other(&["--size", "tiny", "--epochs", "1"], &["size \"smoke\" instead of \"tiny\""]);
    other(
        &[&smoke[..], &["--precision", "bf16"]].concat(),
        &["precision \"f32\" instead of \"bf16\""],
    );
    other(&[&smoke[..], &["--seed", "2"]].concat(), &["seed 1 instead of 2"]);
    other(&["--size", "smoke", "--epochs", "2"], &["epochs 1 instead of 2"]);
}

/// What another run left behind is not taken for that of a new one, and a refusal writes nothing.
#[test]
fn remains_of_another_run() {
    let folder = folder();
    let out = folder.path().join("run");
    let train = ["train", "--size", "smoke", "--epochs", "1", "--length", "1", "--out", text(&out)];
    succeeds(&train);
    fs::remove_file(out.join("run.json")).expect("removed");
    let other = [&train[..], &["--precision", "fp8-current"]].concat();
    for file in ["losses.jsonl", "checkpoint", "outcome.json", "weights.safetensors"] {
        fails(&other, &[file, "no run.json", "choose another --out"]);
        assert!(!out.join("run.json").exists(), "nothing was begun");
        let path = out.join(file);
        match path.is_dir() {
            true => fs::remove_dir_all(path).expect("removed"),
            false => fs::remove_file(path).expect("removed"),
        }
    }
    succeeds(&other);
}

#[test]
fn nothing_to_observe_and_logs_in_the_way() {
    let folder = folder();
    let (out, log) = (folder.path().join("run"), folder.path().join("log.jsonl"));
    let train = |precision| {
        [
            "train",
            "--size",
            "smoke",
            "--epochs",
            "1",
            "--out",
            text(&out),
            "--observe",
            text(&log),
            "--precision",
            precision,
        ]
    };
    for precision in ["f32", "bf16", "p=f32,c=bf16,o=bf16,m=high"] {
        fails(&train(precision), &["--observe", precision, "has none"]);
    }
    assert!(!log.exists() && !out.exists());
    fs::write(&log, "mine").expect("written");
    fails(&train("fp8-current"), &["--observe", "log.jsonl"]);
    assert_eq!(fs::read(&log).expect("a file"), b"mine");
    assert!(!out.exists(), "nothing was begun");
}

/// A log that is left without its run would be in the way of the same command, repeated.
#[test]
fn a_run_that_cannot_begin_leaves_no_log() {
    let folder = folder();
    let (out, log) = (folder.path().join("run"), folder.path().join("log.jsonl"));
    fn train<'a>(out: &'a Path, log: &'a Path) -> Vec<&'a str> {
        let arguments = ["train", "--size", "smoke", "--epochs", "1", "--precision", "fp8-current"];
        [&arguments[..], &["--length", "1", "--observe", text(log), "--out", text(out)]].concat()
    }
    #[cfg(unix)]
    {
        // A link to nowhere: nothing is there that could be read, and no folder can be made.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).expect("linked");
        fails(&train(&link, &log), &["cannot make the folder", "link"]);
        assert!(!log.exists());
    }

    fs::create_dir(&out).expect("made");
    let lock = fs::File::create(out.join("run.lock")).expect("written");
    lock.lock().expect("locked");
    fails(&train(&out, &log), &["another process trains in"]);
    assert!(!log.exists());
    drop(lock);

    // And a log that cannot be made leaves nothing that is taken for a run.
    fails(&train(&out, &folder.path().join("nowhere/log.jsonl")), &["--observe", "nowhere"]);
    succeeds(&train(&out, &log));
    assert!(log.exists());
}

#[test]
fn files_in_the_way() {
    let folder = folder();
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    fails(&["train", "--size", "smoke", "--out", text(&file)], &["file"]);
    fails(&["train", "--size", "smoke", "--out", text(&file.join("run"))], &["run"]);
}

#[test]
fn malformed_files_of_a_run() {
    let folder = folder();
    let out = folder.path().join("run");
    let train = ["train", "--size", "smoke", "--epochs", "1", "--length", "1", "--out", text(&out)];
    succeeds(&train);
    let resume = [&train[..], &["--resume"]].concat();
    let generate = ["generate", "--run", text(&out), "--length", "5"];
    let (weights, outcome) = (out.join("weights.safetensors"), out.join("outcome.json"));
    let settings = fs::read(out.join("run.json")).expect("settings");

    // Weights: cut off, of another model, nonsense, far too large.
    let whole = fs::read(&weights).expect("weights");
    let name = whole
        .windows(8)
        .position(|bytes| bytes == b"gamma\":{")
        .expect("a header that names gamma");
    let mut renamed = whole.clone();
    renamed[name] = b'G';
    let contents: [(&[u8], &str); 5] = [
        (&whole[..whole.len() - 1], "no intact safetensors"),
        (&renamed, "has no tensor"),
        (b"nonsense", "no intact safetensors"),
        (b"", "no intact safetensors"),
        (&vec![0; 10 * whole.len()], "larger than"),
    ];
    for (content, words) in contents {
        fs::write(&weights, content).expect("written");
        fails(&generate, &["weights.safetensors", words]);
        fails(&resume, &["weights.safetensors", words]);
    }
    // A bit of a number in the middle, which makes another number of it.
    let mut flipped = whole.clone();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    fs::write(&weights, &flipped).expect("written");
    fails(&generate, &["weights.safetensors: is damaged", "CRC-32"]);
    fails(&resume, &["weights.safetensors", "is damaged", "CRC-32", "remove outcome.json"]);
    fs::remove_file(&weights).expect("removed");
    fails(&generate, &["has not ended", "--resume"]);

    // Settings.
    for (content, words) in
        [("{", "EOF"), ("{\"sizes\": 1}", "unknown field `sizes`"), ("[]\n\n", "run.json")]
    {
        fs::write(out.join("run.json"), content).expect("written");
        fails(&generate, &["run.json", words]);
        fails(&resume, &["run.json", words]);
    }
    let precision = String::from_utf8(settings.clone()).expect("UTF-8").replace("f32", "fp4");
    fs::write(out.join("run.json"), precision).expect("written");
    fails(&generate, &["run.json", "precision"]);
    fs::write(out.join("run.json"), &settings).expect("written");

    // The outcome, which tells that the run has ended.
    let intact = fs::read(&outcome).expect("an outcome");
    for (content, words) in
        [("{", "EOF"), ("{\"loss\": 1}", "unknown field `loss`"), ("[]\n\n", "outcome.json")]
    {
        fs::write(&outcome, content).expect("written");
        fails(&resume, &["outcome.json", words]);
        assert_eq!(fs::read(&outcome).expect("a file"), content.as_bytes(), "nothing is mended");
    }
    fs::write(&outcome, &intact).expect("written");

    // Losses, and all checkpoints of a run that has not ended.
    fs::remove_file(&outcome).expect("removed");
    let losses = fs::read(out.join("losses.jsonl")).expect("losses");
    fs::write(out.join("losses.jsonl"), "nonsense\n").expect("written");
    fails(&resume, &["losses.jsonl", "line 1"]);
    fs::write(out.join("losses.jsonl"), losses).expect("written");
    let model = out.join("checkpoint/model-1.mpk");
    let bytes = fs::read(&model).expect("a checkpoint");
    let contents: [&[u8]; 4] = [b"", b"nonsense", &bytes[..bytes.len() / 2], &vec![0xC1; 1 << 16]];
    for content in contents {
        fs::write(&model, content).expect("written");
        let output = run(&resume);
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        let lines: Vec<_> = stderr.lines().collect();
        assert_eq!(lines.len(), 2, "{stderr}");
        assert!(lines[0].contains("passed over: model-1.mpk is damaged"), "{stderr}");
        assert!(
            lines[1].starts_with("error: no checkpoint") && lines[1].contains("--out"),
            "{stderr}"
        );
    }
}

#[test]
fn weights_without_a_checksum_are_taken_with_a_note() {
    let folder = folder();
    let out = folder.path().join("run");
    let train = ["train", "--size", "smoke", "--epochs", "1", "--length", "5", "--out", text(&out)];
    succeeds(&train);
    let resume = [&train[..], &["--resume"]].concat();
    let generate = ["generate", "--run", text(&out), "--length", "5"];
    let (told, stderr) = succeeds(&generate);
    assert!(stderr.is_empty(), "{stderr}");

    // As earlier versions wrote it.
    let outcome = fs::read_to_string(out.join("outcome.json")).expect("an outcome");
    let is_checksum = |line: &&str| line.contains("weights_crc32");
    assert_eq!(outcome.lines().filter(is_checksum).count(), 1, "{outcome}");
    let lines: Vec<_> = outcome.lines().filter(|line| !is_checksum(line)).collect();
    let older = lines.join("\n").replace(",\n}", "\n}");
    fs::write(out.join("outcome.json"), older).expect("written");
    assert_eq!(succeeds(&generate).0, told);
    for arguments in [&generate[..], &resume] {
        let (_, stderr) = succeeds(arguments);
        for words in ["note: ", "outcome.json has no checksum"] {
            assert!(stderr.contains(words), "`{words}` is missing in: {stderr}");
        }
    }
}
