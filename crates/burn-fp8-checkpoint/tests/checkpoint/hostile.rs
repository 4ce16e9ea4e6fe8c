//! Files that were made to do harm: to hang, to fill memory, to be obeyed by a terminal.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use burn_fp8_checkpoint::Checkpoint;
use burn_fp8_test_support::alone;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{assert_says, f32s, folder, golden, ones, refusal};
use crate::declared::compressed;

/// A file with this header and so many bytes of zeros behind it, which take no place on the disk.
fn write_sparse(path: &Path, header: &str, data: u64) {
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + data).unwrap();
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_at_once() {
    for pipe in
        ["model.safetensors", "config.json", "model.safetensors.index.json", "hf_quant_config.json"]
    {
        let folder = TempDir::new().unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(golden("modelopt").join(file), folder.path().join(file)).unwrap();
        }
        if pipe == "model.safetensors.index.json" {
            fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        }
        let path = folder.path().join(pipe);
        let _ = fs::remove_file(&path);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        assert_says(refusal(folder.path()), &[pipe, "a pipe or a device"]);
    }
    assert_says(refusal("/dev/zero"), &["config.json"]);
}

/// The path leads to a file and to a pipe in turns. Whoever opens a pipe, because it was a file a moment before, waits forever.
#[cfg(unix)]
#[test]
fn a_pipe_that_takes_the_place_of_a_file_is_refused_at_once() {
    let folder = folder("{}", &[f32s("a", &[1], &[1.0])]);
    let path = |name: &str| folder.path().join(name);
    fs::copy(path("config.json"), path("file")).unwrap();
    assert!(Command::new("mkfifo").arg(path("pipe")).status().unwrap().success());
    let (done, is_done) = std::sync::mpsc::channel();
    let opened = folder.path().to_owned();
    let start = Instant::now();
    std::thread::spawn(move || {
        // How many opened a file, and how many a pipe.
        let mut outcomes = [0, 0];
        while start.elapsed().as_secs() < 3 {
            outcomes[usize::from(Checkpoint::open(&opened).is_err())] += 1;
        }
        done.send(outcomes).unwrap();
    });
    let outcomes = loop {
        for other in ["pipe", "file"] {
            fs::hard_link(path(other), path("next")).unwrap();
            fs::rename(path("next"), path("config.json")).unwrap();
        }
        if let Ok(outcomes) = is_done.try_recv() {
            break outcomes;
        }
        assert!(start.elapsed().as_secs() < 60, "it waits for the other end of a pipe");
    };
    assert!(outcomes.iter().all(|outcome| *outcome > 0), "{outcomes:?}");
}

#[test]
fn what_is_missing_is_told() {
    let folder = TempDir::new().unwrap();
    assert_says(refusal(folder.path()), &["neither model.safetensors nor"]);
    assert_says(refusal(folder.path().join("model.safetensors")), &["cannot read"]);
    fs::write(folder.path().join("model.safetensors"), b"").unwrap();
    assert_says(refusal(folder.path()), &["config.json", "cannot read"]);
    fs::create_dir(folder.path().join("config.json")).unwrap();
    assert_says(refusal(folder.path()), &["it is a folder"]);
}

#[test]
fn large_configurations_are_not_read() {
    let folder = folder("{}", &[f32s("a", &[1], &[1.0])]);
    let config = folder.path().join("config.json");
    File::create(&config).unwrap().set_len(100 << 20).unwrap();
    assert_says(refusal(folder.path()), &["104857600 bytes", "16777216"]);

    // Each of these takes two bytes in the file and more in memory.
    fs::write(&config, format!("{{\"a\":[{}0]}}", "0,".repeat(5 << 20))).unwrap();
    assert_says(refusal(folder.path()), &["too many values"]);

    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    fs::write(&config, "{}").unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    File::create(&index).unwrap().set_len(100 << 20).unwrap();
    assert_says(refusal(folder.path()), &["104857600 bytes"]);
}

