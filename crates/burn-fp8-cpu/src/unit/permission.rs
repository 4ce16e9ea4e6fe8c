//! Linux's permission to use AMX.
//!
//! Tiles are 8 KiB of registers. Linux saves them only for processes that have asked (since 5.16), once and for good.
#![allow(unsafe_code, reason = "a system call")]

use std::sync::OnceLock;

/// `arch_prctl`: which states the kernel supports.
const ARCH_GET_XCOMP_SUPP: libc::c_int = 0x1021;
/// `arch_prctl`: asks for one of them.
const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
/// The data of tiles: bit 18 of XCR0.
const TILE_DATA: libc::c_ulong = 18;

/// Whether the kernel supports tiles, else why not. Asks for nothing.
pub(super) fn supported() -> Result<(), String> {
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

/// Asks for permission, once a process.
pub(super) fn ask() -> Result<(), String> {
    static PERMISSION: OnceLock<Result<(), String>> = OnceLock::new();
    let ask = || {
        // SAFETY: takes two integers, and lets this process use tiles.
        let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) };
        match result {
            0 => Ok(()),
            _ => Err(format!("Linux refuses AMX: {}", std::io::Error::last_os_error())),
        }
    };
    PERMISSION.get_or_init(ask).clone()
}
