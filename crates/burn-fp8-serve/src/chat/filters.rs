//! The filters of jinja2.

use std::cmp::Ordering;

use minijinja::Value;

use super::conditions::{is_filter, test};
use super::json::to_json;
use super::operators::arithmetic;
use super::text::{bind, capitalized, needed, of_text, optional, percent, strip, word};
use super::values::*;

/// What `attribute=` names: entries of entries, by dots.
fn entry(value: &Value, path: &Value, otherwise: Option<&Value>) -> Outcome {
    let parts: Vec<Value> = match path.as_str() {
        Some(path) => path
            .split('.')
            .map(|part| part.parse().map_or_else(|_| Value::from(part), |at: u32| Value::from(at)))
            .collect(),
        None => vec![path.clone()],
    };
    let mut found = value.clone();
    for part in &parts {
        found = item(&found, part)?;
        if found.is_undefined() {
            found = otherwise.cloned().unwrap_or_default();
        }
    }
    Ok(found)
}

/// What values are ordered and grouped by.
fn sort_key(value: &Value, attribute: Option<&Value>, with_case: bool) -> Outcome {
    let found =
        attribute.map_or_else(|| Ok(value.clone()), |attribute| entry(value, attribute, None))?;
    Ok(match found.as_str() {
        Some(text) if !with_case => Value::from(text.to_lowercase()),
        _ => found,
    })
}

/// What a loop goes through, each with what it is ordered and grouped by.
fn keyed(value: &Value, by: Option<&Value>, with_case: bool) -> Outcome<Vec<(Value, Value)>> {
    let pair = |value: Value| Ok((sort_key(&value, by, with_case)?, value));
    values(value)?.into_iter().map(pair).collect()
}

fn is(flag: Option<Value>) -> bool {
    flag.is_some_and(|flag| flag.is_true())
}

/// Values in the order of their keys; equal ones keep theirs.
fn sorted(keyed: Vec<(Value, Value)>, reverse: bool) -> Outcome {
    let sorted = by_keys(keyed, reverse)?.into_iter();
    Ok(Value::from(sorted.map(|(_, value)| value).collect::<Vec<_>>()))
}

fn by_keys(mut keyed: Vec<(Value, Value)>, reverse: bool) -> Outcome<Vec<(Value, Value)>> {
    let mut failed = None;
    keyed.sort_by(|(a, _), (b, _)| match order(a, b, 0) {
        Ok(order) if reverse => order.map_or(Ordering::Equal, Ordering::reverse),
        Ok(order) => order.unwrap_or(Ordering::Equal),
        Err(error) => {
            failed = Some(error);
            Ordering::Equal
        }
    });
    failed.map_or(Ok(keyed), Err)
}

/// `select` and its like: which of the values hold a test, of themselves or of an entry.
fn selected(name: &str, value: &Value, arguments: &[Value]) -> Outcome {
    let of_entry = name.ends_with("attr");
    let (path, arguments) = match arguments.split_first() {
        Some((path, arguments)) if of_entry => (Some(path), arguments),
        None if of_entry => return wrong(format!("{name} lacks the name of an attribute")),
        _ => (None, arguments),
    };
    let mut kept = vec![];
    for value in walked(value)? {
        let tested = path.map_or_else(|| Ok(value.clone()), |path| entry(&value, path, None))?;
        let holds = match arguments.split_first() {
            None => tested.is_true(),
            Some((test_name, others)) => {
                test(&word(name, Some(test_name.clone()))?, &[&[tested], others].concat())?
            }
        };
        if holds == name.starts_with("select") {
            kept.push(value);
        }
    }
    Ok(once(kept))
}

/// What `map` and `select` go through: nothing where the value counts as false.
fn walked(value: &Value) -> Outcome<Vec<Value>> {
    if value.is_true() { values(value) } else { Ok(vec![]) }
}

fn mapped(value: &Value, arguments: &[Value]) -> Outcome {
    let by_name = arguments.len() == 1 && arguments[0].is_kwargs();
    let mut results = vec![];
    for value in walked(value)? {
        results.push(match arguments.split_first() {
            Some(_) if by_name => {
                let [attribute, otherwise] = bind("map", arguments, ["attribute", "default"])?;
                entry(&value, &needed("map", attribute)?, otherwise.as_ref())?
            }
            Some((name, others)) => {
                filter(&word("map", Some(name.clone()))?, &[&[value], others].concat())?
            }
            None => return wrong("map lacks the name of a filter"),
        });
    }
    Ok(once(results))
}

