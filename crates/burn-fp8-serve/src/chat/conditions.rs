//! The tests of jinja2: what stands after `is`.

use std::cmp::Ordering;

use minijinja::Value;

use super::operators::arithmetic;
use super::text::{bind, needed, of_text};
use super::values::*;

/// All filters that jinja2 has, and transformers' `tojson`. Others are refused when a template is read, as there.
pub(super) fn filters() -> impl Iterator<Item = &'static str> {
    const NAMES: &str = "abs attr batch capitalize center count d default dictsort e escape filesizeformat first \
    float forceescape format groupby indent int items join last length list lower map max \
    min pprint random reject rejectattr replace reverse round safe select selectattr slice \
    sort string striptags sum title tojson trim truncate unique upper urlencode urlize \
    wordcount wordwrap xmlattr";
    NAMES.split(' ')
}

pub(super) fn is_filter(name: &str) -> bool {
    filters().any(|known| known == name)
}

/// All tests that jinja2 has.
pub(super) fn tests() -> impl Iterator<Item = &'static str> {
    const NAMES: &str = "!= < <= == > >= boolean callable defined divisibleby eq equalto escaped even false \
    filter float ge greaterthan gt in integer iterable le lessthan lower lt mapping ne none \
    number odd sameas sequence string test true undefined upper";
    NAMES.split(' ')
}

pub(super) fn is_test(name: &str) -> bool {
    tests().any(|known| known == name)
}

/// `values[0] is name(values[1..])`.
pub(super) fn test(name: &str, values: &[Value]) -> Outcome<bool> {
    let Some((value, arguments)) = values.split_first() else {
        return wrong(format!("{name} tests nothing"));
    };
    let other = || {
        let [other] = bind(name, arguments, [""])?;
        needed(name, other)
    };
    let ordered =
        |held: fn(Ordering) -> bool| Outcome::Ok(order(value, &other()?, 0)?.is_some_and(held));
    let leaves = |by: &Value, rest: i64| match number(value) {
        Some(_) => equal(&arithmetic("%", value, by)?, &Value::from(rest), 0),
        None => wrong(format!("{name} takes a number, not {}", sort_of(value))),
    };
    const OF_TWO: &str =
        " != < <= == > >= divisibleby eq equalto ge greaterthan gt in le lessthan lt ne sameas ";
    if !OF_TWO.contains(&format!(" {name} ")) {
        let [] = bind(name, arguments, [])?;
    }
    let kind = py(value);
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => value.is_none(),
        "boolean" => matches!(kind, Py::Bool(_)),
        "true" => matches!(kind, Py::Bool(true)),
        "false" => matches!(kind, Py::Bool(false)),
        "integer" => matches!(kind, Py::Int(_)),
        "float" => matches!(kind, Py::Float(_)),
        "number" => number(value).is_some(),
        "string" => matches!(kind, Py::Text(_)),
        "mapping" => matches!(kind, Py::Dict(_)),
        "sequence" => matches!(
            kind,
            Py::Undefined
                | Py::Text(_)
                | Py::List
                | Py::Dict(_)
                | Py::Items(Items(Sort::Tuple | Sort::Range, _))
        ),
        "iterable" => {
            matches!(
                kind,
                Py::Undefined | Py::Text(_) | Py::List | Py::Dict(_) | Py::Items(_) | Py::Once(_)
            ) || sort_of(value) == "a loop"
        }
        "callable" => value.is_undefined() || callable(value),
        "escaped" => value.is_safe(),
        "odd" => leaves(&Value::from(2), 1)?,
        "even" => leaves(&Value::from(2), 0)?,
        "divisibleby" => leaves(&other()?, 0)?,
        "eq" | "equalto" | "==" => equal(value, &other()?, 0)?,
        "ne" | "!=" => !equal(value, &other()?, 0)?,
        "lt" | "lessthan" | "<" => ordered(Ordering::is_lt)?,
        "le" | "<=" => ordered(Ordering::is_le)?,
        "gt" | "greaterthan" | ">" => ordered(Ordering::is_gt)?,
        "ge" | ">=" => ordered(Ordering::is_ge)?,
        "in" => contains(&other()?, value)?,
        "lower" => of_text(&text(value)?, "islower", &[])?.is_true(),
        "upper" => of_text(&text(value)?, "isupper", &[])?.is_true(),
        "filter" | "test"
            if !matches!(
                kind,
                Py::Undefined | Py::None | Py::Bool(_) | Py::Int(_) | Py::Float(_) | Py::Text(_)
            ) =>
        {
            return wrong(format!("{name} takes a str, not {}", sort_of(value)));
        }
        "filter" => value.as_str().is_some_and(is_filter),
        "test" => value.as_str().is_some_and(is_test),
        "sameas" => {
            let other = other()?;
            let single = |value: &Value| matches!(py(value), Py::None | Py::Bool(_));
            match single(value) || single(&other) {
                true => single(value) && single(&other) && value == &other,
                false => return wrong("sameas is only known for true, false and none"),
            }
        }
        _ => return wrong(format!("No test named '{name}'.")),
    })
}
