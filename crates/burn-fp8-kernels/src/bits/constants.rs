//! Bits of f32.

pub(crate) const SIGN: u32 = 0x8000_0000;
pub(crate) const INFINITY: u32 = 0x7F80_0000;
pub(crate) const QUIET_NAN: u32 = 0x7FC0_0000;