fn join(value: &Value, arguments: &[Value]) -> Outcome {
    let [between, attribute] = bind("join", arguments, ["d", "attribute"])?;
    let attribute = optional(attribute);
    let between = between.as_ref().map_or(Ok(String::new()), text)?;
    let texts = values(value)?.into_iter().map(|value| {
        plain(&value)?;
        match &attribute {
            Some(attribute) => text(&entry(&value, attribute, None)?),
            None => text(&value),
        }
    });
    joined(texts, &between).map(Value::from)
}

fn title(text: &str) -> String {
    let mut inside = false;
    let mut titled = String::new();
    for letter in text.chars() {
        let between = letter.is_whitespace() || "-({[<".contains(letter);
        titled += &if inside {
            letter.to_lowercase().collect::<String>()
        } else {
            letter.to_uppercase().collect()
        };
        inside = !between;
    }
    titled
}

/// A number in a text, as Python reads one: blanks around it, and underscores between digits.
fn digits_of(text: &str) -> Option<String> {
    let text = strip(text, None, [true, true]);
    let apart = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    let whole = !text.contains('_') || text.trim_start_matches(['+', '-']).split('_').all(apart);
    whole.then(|| text.replace('_', ""))
}

fn to_int(value: &Value, base: u32) -> Outcome<Option<Value>> {
    let of_float =
        |number: f64| (number.abs() < 1e30).then(|| Value::from(Number::Int(number as i128)));
    Ok(match py(value) {
        Py::Undefined => return wrong("int: an undefined value"),
        Py::Text(text) => {
            let digits = digits_of(text);
            let whole = digits.as_deref().and_then(|digits| {
                let lower = digits.to_lowercase();
                let bare = [(16, "0x"), (8, "0o"), (2, "0b")]
                    .iter()
                    .find(|(known, _)| *known == base)
                    .map_or(&*lower, |(_, mark)| lower.strip_prefix(mark).unwrap_or(&lower));
                i128::from_str_radix(bare, base).ok()
            });
            let real = || digits.as_deref().and_then(|digits| digits.parse::<f64>().ok());
            whole
                .map(|number| Value::from(Number::Int(number)))
                .or_else(|| real().and_then(of_float))
        }
        _ => match number(value) {
            Some(Number::Float(number)) => of_float(number),
            number => number.map(Value::from),
        },
    })
}

fn rounded(value: &Value, arguments: &[Value]) -> Outcome {
    let [precision, method] = bind("round", arguments, ["precision", "method"])?;
    let precision = precision.map_or(Ok(0), |precision| whole(&precision))?.clamp(-300, 300) as i32;
    let method = method.map_or(Ok("common".into()), |method| word("round", Some(method)))?;
    let Some(given) = number(value) else {
        return wrong(format!("round takes a number, not {}", sort_of(value)));
    };
    let (number, scale) = (given.float(), 10f64.powi(precision));
    Ok(Value::from(match (&*method, given) {
        ("common", Number::Int(_)) if precision >= 0 => return Ok(given.into()),
        ("common", Number::Float(_)) if precision >= 0 => {
            format!("{number:.*}", precision as usize).parse().unwrap_or(number)
        }
        ("common", Number::Float(_)) => (number * scale).round_ties_even() / scale,
        ("ceil", _) => (number * scale).ceil() / scale,
        ("floor", _) => (number * scale).floor() / scale,
        _ => return wrong(format!("round of {} by {method:?} is not known", sort_of(value))),
    }))
}

fn indented(value: &Value, arguments: &[Value]) -> Outcome {
    let [width, first, blank] = bind("indent", arguments, ["width", "first", "blank"])?;
    let by = match width.as_ref().map(|width| (width.as_str(), width)) {
        None => " ".repeat(4),
        Some((Some(text), _)) => text.into(),
        Some((None, width)) => " ".repeat(padding(usize::try_from(whole(width)?).unwrap_or(0))?),
    };
    let lines =
        values(&of_text(&(word("indent", Some(value.clone()))? + "\n"), "splitlines", &[])?)?;
    let (first, blank) = (is(first), is(blank));
    let line = |(at, line): (usize, &Value)| match line.as_str().unwrap_or_default() {
        line if if at == 0 { first } else { blank || !line.is_empty() } => format!("{by}{line}"),
        line => line.to_owned(),
    };
    joined(lines.iter().enumerate().map(line).map(Ok), "\n").map(Value::from)
}

