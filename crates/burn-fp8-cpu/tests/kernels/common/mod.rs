//! What several modules need: operands in every layout, whatever multiplies them, and f64 products of them.

pub mod case;
pub mod emulated;
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
pub mod tile;

use std::sync::Once;

use burn_fp8_core::Fp8Format;
use burn_fp8_cpu::{Codes, Epilogue, Instructions, Output, Unit, cpu_name, matmul};
pub use burn_fp8_test_support::fp8::{
    codes_where, decode as number, finite_codes as finite, integer_codes as integers,
};
pub use burn_fp8_test_support::{
    Exact, FORMATS, Golden, OVERFLOWS, PAIRS, Random, Sums, alone, assert_within, bits, comparable,
    transpose, wide,
};
use rayon::{ThreadPool, ThreadPoolBuilder};

/// A pool of so many threads.
pub fn pool(threads: usize) -> ThreadPool {
    ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool of threads")
}

/// Runs a test, in a process of its own, with each set of vector instructions that the machine has.
pub fn on_all_instructions(test: impl Fn()) {
    alone(|| {
        for instructions in Instructions::available() {
            println!("with the instructions {instructions}");
            Instructions::force(Some(instructions));
            test();
        }
    });
}

/// Numbers of both signs, spread over `2^-exponent..2^exponent`.
pub fn spread(count: usize, exponent: i32) -> Vec<f32> {
    Random(1).magnitudes(exponent, count)
}

/// Numbers in -1..1, others for each seed.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    Random(seed).units(count)
}

/// Finite codes.
pub fn some_codes(count: usize, format: Fp8Format) -> Vec<u8> {
    Random(2).picks(&finite(format), count)
}

/// A golden file, which lies beside the tests of burn-fp8-core.
pub fn golden(name: &str) -> Golden {
    Golden::read(env!("CARGO_MANIFEST_DIR"), name)
}

/// The products of a batch in f64: those of integers are exact, others rounded 2^29 times as finely as f32.
pub fn exact(lhs: &Operand, rhs: &Operand) -> Exact {
    let ([m, k], [depth, n]) = (lhs.shape, rhs.shape);
    assert!(k == depth && lhs.batches() == rhs.batches());
    let of = |batch| Exact::product(&lhs.numbers(batch), &rhs.numbers(batch), [m, k, n]);
    Exact::joined((0..lhs.batches()).map(of))
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
        Self::new(random.picks(of, shape[0] * shape[1]), format, shape, layout)
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
