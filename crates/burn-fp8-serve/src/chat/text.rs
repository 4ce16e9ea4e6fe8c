//! Python's methods of texts, lists and mappings, and what it formats.

use minijinja::value::Kwargs;
use minijinja::{State, Value};

use super::values::*;

/// Arguments by the names of parameters; one without a name is taken by its place alone.
pub(super) fn bind<const N: usize>(
    of: &str,
    arguments: &[Value],
    names: [&str; N],
) -> Outcome<[Option<Value>; N]> {
    let (by_place, by_name) = match arguments.split_last() {
        Some((last, others)) if last.is_kwargs() => (others, Some(Kwargs::try_from(last.clone())?)),
        _ => (arguments, None),
    };
    if by_place.len() > N {
        return wrong(format!("{of} takes {N} arguments at most"));
    }
    let mut bound = [const { None }; N];
    bound.iter_mut().zip(by_place).for_each(|(bound, value)| *bound = Some(value.clone()));
    if let Some(by_name) = by_name {
        for name in by_name.args() {
            match names.iter().position(|known| *known == name).map(|at| &mut bound[at]) {
                Some(place @ None) => *place = Some(by_name.peek(name)?),
                _ => return wrong(format!("{of} takes no argument {name} here")),
            }
        }
    }
    Ok(bound)
}

/// An argument that must be there.
pub(super) fn needed(of: &str, value: Option<Value>) -> Outcome {
    value.map_or_else(|| wrong(format!("{of} lacks an argument")), Ok)
}

/// An argument that must be a text.
pub(super) fn word(of: &str, value: Option<Value>) -> Outcome<String> {
    let value = needed(of, value)?;
    value.as_str().map_or_else(
        || wrong(format!("{of} takes a str, not {}", sort_of(&value))),
        |text| Ok(text.into()),
    )
}

/// An argument that may be none.
pub(super) fn optional(value: Option<Value>) -> Option<Value> {
    value.filter(|value| !value.is_none())
}

fn list<T: Into<Value>>(parts: impl IntoIterator<Item = T>) -> Value {
    Value::from(parts.into_iter().map(Into::into).collect::<Vec<Value>>())
}