fn truncated(value: &Value, arguments: &[Value]) -> Outcome {
    let [length, kill, end, leeway] =
        bind("truncate", arguments, ["length", "killwords", "end", "leeway"])?;
    let text: Vec<char> = word("truncate", Some(value.clone()))?.chars().collect();
    let length = length.map_or(Ok(255), |length| whole(&length))?;
    let leeway = optional(leeway).map_or(Ok(5), |leeway| whole(&leeway))?;
    let end = end.map_or(Ok("...".into()), |end| word("truncate", Some(end)))?;
    let Ok(kept) = usize::try_from(length.saturating_sub(end.chars().count() as i64)) else {
        return wrong("truncate: the end is longer than the text may be");
    };
    if leeway < 0 {
        return wrong(format!("truncate: a leeway of {leeway}, which is below 0"));
    }
    if text.len() as i64 <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let kept: String = text[..kept].iter().collect();
    let whole_words = kept.rsplit_once(' ').map_or(&*kept, |(words, _)| words);
    Ok(Value::from(format!("{}{end}", if is(kill) { &*kept } else { whole_words })))
}

/// `batch` and `slice`: lists of as many values, or as many lists.
fn parts(name: &str, value: &Value, arguments: &[Value]) -> Outcome {
    let [count, fill] =
        bind(name, arguments, [if name == "batch" { "linecount" } else { "slices" }, "fill_with"])?;
    let (all, fill) = (values(value)?, optional(fill));
    let count = usize::try_from(whole(&needed(name, count)?)?)
        .ok()
        .filter(|count| (1..=100_000).contains(count));
    let Some(count) = count else { return wrong(format!("{name}: a count from 1 to 100,000")) };
    let fills = |missing: usize| fill.clone().into_iter().cycle().take(missing);
    if name == "batch" {
        return Ok(once(
            all.chunks(count)
                .map(|part| {
                    Value::from(
                        part.iter().cloned().chain(fills(count - part.len())).collect::<Vec<_>>(),
                    )
                })
                .collect(),
        ));
    }
    let (each, longer, mut rest) = (all.len() / count, all.len() % count, all.into_iter());
    let part = |at: usize| {
        let part = rest.by_ref().take(each + usize::from(at < longer));
        Value::from(part.chain(fills(usize::from(at >= longer))).collect::<Vec<_>>())
    };
    Ok(once((0..count).map(part).collect()))
}