#[test]
fn deep_json_is_no_overflow_of_the_stack() {
    let folder = folder("{}", &[f32s("a", &[1], &[1.0])]);
    let deep = |open: &str, close: &str| {
        format!("{{\"quantization_config\":{}1{}}}", open.repeat(400_000), close.repeat(400_000))
    };
    for json in [deep("[", "]"), deep("{\"a\":", "}")] {
        fs::write(folder.path().join("config.json"), json).unwrap();
        assert_says(refusal(folder.path()), &["recursion limit"]);
    }
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    for unread in ["\"a\"", "\"__metadata__\"", "\"weight_map\""] {
        let json = format!("{{{unread}:{}{}}}", "[".repeat(400_000), "]".repeat(400_000));
        write_sparse(&folder.path().join("model.safetensors"), &json, 0);
        refusal(folder.path());
    }
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let index = format!("{{\"x\":{}{}}}", "[".repeat(400_000), "]".repeat(400_000));
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    assert_says(refusal(folder.path()), &["index.json"]);
}

#[test]
fn shapes_and_names_of_any_length_are_refused() {
    let folder = folder("{}", &[]);
    let model = folder.path().join("model.safetensors");
    let shape = format!(
        r#"{{"a":{{"dtype":"U8","shape":[{}1],"data_offsets":[0,1]}}}}"#,
        "1,".repeat(1 << 20)
    );
    write_sparse(&model, &shape, 1);
    assert_says(refusal(folder.path()), &["`a`", "no more than 16"]);
    let name = "n".repeat(1 << 20);
    write_sparse(
        &model,
        &format!(r#"{{"{name}":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#),
        1,
    );
    let error = refusal(folder.path());
    assert!(error.contains("1048576 bytes") && error.len() < 1000, "{error}");
    for (field, word) in [
        (r#""dtype":"U8","shape":[-1],"data_offsets":[0,1]"#, "`a`"),
        (r#""dtype":"U8","shape":[1],"data_offsets":[0,1,2]"#, "`a`"),
        (r#""dtype":"U8","shape":[1],"data_offsets":[0.5,1]"#, "`a`"),
        (r#""dtype":"U8","shape":[1]"#, "data_offsets"),
        (r#""dtype":"F4","shape":[1],"data_offsets":[0,1]"#, "whole number of bytes"),
        (r#""dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]"#, "duplicate field"),
    ] {
        write_sparse(&model, &format!(r#"{{"a":{{{field}}}}}"#), 1);
        assert_says(refusal(folder.path()), &[word]);
    }
    for (header, word) in [
        (
            r#"{"__metadata__":{"a":"b"},"__metadata__":{"a":"b"}}"#,
            "`__metadata__`: it is there twice",
        ),
        (r#"{"__metadata__":{"a":1}}"#, "`__metadata__`: invalid type"),
        (r#"{"__metadata__":["a"]}"#, "`__metadata__`: invalid type"),
    ] {
        write_sparse(&model, header, 0);
        assert_says(refusal(folder.path()), &[word]);
    }
    write_sparse(&model, r#"{"__metadata__":{"a":"b","c":"d"}}"#, 0);
    Checkpoint::open(folder.path()).unwrap();
}

#[test]
fn messages_are_short_and_obeyed_by_no_terminal() {
    let config = |method: &str| json!({ "quantization_config": { "quant_method": method } });
    // What is escaped is six times as long.
    for (name, shown) in [
        (format!("a\u{1b}[2J\n{}", "x".repeat(500)), "`a\\u{1b}[2J\\nxxx"),
        ("\u{1b}".repeat(900), "`\\u{1b}\\u{1b}"),
    ] {
        let tensors = [ones(&format!("{name}.weight"), [2, 2])];
        let folder = folder(&config(&"\u{1b}[31m".repeat(50_000)).to_string(), &tensors);
        let of_config = refusal(folder.path());
        fs::write(folder.path().join("config.json"), config("fp8").to_string()).unwrap();
        let of_tensor = refusal(folder.path());
        for error in [&of_config, &of_tensor] {
            assert!(!error.contains(['\u{1b}', '\n']) && error.len() < 1000, "{error}");
        }
        assert_says(of_tensor, &[shown]);
    }
}

/// Neither slow expressions, nor those that are refused, nor long ones, nor many layers.
#[test]
fn expressions_take_little_time() {
    let open = |targets: Vec<String>, length: usize, layers: usize| {
        let groups = json!({ "g": { "weights": { "type": "float" }, "targets": targets } });
        let config = compressed(groups, json!([]));
        let layers = (0..layers).flat_map(|layer| {
            let name = format!("{}{layer}", "a".repeat(length));
            let scale = f32s(&format!("{name}.weight_scale"), &[1], &[1.0]);
            [ones(&format!("{name}.weight"), [1, 1]), scale]
        });
        let folder = folder(&config.to_string(), &layers.collect::<Vec<_>>());
        let start = Instant::now();
        let opened = Checkpoint::open(folder.path());
        assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
        opened
    };
    let [slow, linear] = ["re:(a|a)*(a|a)*(a|a)*b", "Linear"].map(str::to_owned);
    open(vec![slow.clone(), linear.clone()], 900, 1).expect("a checkpoint");
    let checkpoint = open(vec![slow, linear.clone()], 200, 2000).expect("a checkpoint");
    assert_eq!(checkpoint.layers().len(), 2000);
    // What would take more memory than is given to it is left out.
    for large in ["re:((a{1,50}){1,50}){1,50}", &format!("re:{}", "\\pL".repeat(200_000))] {
        let checkpoint = open(vec![large.to_owned(), linear.clone()], 1, 1).expect("left out");
        assert_says(&checkpoint.warnings()[0], &["cannot match", &large[..10]]);
    }
    let error = open(vec!["re:\\w{99}\\w{99}".to_owned(); 100_000], 1, 1).expect_err("too many");
    assert_says(error, &["at most 256 expressions"]);
}

/// What the process has read and the most memory that it had, in bytes.
#[cfg(target_os = "linux")]
fn used() -> (u64, u64) {
    let field = |file: &str, key: &str| {
        let text = fs::read_to_string(file).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    (field("/proc/self/io", "rchar:"), field("/proc/self/status", "VmHWM:") * 1024)
}

#[cfg(target_os = "linux")]
#[test]
fn opening_8_gb_reads_little() {
    // Its memory is that of this test.
    alone(|| {
        let (mut header, mut end) = (String::from("{"), 0_u64);
        for layer in 0..512 {
            let weight = end + 4096 * 4096;
            header += &format!(
                r#""{layer}.weight":{{"dtype":"F8_E4M3","shape":[4096,4096],"data_offsets":[{end},{weight}]}},"#
            );
            end = weight + 4;
            header += &format!(
                r#""{layer}.weight_scale_inv":{{"dtype":"F32","shape":[],"data_offsets":[{weight},{end}]}},"#
            );
        }
        header.pop();
        header += "}";
        let (folder, mut file) = sparse_fp8(&header, end);
        // The scale of layer 3.
        let place = 8 + header.len() as u64 + 4 * (4096 * 4096 + 4) - 4;
        file.seek(SeekFrom::Start(place)).unwrap();
        file.write_all(&0.5_f32.to_le_bytes()).unwrap();

        let (start, before) = (Instant::now(), used());
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let (seconds, after) = (start.elapsed().as_secs_f64(), used());
        assert_eq!(checkpoint.layers().len(), 512);
        assert!(
            end > 8_000_000_000 && after.0 - before.0 < 1_000_000,
            "{} read",
            after.0 - before.0
        );
        assert!(after.1 - before.1 < 20 << 20, "{} bytes of memory", after.1 - before.1);
        assert!(seconds < 5.0, "{seconds} s");
        // A layer takes its own bytes.
        let layer = checkpoint.linear("3").unwrap();
        assert_eq!(layer.scales().values(), [0.5]);
        assert!(used().0 - after.0 < 4096 * 4096 + 10_000);
        assert_says(checkpoint.linear("4").unwrap_err(), &["`4.weight_scale_inv`: found 0;"]);
    });
}

/// A checkpoint of the method `fp8` whose data are zeros that take no place on the disk, and its file.
#[cfg(target_os = "linux")]
fn sparse_fp8(header: &str, data: u64) -> (TempDir, File) {
    let folder = folder(r#"{"quantization_config":{"quant_method":"fp8"}}"#, &[]);
    let model = folder.path().join("model.safetensors");
    write_sparse(&model, header, data);
    (folder, File::options().write(true).open(model).unwrap())
}

/// Headers that would take gigabytes are refused with what there is, the limit, and what to do, before much of it is in memory.
#[cfg(target_os = "linux")]
#[test]
fn headers_take_bounded_memory() {
    // Its memory is that of this test.
    alone(|| {
        let header = |tensors: usize| {
            let mut header = String::from("{");
            for name in 0..tensors {
                let comma = if name == 0 { "" } else { "," };
                let tensor = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
                header += &format!("{comma}\"{name}\":{tensor}");
            }
            header + "}"
        };
        let folder = folder("{}", &[]);
        let model = folder.path().join("model.safetensors");
        let index = folder.path().join("model.safetensors.index.json");
        let refused = |found: &str, limit: &str| {
            let memory = used().1;
            let error = refusal(folder.path());
            assert_says(&error, &[found, limit, "from where you trust it"]);
            let taken = used().1 - memory;
            assert!(taken < 150 << 20, "{taken} bytes of memory: {error}");
        };
        write_sparse(&model, &header(1_000_000), 0);
        refused("found 1000000 tensors", "at most 524288");

        // 64 names of one file: which names tensors have twice is looked at later.
        let shards: Vec<_> = (0..64).map(|shard| format!("{shard}.safetensors")).collect();
        let map = shards.iter().map(|shard| (shard.clone(), json!(shard)));
        let map: Value = map.collect();
        fs::write(&index, json!({ "weight_map": map }).to_string()).unwrap();
        for (header, found, limit) in [
            (header(300_000), "1.safetensors: found 600000 tensors".to_owned(), "at most 524288"),
            (
                format!("{{{}}}", " ".repeat(18 << 20)),
                format!("after those of other files, {} bytes", 5 * ((18 << 20) + 2)),
                "at most 100000000",
            ),
        ] {
            write_sparse(&model, &header, 0);
            drop(header);
            shards.iter().for_each(|shard| {
                let _ = fs::remove_file(folder.path().join(shard));
                fs::hard_link(&model, folder.path().join(shard)).unwrap();
            });
            fs::remove_file(&model).unwrap();
            refused(&found, limit);
        }
        let map: String = (0..600_000).map(|name| format!("\"{name}\":\"0\",")).collect();
        fs::write(&index, format!("{{\"weight_map\":{{{map}\"a\":\"0\"}}}}")).unwrap();
        drop(map);
        refused("index.json: found 600001 tensors", "at most 524288");
    });
}

#[cfg(target_os = "linux")]
#[test]
fn verifying_takes_little_memory() {
    // Its memory is that of this test.
    alone(|| {
        let header = r#"{"s.weight_scale":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"s.weight":{"dtype":"F8_E4M3","shape":[16384,16384],"data_offsets":[4,268435460]}}"#;
        let (folder, mut file) = sparse_fp8(header, (1 << 28) + 4);
        file.seek(SeekFrom::Start(8 + header.len() as u64)).unwrap();
        file.write_all(&0.5_f32.to_le_bytes()).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let (read, memory) = used();
        checkpoint.verify().unwrap();
        let (read_after, memory_after) = used();
        assert!(read_after - read > 1 << 28, "all of it");
        assert!(memory_after - memory < 32 << 20, "{} bytes of memory", memory_after - memory);
        // One NaN in the last place.
        file.seek(SeekFrom::End(-1)).unwrap();
        file.write_all(&[0xFF]).unwrap();
        assert_says(checkpoint.verify().unwrap_err(), &["0xFF, NaN at [16383, 16383]"]);
    });
}

#[test]
fn a_tensor_beyond_memory_is_an_error() {
    let folder = folder("{}", &[]);
    let header = r#"{"a":{"dtype":"U8","shape":[8000000000000],"data_offsets":[0,8000000000000]}}"#;
    write_sparse(&folder.path().join("model.safetensors"), header, 8_000_000_000_000);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_says(checkpoint.tensor("a").map(drop).unwrap_err(), &["`a`", "8000000000000 bytes"]);
}