/// `value.name(arguments)`.
pub(super) fn method(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Outcome {
    plain(value)?;
    for argument in arguments {
        plain(argument)?;
    }
    match py(value) {
        Py::Text(text) => of_text(text, name, arguments),
        Py::Dict(_) => of_dict(state, value, name, arguments),
        Py::List | Py::Items(Items(Sort::Tuple | Sort::Range, _)) => {
            of_list(value, name, arguments)
        }
        // The crate divides by how many there are.
        Py::Other if name == "cycle" && arguments.is_empty() => {
            wrong(format!("cycle of {}: no items are given", sort_of(value)))
        }
        Py::Other => value.call_method(state, name, arguments),
        _ => wrong(format!("{} has no method {name}", sort_of(value))),
    }
}

fn of_dict(state: &State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Outcome {
    let Py::Dict(object) = py(value) else { return wrong("no dict") };
    let pairs = || object.try_iter_pairs().into_iter().flatten();
    if name == "get" {
        let [wanted, otherwise] = bind(name, arguments, ["", ""])?;
        let found = entry_of(object, &needed(name, wanted)?)?;
        return Ok(found.or(otherwise).unwrap_or_else(|| Value::from(())));
    }
    if let ("keys" | "values" | "items" | "copy", []) = (name, arguments) {
        return Ok(match name {
            "keys" => items(Sort::Keys, pairs().map(|(key, _)| key).collect()),
            "values" => items(Sort::Values, pairs().map(|(_, value)| value).collect()),
            "items" => {
                items(Sort::Pairs, pairs().map(|(key, value)| tuple([key, value])).collect())
            }
            _ => value.clone(),
        });
    }
    match object.get_value_by_str(name) {
        Some(entry) if attribute(value, name).is_ok() => entry.call(state, arguments),
        _ => wrong(format!("a dict has no method {name} here")),
    }
}

fn of_list(value: &Value, name: &str, arguments: &[Value]) -> Outcome {
    let all = values(value)?;
    match name {
        "copy" if arguments.is_empty() && matches!(py(value), Py::List) => Ok(value.clone()),
        "count" | "index" => {
            let [wanted] = bind(name, arguments, [""])?;
            let wanted = needed(name, wanted)?;
            let same: Outcome<Vec<bool>> =
                all.iter().map(|value| equal(value, &wanted, 0)).collect();
            let same = same?;
            match (name, same.iter().position(|same| *same)) {
                ("count", _) => Ok(Value::from(same.iter().filter(|same| **same).count())),
                (_, Some(at)) => Ok(Value::from(at)),
                (_, None) => wrong("index: the value is not in the list"),
            }
        }
        _ => wrong(format!("{} has no method {name} here", sort_of(value))),
    }
}

/// Python's blanks: four more than Unicode's.
fn is_blank(character: char) -> bool {
    character.is_whitespace() || ('\x1C'..='\x1F').contains(&character)
}

/// `strip` and the like: what is cut off, and at which ends.
pub(super) fn strip(text: &str, of: Option<&str>, ends: [bool; 2]) -> String {
    let cut = |character: char| of.map_or_else(|| is_blank(character), |of| of.contains(character));
    let text = if ends[0] { text.trim_start_matches(cut) } else { text };
    if ends[1] { text.trim_end_matches(cut) } else { text }.into()
}

/// As a title has it: the first letter great, the others small.
pub(super) fn great(character: char) -> String {
    let mut letters = character.to_uppercase();
    letters.next().into_iter().chain(letters.flat_map(char::to_lowercase)).collect()
}

pub(super) fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map_or_else(String::new, |letter| great(letter) + &letters.as_str().to_lowercase())
}

/// At blanks, which may be several.
fn split_at_blanks(text: &str, most: usize, from_end: bool) -> Vec<String> {
    let (mut parts, mut rest) = (vec![], strip(text, None, [!from_end, from_end]));
    while !rest.is_empty() {
        let at = if from_end { rest.rfind(is_blank) } else { rest.find(is_blank) };
        let Some(at) = at.filter(|_| parts.len() < most) else {
            parts.push(std::mem::take(&mut rest));
            break;
        };
        let width = rest[at..].chars().next().map_or(0, char::len_utf8);
        let (before, after) = (&rest[..at], &rest[at + width..]);
        let (part, others) = if from_end { (after, before) } else { (before, after) };
        parts.push(part.to_owned());
        rest = strip(others, None, [!from_end, from_end]);
    }
    if from_end {
        parts.reverse();
    }
    parts
}

fn lines(text: &str, keep: bool) -> Vec<String> {
    let (mut lines, mut line, mut characters) = (vec![], String::new(), text.chars().peekable());
    while let Some(character) = characters.next() {
        if !matches!(
            character,
            '\n' | '\r' | '\x0B' | '\x0C' | '\x1C'..='\x1E' | '\u{85}' | '\u{2028}' | '\u{2029}'
        ) {
            line.push(character);
            continue;
        }
        let pair = character == '\r' && characters.next_if_eq(&'\n').is_some();
        if keep {
            line.push(character);
            line.extend(pair.then_some('\n'));
        }
        lines.push(std::mem::take(&mut line));
    }
    lines.extend(Some(line).filter(|line| !line.is_empty()));
    lines
}

/// Where a part of a text begins and ends, by characters.
fn part<'a>(
    text: &'a str,
    start: Option<&Value>,
    stop: Option<&Value>,
) -> Outcome<(usize, &'a str)> {
    let bounds: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let length = bounds.len() as i64 - 1;
    let place = |bound: Option<&Value>, otherwise: i64| -> Outcome<i64> {
        let bound = bound.filter(|bound| !bound.is_none()).map_or(Ok(otherwise), whole)?;
        Ok(if bound < 0 { (bound + length).max(0) } else { bound })
    };
    let (start, stop) = (place(start, 0)?, place(stop, length)?.min(length));
    if start > stop {
        return wrong("a part of a text that ends before it begins is not known");
    }
    Ok((start as usize, &text[bounds[start as usize]..bounds[stop as usize]]))
}

