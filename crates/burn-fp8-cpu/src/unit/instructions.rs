//! Which vector instructions kernels are compiled for that run on any CPU.

use core::fmt;
use core::sync::atomic::{AtomicU8, Ordering};

use pulp::Arch;

use super::VARIABLE;

/// Which vector instructions kernels use that run on any CPU: conversions, products in f32, what lies between products, steps of optimizers.
///
/// They use the widest ones, unless the variable `BURN_FP8_CPU_UNIT` or [`force`](Self::force) says otherwise: so that a machine can test what
/// runs on others. Results that are sums may have other bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Instructions {
    /// Those that every CPU of the architecture has.
    Baseline = 1,
    /// Up to AVX2, with fused multiplications and conversions of f16.
    Avx2 = 2,
    /// All that kernels know of the CPU's: AVX-512, AVX2, NEON.
    Widest = 3,
}

/// What kernels use: 0 where the variable was not read yet.
static CURRENT: AtomicU8 = AtomicU8::new(0);

impl Instructions {
    const ALL: [Self; 3] = [Self::Widest, Self::Avx2, Self::Baseline];

    /// Its name, as the variable takes it: that of the widest ones is the one of [`Unit::Portable`](super::Unit).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Avx2 => "avx2",
            Self::Widest => "portable",
        }
    }

    /// Those that make a difference on this machine, the widest first.
    pub fn available() -> Vec<Self> {
        let has = |this: &Self| match this {
            Self::Widest => true,
            Self::Avx2 => avx2().is_some() && is_wider_than_avx2(),
            Self::Baseline => !matches!(Arch::new(), Arch::Scalar),
        };
        Self::ALL.into_iter().filter(has).collect()
    }

    /// What kernels use.
    pub fn current() -> Self {
        match CURRENT.load(Ordering::Relaxed) {
            1 => Self::Baseline,
            2 => Self::Avx2,
            3 => Self::Widest,
            _ => {
                let named = std::env::var(VARIABLE).ok();
                let named = named.and_then(|name| Self::narrower(&name));
                Self::force(named);
                named.unwrap_or(Self::Widest)
            }
        }
    }

    /// Makes kernels use these from now on, in the whole process; `None`: the widest. What the machine lacks, it does not use.
    pub fn force(instructions: Option<Self>) {
        CURRENT.store(instructions.unwrap_or(Self::Widest) as u8, Ordering::Relaxed);
    }

    /// Those of a name, if they are narrower than the widest ones of this machine.
    pub(super) fn narrower(name: &str) -> Option<Self> {
        let mut narrower = Self::available().into_iter().filter(|this| *this != Self::Widest);
        narrower.find(|this| this.name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What dispatches to the instructions that kernels use.
#[inline]
pub(crate) fn arch() -> Arch {
    match Instructions::current() {
        Instructions::Widest => Arch::new(),
        Instructions::Avx2 => avx2().unwrap_or(Arch::Scalar),
        Instructions::Baseline => Arch::Scalar,
    }
}

#[cfg(target_arch = "x86_64")]
fn avx2() -> Option<Arch> {
    pulp::x86::V3::try_new().map(Arch::V3)
}

#[cfg(not(target_arch = "x86_64"))]
fn avx2() -> Option<Arch> {
    None
}

fn is_wider_than_avx2() -> bool {
    #[cfg(target_arch = "x86_64")]
    return matches!(Arch::new(), Arch::V4(_));
    #[cfg(not(target_arch = "x86_64"))]
    false
}
