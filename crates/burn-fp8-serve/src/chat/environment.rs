//! The functions, filters and tests that a template finds, operators among them.

use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::Zoned;
use minijinja::value::Rest;
use minijinja::{Environment, Error, State, Value};

use super::conditions::{filters, test, tests};
use super::filters::filter;
use super::operators::{arithmetic, concatenated, negated};
use super::text::method;
use super::values::*;

/// Numbers that `range` gives at most: jinja2's sandbox has this bound.
const WIDEST: i64 = 100_000;

/// What a template is run with, but for its values.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::empty();
    for name in filters() {
        environment.add_filter(name, move |values: Rest<Value>| filter(name, &values));
    }
    for name in tests() {
        environment.add_test(name, move |values: Rest<Value>| test(name, &values));
    }
    for operator in ["+", "-", "*", "/", "//", "%", "**"] {
        environment.add_function(operator, move |a: Value, b: Value| arithmetic(operator, &a, &b));
    }
    let orders = [("<", [-1, -1]), ("<=", [-1, 0]), (">", [1, 1]), (">=", [1, 0])];
    for (operator, held) in orders {
        environment.add_function(operator, move |a: Value, b: Value| {
            Ok::<_, Error>(order(&a, &b, 0)?.is_some_and(|order| held.contains(&(order as i8))))
        });
    }
    environment.add_function("==", |a: Value, b: Value| equal(&a, &b, 0));
    environment.add_function("!=", |a: Value, b: Value| Ok::<_, Error>(!equal(&a, &b, 0)?));
    environment.add_function("in ", |item: Value, container: Value| contains(&container, &item));
    environment.add_function("~", |a: Value, b: Value| concatenated(&text(&a)?, &text(&b)?));
    environment.add_function("neg ", |value: Value| negated(&value));
    environment.add_function("self ", |value: Value| value);
    environment.add_function("text ", |value: Value| match value.as_str() {
        Some(_) => Ok(value),
        None => wrong(format!("a filter block gives {}, not a str", sort_of(&value))),
    });
    environment.add_function("tuple ", |values: Rest<Value>| tuple(values.iter().cloned()));
    environment.add_function("key ", key);
    environment.add_function("iter ", |value: Value| values(&value));
    environment.add_function("tuples ", |value: Value| {
        values(&value)?.iter().map(|item| Ok(tuple(values(item)?))).collect::<Outcome<Vec<_>>>()
    });
    environment.add_function(".", |value: Value, name: &str| attribute(&value, name));
    environment.add_function("[]", |value: Value, key: Value| item(&value, &key));
    environment.add_function("[:]", |value: Value, start: Value, stop: Value, step: Value| {
        slice(&value, [&start, &stop, &step])
    });
    environment.add_function("()", |state: &State<'_, '_>, all: Rest<Value>| match &all[..] {
        [value, name, arguments @ ..] => {
            method(state, value, name.as_str().unwrap_or_default(), arguments)
        }
        _ => wrong("a method lacks its value"),
    });
    environment.add_function("given ", |value: Value| match value.is_undefined() {
        true => {
            wrong("an undefined value for an argument of a macro that has a default is not known")
        }
        false => Ok(value),
    });
    environment.add_function("range", range);
    environment.add_function("dict", dict);
    environment.add_function("namespace", namespace);
    environment.add_function("raise_exception", |message: Value| wrong::<Value>(text(&message)?));
    environment.add_function("strftime_now", |format: &str| {
        jiff::fmt::strtime::format(format, &Zoned::now()).or_else(|error| wrong(error.to_string()))
    });
    for name in ["cycler", "joiner", "lipsum"] {
        environment.add_function(name, move |_: Rest<Value>| {
            wrong::<Value>(format!("the function {name} is not known to this program"))
        });
    }
    environment
}

/// Bounds what is printed in one run, of values that each fit.
pub(super) fn bound_text(environment: &mut Environment<'_>) {
    let printed = AtomicUsize::new(0);
    environment.set_formatter(move |output, _, value| {
        let text = text(value)?;
        let before = printed.fetch_add(text.len(), Ordering::Relaxed);
        fits(before.saturating_add(text.len()))?;
        output.write_str(&text)?;
        Ok(())
    });
}

fn range(bounds: Rest<Value>) -> Outcome {
    let bounds: Vec<i64> = bounds.iter().map(whole).collect::<Outcome<_>>()?;
    let (start, stop, step) = match bounds[..] {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] if step != 0 => (start, stop, step),
        _ => return wrong("range takes one to three numbers, and a step that is not zero"),
    };
    let (mut at, mut numbers) = (start, vec![]);
    while if step < 0 { at > stop } else { at < stop } {
        if numbers.len() as i64 == WIDEST {
            return wrong(format!("a range of more than {WIDEST} numbers"));
        }
        numbers.push(Value::from(at));
        at = at.saturating_add(step);
    }
    Ok(items(Sort::Range, numbers))
}

/// Pairs of a mapping, or of a list of pairs, and those that are given by name.
fn pairs(arguments: &[Value]) -> Outcome<Vec<(Value, Value)>> {
    let mut all = vec![];
    for argument in arguments {
        match py(argument) {
            Py::Dict(object) => all.extend(object.try_iter_pairs().into_iter().flatten()),
            _ => {
                for pair in values(argument)? {
                    let [name, value]: [Value; 2] =
                        values(&pair)?.try_into().or_else(|_| wrong("dict takes pairs"))?;
                    all.push((key(name)?, value));
                }
            }
        }
    }
    Ok(all)
}

fn dict(arguments: Rest<Value>) -> Outcome {
    Ok(pairs(&arguments)?.into_iter().collect())
}

fn namespace(arguments: Rest<Value>) -> Outcome {
    let all = pairs(&arguments)?;
    if let Some((name, _)) =
        all.iter().find(|(name, _)| name.as_str().is_none_or(|name| name.starts_with('_')))
    {
        return wrong(format!("a namespace has no attribute {name}"));
    }
    let all: Value = all.into_iter().collect();
    minijinja::functions::namespace(Some(all))
}
