//! Files that mean harm: headers, names and shapes without end, names that command a terminal, pipes.

mod common;

use std::path::Path;
use std::time::Duration;

use burn::backend::Flex;
use burn_fp8::nn::frozen;
use burn_fp8::{DelayedRecord, Fp8Config, Fp8Error, Fp8Format, Fp8Tensor};

type Matrix = Fp8Tensor<Flex, 2>;

/// What every way of reading a safetensors file says of it.
fn errors(path: &Path) -> [(&'static str, Fp8Error); 5] {
    let device = Default::default();
    let error = |result: Result<(), Fp8Error>| result.expect_err("hostile");
    [
        ("tensors", error(Matrix::load_all(path, &device).map(drop))),
        ("a tensor", error(Matrix::load(path, "w", &device).map(drop))),
        ("layers", error(frozen::load_all::<Flex>(path, &device).map(drop))),
        ("a layer", error(frozen::FrozenLinear::<Flex>::load(path, &device).map(drop))),
        ("state", error(DelayedRecord::load(path).map(drop))),
    ]
}

/// A safetensors file made of a header and data, whatever they say.
fn write(path: &Path, header: &str, data: &[u8]) {
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&length, header.as_bytes(), data].concat()).expect("writable");
}

#[test]
fn headers_beyond_the_limit_are_refused_before_they_are_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("model.safetensors");
    // A hole after its first bytes: to read the header would take 64 GB of memory.
    for length in [(1u64 << 24) + 1, 84_000_000, 64_000_000_000] {
        std::fs::write(&path, [&length.to_le_bytes()[..], b"{"].concat()).expect("writable");
        let file = std::fs::File::options().write(true).open(&path).expect("there");
        file.set_len(length + 8).expect("a hole");
        for (what, error) in errors(&path) {
            assert!(matches!(error, Fp8Error::InvalidState { .. }), "{what}: {error:?}");
            let expected = format!("its header has {length} bytes of at most 16777216");
            assert!(error.to_string().contains(&expected), "{what}: {error}");
        }
    }
}

#[test]
fn what_could_not_be_read_again_is_not_written() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("model.safetensors");
    let device = Default::default();
    let tensor = Matrix::from_bytes(vec![1; 6], [2, 3], Fp8Format::E4M3, 0.5, &device);
    let tensor = tensor.expect("good");
    for (name, expected) in [
        ("x".repeat(1 << 24), "bytes of at most 16777216"),
        ("__metadata__".into(), "is no name for a tensor"),
    ] {
        let error = tensor.save(&path, &name).expect_err("refused");
        assert!(matches!(error, Fp8Error::Invalid { .. }), "{error:?}");
        let message = error.to_string();
        assert!(message.contains(expected) && message.len() < 300, "{message}");
        assert!(!path.exists());
    }
    // Twice, once with the name of the scale.
    let name = "x".repeat((1 << 22) - 100);
    tensor.save(&path, &name).expect("below the limit");
    assert_eq!(Matrix::load(&path, &name, &device).expect("read").to_bytes(), [1; 6]);
}

#[test]
fn messages_are_short_and_print_as_one_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("model.safetensors");
    let evil = format!("\\u001b]0;title\\u0007\\n{}", "x".repeat(1 << 20));
    let ones = format!("[{}1]", "1,".repeat(1 << 16));
    let files = |entry: &str| {
        ["burn-fp8 tensors", "burn-fp8 frozen layers", "burn-fp8 delayed state"].map(|format| {
            let metadata = format!(r#""format":"{format}","version":"1","sites":"[]""#);
            format!(r#"{{"__metadata__":{{{metadata}}},{entry}}}"#)
        })
    };
    let tensor = |name: &str, dtype: &str, shape: &str, bytes: usize| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{bytes}]}}"#)
    };
    let mut headers = vec![];
    // The name is all that is wrong, or the shape, the type, the offsets.
    headers.extend(files(&tensor(&evil, "U8", "[4]", 4)));
    headers.extend(files(&tensor(&format!("{evil}.weight"), "F8_E4M3", "[2,2]", 4)));
    headers.extend(files(&tensor("weight", "F8_E4M3", &ones, 1)));
    headers.extend(files(&tensor("w", "F8_E4M3", &ones, 1)));
    headers.extend(files(&tensor("w", &evil, "[4]", 4)));
    headers.extend(files(&tensor(&evil, "U8", "[4]", 8)));
    for [format, version, sites] in [
        [evil.as_str(), "1", "[]"],
        ["burn-fp8 tensors", &evil, "[]"],
        ["burn-fp8 frozen layers", &evil, "[]"],
        ["burn-fp8 delayed state", &evil, "[]"],
        ["burn-fp8 delayed state", "1", &format!(r#"\"{evil}\""#)],
    ] {
        let metadata = format!(r#""format":"{format}","version":"{version}","sites":"{sites}""#);
        headers.push(format!(r#"{{"__metadata__":{{{metadata}}}}}"#));
    }
    for header in headers {
        let offsets = r#""data_offsets":[0,"#;
        let bytes = header.split(offsets).nth(1).map_or(0, |rest| match rest.as_bytes()[0] {
            b'4' => 4,
            b'8' => 8,
            _ => 1,
        });
        write(&path, &header, &vec![0; bytes]);
        let device = Default::default();
        let results = [
            Matrix::load_all(&path, &device).map(drop),
            Matrix::load(&path, "w", &device).map(drop),
            frozen::load_all::<Flex>(&path, &device).map(drop),
            frozen::FrozenLinear::<Flex>::load(&path, &device).map(drop),
            DelayedRecord::load(&path).map(drop),
        ];
        let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        assert!(!errors.is_empty());
        for error in errors {
            let message = error.to_string();
            assert!(
                message.chars().count() < 1000,
                "{} characters: {:.200}",
                message.len(),
                message
            );
            assert!(!message.contains(char::is_control), "{message:?}");
        }
    }
}

#[test]
fn configurations_repeat_little_of_a_long_name() {
    let name = format!("{}\\u001b[2J", "x".repeat(1 << 19));
    let error = Fp8Config::from_json(&format!("{{\"{name}\": 1}}")).unwrap_err().to_string();
    assert!(error.chars().count() < 600 && !error.contains(char::is_control), "{:.700}", error);
    assert!(error.contains("unknown field `xxx") && error.contains("`execution`"), "{error}");
    assert!(error.contains("at line 1 column"), "{error}");
}

/// To open a pipe waits for its other end, which never comes.
#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    for path in [pipe, directory.path().into(), "/dev/zero".into()] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread_path = path.clone();
        std::thread::spawn(move || {
            let config = Fp8Config::load(&thread_path).map(drop).expect_err("no file");
            let errors = errors(&thread_path).map(|(_, error)| error.to_string());
            sender.send((config.to_string(), errors)).ok();
        });
        let (config, errors) =
            receiver.recv_timeout(Duration::from_secs(60)).expect("an answer at once");
        for error in errors.into_iter().chain([config]) {
            assert!(error.contains("a regular file"), "{error}");
            assert!(error.contains(&path.display().to_string()), "{error}");
        }
    }
}
