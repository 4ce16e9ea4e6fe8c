//! The exponential function, for loops that become vector instructions.

/// `eˣ`, within 2 units in the last place, for every f32: subnormal results, infinities and NaN included.
///
/// `eˣ = 2ⁿ · eʳ`, with r in ±ln 2 / 2: Cody and Waite's reduction, and the polynomial of Cephes' `expf`.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    /// Adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const POLYNOMIAL: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    // Not `clamp`, whose panics keep loops from becoming vector instructions. Below, the result is 0; above, infinity. NaN stays.
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let rounded = x.mul_add(core::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut p = POLYNOMIAL[0];
    for coefficient in &POLYNOMIAL[1..] {
        p = p.mul_add(r, *coefficient);
    }
    let power = p.mul_add(r * r, r) + 1.0;
    // In two steps: 2ⁿ itself may be no normal number.
    let n = (rounded.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    power * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

#[cfg(test)]
mod tests {
    use super::exp;

    /// Units in the last place between the result and the exact one.
    fn error(x: f32) -> f64 {
        let (y, exact) = (f64::from(exp(x)), f64::from(x).exp());
        if y == f64::from(exact as f32) {
            return 0.0;
        }
        // The distance of f32 numbers there.
        let exponent = (exact.to_bits() >> 52) as i32 - 1023;
        (y - exact).abs() / 2f64.powi(exponent.max(-126) - 23)
    }

    #[test]
    fn error_is_at_most_2_ulp() {
        let bf16 = (0..=u16::MAX).map(|bits| f32::from_bits(u32::from(bits) << 16));
        // All of them with as many f32 in between, evenly over the numbers that do not give 0 or infinity.
        let f32s = (0..10_000_000u32).map(|i| {
            let x = f64::from(i) / 1e7 * 194.0 - 104.5;
            x as f32
        });
        let mut worst = (0.0, 0.0);
        for x in bf16.chain(f32s).filter(|x| !x.is_nan()) {
            let error = error(x);
            if error > worst.0 {
                worst = (error, x);
            }
        }
        assert!(worst.0 <= 2.0, "{} ulp at {}", worst.0, worst.1);
        println!("{} ulp at {}", worst.0, worst.1);
    }

    #[test]
    fn special_values_are_those_of_the_function() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::MAX), f32::INFINITY);
        assert_eq!([exp(0.0), exp(-0.0)], [1.0; 2]);
        assert!(exp(f32::NAN).is_nan());
    }
}
