//! Values as Python has them: what they are, how they are printed, compared, counted with, looked up and walked through.

use std::cmp::Ordering;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::vec::IntoIter;

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Lists and mappings in each other, at most: a text that is printed, compared or made JSON calls itself for each.
pub(super) const DEEPEST: usize = 100;

/// Characters of a text that is repeated, or padded, at most, and values of a list.
pub(super) const LONGEST: usize = 10_000_000;

/// Bytes of a text that is put together, at most: that many characters, of four bytes each. A text that is joined to
/// itself forty times would take a terabyte, and fuel does not bound that.
const MOST_BYTES: usize = 4 * LONGEST;

pub(super) type Outcome<T = Value> = Result<T, Error>;

/// What a template may not do, or what this program cannot.
pub(super) fn wrong<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(Error::new(ErrorKind::InvalidOperation, reason.into()))
}

/// What is like a list and is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Tuple,
    Range,
    Keys,
    Values,
    Pairs,
}

/// Values in their order.
#[derive(Debug)]
pub(super) struct Items(pub(super) Sort, pub(super) Vec<Value>);

impl Object for Items {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.1.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.1.len())
    }
}

pub(super) fn items(sort: Sort, items: Vec<Value>) -> Value {
    Value::from_object(Items(sort, items))
}

pub(super) fn tuple(parts: impl IntoIterator<Item = Value>) -> Value {
    items(Sort::Tuple, parts.into_iter().collect())
}

/// What is walked through once: Python's generators.
#[derive(Debug)]
pub(super) struct Once(Mutex<IntoIter<Value>>);

impl Object for Once {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

pub(super) fn once(values: Vec<Value>) -> Value {
    Value::from_object(Once(Mutex::new(values.into_iter())))
}

/// A value by its type in Python.
pub(super) enum Py<'a> {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(&'a str),
    List,
    Items(&'a Items),
    Dict(&'a DynObject),
    Once(&'a Once),
    /// Functions, macros, namespaces, loops.
    Other,
}

/// What a value is.
pub(super) fn py(value: &Value) -> Py<'_> {
    match value.kind() {
        ValueKind::Undefined => Py::Undefined,
        ValueKind::None => Py::None,
        ValueKind::Bool => Py::Bool(value.is_true()),
        ValueKind::Number if value.is_integer() => match i128::try_from(value.clone()) {
            Ok(number) => Py::Int(number),
            Err(_) => Py::Other,
        },
        ValueKind::Number => f64::try_from(value.clone()).map_or(Py::Other, Py::Float),
        ValueKind::String => value.as_str().map_or(Py::Other, Py::Text),
        ValueKind::Seq | ValueKind::Iterable => {
            value.downcast_object_ref().map_or(Py::List, Py::Items)
        }
        ValueKind::Map => match value.as_object() {
            // Loops, namespaces and macros are mappings to the crate, by types that it keeps to itself.
            Some(object)
                if !["::Loop", "::Namespace", "::Macro"]
                    .iter()
                    .any(|own| object.type_name().ends_with(own)) =>
            {
                Py::Dict(object)
            }
            _ => Py::Other,
        },
        _ => value.downcast_object_ref().map_or(Py::Other, Py::Once),
    }
}

/// What messages call it.
pub(super) fn sort_of(value: &Value) -> &'static str {
    match py(value) {
        Py::Undefined => "an undefined value",
        Py::None => "None",
        Py::Bool(_) => "a bool",
        Py::Int(_) => "an int",
        Py::Float(_) => "a float",
        Py::Text(_) => "a str",
        Py::List => "a list",
        Py::Items(Items(Sort::Tuple, _)) => "a tuple",
        Py::Items(Items(Sort::Range, _)) => "a range",
        Py::Items(_) => "a view of a dict",
        Py::Dict(_) => "a dict",
        Py::Once(_) => "a generator",
        Py::Other => match value.as_object().map(DynObject::type_name) {
            Some(name) if name.ends_with("::Loop") => "a loop",
            Some(name) if name.ends_with("::Namespace") => "a namespace",
            Some(name) if name.ends_with("::Macro") => "a macro",
            _ => "a function",
        },
    }
}

