//! What several test files need: operands in every layout, whatever multiplies them, and f64 sums that share no code with the library.
#![allow(dead_code, reason = "each test file is a crate of its own and uses a part")]

pub mod case;
pub mod emulated;
pub mod reference;

use std::sync::Once;

use burn_fp8_core::Fp8Format;
use burn_fp8_cpu::{Codes, Epilogue, Output, Unit, cpu_name, matmul};
use float8::{F8E4M3, F8E5M2};

pub const FORMATS: [Fp8Format; 2] = [Fp8Format::E4M3, Fp8Format::E5M2];

/// The formats of the left and of the right operand.
pub const PAIRS: [[Fp8Format; 2]; 4] = [
    [Fp8Format::E4M3, Fp8Format::E4M3],
    [Fp8Format::E5M2, Fp8Format::E4M3],
    [Fp8Format::E4M3, Fp8Format::E5M2],
    [Fp8Format::E5M2, Fp8Format::E5M2],
];

/// The number that a code stands for, by the crate `float8`.
pub fn number(code: u8, format: Fp8Format) -> f64 {
    match format {
        Fp8Format::E4M3 => F8E4M3::from_bits(code).to_f64(),
        Fp8Format::E5M2 => F8E5M2::from_bits(code).to_f64(),
    }
}

/// The codes of all numbers of a format for which `wanted` holds.
pub fn codes_where(format: Fp8Format, wanted: impl Fn(f64) -> bool) -> Vec<u8> {
    (0..=255).filter(|code| wanted(number(*code, format))).collect()
}

/// The codes of integers up to 16 in magnitude, zero with both signs.
///
/// As 2500 products of them sum up to less than 2^24, an f32 holds every partial sum, in any order.
pub fn integers(format: Fp8Format) -> Vec<u8> {
    codes_where(format, |x| x.fract() == 0.0 && x.abs() <= 16.0)
}

pub fn finite(format: Fp8Format) -> Vec<u8> {
    codes_where(format, f64::is_finite)
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ x >> 31
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    pub fn codes(&mut self, of: &[u8], count: usize) -> Vec<u8> {
        (0..count).map(|_| self.pick(of)).collect()
    }
}

/// How the elements of an operand lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Rows,
    Transposed,
    /// Rows this far apart, beyond their own length; the gaps hold NaN.
    Strided(usize),
    StridedTransposed(usize),
}

pub const LAYOUTS: [Layout; 4] =
    [Layout::Rows, Layout::Transposed, Layout::Strided(5), Layout::StridedTransposed(3)];

/// An operand: what its elements are, and where they lie.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Row by row, whatever the layout.
    pub codes: Vec<u8>,
    pub format: Fp8Format,
    pub shape: [usize; 2],
    /// Matrices that `codes` holds.
    pub matrices: usize,
    /// How often one matrix is used.
    pub broadcast: Option<usize>,
    pub layout: Layout,
    memory: Vec<u8>,
}

impl Operand {
    pub fn new(codes: Vec<u8>, format: Fp8Format, shape: [usize; 2], layout: Layout) -> Self {
        Self::batch(codes, format, 1, shape, layout)
    }

    /// Several matrices, which are in rows or transposed.
    pub fn batch(
        codes: Vec<u8>,
        format: Fp8Format,
        matrices: usize,
        shape: [usize; 2],
        layout: Layout,
    ) -> Self {
        let [rows, columns] = shape;
        assert_eq!(codes.len(), matrices * rows * columns);
        let (transposed, gap) = match layout {
            Layout::Rows => (false, 0),
            Layout::Transposed => (true, 0),
            Layout::Strided(gap) => (false, gap),
            Layout::StridedTransposed(gap) => (true, gap),
        };
        assert!(matrices == 1 || gap == 0, "a batch has no gaps");
        let [lines, elements] = if transposed { [columns, rows] } else { shape };
        // 0x7F is NaN in both formats: the memory between rows must not matter.
        let mut memory = vec![0x7F; matrices * lines * (elements + gap)];
        for (matrix, codes) in codes.chunks((rows * columns).max(1)).enumerate() {
            for (index, code) in codes.iter().enumerate() {
                let (row, column) = (index / columns, index % columns);
                let (line, element) = if transposed { (column, row) } else { (row, column) };
                memory[(matrix * lines + line) * (elements + gap) + element] = *code;
            }
        }
        Self { codes, format, shape, matrices, broadcast: None, layout, memory }
    }

