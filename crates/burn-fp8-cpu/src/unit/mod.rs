//! What a CPU multiplies FP8 codes on.

mod detect;
mod instructions;
#[cfg(target_arch = "x86_64")]
mod speed;

use core::fmt;
use core::str::FromStr;
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::OnceLock;

#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) use detect::has_avx512;
pub use detect::{cpu_name, threads};
pub use instructions::Instructions;
pub(crate) use instructions::arch;

/// The environment variable that forces a unit: `amx-bf16`, `avx512-bf16` or `portable`, in upper or lower case; or `portable` with narrower vectors than
/// the machine has: `avx2` or `baseline`.
const VARIABLE: &str = "BURN_FP8_CPU_UNIT";

/// What a CPU multiplies FP8 codes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Unit {
    /// f32, on any CPU.
    Portable = 1,
    /// The dot products of pairs of bf16 in AVX-512 BF16, with the byte permutations of AVX-512 VBMI: AMD since Zen 4, Xeons since 2023.
    Avx512Bf16 = 2,
    /// The tiles of AMX: Xeons since 2023, on Linux.
    AmxBf16 = 3,
}

/// Why a unit cannot be forced.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnitError {
    /// No unit has this name.
    #[error("{name:?} is no unit; {}", there_are(.available))]
    Unknown {
        /// The name given.
        name: String,
        /// The units of this machine.
        available: Vec<Unit>,
    },
    /// This machine lacks the unit.
    #[error("this machine has no {unit}: {reason}; {}", there_are(.available))]
    Unavailable {
        /// The unit asked for.
        unit: Unit,
        /// What is missing.
        reason: String,
        /// The units of this machine.
        available: Vec<Unit>,
    },
}

fn there_are(available: &[Unit]) -> String {
    let narrower =
        Instructions::available().into_iter().filter(|this| *this != Instructions::Widest);
    let narrower = narrower.map(Instructions::name);
    let names: Vec<_> = available.iter().map(|unit| unit.name()).chain(narrower).collect();
    format!("this machine has {}", names.join(", "))
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.title())
    }
}

/// Reads the names that the environment variable takes: [`Unit::name`], or as reports spell them, in upper or lower case.
impl FromStr for Unit {
    type Err = UnitError;

    fn from_str(name: &str) -> Result<Self, UnitError> {
        let is_called = |unit: &Self| {
            [unit.name(), &unit.to_string()].iter().any(|own| own.eq_ignore_ascii_case(name))
        };
        Self::ALL.into_iter().find(is_called).ok_or_else(|| UnitError::Unknown {
            name: name.to_owned(),
            available: Self::available(),
        })
    }
}

/// The unit that products run on: 0 where it has not been chosen yet.
static CURRENT: AtomicU8 = AtomicU8::new(0);

/// For each unit, whether it can be used, where that has been found out for good.
static USABLE: [OnceLock<Result<(), String>>; 3] = [const { OnceLock::new() }; 3];

impl Unit {
    const ALL: [Self; 3] = [Self::AmxBf16, Self::Avx512Bf16, Self::Portable];