/// Whether it can be called.
pub(super) fn callable(value: &Value) -> bool {
    matches!(sort_of(value), "a macro" | "a function")
}

/// `str(value)`.
pub(super) fn text(value: &Value) -> Outcome<String> {
    match py(value) {
        Py::Undefined => Ok(String::new()),
        Py::Text(text) => Ok(text.into()),
        _ => repr(value, 0),
    }
}

/// `repr(value)`, at this depth of lists and mappings.
pub(super) fn repr(value: &Value, depth: usize) -> Outcome<String> {
    shallow(depth)?;
    plain(value)?;
    let all = |values: &[Value]| -> Outcome<String> {
        joined(values.iter().map(|value| repr(value, depth + 1)), ", ")
    };
    Ok(match py(value) {
        Py::Undefined => "Undefined".into(),
        Py::None => "None".into(),
        Py::Bool(flag) => if flag { "True" } else { "False" }.into(),
        Py::Int(number) => number.to_string(),
        Py::Float(number) => float(number),
        Py::Text(text) => quoted(text),
        Py::List => format!("[{}]", all(&values(value)?)?),
        Py::Items(Items(sort, items)) => match (sort, &items[..]) {
            (Sort::Tuple, [one]) => format!("({},)", repr(one, depth + 1)?),
            (Sort::Tuple, all_of_them) => format!("({})", all(all_of_them)?),
            (Sort::Keys, keys) => format!("dict_keys([{}])", all(keys)?),
            (Sort::Values, values) => format!("dict_values([{}])", all(values)?),
            (Sort::Pairs, pairs) => format!("dict_items([{}])", all(pairs)?),
            (Sort::Range, _) => {
                return wrong(
                    "a range is only known where its numbers are used: printing it is not",
                );
            }
        },
        Py::Dict(object) => {
            let pairs = object.try_iter_pairs().into_iter().flatten().map(|(key, value)| {
                Ok(format!("{}: {}", repr(&key, depth + 1)?, repr(&value, depth + 1)?))
            });
            format!("{{{}}}", joined(pairs, ", ")?)
        }
        Py::Once(_) | Py::Other => {
            return wrong(format!("{} is printed as its address in Python", sort_of(value)));
        }
    })
}

pub(super) fn shallow(depth: usize) -> Outcome<()> {
    match depth > DEEPEST {
        true => wrong(format!("lists and mappings are more than {DEEPEST} deep")),
        false => Ok(()),
    }
}

/// Refuses what `safe` and `escape` give, which Python escapes further where it meets other texts.
pub(super) fn plain(value: &Value) -> Outcome<()> {
    match value.is_safe() {
        true => wrong("what `safe` and `e` give is only known where it is printed, or joined by ~"),
        false => Ok(()),
    }
}

/// A float as Python writes it: the shortest digits that are this number.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        return if number.is_nan() {
            "nan"
        } else if number > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .into();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>().unwrap_or(0) {
        -4..16 => format!("{number:?}"),
        exponent => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
    }
}

/// A text between quotes.
fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut written = String::from(quote);
    for character in text.chars() {
        let code = u32::from(character);
        // What Rust prints as a code has no picture in Python either.
        let shown = code < 0x7F || !format!("{:?}", format!("a{character}")).contains("\\u{");
        match character {
            '\n' => written += "\\n",
            '\r' => written += "\\r",
            '\t' => written += "\\t",
            '\\' => written += "\\\\",
            _ if character == quote => written.extend(['\\', quote]),
            _ if code >= 0x20 && shown => written.push(character),
            _ => {
                let _ = match code {
                    0..=0xFF => write!(written, "\\x{code:02x}"),
                    0x100..=0xFFFF => write!(written, "\\u{code:04x}"),
                    _ => write!(written, "\\U{code:08x}"),
                };
            }
        }
    }
    written + &String::from(quote)
}

/// What a loop goes through.
pub(super) fn values(value: &Value) -> Outcome<Vec<Value>> {
    match py(value) {
        Py::Undefined => Ok(vec![]),
        Py::Text(text) => {
            Ok(text.chars().map(|character| Value::from(character.to_string())).collect())
        }
        Py::Items(items) => Ok(items.1.clone()),
        Py::List | Py::Dict(_) => Ok(value.try_iter()?.collect()),
        Py::Once(once) => {
            Ok(once.0.lock().map(|mut rest| rest.by_ref().collect()).unwrap_or_default())
        }
        _ => wrong(format!("{} cannot be iterated over", sort_of(value))),
    }
}

