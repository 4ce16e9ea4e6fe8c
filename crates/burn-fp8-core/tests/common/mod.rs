//! What several test files need: inputs that reach every special case, and a reference that shares no code with the library.
#![allow(dead_code, reason = "each test file is a crate of its own and uses a part")]

use burn_fp8_core::{Fp8Format, Overflow};
use safetensors::SafeTensors;
use serde_json::Value;

pub const FORMATS: [Fp8Format; 2] = [Fp8Format::E4M3, Fp8Format::E5M2];
pub const OVERFLOWS: [Overflow; 3] =
    [Overflow::Saturate, Overflow::SaturateFinite, Overflow::NonSaturating];

/// The magnitudes of codes 0, 1, … as the OFP8 specification defines them, one past the largest finite number included: the
/// number that would follow if the highest exponent were an ordinary one.
pub fn magnitudes(format: Fp8Format) -> Vec<f64> {
    let (mantissa_bits, bias, past) = match format {
        Fp8Format::E4M3 => (3, 7, 0x7F),
        Fp8Format::E5M2 => (2, 15, 0x7C),
    };
    let steps = 1 << mantissa_bits;
    (0..=past)
        .map(|code| {
            let (exponent, mantissa) = (code / steps, f64::from(code % steps) / f64::from(steps));
            match exponent {
                0 => mantissa * 2f64.powi(1 - bias),
                _ => (1.0 + mantissa) * 2f64.powi(exponent - bias),
            }
        })
        .collect()
}

/// The code of a quotient by search: the nearest magnitude, the even code of two that are equally near.
pub fn nearest(quotient: f64, format: Fp8Format, overflow: Overflow) -> u8 {
    let sign = if quotient.is_sign_negative() { 0x80 } else { 0 };
    let (infinity, nan) = match format {
        Fp8Format::E4M3 => (0x7F, 0x7F),
        Fp8Format::E5M2 => (0x7C, 0x7E),
    };
    if quotient.is_nan() {
        return nan | sign;
    }
    let magnitudes = magnitudes(format);
    let past = magnitudes.len() - 1;
    let clipped = quotient.abs().min(magnitudes[past]);
    let code = (0..=past)
        .min_by(|&a, &b| {
            let (a_far, b_far) = ((magnitudes[a] - clipped).abs(), (magnitudes[b] - clipped).abs());
            a_far.total_cmp(&b_far).then((a % 2).cmp(&(b % 2)))
        })
        .expect("there are codes");
    let code = match overflow {
        Overflow::SaturateFinite if quotient.is_infinite() => infinity,
        Overflow::NonSaturating if code == past => infinity,
        _ => code.min(past - 1) as u8,
    };
    code | sign
}

/// Values around every decision of both formats: numbers, midpoints, their f32 neighbours, limits of f32, infinities, NaNs.
pub fn special_values() -> Vec<f32> {
    let mut values = vec![0.0, f32::MIN_POSITIVE, f32::MAX, f32::INFINITY, f32::NAN, 1e-45, 1e-40];
    values.extend([1.0, 3.0, 0.1, 1e30, 1e-30].map(|x: f32| x));
    values.extend([f32::from_bits(0x7F80_0001), f32::from_bits(0x7FFF_FFFF)]);
    for format in FORMATS {
        let magnitudes = magnitudes(format);
        for pair in magnitudes.windows(2) {
            for x in [pair[0] as f32, ((pair[0] + pair[1]) / 2.0) as f32] {
                values.extend([x.next_down(), x, x.next_up()]);
            }
        }
        let past = magnitudes[magnitudes.len() - 1] as f32;
        values.extend([past.next_down(), past, past.next_up(), 2.0 * past]);
    }
    let negative: Vec<f32> = values.iter().map(|x| -x).collect();
    values.extend(negative);
    values
}

/// Scales from the smallest to the largest, powers of two or not, some so that quotients are f32 subnormals.
pub const SCALES: [f32; 9] =
    [1.0, 0.25, 8192.0, 0.1, 3.7e-3, f32::MIN_POSITIVE, 1.5e-38, 1e30, f32::MAX];

