//! AMX's instructions on a machine without them: each one raises SIGILL, whose handler decodes it and does what Intel's Software Developer's Manual
//! says. So the assembly of this crate runs as it stands: its encodings, operands, addresses and strides, and the release of tiles.
//!
//! Stricter than a CPU: tiles that are configured twice end the process, as do tiles that are used while they are not configured. An illegal
//! instruction of another encoding ends it as it would without this.
#![cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#![allow(
    unsafe_code,
    reason = "a signal handler reads instructions and registers, and the memory that they name"
)]

use std::arch::is_x86_feature_detected;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_fp8_cpu::{Codes, Epilogue, Output, Unit, matmul_on_tiles};

use super::tile::{self, COLUMNS, ROWS, Tile};

const TILES: usize = 8;

/// What a thread has of AMX.
struct Registers {
    configured: bool,
    tiles: [Tile; TILES],
}

thread_local! {
    static REGISTERS: UnsafeCell<Registers> = const {
        UnsafeCell::new(Registers { configured: false, tiles: [[[0; COLUMNS]; ROWS]; TILES] })
    };
}

/// Threads whose tiles are configured.
static CONFIGURED: AtomicUsize = AtomicUsize::new(0);
static INSTRUCTIONS: AtomicUsize = AtomicUsize::new(0);

/// Whether AMX is emulated here: not where the machine has it, as its code then runs by itself. Sets the emulation up.
pub fn ready() -> bool {
    static SET_UP: Once = Once::new();
    if Unit::available().contains(&Unit::AmxBf16) {
        return false;
    }
    // Packing, and the emulation itself.
    let needed = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("fma");
    if !needed {
        SET_UP.call_once(|| burn_fp8_test_support::skip("no AVX-512 for the code around AMX"));
        return false;
    }
    SET_UP.call_once(|| {
        // SAFETY: all zeros is a valid value; the handler takes the three arguments that SA_SIGINFO stands for.
        let result = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGILL, &raw const action, std::ptr::null_mut())
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    });
    true
}

/// Has AMX, emulated, be a unit of this process from now on, and the one that it forces, if it can be.
pub fn force() -> bool {
    let can_be = ready() && Unit::available().contains(&Unit::Avx512Bf16);
    if can_be {
        // SAFETY: `ready` has AMX's instructions emulated; the machine has the others.
        unsafe { Unit::AmxBf16.assume() };
        Unit::force(Some(Unit::AmxBf16)).expect("it was assumed");
    }
    can_be
}

/// `matmul` on the code of AMX.
pub fn matmul(lhs: Codes<'_>, rhs: Codes<'_>, epilogue: &Epilogue<'_>, output: Output<'_>) {
    assert!(ready());
    // SAFETY: `ready` has found AVX-512, and has AMX's instructions emulated.
    unsafe { matmul_on_tiles(lhs, rhs, epilogue, output) }
}

/// Threads whose tiles are configured now.
pub fn configured() -> usize {
    CONFIGURED.load(Ordering::SeqCst)
}

/// Instructions emulated so far.
pub fn instructions() -> usize {
    INSTRUCTIONS.load(Ordering::SeqCst)
}

/// Ends the process: in a signal handler, nothing may panic or allocate.
fn fail(what: &str) -> ! {
    for part in ["AMX's emulation: ", what, "\n"] {
        // SAFETY: writes a string to the standard error.
        unsafe { libc::write(2, part.as_ptr().cast(), part.len()) };
    }
    // SAFETY: ends.
    unsafe { libc::abort() }
}

