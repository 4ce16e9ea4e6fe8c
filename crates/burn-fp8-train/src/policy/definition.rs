//! What a policy is, and where it is in force: in the innermost scope of the thread, else by default.

use std::cell::Cell;
use std::sync::{PoisonError, RwLock};

use burn::tensor::FloatDType;
use burn_fp8::{Fp8Config, Fp8Error};
use burn_fp8_core::AttentionPrecision;

use super::matmul::MatmulPolicy;

static DEFAULT: RwLock<Option<Policy>> = RwLock::new(None);

thread_local! {
    /// Of the innermost scope.
    static SCOPE: Cell<Option<Policy>> = const { Cell::new(None) };
}

/// The precision of a run: [the module](super) tells how it is put in force.
///
/// Serialized as its string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    /// The dtype that parameters are stored in.
    pub param: FloatDType,
    /// The dtype that the model computes with.
    pub compute: FloatDType,
    /// The dtype that the model gives out.
    pub output: FloatDType,
    /// How matrix products run; without it, as the [`Fp8Config`] in force says.
    pub matmul: Option<MatmulPolicy>,
    /// In which precision attention runs as one operation, as layer normalization and GELU do then; without it, as the [`Fp8Config`] in force says.
    pub attention: Option<AttentionPrecision>,
}

impl Policy {
    /// A policy of these dtypes, which leaves matrix products to the [`Fp8Config`] in force.
    pub fn new(param: FloatDType, compute: FloatDType, output: FloatDType) -> Self {
        Self { param, compute, output, matmul: None, attention: None }
    }

    /// One dtype for all three.
    pub fn uniform(dtype: FloatDType) -> Self {
        Self::new(dtype, dtype, dtype)
    }

    /// The same policy, with matrix products run so.
    pub fn with_matmul(self, matmul: MatmulPolicy) -> Self {
        Self { matmul: Some(matmul), ..self }
    }

    /// Reads a policy in the grammar of JMP's `get_policy` (0.0.4): one dtype for all, or `key=value` parts with commas between them.
    ///
    /// | key               | values                                                                                          | without it      |
    /// |-------------------|-------------------------------------------------------------------------------------------------|-----------------|
    /// | `p` or `params`   | `f32` `float32` `full`, `bf16` `bfloat16`, `f16` `float16` `half`, `f64` `float64`, `flex32`    | `f32`           |
    /// | `c` or `compute`  | the same                                                                                        | that of `p`     |
    /// | `o` or `output`   | the same                                                                                        | that of `c`     |
    /// | `m` or `matmul`   | `high`, `bf16`, `fp8`, `fp8_e4m3`, `fp8_rowwise`, `fp8_rowwise_e4m3`, `mxfp8`, `fp8_block`, `fp8_block_f32`, `fp8_delayed`, `fp8_delayed_e4m3`: see [`MatmulPolicy`] | nothing changes |
    /// | `a` or `attention` | `high`, `bf16`, `fp8`: [`Fp8Config::attention`]                                                     | nothing changes |
    ///
    /// `half` is f16 on every device, where JMP has bf16 on TPUs.
    ///
    /// ```
    /// use burn_fp8_train::policy::Policy;
    ///
    /// assert_eq!(Policy::parse("compute=bfloat16")?.to_string(), "p=f32,c=bf16,o=bf16");
    /// assert_eq!(Policy::parse("half")?.to_string(), "p=f16,c=f16,o=f16");
    /// assert_eq!(Policy::parse("c=bf16,o=full,m=fp8_delayed")?.to_string(), "p=f32,c=bf16,o=f32,m=fp8_delayed");
    ///
    /// let error = Policy::parse("p=f32,c=f8").unwrap_err().to_string();
    /// assert!(error.starts_with("policy: unknown dtype `f8` in `c=f8`; dtypes are f32,"), "{error}");
    /// # Ok::<(), burn_fp8::Fp8Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Fp8Error::Invalid`], in one line that names the part, for an unknown key, dtype or matrix product, a part without `=`, an
    /// empty part, and a key given twice (JMP takes the last); for a text that is empty or longer than 128 bytes.
    pub fn parse(text: &str) -> Result<Self, Fp8Error> {
        text.parse()
    }

    /// The configuration as it is under this policy: what its keys `m` and `a` say, or unchanged.
    pub fn configure(&self, config: Fp8Config) -> Fp8Config {
        let config = match self.matmul {
            Some(matmul) => matmul.configure(config),
            None => config,
        };
        config.with_attention(self.attention.or(config.attention))
    }

    /// The policy of the innermost scope of this thread, else the process-wide default, if there is one.
    pub fn current() -> Option<Self> {
        SCOPE.get().or_else(|| {
            // A policy is assigned whole: a holder of the lock that panics leaves nothing half done.
            *DEFAULT.read().unwrap_or_else(PoisonError::into_inner)
        })
    }

    /// Runs `f` with this policy in force on this thread and returns its result.
    ///
    /// Scopes nest, and end when `f` returns or panics. Where the policy has the key `m`, FP8 is off in it, or on with that recipe; filter,
    /// predicate and execution are those around it.
    pub fn scope<R>(&self, f: impl FnOnce() -> R) -> R {
        /// Leaves the scope when dropped.
        struct Leave(Option<Policy>);

        impl Drop for Leave {
            fn drop(&mut self) {
                SCOPE.set(self.0);
            }
        }

        let _around = Leave(SCOPE.replace(Some(*self)));
        Fp8Config::scope_with(|config| self.configure(config), f)
    }

    /// Makes this the policy of every thread that is not inside a [`Policy::scope`], until it is set anew.
    ///
    /// Its key `m` is put on top of the configuration that [`Fp8Config::set_default`](Fp8Config::set_default) has set, and holds until
    /// either is set anew.
    pub fn set_default(self) {
        set_default(Some(self));
    }

    /// No policy by default, as at first; the configuration is as [`Fp8Config::set_default`](Fp8Config::set_default) has set it.
    pub fn clear_default() {
        set_default(None);
    }
}

fn set_default(policy: Option<Policy>) {
    let mut default = DEFAULT.write().unwrap_or_else(PoisonError::into_inner);
    *default = policy;
    Fp8Config::change_default(|config| policy.map_or(config, |policy| policy.configure(config)));
}
