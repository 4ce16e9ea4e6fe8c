//! Python's operators of arithmetic.

use minijinja::Value;

use super::text::percent;
use super::values::*;

/// Operators of arithmetic.
pub(super) fn arithmetic(operator: &str, a: &Value, b: &Value) -> Outcome {
    plain(a)?;
    plain(b)?;
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        return calculate(operator, a, b);
    }
    match (operator, py(a), py(b)) {
        ("%", Py::Text(format), _) => percent(format, b).map(Value::from),
        ("+", Py::Text(a), Py::Text(b)) => concatenated(a, b).map(Value::from),
        ("+", Py::List, Py::List) => Ok(Value::from(appended(&values(a)?, &values(b)?)?)),
        ("+", Py::Items(Items(Sort::Tuple, a)), Py::Items(Items(Sort::Tuple, b))) => {
            Ok(tuple(appended(a, b)?))
        }
        (
            "*",
            Py::Text(_) | Py::List | Py::Items(Items(Sort::Tuple, _)),
            Py::Int(_) | Py::Bool(_),
        ) => repeated(a, b),
        (
            "*",
            Py::Int(_) | Py::Bool(_),
            Py::Text(_) | Py::List | Py::Items(Items(Sort::Tuple, _)),
        ) => repeated(b, a),
        _ => wrong(format!("{} {operator} {} is not defined", sort_of(a), sort_of(b))),
    }
}

/// `a ~ b` of texts.
pub(super) fn concatenated(a: &str, b: &str) -> Outcome<String> {
    fits(a.len() + b.len())?;
    Ok([a, b].concat())
}

fn appended(a: &[Value], b: &[Value]) -> Outcome<Vec<Value>> {
    match a.len() + b.len() > LONGEST {
        true => wrong(format!("a list of more than {LONGEST} values")),
        false => Ok([a, b].concat()),
    }
}

fn repeated(value: &Value, times: &Value) -> Outcome {
    let times = usize::try_from(whole(times)?).unwrap_or(0);
    let all = length(value)?.saturating_mul(times);
    if all > LONGEST {
        return wrong("a repeated value is too long");
    }
    // Nothing is nothing, be it repeated as often as memory has no room to count.
    let times = if all == 0 { 0 } else { times };
    let repeated = || -> Outcome<Vec<Value>> {
        Ok(values(value)?.iter().cycle().take(all).cloned().collect())
    };
    Ok(match py(value) {
        Py::Text(text) => Value::from(text.repeat(times)),
        Py::List => Value::from(repeated()?),
        _ => tuple(repeated()?),
    })
}

fn calculate(operator: &str, a: Number, b: Number) -> Outcome {
    let result = match (a, b) {
        (_, b) if matches!(operator, "/" | "//" | "%") && b.float() == 0.0 => {
            return wrong("division by zero");
        }
        (Number::Int(a), Number::Int(b)) if operator != "/" && (operator != "**" || b >= 0) => {
            let rest = || {
                a.checked_rem(b)
                    .map(|rest| if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
            };
            let result = match operator {
                "+" => a.checked_add(b),
                "-" => a.checked_sub(b),
                "*" => a.checked_mul(b),
                "%" => rest(),
                "//" => rest().and_then(|rest| a.checked_sub(rest)?.checked_div(b)),
                _ => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            };
            Number::Int(result.map_or_else(|| wrong("a whole number is too large"), Ok)?)
        }
        (a, b) => {
            let (a, b) = (a.float(), b.float());
            let rest = a % b;
            let rest = if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest };
            Number::Float(match operator {
                "+" => a + b,
                "-" => a - b,
                "*" => a * b,
                "/" => a / b,
                "%" if rest == 0.0 => 0.0_f64.copysign(b),
                "%" => rest,
                // The quotient is whole but for rounding.
                "//" => ((a - rest) / b).round(),
                _ if (a == 0.0 && b < 0.0) || (a < 0.0 && b.fract() != 0.0) => {
                    return wrong(format!("{a} ** {b} is no real number"));
                }
                _ => a.powf(b),
            })
        }
    };
    Ok(result.into())
}

/// `-value`.
pub(super) fn negated(value: &Value) -> Outcome {
    match number(value) {
        Some(Number::Int(number)) => Ok(number
            .checked_neg()
            .map_or_else(|| wrong("a number is too large"), |number| Ok(Number::Int(number)))?
            .into()),
        Some(Number::Float(number)) => Ok(Value::from(-number)),
        None => wrong(format!("-{} is not defined", sort_of(value))),
    }
}