extern "C" fn handle(_: c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: SA_SIGINFO promises a context; nothing else refers to it while the handler runs.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let address = registers[libc::REG_RIP as usize] as *const u8;
    let instruction = Instruction { registers, bytes: address };
    if !instruction.is_three_byte_vex() {
        // Not one of AMX's: it is executed again, and ends the process.
        // SAFETY: the default action takes no handler.
        unsafe { libc::signal(libc::SIGILL, libc::SIG_DFL) };
        return;
    }
    let length = REGISTERS.with(|amx| {
        // SAFETY: of this thread, and the handler does not interrupt itself.
        instruction.run(unsafe { &mut *amx.get() })
    });
    registers[libc::REG_RIP as usize] += length as i64;
    INSTRUCTIONS.fetch_add(1, Ordering::SeqCst);
}

/// An instruction of three-byte VEX, and the registers that it may name.
struct Instruction<'a> {
    registers: &'a [i64; 23],
    bytes: *const u8,
}

/// Where a memory operand is: `[base + displacement]`, and the index register's value times its scale, if there is one.
struct Memory {
    start: i64,
    index: i64,
    /// Bytes of ModRM, SIB and displacement.
    length: usize,
}

impl Instruction<'_> {
    fn byte(&self, index: usize) -> u8 {
        // SAFETY: the CPU has read the instruction. Its first byte is asked for first, by `is_three_byte_vex`; an instruction that begins so has five
        // bytes at least, and of those that follow each is asked for only where these say that it is there.
        unsafe { self.bytes.add(index).read() }
    }

    fn is_three_byte_vex(&self) -> bool {
        self.byte(0) == 0xC4
    }

    /// A general register by the number that instructions have for it.
    fn register(&self, number: u8) -> i64 {
        use libc::*;
        const ORDER: [c_int; 16] = [
            REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI, REG_R8, REG_R9,
            REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
        ];
        self.registers[ORDER[usize::from(number)] as usize]
    }

    /// Does it. Returns its length in bytes.
    fn run(&self, amx: &mut Registers) -> usize {
        // C4, then ~R ~X ~B mmmmm, W ~vvvv L pp, opcode, ModRM.
        let (first, second, opcode, modrm) =
            (self.byte(1), self.byte(2), self.byte(3), self.byte(4));
        if first & 0x1F != 2 || second & 0x84 != 0 {
            fail("this illegal instruction is not one of AMX's");
        }
        let in_memory = modrm >> 6 != 3;
        // Tiles are numbered from 0 to 7: R, the highest bit of vvvv and, where it is a register, B must not be set.
        let [reg, vvvv] = [modrm >> 3 & 7, !second >> 3 & 15];
        if first & 0x80 == 0 || vvvv > 7 {
            fail("there are tiles 0 to 7");
        }
        let is_tiled = amx.configured;
        let tiled = |name: &str| {
            if !is_tiled {
                fail(name);
            }
        };
        match (opcode, second & 3, in_memory) {
            // LDTILECFG [memory]
            (0x49, 0, true) if reg == 0 && vvvv == 0 => {
                let memory = self.memory(first);
                amx.configure(memory.start + memory.index);
                4 + memory.length
            }
            // TILERELEASE
            (0x49, 0, false) if modrm == 0xC0 && vvvv == 0 => {
                tiled("tilerelease while tiles are not configured");
                amx.configured = false;
                CONFIGURED.fetch_sub(1, Ordering::SeqCst);
                5
            }
            // TILEZERO tile
            (0x49, 3, false) if modrm & 7 == 0 && vvvv == 0 => {
                tiled("tilezero while tiles are not configured");
                amx.tiles[usize::from(reg)] = [[0; COLUMNS]; ROWS];
                5
            }
            // TILELOADD tile, [start + stride]
            (0x4B, 3, true) if modrm & 7 == 4 && vvvv == 0 => {
                tiled("tileloadd while tiles are not configured");
                let memory = self.memory(first);
                for (row, tile) in amx.tiles[usize::from(reg)].iter_mut().enumerate() {
                    let address = memory.start + memory.index * row as i64;
                    // SAFETY: what the instruction would read.
                    *tile = unsafe { (address as *const [u32; COLUMNS]).read_unaligned() };
                }
                4 + memory.length
            }
            // TILESTORED [start + stride], tile
            (0x4B, 2, true) if modrm & 7 == 4 && vvvv == 0 => {
                tiled("tilestored while tiles are not configured");
                let memory = self.memory(first);
                for (row, tile) in amx.tiles[usize::from(reg)].iter().enumerate() {
                    let address = memory.start + memory.index * row as i64;
                    // SAFETY: what the instruction would write.
                    unsafe { (address as *mut [u32; COLUMNS]).write_unaligned(*tile) };
                }
                4 + memory.length
            }
            // TDPBF16PS sums, left, right
            (0x5C, 2, false) if first & 0x20 != 0 => {
                tiled("tdpbf16ps while tiles are not configured");
                let [sums, left, right] = [reg, modrm & 7, vvvv].map(usize::from);
                if sums == left || sums == right || left == right {
                    fail("the three tiles of tdpbf16ps must differ");
                }
                let (left, right) = (amx.tiles[left], amx.tiles[right]);
                // SAFETY: `ready` has found the instructions.
                unsafe { dot(&mut amx.tiles[sums], &left, &right) };
                5
            }
            _ => fail("this illegal instruction is not one that is emulated"),
        }
    }

    /// The operand in memory that ModRM, at byte 4, begins.
    fn memory(&self, first: u8) -> Memory {
        let (modrm, mut length) = (self.byte(4), 1);
        let high = |bit: u8| if first >> bit & 1 == 0 { 8 } else { 0 };
        let (mut base, mut index) = (modrm & 7, 0);
        let mut plain = false;
        if base == 4 {
            let sib = self.byte(5);
            length += 1;
            base = sib & 7;
            let number = sib >> 3 & 7 | high(6);
            if number != 4 {
                index = self.register(number) << (sib >> 6);
            }
            plain = base == 5 && modrm >> 6 == 0;
        } else if base == 5 && modrm >> 6 == 0 {
            fail("addresses relative to RIP are not emulated");
        }
        let bytes: [u8; 4] = match modrm >> 6 {
            0 if !plain => [0; 4],
            1 => {
                let byte = self.byte(4 + length) as i8;
                length += 1;
                i32::from(byte).to_le_bytes()
            }
            _ => {
                let bytes = std::array::from_fn(|byte| self.byte(4 + length + byte));
                length += 4;
                bytes
            }
        };
        let displacement = i64::from(i32::from_le_bytes(bytes));
        let base = if plain { 0 } else { self.register(base | high(5)) };
        Memory { start: base + displacement, index, length }
    }
}