/// A method of a text.
pub(super) fn of_text(text: &str, name: &str, arguments: &[Value]) -> Outcome {
    let is = |held: fn(char) -> bool| Value::from(!text.is_empty() && text.chars().all(held));
    let cased = |wrong: fn(char) -> bool, right: fn(char) -> bool| {
        Value::from(text.chars().any(right) && !text.chars().any(wrong))
    };
    if arguments.is_empty() {
        // Digits beyond ASCII are of three kinds in Python.
        let known = text.chars().all(|character| character.is_ascii() || !character.is_numeric());
        match name {
            "upper" => return Ok(Value::from(text.to_uppercase())),
            "lower" => return Ok(Value::from(text.to_lowercase())),
            "casefold" if text.is_ascii() => return Ok(Value::from(text.to_lowercase())),
            "capitalize" => return Ok(Value::from(capitalized(text))),
            "swapcase" if text.is_ascii() => {
                let swapped = |c: char| {
                    if c.is_uppercase() { c.to_ascii_lowercase() } else { c.to_ascii_uppercase() }
                };
                return Ok(Value::from(text.chars().map(swapped).collect::<String>()));
            }
            "title" => {
                let mut inside = false;
                let mut titled = String::new();
                for letter in text.chars() {
                    titled += &if inside { letter.to_lowercase().collect() } else { great(letter) };
                    inside = letter.is_uppercase() || letter.is_lowercase();
                }
                return Ok(Value::from(titled));
            }
            "isascii" => return Ok(Value::from(text.is_ascii())),
            "isspace" => return Ok(is(is_blank)),
            "isalpha" => return Ok(is(char::is_alphabetic)),
            "isdigit" | "isdecimal" | "isnumeric" if known => {
                return Ok(is(|character| character.is_ascii_digit()));
            }
            "isalnum" if known => {
                return Ok(is(|character| character.is_alphabetic() || character.is_ascii_digit()));
            }
            "islower" => return Ok(cased(char::is_uppercase, char::is_lowercase)),
            "isupper" => return Ok(cased(char::is_lowercase, char::is_uppercase)),
            _ => (),
        }
    }
    let text_of = |value: Option<Value>| word(name, value);
    Ok(match name {
        "strip" | "lstrip" | "rstrip" => {
            let [of] = bind(name, arguments, [""])?;
            let of = optional(of).map(|of| word(name, Some(of))).transpose()?;
            Value::from(strip(text, of.as_deref(), [name != "rstrip", name != "lstrip"]))
        }
        "split" | "rsplit" => {
            let [at, most] = bind(name, arguments, ["sep", "maxsplit"])?;
            let most = most.map_or(Ok(-1), |most| whole(&most))?;
            let most = usize::try_from(most).unwrap_or(usize::MAX - 1);
            let from_end = name == "rsplit";
            let Some(at) = optional(at) else {
                return Ok(list(split_at_blanks(text, most, from_end)));
            };
            let at = text_of(Some(at))?;
            if at.is_empty() {
                return wrong(format!("{name}: the separator is empty"));
            }
            let mut parts: Vec<&str> = match from_end {
                true => text.rsplitn(most + 1, &*at).collect(),
                false => text.splitn(most + 1, &*at).collect(),
            };
            if from_end {
                parts.reverse();
            }
            list(parts)
        }
        "partition" | "rpartition" => {
            let [at] = bind(name, arguments, [""])?;
            let at = text_of(at)?;
            let found =
                if name == "partition" { text.split_once(&*at) } else { text.rsplit_once(&*at) };
            let parts = match found {
                _ if at.is_empty() => return wrong(format!("{name}: the separator is empty")),
                Some((before, after)) => [before, &at, after],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            tuple(parts.map(Value::from))
        }
        "splitlines" => {
            let [keep] = bind(name, arguments, ["keepends"])?;
            list(lines(text, keep.is_some_and(|keep| keep.is_true())))
        }
        "replace" => {
            let [old, new, count] = bind(name, arguments, ["", "", ""])?;
            let (old, new) = (text_of(old)?, text_of(new)?);
            let count = count.map_or(Ok(-1), |count| whole(&count))?;
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            let found = text.matches(&*old).take(count).count();
            fits(text.len() - found * old.len() + found.saturating_mul(new.len()))?;
            Value::from(text.replacen(&old, &new, count))
        }
        "removeprefix" | "removesuffix" => {
            let [cut] = bind(name, arguments, [""])?;
            let cut = text_of(cut)?;
            let rest = if name == "removeprefix" {
                text.strip_prefix(&*cut)
            } else {
                text.strip_suffix(&*cut)
            };
            Value::from(rest.unwrap_or(text))
        }
        "startswith" | "endswith" => {
            let [ends, start, stop] = bind(name, arguments, ["", "", ""])?;
            let ends = needed(name, ends)?;
            let ends = match py(&ends) {
                Py::Items(Items(Sort::Tuple, ends)) => ends.clone(),
                _ => vec![ends.clone()],
            };
            let (_, text) = part(text, start.as_ref(), stop.as_ref())?;
            let mut held = false;
            for end in ends {
                let end = text_of(Some(end))?;
                held |= if name == "startswith" {
                    text.starts_with(&end)
                } else {
                    text.ends_with(&end)
                };
            }
            Value::from(held)
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let [wanted, start, stop] = bind(name, arguments, ["", "", ""])?;
            let wanted = text_of(wanted)?;
            let (start, text) = part(text, start.as_ref(), stop.as_ref())?;
            let found =
                if name.starts_with('r') { text.rfind(&wanted) } else { text.find(&wanted) };
            match found.map(|at| start + text[..at].chars().count()) {
                _ if name == "count" => Value::from(text.matches(&*wanted).count()),
                Some(at) => Value::from(at),
                None if name.ends_with("find") => Value::from(-1),
                None => return wrong(format!("{name}: {wanted:?} is not in the text")),
            }
        }
        "join" => {
            let [parts] = bind(name, arguments, [""])?;
            let parts = values(&needed(name, parts)?)?;
            Value::from(joined(parts.into_iter().map(|part| text_of(Some(part))), text)?)
        }
        "ljust" | "rjust" | "center" | "zfill" => {
            let [width, fill] = bind(name, arguments, ["", ""])?;
            let width = padding(usize::try_from(whole(&needed(name, width)?)?).unwrap_or(0))?;
            let fill = fill.map_or(Ok(" ".into()), |fill| text_of(Some(fill)))?;
            let missing = width.saturating_sub(text.chars().count());
            let left = match name {
                "ljust" => 0,
                "center" => missing / 2 + (missing & width & 1),
                _ => missing,
            };
            if fill.chars().count() != 1 {
                return wrong(format!("{name} fills with one character"));
            }
            Value::from(match name {
                "zfill" => {
                    let digits = text.trim_start_matches(['+', '-']);
                    let sign = if text.len() - digits.len() <= 1 {
                        &text[..text.len() - digits.len()]
                    } else {
                        ""
                    };
                    format!("{sign}{}{}", "0".repeat(missing), &text[sign.len()..])
                }
                _ => format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left)),
            })
        }
        "format" => Value::from(formatted(text, arguments)?),
        _ => return wrong(format!("a str has no method {name} here")),
    })
}

