//! Whatever it is given, the program answers with one line that names the problem, and exit code 2.

use examples_common::testing::has;

use crate::char_lm;

/// A short training, in the folder `run`.
const TRAIN: &str = "train --size smoke --epochs 1 --length 1 --out run";

#[test]
fn bad_flags() {
    let kinds = "qkv, projection, up, down, head";
    let cases: [(&str, &[&str]); 26] = [
        ("train --frobnicate", &["--frobnicate"]),
        ("train --precision fp4", &["fp4", "join=on, layers=fp8, fused=off, saved=fp8 and sums="]),
        ("train --precision fp8-current", &["fp8-current", "neither a dtype"]),
        ("compare --precision m=fp8-without-bias", &["--precision", "bias: no such", kinds]),
        ("compare --precision f32-without-head", &["--precision", "f32", "head"]),
        ("compare --precision m=fp8 fp4", &["--precision", "fp4"]),
        ("compare --reference bf16", &["--reference", "p=f32"]),
        ("compare --reference m=fp8", &["--reference", "a=high"]),
        ("compare --seed 1,x", &["x"]),
        ("train --precision p=f16", &["--precision", "p=f32"]),
        ("train --precision c=bf17", &["--precision", "bf17"]),
        ("train --precision c=bf16,m=fp9", &["--precision", "fp9"]),
        ("train --precision c=bf16,q=1", &["--precision", "q"]),
        ("train --precision p=f32,c=", &["--precision", "c="]),
        ("train --size huge", &["huge", "smoke, tiny, medium, small, 125m"]),
        ("train --backend abacus", &["abacus", "flex, ndarray, wgpu, cuda"]),
        ("train --epochs 0", &["--epochs", "1..=100000"]),
        ("train --seed x", &["--seed"]),
        ("train --high bias", &["bias", kinds, "grad_weight", "block0.qkv"]),
        ("generate --run . --temperature 0", &["--temperature", "positive"]),
        ("generate --run . --temperature nan", &["--temperature", "positive"]),
        ("generate --run . --temperature inf", &["--temperature", "positive"]),
        ("generate --run . --temperature warm", &["--temperature", "positive"]),
        ("train --prompt @ --size smoke", &["--prompt", "'@'"]),
        ("train --precision f32 --high output --size smoke", &["--high", "f32"]),
        (
            "train --precision layers=fp8 --high output --size smoke",
            &["--high output", "m=fp8_delayed"],
        ),
    ];
    for (arguments, words) in cases {
        char_lm().fails(arguments, words);
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for flag in ["--help", "--version"] {
        assert!(!char_lm().prints(flag).is_empty());
    }
}

/// Not folded into one line, as an error is.
#[test]
fn without_a_command_it_prints_its_help() {
    let output = char_lm().run("");
    let help = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{help}");
    let commands = ["train", "generate", "compare"];
    let has_line = |name: &&str| help.lines().any(|line| line.trim_start().starts_with(*name));
    assert!(commands.iter().all(has_line) && help.contains("\nUsage: char-lm"), "{help}");
}

#[test]
#[cfg(not(any(feature = "cuda", feature = "wgpu")))]
fn backends_that_were_not_built() {
    for backend in ["cuda", "wgpu"] {
        let features = format!("-p char-lm --features {backend}");
        char_lm().fails(&format!("train --size smoke --backend {backend}"), &[&features]);
    }
}

/// What is refused before anything is begun.
#[test]
fn what_a_model_or_a_backend_does_not_have() {
    let cases: [(&str, &[&str]); 4] = [
        ("--precision m=fp8 --high block2", &["block2", "2 blocks"]),
        ("--precision m=fp8 --high block2.qkv", &["block2.qkv", "2 blocks"]),
        (
            "--backend ndarray --precision c=bf16",
            &["--precision", "ndarray", "cannot compute in BF16"],
        ),
        (
            "--backend ndarray --precision c=f16,o=f32,m=fp8",
            &["--precision", "ndarray", "cannot compute in F16"],
        ),
    ];
    for (arguments, words) in cases {
        let char_lm = char_lm();
        char_lm.fails(&format!("train --size smoke --out run {arguments}"), words);
        assert!(!char_lm.has("run"), "nothing was begun");
    }
}

#[test]
fn folders_that_hold_no_run_or_another() {
    let char_lm = char_lm();
    char_lm.fails(&format!("{TRAIN} --resume"), &["no run to go on with", "run.json"]);
    char_lm.fails("generate --run .", &["no run", "run.json"]);
    char_lm.succeeds(TRAIN);
    char_lm.fails(TRAIN, &["holds a run already", "--resume", "--out"]);
    // As many parameters are asked for as another size has.
    for (other, words) in [
        ("--size tiny --epochs 1", "size \"smoke\" instead of \"tiny\""),
        ("--size smoke --epochs 1 --precision m=fp8", "precision \"f32\" instead of \"m=fp8\""),
        ("--size smoke --epochs 1 --seed 2", "seed 1 instead of 2"),
        ("--size smoke --epochs 2", "epochs 1 instead of 2"),
    ] {
        char_lm.fails(&format!("train --resume --out run {other}"), &[words]);
    }
}

/// A disk that has no room, by the limit of a file's size: it is told why, where, and what to do.
#[test]
#[cfg(target_os = "linux")]
fn a_disk_without_room_is_named_and_the_run_goes_on_later() {
    let char_lm = char_lm();
    let program = env!("CARGO_BIN_EXE_char-lm");
    let mut command = std::process::Command::new("sh");
    command.current_dir(char_lm.path("")).args([
        "-c",
        "trap '' XFSZ; ulimit -f 16; exec \"$@\"",
        "sh",
        program,
    ]);
    let output = command.args(TRAIN.split(' ')).output().expect("it starts");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    let last = stderr.lines().last().unwrap_or_default();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    has(
        last,
        &["error: cannot write a checkpoint: run/checkpoint/", ".mpk: File too large", "--resume"],
    );
    assert!(!last.contains("Recorder") && !last.contains("Unknown"), "{last}");
    has(&char_lm.succeeds(&format!("{TRAIN} --resume")).0, &["after 1 epoch;"]);
}

/// What another run left behind is not taken for that of a new one, and a refusal writes nothing.
#[test]
fn remains_of_another_run() {
    let char_lm = char_lm();
    char_lm.succeeds(TRAIN);
    char_lm.remove("run/run.json");
    let other = format!("{TRAIN} --precision m=fp8");
    for file in ["losses.jsonl", "checkpoint", "outcome.json", "weights.safetensors"] {
        char_lm.fails(&other, &[file, "no run.json", "choose another --out"]);
        assert!(!char_lm.has("run/run.json"), "nothing was begun");
        char_lm.remove(&format!("run/{file}"));
    }
    char_lm.succeeds(&other);
}

#[test]
fn nothing_to_observe_and_logs_in_the_way() {
    let char_lm = char_lm();
    let train = |precision| format!("{TRAIN} --observe log.jsonl --precision {precision}");
    for precision in ["f32", "c=bf16,o=f32"] {
        char_lm.fails(&train(precision), &["--observe", precision, "has none"]);
    }
    assert!(!char_lm.has("log.jsonl") && !char_lm.has("run"));
    char_lm.write("log.jsonl", "mine");
    char_lm.fails(&train("m=fp8"), &["--observe", "log.jsonl"]);
    assert_eq!(char_lm.text("log.jsonl"), "mine");
    assert!(!char_lm.has("run"), "nothing was begun");
}

/// A log that is left without its run would be in the way of the same command, repeated.
#[test]
fn a_run_that_cannot_begin_leaves_no_log() {
    let char_lm = char_lm();
    let train = format!("{TRAIN} --precision m=fp8 --observe");
    #[cfg(unix)]
    {
        // A link to nowhere: nothing is there that could be read, and no folder can be made.
        std::os::unix::fs::symlink("nowhere", char_lm.path("link")).expect("linked");
        let link = format!("{train} log.jsonl").replace("--out run", "--out link");
        char_lm.fails(&link, &["cannot make the folder", "link"]);
        assert!(!char_lm.has("log.jsonl"));
    }

    std::fs::create_dir(char_lm.path("run")).expect("made");
    let lock = std::fs::File::create(char_lm.path("run/run.lock")).expect("written");
    lock.lock().expect("locked");
    char_lm.fails(&format!("{train} log.jsonl"), &["another process trains in"]);
    assert!(!char_lm.has("log.jsonl"));
    drop(lock);

    // And a log that cannot be made leaves nothing that is taken for a run.
    char_lm.fails(&format!("{train} nowhere/log.jsonl"), &["--observe", "nowhere"]);
    char_lm.succeeds(&format!("{train} log.jsonl"));
    assert!(char_lm.has("log.jsonl"));
}

#[test]
fn files_in_the_way() {
    let char_lm = char_lm();
    char_lm.write("file", "");
    char_lm.fails("train --size smoke --out file", &["file"]);
    char_lm.fails("train --size smoke --out file/run", &["run"]);
    char_lm.fails("compare --size smoke --out file", &["cannot make the folder"]);
}

const RESUME: &str = "train --size smoke --epochs 1 --length 1 --out run --resume";
const GENERATE: &str = "generate --run run --length 5";

#[test]
fn malformed_weights() {
    let char_lm = char_lm();
    char_lm.succeeds(TRAIN);
    let whole = char_lm.read("run/weights.safetensors");
    let gamma = whole.windows(8).position(|bytes| bytes == b"gamma\":{").expect("a header");
    let changed = |place: usize, change: fn(u8) -> u8| {
        let mut bytes = whole.clone();
        bytes[place] = change(bytes[place]);
        bytes
    };
    // Cut off, of another model, nonsense, far too large; and a bit of a number in the middle, which makes another number of it.
    let flipped = changed(whole.len() / 2, |byte| byte ^ 1);
    let contents: [(&[u8], &[&str]); 6] = [
        (&whole[..whole.len() - 1], &["no intact safetensors"]),
        (&changed(gamma, |_| b'G'), &["has no tensor"]),
        (b"nonsense", &["no intact safetensors"]),
        (b"", &["no intact safetensors"]),
        (&vec![0; 10 * whole.len()], &["larger than"]),
        (&flipped, &["is damaged", "CRC-32"]),
    ];
    for (content, words) in contents {
        char_lm.write("run/weights.safetensors", content);
        char_lm.fails(GENERATE, &[&["weights.safetensors"], words].concat());
        let advice = ["weights.safetensors", "remove outcome.json"];
        char_lm.fails(RESUME, &[&advice, words].concat());
    }
    char_lm.remove("run/weights.safetensors");
    char_lm.fails(GENERATE, &["has not ended", "--resume"]);
}

#[test]
fn malformed_files_of_a_run() {
    let char_lm = char_lm();
    char_lm.succeeds(TRAIN);
    let settings = char_lm.text("run/run.json");
    for (content, words) in [
        ("{", "EOF"),
        ("{\"sizes\": 1}", "unknown field `sizes`"),
        ("[]\n\n", "run.json"),
        (&settings.replace("f32", "fp4"), "join=on"),
    ] {
        char_lm.write("run/run.json", content);
        char_lm.fails(GENERATE, &["run.json", words]);
        char_lm.fails(RESUME, &["run.json", words]);
    }
    char_lm.write("run/run.json", settings);

    // The outcome, which tells that the run has ended.
    let outcome = char_lm.read("run/outcome.json");
    for (content, words) in
        [("{", "EOF"), ("{\"loss\": 1}", "unknown field `loss`"), ("[]\n\n", "outcome.json")]
    {
        char_lm.write("run/outcome.json", content);
        char_lm.fails(RESUME, &["outcome.json", words]);
        assert_eq!(char_lm.text("run/outcome.json"), content, "nothing is mended");
    }
    char_lm.write("run/outcome.json", outcome);

    // Losses, and all checkpoints of a run that has not ended.
    char_lm.remove("run/outcome.json");
    let losses = char_lm.read("run/losses.jsonl");
    char_lm.write("run/losses.jsonl", "nonsense\n");
    char_lm.fails(RESUME, &["losses.jsonl", "line 1"]);
    char_lm.write("run/losses.jsonl", losses);
    let bytes = char_lm.read("run/checkpoint/model-1.mpk");
    let contents: [&[u8]; 4] = [b"", b"nonsense", &bytes[..bytes.len() / 2], &vec![0xC1; 1 << 16]];
    for content in contents {
        char_lm.write("run/checkpoint/model-1.mpk", content);
        let stderr = char_lm.ends(RESUME, &["no checkpoint", "--out"]);
        assert_eq!(stderr.lines().count(), 2, "{stderr}");
        has(&stderr, &["passed over: model-1.mpk is damaged"]);
    }
}

#[test]
fn weights_without_a_checksum_are_taken_with_a_note() {
    let char_lm = char_lm();
    char_lm.succeeds(TRAIN);
    let told = char_lm.prints(GENERATE);

    // As earlier versions wrote it.
    let outcome = char_lm.text("run/outcome.json");
    let is_checksum = |line: &&str| line.contains("weights_crc32");
    assert_eq!(outcome.lines().filter(is_checksum).count(), 1, "{outcome}");
    let lines: Vec<_> = outcome.lines().filter(|line| !is_checksum(line)).collect();
    char_lm.write("run/outcome.json", lines.join("\n").replace(",\n}", "\n}"));
    assert_eq!(char_lm.succeeds(GENERATE).0, told);
    for arguments in [GENERATE, RESUME] {
        has(&char_lm.succeeds(arguments).1, &["note: ", "outcome.json has no checksum"]);
    }
}
