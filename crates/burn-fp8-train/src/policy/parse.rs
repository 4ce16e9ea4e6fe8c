//! Policies as strings.

use core::fmt::{self, Display};
use core::str::FromStr;

use burn::tensor::FloatDType;
use burn_fp8::Fp8Error;
use burn_fp8_core::AttentionPrecision;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::definition::Policy;
use super::dtype::{self, invalid, quoted};
use super::matmul::MatmulPolicy;

/// The longest policy read, in bytes: the longest name of each key and value takes less.
const MAX_LENGTH: usize = 128;

const KEYS: &str = "p or params, c or compute, o or output, m or matmul, a or attention";

/// Where the value of a key goes: the dtype of parameters, compute or output, then the matrix products, then attention.
fn place_of(key: &str) -> Option<usize> {
    const NAMES: [[&str; 2]; 5] =
        [["p", "params"], ["c", "compute"], ["o", "output"], ["m", "matmul"], ["a", "attention"]];
    NAMES.iter().position(|names| names.contains(&key))
}

/// That a part has a value which its key does not have, and those that it has.
fn unknown(what: &str, value: &str, part: &str, known: impl Display) -> Fp8Error {
    invalid(format!("unknown {what} {} in {}{known}", quoted(value), quoted(part)))
}

fn dtype_of(value: &str, part: &str) -> Result<FloatDType, Fp8Error> {
    let known = || format!("; dtypes are {}", dtype::names());
    dtype::parse(value).ok_or_else(|| unknown("dtype", value, part, known()))
}

fn matmul_of(value: &str, part: &str) -> Result<MatmulPolicy, Fp8Error> {
    MatmulPolicy::parse(value).ok_or_else(|| {
        let names: Vec<_> = MatmulPolicy::all().map(MatmulPolicy::name).collect();
        let hint = if value == "fp8_current" { ": current scaling is `fp8`" } else { "" };
        let known = format!("{hint}; it can be {}", names.join(", "));
        unknown("matrix product", value, part, known)
    })
}

fn attention_of(value: &str, part: &str) -> Result<AttentionPrecision, Fp8Error> {
    value.parse().map_err(|_| {
        let names = AttentionPrecision::ALL.map(AttentionPrecision::name).join(", ");
        unknown("precision of attention", value, part, format!("; it can be {names}"))
    })
}

impl FromStr for Policy {
    type Err = Fp8Error;

    /// As [`Policy::parse`].
    fn from_str(text: &str) -> Result<Self, Fp8Error> {
        if text.is_empty() {
            let reason = "it is empty; write a dtype, or parts as in p=f32,c=bf16,o=f32,m=fp8";
            return Err(invalid(reason.into()));
        }
        if text.len() > MAX_LENGTH {
            let (text, length) = (quoted(text), text.len());
            return Err(invalid(format!(
                "{text} has {length} bytes; a policy has at most {MAX_LENGTH}"
            )));
        }
        if !text.contains('=') {
            return dtype::parse(text).map(Policy::uniform).ok_or_else(|| {
                let (text, names) = (quoted(text), dtype::names());
                invalid(format!("{text} is neither a dtype ({names}) nor parts as in p=f32,c=bf16"))
            });
        }
        let (mut dtypes, mut matmul, mut attention) = ([None; 3], None, None);
        for part in text.split(',') {
            let Some((key, value)) = part.split_once('=') else {
                let remedy =
                    if part.is_empty() { "remove its comma" } else { "a part is key=value" };
                return Err(invalid(format!("{} is not a part; {remedy}", quoted(part))));
            };
            let Some(place) = place_of(key) else {
                let (key, part) = (quoted(key), quoted(part));
                return Err(invalid(format!("unknown key {key} in {part}; keys are {KEYS}")));
            };
            let is_set = match dtypes.get_mut(place) {
                Some(dtype) => dtype.replace(dtype_of(value, part)?).is_some(),
                None if place == 3 => matmul.replace(matmul_of(value, part)?).is_some(),
                None => attention.replace(attention_of(value, part)?).is_some(),
            };
            if is_set {
                let part = quoted(part);
                return Err(invalid(format!(
                    "{part} sets what an earlier part has set; keep one of them"
                )));
            }
        }
        // JMP's defaults: parameters in f32, compute as the parameters, output as compute.
        let [param, compute, output] = dtypes;
        let param = param.unwrap_or(FloatDType::F32);
        let compute = compute.unwrap_or(param);
        Ok(Policy { param, compute, output: output.unwrap_or(compute), matmul, attention })
    }
}

impl Display for Policy {
    /// All three dtypes, then `m` and `a` where there are: `p=f32,c=bf16,o=f32,m=fp8,a=bf16`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [param, compute, output] = [self.param, self.compute, self.output].map(dtype::name);
        write!(f, "p={param},c={compute},o={output}")?;
        if let Some(matmul) = self.matmul {
            write!(f, ",m={}", matmul.name())?;
        }
        self.attention.map_or(Ok(()), |attention| write!(f, ",a={attention}"))
    }
}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Policy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
