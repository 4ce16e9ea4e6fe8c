//! What the CPU says that it is and has, and Linux's permission to use AMX.
#![cfg_attr(
    all(target_arch = "x86_64", target_os = "linux"),
    allow(unsafe_code, reason = "system calls")
)]

/// The CPU's own name, for reports: "AMD EPYC 9B14".
pub fn cpu_name() -> String {
    #[cfg(target_arch = "x86_64")]
    if let Some(brand) = raw_cpuid::CpuId::new().get_processor_brand_string() {
        return brand.as_str().trim().to_owned();
    }
    std::env::consts::ARCH.into()
}

/// How many threads products are divided among, where it is called: those of Rayon's pool there.
pub fn threads() -> usize {
    rayon::current_num_threads()
}

/// Whether packing with AVX-512 can be tested here.
#[cfg(all(test, target_arch = "x86_64"))]
pub(crate) fn has_avx512() -> bool {
    avx512().is_ok()
}

/// What packing needs is asked for as well: every CPU that is worth it has it.
#[cfg(target_arch = "x86_64")]
pub(super) fn avx512() -> Result<(), String> {
    use std::arch::is_x86_feature_detected as has;
    let features = [
        ("AVX512F", has!("avx512f")),
        ("AVX512BW", has!("avx512bw")),
        ("AVX512DQ", has!("avx512dq")),
        ("AVX512VL", has!("avx512vl")),
        ("AVX512_VBMI", has!("avx512vbmi")),
        ("AVX512_BF16", has!("avx512bf16")),
    ];
    match features.into_iter().find(|(_, has)| !has) {
        Some((feature, _)) => Err(format!("the CPU has no {feature}")),
        None => Ok(()),
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) fn amx() -> Result<(), String> {
    let features = raw_cpuid::CpuId::new().get_extended_feature_info();
    match features.is_some_and(|features| features.has_amx_tile() && features.has_amx_bf16()) {
        true => Ok(()),
        false => Err("the CPU has no AMX-BF16".into()),
    }
}

/// Tiles are 8 KiB of registers. Linux saves them only for processes that have asked (since 5.16), once and for good.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) mod permission {
    /// `arch_prctl`: which states the kernel supports.
    const ARCH_GET_XCOMP_SUPP: libc::c_int = 0x1021;
    /// `arch_prctl`: asks for one of them.
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    /// The data of tiles: bit 18 of XCR0.
    const TILE_DATA: libc::c_ulong = 18;

    /// Whether the kernel supports tiles, else why not. Asks for nothing.
    pub(in super::super) fn supported() -> Result<(), String> {
        let mut states: u64 = 0;
        // SAFETY: the kernel writes 8 bytes where the pointer says, to `states`, and changes nothing else.
        let result =
            unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_GET_XCOMP_SUPP, &raw mut states) };
        match result {
            0 if states & (1 << TILE_DATA) != 0 => Ok(()),
            0 => Err("the Linux kernel does not enable AMX".into()),
            _ => Err(format!("the Linux kernel knows no AMX: {}", std::io::Error::last_os_error())),
        }
    }

    /// Asks for permission.
    pub(in super::super) fn ask() -> Result<(), String> {
        // SAFETY: takes two integers, and lets this process use tiles.
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) };
        match result {
            0 => Ok(()),
            _ => Err(format!("Linux refuses AMX: {}", std::io::Error::last_os_error())),
        }
    }
}