/// The first of what a loop goes through; a generator keeps the others.
pub(super) fn first(value: &Value) -> Outcome<Option<Value>> {
    match py(value) {
        Py::Once(once) => Ok(once.0.lock().ok().and_then(|mut rest| rest.next())),
        _ => Ok(values(value)?.into_iter().next()),
    }
}

/// `len(value)`.
pub(super) fn length(value: &Value) -> Outcome<usize> {
    match py(value) {
        Py::Text(text) => Ok(text.chars().count()),
        Py::Undefined | Py::List | Py::Items(_) | Py::Dict(_) => Ok(values(value)?.len()),
        _ => wrong(format!("{} has no length", sort_of(value))),
    }
}

/// `a == b`.
pub(super) fn equal(a: &Value, b: &Value, depth: usize) -> Outcome<bool> {
    shallow(depth)?;
    let all = |a: &[Value], b: &[Value]| -> Outcome<bool> {
        for (a, b) in a.iter().zip(b) {
            if !equal(a, b, depth + 1)? {
                return Ok(false);
            }
        }
        Ok(a.len() == b.len())
    };
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        return Ok(a.compare(b) == Some(Ordering::Equal));
    }
    Ok(match (py(a), py(b)) {
        (Py::Undefined, Py::Undefined) | (Py::None, Py::None) => true,
        (Py::Text(a), Py::Text(b)) => a == b,
        (Py::List, Py::List) => all(&values(a)?, &values(b)?)?,
        (Py::Items(a), Py::Items(b)) if matches!(a.0, Sort::Tuple | Sort::Range) => {
            a.0 == b.0 && all(&a.1, &b.1)?
        }
        (Py::Dict(a), Py::Dict(b)) => {
            for (key, value) in a.try_iter_pairs().into_iter().flatten() {
                match b.get_value(&key) {
                    Some(other) if equal(&value, &other, depth + 1)? => (),
                    _ => return Ok(false),
                }
            }
            a.enumerator_len() == b.enumerator_len()
        }
        (Py::Other | Py::Once(_), Py::Other | Py::Once(_)) | (Py::Items(_), Py::Items(_)) => {
            return wrong(format!(
                "{} and {} are not known to be equal or not",
                sort_of(a),
                sort_of(b)
            ));
        }
        _ => false,
    })
}

/// Which is the smaller: none where one is no number.
pub(super) fn order(a: &Value, b: &Value, depth: usize) -> Outcome<Option<Ordering>> {
    shallow(depth)?;
    let lists = match (py(a), py(b)) {
        (Py::Text(a), Py::Text(b)) => return Ok(Some(a.cmp(b))),
        (Py::List, Py::List) => (values(a)?, values(b)?),
        (Py::Items(Items(Sort::Tuple, a)), Py::Items(Items(Sort::Tuple, b))) => {
            (a.clone(), b.clone())
        }
        _ => match (number(a), number(b)) {
            (Some(a), Some(b)) => return Ok(a.compare(b)),
            _ => return wrong(format!("{} and {} have no order", sort_of(a), sort_of(b))),
        },
    };
    for (a, b) in lists.0.iter().zip(&lists.1) {
        if !equal(a, b, depth + 1)? {
            return order(a, b, depth + 1);
        }
    }
    Ok(Some(lists.0.len().cmp(&lists.1.len())))
}

