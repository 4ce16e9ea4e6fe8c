//! The bf16 number of each code.

use std::sync::LazyLock;

use burn_fp8_core::Fp8Format;

/// The bf16 numbers of the codes of a format.
pub(crate) struct Table {
    pub(crate) values: [u16; 256],
    /// Their low and their high bytes, of codes without sign: what AVX-512's byte permutations look up.
    #[cfg(target_arch = "x86_64")]
    pub(crate) low: [u8; 128],
    #[cfg(target_arch = "x86_64")]
    pub(crate) high: [u8; 128],
}

impl Table {
    fn new(format: Fp8Format) -> Self {
        // The upper half of the f32 is the bf16: FP8 has fewer bits of mantissa.
        let values =
            core::array::from_fn(|code| (format.decode(code as u8).to_bits() >> 16) as u16);
        #[cfg(target_arch = "x86_64")]
        let bytes: [[u8; 2]; 256] = values.map(u16::to_le_bytes);
        Self {
            values,
            #[cfg(target_arch = "x86_64")]
            low: core::array::from_fn(|code| bytes[code][0]),
            #[cfg(target_arch = "x86_64")]
            high: core::array::from_fn(|code| bytes[code][1]),
        }
    }
}

/// The table of a format.
pub(crate) fn table(format: Fp8Format) -> &'static Table {
    static E4M3: LazyLock<Table> = LazyLock::new(|| Table::new(Fp8Format::E4M3));
    static E5M2: LazyLock<Table> = LazyLock::new(|| Table::new(Fp8Format::E5M2));
    match format {
        Fp8Format::E4M3 => &E4M3,
        Fp8Format::E5M2 => &E5M2,
    }
}