    pub fn random(
        random: &mut Random,
        of: &[u8],
        format: Fp8Format,
        shape: [usize; 2],
        layout: Layout,
    ) -> Self {
        Self::new(random.codes(of, shape[0] * shape[1]), format, shape, layout)
    }

    pub fn broadcast(self, batch: usize) -> Self {
        Self { broadcast: Some(batch), ..self }
    }

    pub fn batches(&self) -> usize {
        self.broadcast.unwrap_or(self.matrices)
    }

    pub fn view(&self) -> Codes<'_> {
        let [rows, columns] = self.shape;
        let lines = [columns, rows];
        let codes = match self.layout {
            Layout::Rows => Codes::batch(&self.memory, self.format, self.matrices, self.shape),
            Layout::Transposed => {
                Codes::batch(&self.memory, self.format, self.matrices, lines).transpose()
            }
            Layout::Strided(gap) => {
                Codes::strided(&self.memory, self.format, self.shape, columns + gap)
            }
            Layout::StridedTransposed(gap) => {
                Codes::strided(&self.memory, self.format, lines, rows + gap).transpose()
            }
        };
        match self.broadcast {
            Some(batch) => codes.broadcast(batch),
            None => codes,
        }
    }

    /// The numbers of one matrix of the batch, row by row.
    pub fn numbers(&self, batch: usize) -> Vec<f64> {
        let matrix = if self.broadcast.is_some() { 0 } else { batch };
        let [rows, columns] = self.shape;
        let table: Vec<_> = (0..=255).map(|code| number(code, self.format)).collect();
        let codes = &self.codes[matrix * rows * columns..][..rows * columns];
        codes.iter().map(|code| table[usize::from(*code)]).collect()
    }
}

/// What multiplies: a unit of this machine, or AMX's own code with its instructions emulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runner {
    Unit(Unit),
    EmulatedAmx,
}

impl Runner {
    /// All units of this machine, and AMX emulated. Prints which.
    pub fn all() -> Vec<Self> {
        let mut all = Self::units();
        all.extend(Self::emulated());
        all
    }

    /// AMX emulated, where it can be had: slow.
    pub fn emulated() -> Option<Self> {
        #[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
        return emulated::ready().then_some(Self::EmulatedAmx);
        #[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
        None
    }

    pub fn units() -> Vec<Self> {
        static PRINT: Once = Once::new();
        let units = Unit::available();
        PRINT.call_once(|| {
            println!("{} runs {units:?} and AMX emulated: {:?}", cpu_name(), Self::emulated())
        });
        assert!(units.contains(&Unit::Portable));
        units.into_iter().map(Self::Unit).collect()
    }

    pub fn run(self, lhs: Codes<'_>, rhs: Codes<'_>, epilogue: &Epilogue<'_>, output: Output<'_>) {
        match self {
            Self::Unit(unit) => matmul(unit, lhs, rhs, epilogue, output),
            #[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
            Self::EmulatedAmx => emulated::matmul(lhs, rhs, epilogue, output),
            #[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
            Self::EmulatedAmx => unreachable!("not on this machine"),
        }
    }

    /// The product in f32; elements that are not written stay at a number that no test expects.
    pub fn product(self, lhs: &Operand, rhs: &Operand, epilogue: &Epilogue<'_>) -> Vec<f32> {
        let mut y = vec![-1.25e-33; lhs.batches() * lhs.shape[0] * rhs.shape[1]];
        self.run(lhs.view(), rhs.view(), epilogue, Output::F32(&mut y));
        y
    }
}

/// A scale of 1 for both operands.
pub const PLAIN: Epilogue<'static> = Epilogue::scaled(1.0, 1.0);