/// `item in container`.
pub(super) fn contains(container: &Value, item: &Value) -> Outcome<bool> {
    match (py(container), py(item)) {
        (Py::Text(container), Py::Text(item)) => Ok(container.contains(item)),
        (Py::Text(_), _) => wrong(format!("{} cannot be in a str", sort_of(item))),
        (Py::Dict(container), _) => Ok(entry_of(container, item)?.is_some()),
        _ => {
            for value in values(container)? {
                if equal(&value, item, 0)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }
}

/// The entry of a mapping: keys are texts and whole numbers, and `True` is `1`.
pub(super) fn entry_of(object: &DynObject, key: &Value) -> Outcome<Option<Value>> {
    match py(key) {
        Py::Text(_) => Ok(object.get_value(key)),
        Py::Undefined | Py::None => Ok(None),
        Py::Bool(_) | Py::Int(_) | Py::Float(_) => {
            for (known, value) in object.try_iter_pairs().into_iter().flatten() {
                if equal(&known, key, 0)? {
                    return Ok(Some(value));
                }
            }
            Ok(None)
        }
        _ => wrong(format!("{} as a key of a dict is not known", sort_of(key))),
    }
}

/// The key of a mapping.
pub(super) fn key(value: Value) -> Outcome {
    match py(&value) {
        Py::Text(_) | Py::Int(_) => Ok(value),
        _ => wrong(format!("{} as a key of a dict is not known", sort_of(&value))),
    }
}

/// A number.
#[derive(Clone, Copy)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    pub(super) fn float(self) -> f64 {
        match self {
            Self::Int(number) => number as f64,
            Self::Float(number) => number,
        }
    }

    pub(super) fn compare(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => Some(a.cmp(&b)),
            (a, b) => a.float().partial_cmp(&b.float()),
        }
    }
}

impl From<Number> for Value {
    fn from(number: Number) -> Self {
        match number {
            Number::Int(number) => {
                i64::try_from(number).map_or_else(|_| Self::from(number), Self::from)
            }
            Number::Float(number) => Self::from(number),
        }
    }
}

/// Python's bools are numbers, too.
pub(super) fn number(value: &Value) -> Option<Number> {
    match py(value) {
        Py::Bool(flag) => Some(Number::Int(flag.into())),
        Py::Int(number) => Some(Number::Int(number)),
        Py::Float(number) => Some(Number::Float(number)),
        _ => None,
    }
}

/// A whole number that fits the machine.
pub(super) fn whole(value: &Value) -> Outcome<i64> {
    match number(value) {
        Some(Number::Int(number)) => {
            i64::try_from(number).or_else(|_| wrong("a number is too large"))
        }
        _ => wrong(format!("{} is no whole number", sort_of(value))),
    }
}

/// A width that a text may be padded to.
pub(super) fn padding(count: usize) -> Outcome<usize> {
    if count > LONGEST { wrong("a padded text is too long") } else { Ok(count) }
}

/// Whether a text of this many bytes may be made.
pub(super) fn fits(bytes: usize) -> Outcome<()> {
    match bytes > MOST_BYTES {
        true => wrong(format!("a text of more than {MOST_BYTES} bytes")),
        false => Ok(()),
    }
}

/// Texts with another between them. Parts are counted as they come: one list may hold another many times, and prints
/// as much text as no memory holds.
pub(super) fn joined(
    parts: impl IntoIterator<Item = Outcome<String>>,
    between: &str,
) -> Outcome<String> {
    let mut all = String::new();
    for (at, part) in parts.into_iter().enumerate() {
        let (part, between) = (part?, if at == 0 { "" } else { between });
        fits(all.len() + between.len() + part.len())?;
        all.extend([between, &part]);
    }
    Ok(all)
}

/// The methods of Python's types, all of them: where a template names one without calling it, jinja2 has the method and not an entry of the mapping.
fn is_method(value: &Value, name: &str) -> bool {
    const OF_BOTH: &str = " count index ";
    const OF_LISTS: &str = " append clear copy extend insert pop remove reverse sort ";
    const OF_DICTS: &str =
        " clear copy fromkeys get items keys pop popitem setdefault update values ";
    const OF_TEXTS: &str = " capitalize casefold center count encode endswith expandtabs find format format_map \
        index isalnum isalpha isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle \
        isupper join ljust lower lstrip maketrans partition removeprefix removesuffix replace rfind rindex rjust \
        rpartition rsplit rstrip split splitlines startswith strip swapcase title translate upper zfill ";
    const OF_NUMBERS: &str = " as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex hex \
        imag is_integer numerator real to_bytes ";
    let names: &[&str] = match py(value) {
        Py::List => &[OF_BOTH, OF_LISTS],
        // The pairs of `groupby` have names for their parts.
        Py::Items(Items(Sort::Tuple, _)) => &[OF_BOTH, " grouper list "],
        Py::Items(_) => &[OF_BOTH, " start stop step mapping isdisjoint "],
        Py::Dict(_) => &[OF_DICTS],
        Py::Text(_) => &[OF_TEXTS],
        Py::Bool(_) | Py::Int(_) | Py::Float(_) => &[OF_NUMBERS],
        Py::Once(_) => &[" send throw close gi_code gi_frame gi_running gi_yieldfrom "],
        Py::Other if sort_of(value) == "a macro" => {
            &[" arguments caller catch_kwargs catch_varargs explicit_caller "]
        }
        Py::Undefined | Py::None | Py::Other => &[],
    };
    names.iter().any(|names| names.contains(&format!(" {name} ")))
}