    /// Its name, as the environment variable takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::AmxBf16 => "amx-bf16",
        }
    }

    /// As reports spell it.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Portable => "f32",
            Self::Avx512Bf16 => "AVX512-BF16",
            Self::AmxBf16 => "AMX-BF16",
        }
    }

    /// The units of this machine, the most capable first.
    ///
    /// Asks CPUID and whether the operating system keeps their registers. AMX also takes the permission of Linux, which only
    /// [`current`](Self::current) and [`force`](Self::force) ask for.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|unit| unit.check().is_ok()).collect()
    }

    /// The unit that products run on: the one forced by [`force`](Self::force) or by the variable `BURN_FP8_CPU_UNIT`, else the fastest.
    ///
    /// The first call chooses. AMX comes first, where Linux permits it. AVX-512 BF16 is taken only where its dot products were measured, at
    /// that call and within a millisecond, to do clearly more multiplications a second than fused f32 instructions do: on AMD twice
    /// as many, on Xeons fewer.
    ///
    /// Permission for AMX is of the whole process and for good. Since then, Linux wants alternate signal stacks (`sigaltstack`) to have at
    /// least `AT_MINSIGSTKSZ` bytes.
    ///
    /// # Panics
    /// If the variable names no unit, or one that this machine lacks.
    pub fn current() -> Self {
        match Self::from_number(CURRENT.load(Ordering::Relaxed)) {
            Some(unit) => unit,
            None => Self::choose().unwrap_or_else(|error| panic!("{VARIABLE}: {error}")),
        }
    }

    /// As [`current`](Self::current), with an error in place of the panic.
    pub fn try_current() -> Result<Self, UnitError> {
        match Self::from_number(CURRENT.load(Ordering::Relaxed)) {
            Some(unit) => Ok(unit),
            None => Self::choose(),
        }
    }

    /// Makes products run on a unit from now on, in the whole process. `None` chooses again.
    pub fn force(unit: Option<Self>) -> Result<(), UnitError> {
        if let Some(unit) = unit {
            unit.require()?;
        }
        CURRENT.store(unit.map_or(0, |unit| unit as u8), Ordering::Relaxed);
        Ok(())
    }

    /// The unit that [`current`](Self::current) would choose if Linux permits it, without asking; the current one where it has been chosen.
    ///
    /// # Panics
    /// As [`current`](Self::current).
    pub fn expected() -> Self {
        Self::try_expected().unwrap_or_else(|error| panic!("{VARIABLE}: {error}"))
    }

    /// As [`expected`](Self::expected), with an error in place of the panic: for a program that checks the variable before it begins.
    pub fn try_expected() -> Result<Self, UnitError> {
        if let Some(unit) = Self::from_number(CURRENT.load(Ordering::Relaxed)) {
            return Ok(unit);
        }
        let unit = match Self::from_environment()? {
            Some(unit) => {
                unit.known().map_err(|reason| unit.lacking(reason))?;
                unit
            }
            None => {
                let usable = |unit: &Self| unit.known().is_ok() && unit.is_worthwhile();
                Self::ALL.into_iter().find(usable).expect("f32 is everywhere")
            }
        };
        if unit == Self::Portable {
            // It takes no permission: it is chosen. CPUID, which virtual machines answer slowly, is not asked for each product.
            let _ = CURRENT.compare_exchange(0, unit as u8, Ordering::Relaxed, Ordering::Relaxed);
        }
        Ok(unit)
    }

    /// Why the unit expected is not a faster one: one line for each unit above it. Asks for no permission.
    pub fn why_not_faster() -> Vec<String> {
        let expected = Self::expected();
        let above = Self::ALL.into_iter().filter(|unit| *unit > expected);
        above
            .map(|unit| match unit.known() {
                Err(reason) => format!("{unit}: {reason}"),
                Ok(()) => format!("{unit}: {}", unit.passed_over()),
            })
            .collect()
    }

    /// Whether it can be used, as far as that is known without asking for permission.
    fn known(self) -> Result<(), String> {
        let usable = USABLE[self as usize - 1].get();
        usable.cloned().unwrap_or_else(|| self.check())
    }

    /// Whether it is faster than the next one.
    fn is_worthwhile(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => speed::is_worthwhile(),
            _ => true,
        }
    }

    /// The unit that the variable names, which this machine may lack.
    fn from_environment() -> Result<Option<Self>, UnitError> {
        match std::env::var_os(VARIABLE) {
            Some(name) if !name.is_empty() => {
                let name = name.to_string_lossy();
                match Instructions::narrower(&name) {
                    Some(_) => Ok(Some(Self::Portable)),
                    None => name.parse().map(Some),
                }
            }
            _ => Ok(None),
        }
    }

    fn passed_over(self) -> String {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 if !speed::is_worthwhile() => {
                format!("measured at {:.1} of the speed of f32 with AVX-512", speed::ratio())
            }
            _ => "another unit was asked for".into(),
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| *unit as u8 == number)
    }

    fn choose() -> Result<Self, UnitError> {
        let unit = match Self::from_environment()? {
            Some(unit) => {
                unit.require()?;
                unit
            }
            None => Self::fastest(),
        };
        // Another thread may have forced a unit meanwhile.
        let chosen = CURRENT.compare_exchange(0, unit as u8, Ordering::Relaxed, Ordering::Relaxed);
        Ok(chosen.err().and_then(Self::from_number).unwrap_or(unit))
    }

    fn fastest() -> Self {
        static FASTEST: OnceLock<Unit> = OnceLock::new();
        *FASTEST.get_or_init(|| {
            let usable = |unit: &Self| unit.require().is_ok() && unit.is_worthwhile();
            Self::ALL.into_iter().find(usable).expect("f32 is everywhere")
        })
    }

    /// Takes it as one that this process can use from now on: for tests that emulate its instructions.
    ///
    /// # Safety
    /// Something executes them, and the CPU has those of [`Avx512Bf16`](Self::Avx512Bf16).
    #[allow(unsafe_code, reason = "the caller promises instructions")]
    #[doc(hidden)]
    pub unsafe fn assume(self) {
        // One that has been found usable before stays so.
        let _ = USABLE[self as usize - 1].set(Ok(()));
    }

    /// Whether this machine has the unit and permits it, for good.
    pub(crate) fn require(self) -> Result<(), UnitError> {
        let permitted = USABLE[self as usize - 1].get_or_init(|| {
            self.check()?;
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            if self == Self::AmxBf16 {
                detect::permission::ask()?;
            }
            Ok(())
        });
        permitted.clone().map_err(|reason| self.lacking(reason))
    }

    /// The error of whoever wants it where it cannot be used.
    fn lacking(self, reason: String) -> UnitError {
        let available = Self::available();
        let available = available.into_iter().filter(|unit| *unit != self).collect();
        UnitError::Unavailable { unit: self, reason, available }
    }

    /// Whether CPU and operating system have it, else what is missing.
    fn check(self) -> Result<(), String> {
        match self {
            Self::Portable => Ok(()),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Bf16 => detect::avx512(),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::AmxBf16 => detect::amx()
                .and_then(|()| detect::avx512())
                .and_then(|()| detect::permission::supported()),
            #[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
            Self::AmxBf16 => Err("only Linux is supported".into()),
            #[cfg(not(target_arch = "x86_64"))]
            _ => Err("it is no x86-64 CPU".into()),
        }
    }
}