/// A width or a precision, in digits, of which there may be none.
fn counted(digits: &str) -> Outcome<usize> {
    match digits {
        "" => Ok(0),
        _ => digits
            .parse()
            .or_else(|_| wrong(format!("a format with the width {digits} is not known"))),
    }
}

/// `str.format`, of places and names, with `[[fill]align][sign][0][width][,][.precision][type]`.
fn formatted(format: &str, arguments: &[Value]) -> Outcome<String> {
    let (mut result, mut characters, mut next) = (String::new(), format.chars().peekable(), 0);
    while let Some(character) = characters.next() {
        fits(result.len())?;
        match character {
            '{' | '}' if characters.next_if_eq(&character).is_some() => result.push(character),
            '{' => {
                let mut closed = false;
                let field: String = characters
                    .by_ref()
                    .take_while(|character| {
                        closed = *character == '}';
                        !closed
                    })
                    .collect();
                let (name, spec) = field.split_once(':').unwrap_or((&field, ""));
                if !closed
                    || !name.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
                    || spec.contains('{')
                {
                    return wrong(format!("format: {{{field}}} is not known"));
                }
                let place = if name.is_empty() { Some(next) } else { name.parse::<usize>().ok() };
                next += usize::from(name.is_empty());
                let value = match (place, arguments.last().filter(|last| last.is_kwargs())) {
                    (Some(place), _) => {
                        arguments.get(place).filter(|value| !value.is_kwargs()).cloned()
                    }
                    (None, Some(named)) => Kwargs::try_from(named.clone())?.peek(name).ok(),
                    (None, None) => None,
                };
                let Some(value) = value else {
                    return wrong(format!("format: there is no value for {{{field}}}"));
                };
                result += &if spec.is_empty() { text(&value)? } else { laid_out(&value, spec)? };
            }
            '}' => return wrong("format: a single }"),
            _ => result.push(character),
        }
    }
    Ok(result)
}

