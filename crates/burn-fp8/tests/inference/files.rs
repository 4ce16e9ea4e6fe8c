//! Files of configurations and of states: names that command a terminal, pipes, links.

use std::path::Path;
use std::time::Duration;

use burn_fp8::DelayedRecord;

use crate::common::*;

/// All that reads a file.
fn read(path: &Path) -> [Result<(), Fp8Error>; 2] {
    [DelayedRecord::load(path).map(drop), Fp8Config::load(path).map(drop)]
}

/// All that writes a file, by name.
#[cfg(unix)]
fn saved(path: &Path) -> [(&'static str, Result<(), Fp8Error>); 3] {
    [
        ("a configuration", Fp8Config::default().save(path)),
        ("delayed scaling", DelayedState::new().save(path)),
        ("its record", DelayedRecord { sites: vec![] }.save(path)),
    ]
}

#[test]
fn messages_are_short_and_print_as_one_line() {
    let (_folder, path) = files::path("file.json");
    let evil = format!("\\u001b]0;title\\u0007\\n\\u001b[2J{}", "x".repeat(1 << 19));
    for json in [
        format!("{{\"{evil}\": 1}}"),
        format!("{{\"sites\": \"{evil}\"}}"),
        format!("{{\"execution\": \"{evil}\"}}"),
        format!("{{\"sites\": [{{\"{evil}\": 1}}]}}"),
        format!("{{\"sites\": {}", "[".repeat(1 << 19)),
    ] {
        std::fs::write(&path, json).expect("writable");
        for error in read(&path).map(|result| result.unwrap_err().to_string()) {
            assert!(error.chars().count() < 1000, "{error:.1000}");
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }
    let name = format!("{}\\u001b[2J", "x".repeat(1 << 19));
    let error = Fp8Config::from_json(&format!("{{\"{name}\": 1}}")).unwrap_err();
    says(error, ["unknown field `xxx", "`execution`", "at line 1 column"]);
}

/// Pipes and folders stay what they are, and so do devices.
#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_not_replaced() {
    let (folder, pipe) = files::path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let sub = folder.path().join("folder");
    std::fs::create_dir(&sub).expect("made");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&pipe, &link).expect("made");
    let kind = |path: &Path| std::fs::symlink_metadata(path).expect("there").file_type();
    // No device: code that is wrong would take it from the machine.
    for path in [&pipe, &sub, &link] {
        let before = kind(path);
        for (what, result) in saved(path) {
            assert_eq!(kind(path), before, "{what}");
            let error = result.expect_err(what).to_string();
            says(&error, ["cannot write", "it is a folder, a pipe or a device"]);
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 3, "nothing beside");
}

/// What a link leads to is replaced, not the link.
#[cfg(unix)]
#[test]
fn links_are_followed() {
    let (folder, target) = files::path("target.json");
    let link = folder.path().join("link.json");
    std::fs::write(&target, "old").expect("written");
    std::os::unix::fs::symlink("target.json", &link).expect("made");
    let config = Fp8Config::off();
    config.save(&link).expect("written");
    assert!(std::fs::symlink_metadata(&link).expect("there").is_symlink());
    assert_eq!(Fp8Config::load(&target).expect("read"), config);
    // One that leads nowhere is told.
    std::fs::remove_file(&target).expect("removed");
    refused(config.save(&link), ["cannot write", "link.json"]);
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1, "nothing beside");
}

/// To open a pipe waits for its other end, which never comes.
#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let (folder, pipe) = files::path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    for path in [pipe, folder.path().into(), "/dev/zero".into()] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread_path = path.clone();
        std::thread::spawn(move || {
            let all = read(&thread_path).map(|result| result.expect_err("no file").to_string());
            sender.send(all).ok();
        });
        let errors = receiver.recv_timeout(Duration::from_secs(60)).expect("an answer at once");
        for error in errors {
            says(error, ["a regular file", &path.display().to_string()]);
        }
    }
}