/// `values[0] | name(values[1..])`.
pub(super) fn filter(name: &str, all: &[Value]) -> Outcome {
    let Some((value, arguments)) = all.split_first() else {
        return wrong(format!("{name} filters nothing"));
    };
    if !matches!(
        name,
        "safe"
            | "e"
            | "escape"
            | "string"
            | "default"
            | "d"
            | "list"
            | "length"
            | "count"
            | "tojson"
    ) {
        plain(value)?;
    }
    let none = || bind::<0>(name, arguments, []);
    let string = || -> Outcome<String> {
        none()?;
        text(value)
    };
    Ok(match name {
        "upper" => Value::from(string()?.to_uppercase()),
        "lower" => Value::from(string()?.to_lowercase()),
        "capitalize" => Value::from(capitalized(&string()?)),
        "title" => Value::from(title(&string()?)),
        "wordcount" => {
            let text = string()?;
            let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            Value::from(words.filter(|word| !word.is_empty()).count())
        }
        "string" if value.is_safe() => value.clone(),
        "string" => Value::from(string()?),
        "trim" => {
            let [of] = bind(name, arguments, ["chars"])?;
            let of = optional(of).map(|of| word(name, Some(of))).transpose()?;
            Value::from(strip(&text(value)?, of.as_deref(), [true, true]))
        }
        "center" => {
            let [width] = bind(name, arguments, ["width"])?;
            of_text(&text(value)?, "center", &[width.unwrap_or_else(|| Value::from(80))])?
        }
        "replace" => {
            let [old, new, count] = bind(name, arguments, ["old", "new", "count"])?;
            let (old, new) = (text(&needed(name, old)?)?, text(&needed(name, new)?)?);
            let count = optional(count).unwrap_or_else(|| Value::from(-1));
            of_text(&text(value)?, "replace", &[old.into(), new.into(), count])?
        }
        "format" if !arguments.iter().any(Value::is_kwargs) => {
            Value::from(percent(&text(value)?, &tuple(arguments.to_vec()))?)
        }
        "indent" => indented(value, arguments)?,
        "truncate" => truncated(value, arguments)?,
        "length" | "count" => {
            none()?;
            Value::from(length(value)?)
        }
        "default" | "d" => {
            let [otherwise, boolean] = bind(name, arguments, ["default_value", "boolean"])?;
            match value.is_undefined() || (is(boolean) && !value.is_true()) {
                true => otherwise.unwrap_or_else(|| Value::from("")),
                false => value.clone(),
            }
        }
        "join" => join(value, arguments)?,
        "first" => {
            none()?;
            first(value)?.unwrap_or_default()
        }
        "last" => match py(value) {
            Py::Once(_) | Py::Undefined => {
                return wrong(format!("{} has no last value", sort_of(value)));
            }
            _ => values(value)?.pop().unwrap_or_default(),
        },
        "list" => {
            none()?;
            Value::from(values(value)?)
        }
        "reverse" => match py(value) {
            Py::Text(text) => Value::from(text.chars().rev().collect::<String>()),
            Py::Once(_) => Value::from(values(value)?.into_iter().rev().collect::<Vec<_>>()),
            _ => once(values(value)?.into_iter().rev().collect()),
        },
        "items" => match py(value) {
            Py::Undefined => once(vec![]),
            Py::Dict(object) => once(
                object
                    .try_iter_pairs()
                    .into_iter()
                    .flatten()
                    .map(|(key, value)| tuple([key, value]))
                    .collect(),
            ),
            _ => return wrong(format!("items takes a dict, not {}", sort_of(value))),
        },
        "dictsort" => {
            let [with_case, by, reverse] =
                bind(name, arguments, ["case_sensitive", "by", "reverse"])?;
            let by = by.map_or(Ok("key".into()), |by| word(name, Some(by)))?;
            let Some(at) = ["key", "value"].iter().position(|known| *known == by) else {
                return wrong("dictsort: by key or value");
            };
            let (Py::Dict(object), with_case) = (py(value), is(with_case)) else {
                return wrong(format!("dictsort takes a dict, not {}", sort_of(value)));
            };
            let mut keyed = vec![];
            for (key, value) in object.try_iter_pairs().into_iter().flatten() {
                keyed.push((sort_key([&key, &value][at], None, with_case)?, tuple([key, value])));
            }
            sorted(keyed, is(reverse))?
        }
        "sort" => {
            let [reverse, with_case, attribute] =
                bind(name, arguments, ["reverse", "case_sensitive", "attribute"])?;
            let (with_case, attribute) = (is(with_case), optional(attribute));
            let by = match attribute.as_ref().and_then(Value::as_str) {
                Some(several) => several.split(',').map(|one| Some(Value::from(one))).collect(),
                None => vec![attribute],
            };
            let pair = |value: Value| {
                let keys = by.iter().map(|one| sort_key(&value, one.as_ref(), with_case));
                Ok((Value::from(keys.collect::<Outcome<Vec<_>>>()?), value))
            };
            let keyed = values(value)?.into_iter().map(pair).collect::<Outcome<_>>()?;
            sorted(keyed, is(reverse))?
        }
        "groupby" => {
            let [attribute, otherwise, with_case] =
                bind(name, arguments, ["attribute", "default", "case_sensitive"])?;
            let (attribute, with_case) = (needed(name, attribute)?, is(with_case));
            if optional(otherwise).is_some() {
                return wrong("groupby with a default is not known");
            }
            let mut groups: Vec<(Value, Vec<Value>)> = vec![];
            for (key, value) in by_keys(keyed(value, Some(&attribute), with_case)?, false)? {
                match groups.last_mut() {
                    Some((known, group)) if equal(known, &key, 0)? => group.push(value),
                    _ => groups.push((key, vec![value])),
                }
            }
            let group = |(key, group): (Value, Vec<Value>)| -> Outcome {
                let key =
                    if key.as_str().is_some() { entry(&group[0], &attribute, None)? } else { key };
                Ok(tuple([key, Value::from(group)]))
            };
            Value::from(groups.into_iter().map(group).collect::<Outcome<Vec<_>>>()?)
        }
        "unique" => {
            let [with_case, attribute] = bind(name, arguments, ["case_sensitive", "attribute"])?;
            let (with_case, attribute) = (is(with_case), optional(attribute));
            let (mut known, mut kept) = (vec![], vec![]);
            for (key, value) in keyed(value, attribute.as_ref(), with_case)? {
                if !matches!(
                    py(&key),
                    Py::Text(_) | Py::None | Py::Bool(_) | Py::Int(_) | Py::Float(_)
                ) {
                    return wrong(format!("unique: {} among the values", sort_of(&key)));
                }
                if !contains(&Value::from(known.clone()), &key)? {
                    known.push(key);
                    kept.push(value);
                }
            }
            once(kept)
        }
        "min" | "max" => {
            let [with_case, attribute] = bind(name, arguments, ["case_sensitive", "attribute"])?;
            let (with_case, attribute) = (is(with_case), optional(attribute));
            let mut best: Option<(Value, Value)> = None;
            for (key, value) in keyed(value, attribute.as_ref(), with_case)? {
                let wanted = if name == "min" { Ordering::Less } else { Ordering::Greater };
                match &best {
                    Some((known, _)) if order(&key, known, 0)? != Some(wanted) => (),
                    _ => best = Some((key, value)),
                }
            }
            best.map(|(_, value)| value).unwrap_or_default()
        }
        "sum" => {
            let [attribute, start] = bind(name, arguments, ["attribute", "start"])?;
            let attribute = optional(attribute);
            let mut sum = start.unwrap_or_else(|| Value::from(0));
            for value in values(value)? {
                let part = attribute.as_ref().map_or_else(
                    || Ok(value.clone()),
                    |attribute| entry(&value, attribute, None),
                )?;
                sum = arithmetic("+", &sum, &part)?;
            }
            sum
        }
        "map" => mapped(value, arguments)?,
        "select" | "reject" | "selectattr" | "rejectattr" => selected(name, value, arguments)?,
        "batch" | "slice" => parts(name, value, arguments)?,
        "int" => {
            let [otherwise, base] = bind(name, arguments, ["default", "base"])?;
            let base = base.map_or(Ok(10), |base| whole(&base))?;
            let Some(base) = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)) else {
                return wrong("int: a base from 2 to 36");
            };
            to_int(value, base)?.or(otherwise).unwrap_or_else(|| Value::from(0))
        }
        "float" => {
            let [otherwise] = bind(name, arguments, ["default"])?;
            let found = match py(value) {
                Py::Undefined => return wrong("float: an undefined value"),
                Py::Text(text) => digits_of(text).and_then(|digits| digits.parse().ok()),
                _ => number(value).map(Number::float),
            };
            found.map(Value::from).or(otherwise).unwrap_or_else(|| Value::from(0.0))
        }
        "abs" => match (number(value), arguments) {
            (Some(Number::Float(number)), []) => Value::from(number.abs()),
            (Some(Number::Int(number)), []) => Number::Int(number.saturating_abs()).into(),
            _ => return wrong(format!("abs takes a number, not {}", sort_of(value))),
        },
        "round" => rounded(value, arguments)?,
        "tojson" => to_json(value, arguments)?,
        "safe" => Value::from_safe_string(string()?),
        "e" | "escape" if value.is_safe() => value.clone(),
        "e" | "escape" => {
            let pairs =
                [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('\'', "&#39;"), ('"', "&#34;")];
            Value::from_safe_string(
                pairs.iter().fold(string()?, |text, (from, to)| text.replace(*from, to)),
            )
        }
        _ if is_filter(name) => {
            return wrong(format!("the filter {name} is not known to this program"));
        }
        _ => return wrong(format!("No filter named '{name}'.")),
    })
}