/// A text or a number by the specification of a format.
fn laid_out(value: &Value, spec: &str) -> Outcome<String> {
    let mut characters: Vec<char> = spec.chars().collect();
    let is_align = |at: usize| characters.get(at).is_some_and(|align| "<>^".contains(*align));
    let (fill, align) = match (is_align(1), is_align(0)) {
        (true, _) => (characters[0], Some(characters[1])),
        (false, true) => (' ', Some(characters[0])),
        _ => (' ', None),
    };
    let used = if is_align(1) { 2 } else { usize::from(align.is_some()) };
    characters.drain(..used);
    let mut rest = characters.into_iter().peekable();
    let sign = rest.next_if(|sign| "+- ".contains(*sign));
    let zero = rest.next_if_eq(&'0').is_some();
    let mut digits =
        || -> String { std::iter::from_fn(|| rest.next_if(char::is_ascii_digit)).collect() };
    let width = padding(counted(&digits())?)?;
    let grouped = rest.next_if_eq(&',').is_some();
    let point = rest.next_if_eq(&'.').is_some();
    let digits: String = std::iter::from_fn(|| rest.next_if(char::is_ascii_digit)).collect();
    if point && digits.is_empty() {
        return wrong(format!("format: {spec:?} lacks a precision"));
    }
    let precision = point.then(|| counted(&digits)).transpose()?;
    let kind = rest.next();
    let conversion = match (py(value), kind) {
        (Py::Text(_), None | Some('s')) if sign.is_none() && !zero && !grouped => 's',
        (Py::Int(_), None | Some('d')) if !point => 'd',
        (Py::Int(_), Some(kind @ ('x' | 'X' | 'o'))) if !point && !grouped => kind,
        (Py::Int(_) | Py::Float(_), Some(kind @ ('f' | 'F' | 'e'))) if kind != 'e' || !grouped => {
            kind
        }
        _ => return wrong(format!("format: {spec:?} of {} is not known", sort_of(value))),
    };
    if rest.next().is_some() || (zero && align.is_some()) {
        return wrong(format!("format: {spec:?} is not known"));
    }
    let written = converted(conversion, value, precision)?;
    let (minus, mut written) = match written.strip_prefix('-').filter(|_| conversion != 's') {
        Some(digits) => ("-", digits.to_owned()),
        None => ("", written),
    };
    if grouped {
        if zero {
            return wrong(format!("format: {spec:?} is not known"));
        }
        let whole = written.find('.').unwrap_or(written.len());
        (1..whole).rev().filter(|at| (whole - at) % 3 == 0).for_each(|at| written.insert(at, ','));
    }
    let sign = match sign {
        Some('+') if minus.is_empty() => "+",
        Some(' ') if minus.is_empty() => " ",
        _ => minus,
    };
    let missing = width.saturating_sub(written.chars().count() + sign.len());
    if zero {
        return Ok(format!("{sign}{}{written}", "0".repeat(missing)));
    }
    let left = match align.unwrap_or(if conversion == 's' { '<' } else { '>' }) {
        '<' => 0,
        '>' => missing,
        _ => missing / 2,
    };
    let filled = |count: usize| fill.to_string().repeat(count);
    Ok(format!("{}{sign}{written}{}", filled(left), filled(missing - left)))
}

