//! What the CPU says that it is and has.

/// The CPU's own name, for reports: "AMD EPYC 9B14".
pub fn cpu_name() -> String {
    #[cfg(target_arch = "x86_64")]
    if let Some(brand) = raw_cpuid::CpuId::new().get_processor_brand_string() {
        return brand.as_str().trim().to_owned();
    }
    std::env::consts::ARCH.into()
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