impl Registers {
    /// LDTILECFG: 64 bytes that must say eight tiles of 16 rows of 64 bytes, the only ones emulated.
    fn configure(&mut self, address: i64) {
        if self.configured {
            fail("tiles are configured a second time: they were not released");
        }
        // SAFETY: what the instruction would read.
        let bytes = unsafe { (address as *const [u8; 64]).read_unaligned() };
        let (head, rest) = bytes.split_at(16);
        let (row_bytes, rows) = rest.split_at(32);
        let of = |tile: usize, full: u8| if tile < TILES { full } else { 0 };
        let wanted = head[0] == 1
            && head[1..].iter().all(|byte| *byte == 0)
            && row_bytes.chunks(2).enumerate().all(|(tile, bytes)| bytes == [of(tile, 64), 0])
            && rows.iter().enumerate().all(|(tile, rows)| *rows == of(tile, 16));
        if !wanted {
            fail("only palette 1 with eight tiles of 16 rows of 64 bytes is emulated");
        }
        self.configured = true;
        self.tiles = [[[0; COLUMNS]; ROWS]; TILES];
        CONFIGURED.fetch_add(1, Ordering::SeqCst);
    }
}

/// TDPBF16PS, compiled for the machine.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,fma")]
fn dot(sums: &mut Tile, left: &Tile, right: &Tile) {
    tile::dot(sums, left, right);
}