/// `text % value`.
pub(super) fn percent(format: &str, value: &Value) -> Outcome<String> {
    let mut given = match py(value) {
        Py::Items(Items(Sort::Tuple, given)) => given.clone(),
        _ => vec![value.clone()],
    }
    .into_iter();
    let (mut result, mut characters) = (String::new(), format.chars().peekable());
    while let Some(character) = characters.next() {
        fits(result.len())?;
        if character != '%' {
            result.push(character);
            continue;
        }
        let mut named = None;
        if characters.next_if_eq(&'(').is_some() {
            let name: String =
                characters.by_ref().take_while(|character| *character != ')').collect();
            named = Some(item(value, &Value::from(name))?);
        }
        let mut taken = |wanted: &str| -> String {
            std::iter::from_fn(|| characters.next_if(|character| wanted.contains(*character)))
                .collect()
        };
        let (flags, width, point) = (taken("-+ 0#"), taken("0123456789"), taken("."));
        let digits = taken("0123456789");
        if point.len() > 1 {
            return wrong("%: a precision has two points");
        }
        let precision = (!point.is_empty()).then(|| counted(&digits)).transpose()?;
        let conversion = characters.next().unwrap_or_default();
        if conversion == '%' {
            result.push('%');
            continue;
        }
        let value = match named.or_else(|| given.next()) {
            Some(value) if !value.is_undefined() => value,
            _ => return wrong("%: there are not enough values for the format"),
        };
        let written = converted(conversion, &value, precision)?;
        let numeric = !matches!(conversion, 's' | 'r');
        let sign = match written.strip_prefix('-') {
            Some(_) => "-",
            None if numeric && flags.contains('+') => "+",
            None if numeric && flags.contains(' ') => " ",
            None => "",
        };
        if flags.contains('#') {
            return wrong("% with # is not known");
        }
        let written = if sign == "-" { &written[1..] } else { &written };
        let missing =
            padding(counted(&width)?)?.saturating_sub(written.chars().count() + sign.len());
        result += &match () {
            () if flags.contains('-') => format!("{sign}{written}{}", " ".repeat(missing)),
            () if numeric && flags.contains('0') => {
                format!("{sign}{}{written}", "0".repeat(missing))
            }
            () => format!("{}{sign}{written}", " ".repeat(missing)),
        };
    }
    match given.next() {
        Some(_) if !matches!(py(value), Py::Dict(_) | Py::List) => {
            wrong("%: there are more values than the format takes")
        }
        _ => Ok(result),
    }
}

fn converted(conversion: char, value: &Value, precision: Option<usize>) -> Outcome<String> {
    let digits = precision.unwrap_or(6);
    // Rust counts digits in 16 bits, and of an exponent the one before the point, too.
    const MOST: usize = u16::MAX as usize - 1;
    if digits > MOST && matches!(conversion, 'f' | 'F' | 'e') {
        return wrong(format!(
            "a precision of {digits} is not known: a number has {MOST} decimals at most"
        ));
    }
    Ok(match (conversion, number(value)) {
        ('s' | 'r', _) => {
            let written = if conversion == 's' { text(value)? } else { repr(value, 0)? };
            written.chars().take(precision.unwrap_or(usize::MAX)).collect()
        }
        ('d' | 'i' | 'u', Some(Number::Int(number))) if precision.is_none() => number.to_string(),
        ('d' | 'i' | 'u', Some(Number::Float(number)))
            if precision.is_none() && number.abs() < 1e18 =>
        {
            (number as i64).to_string()
        }
        ('x', Some(Number::Int(number))) if number >= 0 => format!("{number:x}"),
        ('X', Some(Number::Int(number))) if number >= 0 => format!("{number:X}"),
        ('o', Some(Number::Int(number))) if number >= 0 => format!("{number:o}"),
        ('f' | 'F', Some(number)) if number.float().is_finite() => {
            format!("{:.digits$}", number.float())
        }
        ('e', Some(number)) if number.float().is_finite() => {
            let written = format!("{:.digits$e}", number.float());
            let (digits, exponent) = written.split_once('e').unwrap_or((&written, "0"));
            let exponent: i32 = exponent.parse().unwrap_or(0);
            format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
        _ => return wrong(format!("%{conversion} of {} is not known", sort_of(value))),
    })
}
