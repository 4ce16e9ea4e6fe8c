//! Sums that are no number: where an operand has NaN or infinities, the result is the class of the exact sum.

use burn_fp8_core::Fp8Format;
use burn_fp8_core::sums::CANONICAL_NAN;

/// The rows of an operand that have any.
struct Lines<'a> {
    codes: &'a [u8],
    format: Fp8Format,
    /// For each row, whether it has NaN; and where it has infinities.
    found: Vec<Option<Found>>,
}

struct Found {
    has_nan: bool,
    infinities: Vec<usize>,
}

/// What two operands have.
pub(super) struct Special<'a> {
    /// `None` where both are finite, which is nearly always.
    operands: Option<[Lines<'a>; 2]>,
    k: usize,
}

impl<'a> Special<'a> {
    pub(super) fn new(
        codes: [&'a [u8]; 2],
        formats: [Fp8Format; 2],
        [m, n, k]: [usize; 3],
    ) -> Self {
        let is_finite = |codes: &[u8], format: Fp8Format| {
            let least = if format == Fp8Format::E4M3 { 0x7F } else { 0x7C };
            // Without a branch for each.
            codes.iter().map(|code| code & 0x7F).max().is_none_or(|largest| largest < least)
        };
        if k == 0 || (is_finite(codes[0], formats[0]) && is_finite(codes[1], formats[1])) {
            return Self { operands: None, k };
        }
        let [a, b] = codes;
        let operands = [(a, formats[0], m), (b, formats[1], n)].map(|(codes, format, lines)| {
            let find = |line: &[u8]| {
                let has_nan = line.iter().any(|code| format.is_nan(*code));
                let infinities: Vec<usize> =
                    (0..k).filter(|at| format.is_infinite(line[*at])).collect();
                (has_nan || !infinities.is_empty()).then_some(Found { has_nan, infinities })
            };
            let found = codes.chunks(k).map(find).collect::<Vec<_>>();
            debug_assert_eq!(found.len(), lines);
            Lines { codes, format, found }
        });
        Self { operands: Some(operands), k }
    }

    /// The sum, or the class of the exact one where that is no number. A NaN is that of a scale.
    #[inline]
    pub(super) fn replace(&self, sum: f32, row: usize, column: usize) -> f32 {
        match &self.operands {
            None => sum,
            Some(_) if sum.is_nan() => sum,
            Some(operands) => self.class(operands, [row, column]).unwrap_or(sum),
        }
    }

    fn class(&self, operands: &[Lines<'_>; 2], lines: [usize; 2]) -> Option<f32> {
        let found = [0, 1].map(|side| operands[side].found[lines[side]].as_ref());
        if found.iter().flatten().any(|found| found.has_nan) {
            return Some(CANONICAL_NAN);
        }
        let number = |side: usize, at: usize| {
            let Lines { codes, format, .. } = &operands[side];
            format.decode(codes[lines[side] * self.k + at])
        };
        let places = found.iter().flatten().flat_map(|found| &found.infinities);
        let product = |at: &usize| number(0, *at) * number(1, *at);
        let sum = places.map(product).reduce(|sum, product| sum + product)?;
        Some(if sum.is_nan() { CANONICAL_NAN } else { sum })
    }
}
