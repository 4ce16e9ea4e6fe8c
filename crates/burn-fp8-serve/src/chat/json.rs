//! JSON as Python's `json.dumps` writes it.

use std::fmt::Write as _;

use minijinja::Value;

use super::text::{bind, optional, word};
use super::values::*;

struct Style {
    ascii: bool,
    indent: Option<String>,
    between: String,
    after_key: String,
    sorted: bool,
}

/// transformers' filter `tojson`: keys in their order, blanks after commas and colons, none of the escapes that HTML needs.
pub(super) fn to_json(value: &Value, arguments: &[Value]) -> Outcome {
    let [ascii, indent, separators, sorted] =
        bind("tojson", arguments, ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let blanks = |indent: Value| -> Outcome<String> {
        match indent.as_str() {
            Some(text) => Ok(text.to_owned()),
            None => Ok(" ".repeat(usize::try_from(whole(&indent)?).unwrap_or(0).min(16))),
        }
    };
    let indent = optional(indent).map(blanks).transpose()?;
    let (mut between, mut after_key) =
        (if indent.is_some() { "," } else { ", " }.into(), ": ".into());
    if let Some(separators) = optional(separators) {
        let given: [Value; 2] =
            values(&separators)?.try_into().or_else(|_| wrong("tojson takes two separators"))?;
        [between, after_key] =
            [word("tojson", Some(given[0].clone()))?, word("tojson", Some(given[1].clone()))?];
    }
    let flag = |flag: Option<Value>| flag.is_some_and(|flag| flag.is_true());
    let style = Style { ascii: flag(ascii), indent, between, after_key, sorted: flag(sorted) };
    Ok(Value::from(json(value, &style, 0)?))
}

fn json(value: &Value, style: &Style, depth: usize) -> Outcome<String> {
    shallow(depth)?;
    let line = |depth| -> Outcome<String> {
        let Some(indent) = &style.indent else { return Ok(String::new()) };
        fits(indent.len() * depth)?;
        Ok(format!("\n{}", indent.repeat(depth)))
    };
    let between = || joined([Ok(style.between.clone()), line(depth + 1)], "");
    let (ends, parts) = match py(value) {
        Py::None => return Ok("null".into()),
        Py::Bool(flag) => return Ok(flag.to_string()),
        Py::Int(number) => return Ok(number.to_string()),
        Py::Float(number) if number.is_nan() => return Ok("NaN".into()),
        Py::Float(number) => return Ok(float(number).replace("inf", "Infinity")),
        Py::Text(text) => return Ok(string(text, style.ascii)),
        Py::List | Py::Items(Items(Sort::Tuple, _)) => {
            let parts = values(value)?;
            let parts = parts.iter().map(|value| json(value, style, depth + 1));
            (["[", "]"], joined(parts, &between()?)?)
        }
        Py::Dict(object) => {
            let mut pairs: Vec<(Value, Value)> =
                object.try_iter_pairs().into_iter().flatten().collect();
            if style.sorted {
                let all_texts = pairs.iter().all(|(key, _)| key.as_str().is_some());
                if !all_texts {
                    return wrong("tojson: sort_keys with keys that are no texts is not known");
                }
                pairs.sort_by(|(a, _), (b, _)| a.as_str().cmp(&b.as_str()));
            }
            let parts = pairs.into_iter().map(|(key, value)| {
                let key = string(&text(&key)?, style.ascii);
                joined([Ok(key), json(&value, style, depth + 1)], &style.after_key)
            });
            (["{", "}"], joined(parts, &between()?)?)
        }
        _ => return wrong(format!("{} is not JSON serializable", sort_of(value))),
    };
    match parts.is_empty() {
        true => Ok(ends.concat()),
        false => {
            let [open, close] = ends.map(|end| Ok(end.to_owned()));
            joined([open, line(depth + 1), Ok(parts), line(depth), close], "")
        }
    }
}

fn string(text: &str, ascii: bool) -> String {
    let mut written = String::from('"');
    for character in text.chars() {
        match character {
            '"' => written += "\\\"",
            '\\' => written += "\\\\",
            '\n' => written += "\\n",
            '\r' => written += "\\r",
            '\t' => written += "\\t",
            '\x08' => written += "\\b",
            '\x0C' => written += "\\f",
            _ if character < ' ' || (ascii && character > '~') => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let _ = write!(written, "\\u{unit:04x}");
                }
            }
            _ => written.push(character),
        }
    }
    written + "\""
}