/// Numbers that are spread over `2^-exponent..2^exponent` and both signs, always the same ones: a linear congruential generator.
pub fn spread(len: usize, exponent: i32) -> Vec<f32> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f32 / (1u64 << 31) as f32
    };
    (0..len)
        .map(|_| {
            let magnitude = ((next() * 2.0 - 1.0) * exponent as f32).exp2();
            if next() < 0.5 { -magnitude } else { magnitude }
        })
        .collect()
}

/// Bits, with every NaN made equal where payloads are not promised.
pub fn comparable(x: f32) -> u32 {
    if x.is_nan() { 0x7FC0_0000 } else { x.to_bits() }
}

/// The name that golden files have for a format.
pub fn name(format: Fp8Format) -> &'static str {
    match format {
        Fp8Format::E4M3 => "e4m3fn",
        Fp8Format::E5M2 => "e5m2",
    }
}

/// A golden file, and what is said of it beside it.
pub struct Golden {
    bytes: Vec<u8>,
    description: Value,
}

impl Golden {
    pub fn read(name: &str) -> Self {
        let folder = format!("{}/tests/golden", env!("CARGO_MANIFEST_DIR"));
        let read = |kind: &str| {
            std::fs::read(format!("{folder}/{name}.{kind}")).expect("it is in the repository")
        };
        let description = serde_json::from_slice(&read("json")).expect("it is JSON");
        Self { bytes: read("safetensors"), description }
    }

    pub fn tensors(&self) -> Tensors<'_> {
        Tensors(SafeTensors::deserialize(&self.bytes).expect("it is a safetensors file"))
    }

    /// The cases in a list.
    pub fn cases(&self, list: &str) -> &[Value] {
        self.description[list].as_array().expect("a list of cases")
    }

    /// The names of the cases in a list.
    pub fn names(&self, list: &str) -> Vec<String> {
        let cases = self.cases(list);
        cases.iter().map(|case| case["name"].as_str().expect("a name").to_owned()).collect()
    }
}

/// The tensors of a golden file, by name.
pub struct Tensors<'a>(SafeTensors<'a>);

impl Tensors<'_> {
    pub fn has(&self, name: &str) -> bool {
        self.0.tensor(name).is_ok()
    }

    pub fn columns(&self, name: &str) -> usize {
        *self.0.tensor(name).expect(name).shape().last().expect("a matrix")
    }

    pub fn u8s(&self, name: &str) -> Vec<u8> {
        self.0.tensor(name).unwrap_or_else(|_| panic!("{name}")).data().to_vec()
    }

    pub fn u16s(&self, name: &str) -> Vec<u16> {
        self.u8s(name).as_chunks().0.iter().map(|b| u16::from_le_bytes(*b)).collect()
    }

    pub fn u32s(&self, name: &str) -> Vec<u32> {
        self.u8s(name).as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
    }

    pub fn f32s(&self, name: &str) -> Vec<f32> {
        self.u32s(name).into_iter().map(f32::from_bits).collect()
    }
}

/// The number that a code stands for, by the specification.
pub fn number(code: u8, format: Fp8Format) -> f64 {
    let magnitudes = magnitudes(format);
    let past = magnitudes.len() - 1;
    let magnitude = match (usize::from(code & 0x7F), format) {
        (0x7C, Fp8Format::E5M2) => f64::INFINITY,
        (index, _) if index >= past => f64::NAN,
        (index, _) => magnitudes[index],
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Codes of every kind but infinite ones and NaN.
pub fn finite_codes(len: usize, format: Fp8Format) -> Vec<u8> {
    let first = magnitudes(format).len() as u64 - 1;
    (0..len as u64)
        .map(|i| {
            let bits = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 17;
            ((bits >> 8) % first) as u8 | (bits as u8 & 0x80)
        })
        .collect()
}
