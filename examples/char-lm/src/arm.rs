//! One arm of a comparison: a precision, and what stays out of FP8.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::high::High;
use crate::precision::{Precision, Setup};

/// Between the precision and the part.
const WITHOUT: &str = "-without-";

/// What all runs of an arm compute with. In JSON it is its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Arm {
    pub precision: Precision,
    /// What stays out of FP8.
    pub high: Option<High>,
}

impl Arm {
    /// What the others are compared with.
    pub const F32: Self = Self { precision: Precision::F32, high: None };

    /// Whether both train to the same bits, whatever they are called.
    pub fn is_same(self, other: Self) -> bool {
        self.high == other.high && self.precision.is_same(other.precision)
    }
}

impl From<Precision> for Arm {
    fn from(precision: Precision) -> Self {
        Self { precision, high: None }
    }
}

/// `fp8-current`, or `fp8-current-without-head`.
impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.precision)?;
        self.high.map_or(Ok(()), |high| write!(f, "{WITHOUT}{high}"))
    }
}

impl FromStr for Arm {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let Some((precision, high)) = name.rsplit_once(WITHOUT) else {
            return name.parse().map(|precision: Precision| precision.into());
        };
        let part = high.parse().map_err(|error| format!("{high}: {error}"))?;
        let arm = Self { precision: precision.parse()?, high: Some(part) };
        Setup::new(arm.precision, arm.high).map_err(|error| error.to_string())?;
        Ok(arm)
    }
}

impl From<Arm> for String {
    fn from(arm: Arm) -> Self {
        arm.to_string()
    }
}

impl TryFrom<String> for Arm {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

/// Several arms, separated by commas. Parts with `=` that follow each other are one policy, which ends at `-without-`, or where a key comes
/// again.
#[derive(Clone, Debug)]
pub struct Arms(pub Vec<Arm>);

impl FromStr for Arms {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, String> {
        let mut names: Vec<String> = vec![];
        let key = |part: &str| part.split_once('=').map(|(key, _)| key.to_owned());
        let goes_on = |policy: &str, part: &str| {
            let (mut keys, next) = (policy.split(',').map(key), key(part));
            next.is_some()
                && !policy.contains(WITHOUT)
                && keys.all(|key| key.is_some() && key != next)
        };
        for part in list.split(',') {
            match names.last_mut() {
                Some(last) if goes_on(last, part) => {
                    last.push(',');
                    last.push_str(part);
                }
                _ => names.push(part.to_owned()),
            }
        }
        let arms =
            names.iter().map(|name| name.parse().map_err(|e: String| format!("{name}: {e}")));
        arms.collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_may_hold_policies() {
        let names = |list: &str| {
            let list = list.parse::<Arms>().expect("arms").0;
            list.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(names("f32,fp8-current"), ["f32", "fp8-current"]);
        let policies = ["p=f32,c=f32,o=f32,m=fp8-without-head", "p=f32,c=f32,o=f32,m=mxfp8"];
        assert_eq!(names(&policies.join(",")), policies);
        let policies = ["p=f32,c=f32,o=f32,m=mxfp8,a=high", "p=f32,c=f32,o=f32,m=mxfp8,a=fp8"];
        assert_eq!(names(&policies.join(",")), policies);
        assert_eq!(names("f32,p=f32,c=bf16,o=f32,bf16"), ["f32", "p=f32,c=bf16,o=f32", "bf16"]);
        let error = "f32,c=bf17".parse::<Arms>().unwrap_err();
        assert!(error.starts_with("c=bf17: ") && error.contains("bf17"), "{error}");
    }

    #[test]
    fn names_lead_back() {
        let head = "head".parse().expect("a part");
        for precision in ["f32", "mxfp8", "p=f32,c=bf16,o=f32,m=fp8_delayed"] {
            let arm = Arm::from(precision.parse::<Precision>().expect("a precision"));
            assert_eq!(arm.to_string().parse(), Ok(arm));
            let without = Arm { high: Some(head), ..arm };
            match arm.precision.is_fp8() {
                true => assert_eq!(without.to_string().parse(), Ok(without)),
                false => assert!(without.to_string().parse::<Arm>().is_err()),
            }
            assert!(!without.is_same(arm));
        }
        assert!("mxfp8-without-tail".parse::<Arm>().unwrap_err().contains("tail"));
    }
}