/// `value.name`.
pub(super) fn attribute(value: &Value, name: &str) -> Outcome {
    match py(value) {
        Py::Undefined => wrong(format!("an undefined value has no attribute {name}")),
        _ if name.starts_with("__") => wrong(format!("access to {name} is unsafe")),
        _ if is_method(value, name) => wrong(format!(
            "{name} is a method of {}: it is only known where it is called (an entry is value['{name}'])",
            sort_of(value)
        )),
        Py::Dict(object) => Ok(object.get_value_by_str(name).unwrap_or_default()),
        Py::Other => Ok(value.get_attr(name).unwrap_or_default()),
        _ => Ok(Value::UNDEFINED),
    }
}

/// `value[key]`.
pub(super) fn item(value: &Value, key: &Value) -> Outcome {
    let found = match (py(value), py(key)) {
        (Py::Undefined, _) => return wrong("an undefined value has no items"),
        // A list as a key is an error that jinja2 takes for nothing found.
        (Py::Dict(object), _) => entry_of(object, key).ok().flatten(),
        (
            Py::Text(_) | Py::List | Py::Items(Items(Sort::Tuple | Sort::Range, _)),
            Py::Int(_) | Py::Bool(_),
        ) => {
            let all = values(value)?;
            let at = whole(key)?;
            let at = if at < 0 { at.saturating_add_unsigned(all.len() as u64) } else { at };
            return Ok(usize::try_from(at)
                .ok()
                .and_then(|at| all.get(at).cloned())
                .unwrap_or_default());
        }
        _ => None,
    };
    match (found, key.as_str()) {
        (Some(found), _) => Ok(found),
        (None, Some(name)) => attribute(value, name),
        (None, None) => Ok(Value::UNDEFINED),
    }
}

/// `value[start:stop:step]`.
pub(super) fn slice(value: &Value, bounds: [&Value; 3]) -> Outcome {
    plain(value)?;
    if !matches!(py(value), Py::Text(_) | Py::List | Py::Items(Items(Sort::Tuple | Sort::Range, _)))
    {
        return wrong(format!("{} has no slices", sort_of(value)));
    }
    let bound = |value: &Value| if value.is_none() { Ok(None) } else { whole(value).map(Some) };
    let [start, stop, step] = bounds.map(bound);
    let (start, stop, step) = (start?, stop?, step?.unwrap_or(1));
    let all = values(value)?;
    let length = all.len() as i64;
    let (lowest, highest) = if step < 0 { (-1, length - 1) } else { (0, length) };
    let place = |bound: Option<i64>, otherwise| match bound {
        None => otherwise,
        Some(bound) => {
            (if bound < 0 { bound.saturating_add(length) } else { bound }).clamp(lowest, highest)
        }
    };
    let (first, last) = if step < 0 { (highest, lowest) } else { (lowest, highest) };
    let (mut at, stop) = (place(start, first), place(stop, last));
    if step == 0 {
        return wrong("the step of a slice is zero");
    }
    let mut parts = vec![];
    while if step < 0 { at > stop } else { at < stop } {
        parts.push(all[at as usize].clone());
        at = at.saturating_add(step);
    }
    Ok(match py(value) {
        Py::Text(_) => Value::from(parts.iter().filter_map(Value::as_str).collect::<String>()),
        Py::Items(Items(sort, _)) => items(*sort, parts),
        _ => Value::from(parts),
    })
}
