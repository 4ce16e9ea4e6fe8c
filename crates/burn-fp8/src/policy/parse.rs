//! Policies as strings.

use core::fmt;
use core::str::FromStr;

use burn::tensor::FloatDType;
use burn_fp8_core::text::shown;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{MatmulPolicy, Policy, dtype};
use crate::Fp8Error;

/// The longest policy read, in bytes: the longest name of each key and value takes less.
const MAX_LENGTH: usize = 128;

/// The most characters of a text that an error repeats.
const MAX_QUOTED: usize = 40;

const KEYS: &str = "p or params, c or compute, o or output, m or matmul";

pub(super) fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "policy", reason }
}

/// A text as an error repeats it.
pub(super) fn quoted(text: &str) -> String {
    format!("`{}`", shown(text, MAX_QUOTED))
}

#[derive(Clone, Copy)]
enum Key {
    Param,
    Compute,
    Output,
    Matmul,
}

impl Key {
    fn parse(key: &str) -> Option<Self> {
        Some(match key {
            "p" | "params" => Self::Param,
            "c" | "compute" => Self::Compute,
            "o" | "output" => Self::Output,
            "m" | "matmul" => Self::Matmul,
            _ => return None,
        })
    }
}

/// What the parts of a policy have set so far.
#[derive(Default)]
struct Parts {
    param: Option<FloatDType>,
    compute: Option<FloatDType>,
    output: Option<FloatDType>,
    matmul: Option<MatmulPolicy>,
}

impl Parts {
    /// Takes one part, `key=value`.
    fn set(&mut self, part: &str) -> Result<(), Fp8Error> {
        let Some((key, value)) = part.split_once('=') else {
            let remedy = if part.is_empty() { "remove its comma" } else { "a part is key=value" };
            return Err(invalid(format!("{} is not a part; {remedy}", quoted(part))));
        };
        let Some(known) = Key::parse(key) else {
            let (key, part) = (quoted(key), quoted(part));
            return Err(invalid(format!("unknown key {key} in {part}; keys are {KEYS}")));
        };
        match known {
            Key::Param => set(&mut self.param, part, dtype_of(value, part)?),
            Key::Compute => set(&mut self.compute, part, dtype_of(value, part)?),
            Key::Output => set(&mut self.output, part, dtype_of(value, part)?),
            Key::Matmul => set(&mut self.matmul, part, matmul_of(value, part)?),
        }
    }

    /// The policy, with JMP's defaults: parameters in f32, compute as the parameters, output as compute.
    fn policy(self) -> Policy {
        let param = self.param.unwrap_or(FloatDType::F32);
        let compute = self.compute.unwrap_or(param);
        let output = self.output.unwrap_or(compute);
        Policy { param, compute, output, matmul: self.matmul }
    }
}

fn set<T>(place: &mut Option<T>, part: &str, value: T) -> Result<(), Fp8Error> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(invalid(format!(
            "{} sets what an earlier part has set; keep one of them",
            quoted(part)
        ))),
    }
}

fn dtype_of(value: &str, part: &str) -> Result<FloatDType, Fp8Error> {
    dtype::parse(value).ok_or_else(|| {
        let (value, part, names) = (quoted(value), quoted(part), dtype::names());
        invalid(format!("unknown dtype {value} in {part}; dtypes are {names}"))
    })
}

fn matmul_of(value: &str, part: &str) -> Result<MatmulPolicy, Fp8Error> {
    MatmulPolicy::parse(value).ok_or_else(|| {
        let names: Vec<_> = MatmulPolicy::all().map(MatmulPolicy::name).collect();
        let (value, part, names) = (quoted(value), quoted(part), names.join(", "));
        invalid(format!("unknown matrix product {value} in {part}; it can be {names}"))
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
            return match dtype::parse(text) {
                Some(dtype) => Ok(Policy::uniform(dtype)),
                None => {
                    let (text, names) = (quoted(text), dtype::names());
                    Err(invalid(format!(
                        "{text} is neither a dtype ({names}) nor parts as in p=f32,c=bf16"
                    )))
                }
            };
        }
        let mut parts = Parts::default();
        text.split(',').try_for_each(|part| parts.set(part))?;
        Ok(parts.policy())
    }
}

impl fmt::Display for Policy {
    /// All three dtypes, then `m` where there is one: `p=f32,c=bf16,o=f32,m=fp8`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [param, compute, output] = [self.param, self.compute, self.output].map(dtype::name);
        write!(f, "p={param},c={compute},o={output}")?;
        match self.matmul {
            Some(matmul) => write!(f, ",m={}", matmul.name()),
            None => Ok(()),
        }
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
