//! The results that are committed: tables and pictures are compared with what their JSON gives, or drawn anew from it.

use std::fs;
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Set, tables and pictures are written instead of compared.
const RENDER: &str = "CHAR_LM_RENDER";

fn path(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/results")).join(name)
}

fn file(name: &str) -> String {
    let path = path(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A committed file of JSON.
pub fn read(name: &str) -> Value {
    serde_json::from_str(&file(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A field of it.
pub fn field<T: DeserializeOwned>(value: &Value, name: &str) -> T {
    let field = serde_json::from_value(value[name].clone());
    field.unwrap_or_else(|error| panic!("{name} of {value}: {error}"))
}

/// A field that is text.
pub fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("{name} of {value} is no text"))
}

/// Compares a committed file with what it has to be.
pub fn check(name: &str, expected: &str) {
    if std::env::var_os(RENDER).is_some() {
        return fs::write(path(name), expected).expect("written");
    }
    assert!(
        file(name) == expected,
        "results/{name} is not what its JSON gives: {RENDER}=1 cargo test -p char-lm committed"
    );
}
