//! The results that are committed, for the tests that compare them with what their JSON gives.

use examples_common::committed::Results;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The folder of this package.
pub fn results() -> Results {
    Results::of(env!("CARGO_MANIFEST_DIR"))
}

/// A committed file of JSON.
pub fn read(name: &str) -> Value {
    let text = results().text(name);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
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
