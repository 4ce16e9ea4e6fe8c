//! The names of dtypes, and dtypes that a policy decides.

use core::fmt;
use core::str::FromStr;

use burn::tensor::FloatDType;
use burn::tensor::backend::{Backend, DTypeUsage};
use burn_fp8::Fp8Error;
use burn_fp8_core::text::shown;

use super::definition::Policy;

/// Each dtype with its names, the one that is printed first. JMP 0.0.4's, and Burn's `flex32`.
const NAMES: [(FloatDType, &[&str]); 5] = [
    (FloatDType::F32, &["f32", "float32", "full"]),
    (FloatDType::BF16, &["bf16", "bfloat16"]),
    (FloatDType::F16, &["f16", "float16", "half"]),
    (FloatDType::F64, &["f64", "float64"]),
    (FloatDType::Flex32, &["flex32"]),
];

pub(super) fn invalid(reason: String) -> Fp8Error {
    Fp8Error::Invalid { what: "policy", reason }
}

/// A text as an error repeats it.
pub(super) fn quoted(text: &str) -> String {
    const MAX: usize = 40;
    format!("`{}`", shown(text, MAX))
}

/// The name that a dtype is printed with.
pub(super) fn name(dtype: FloatDType) -> &'static str {
    let row = NAMES.iter().find(|(named, _)| *named == dtype);
    row.expect("every dtype has a row").1[0]
}

/// The dtype of a name.
pub(super) fn parse(name: &str) -> Option<FloatDType> {
    NAMES.iter().find(|(_, names)| names.contains(&name)).map(|(dtype, _)| *dtype)
}

/// All names, for errors.
pub(super) fn names() -> String {
    let names: Vec<_> = NAMES.iter().flat_map(|(_, names)| *names).copied().collect();
    names.join(", ")
}

/// Whether tensors of a dtype can be on a device, else which can.
pub(super) fn check<B: Backend>(dtype: FloatDType, device: &B::Device) -> Result<(), Fp8Error> {
    let has =
        |dtype: FloatDType| B::dtype_usage(device, dtype.into()).contains(DTypeUsage::Storage);
    if has(dtype) {
        return Ok(());
    }
    let there = NAMES.iter().filter(|(dtype, _)| has(*dtype)).map(|(_, names)| names[0]);
    let (dtype, there) = (name(dtype), there.collect::<Vec<_>>().join(", "));
    let backend = B::name(device);
    Err(invalid(format!("backend `{backend}` has no {dtype}; a policy for it can have {there}")))
}

/// A dtype that a policy decides, by what a tensor is for, or one for itself: what an option such as a layer's accumulation dtype is given as.
///
/// ```
/// use burn::tensor::FloatDType;
/// use burn_fp8_train::policy::{Policy, PolicyDType};
///
/// let policy = Policy::parse("p=f32,c=bf16,o=f32")?;
/// let dtype: PolicyDType = "compute".parse()?;
/// assert_eq!(dtype.resolve(Some(&policy)), Some(FloatDType::BF16));
/// assert_eq!(dtype.resolve(None), None); // without a policy it says nothing
///
/// let dtype: PolicyDType = "f16".parse()?;
/// assert_eq!(dtype.resolve(None), Some(FloatDType::F16));
/// # Ok::<(), burn_fp8::Fp8Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyDType {
    /// That of parameters, as the optimizer keeps them.
    Param,
    /// That which the model computes with.
    Compute,
    /// That which the model gives to the loss.
    Output,
    /// This one, whatever the policy.
    Concrete(FloatDType),
}

impl PolicyDType {
    /// The dtype under a policy; none without one, where casts do nothing, but for a concrete one.
    pub fn resolve(self, policy: Option<&Policy>) -> Option<FloatDType> {
        match self {
            Self::Param => policy.map(|policy| policy.param),
            Self::Compute => policy.map(|policy| policy.compute),
            Self::Output => policy.map(|policy| policy.output),
            Self::Concrete(dtype) => Some(dtype),
        }
    }
}

impl From<FloatDType> for PolicyDType {
    fn from(dtype: FloatDType) -> Self {
        Self::Concrete(dtype)
    }
}

impl fmt::Display for PolicyDType {
    /// As it is read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Param => "param",
            Self::Compute => "compute",
            Self::Output => "output",
            Self::Concrete(dtype) => name(*dtype),
        })
    }
}

impl FromStr for PolicyDType {
    type Err = Fp8Error;

    /// Reads `param`, `compute`, `output`, or the name of a dtype as in a policy.
    fn from_str(text: &str) -> Result<Self, Fp8Error> {
        Ok(match text {
            "param" => Self::Param,
            "compute" => Self::Compute,
            "output" => Self::Output,
            _ => Self::Concrete(parse(text).ok_or_else(|| {
                let (text, names) = (quoted(text), names());
                invalid(format!("unknown dtype {text}; it can be param, compute, output, {names}"))
            })?),
        })
    }
}
