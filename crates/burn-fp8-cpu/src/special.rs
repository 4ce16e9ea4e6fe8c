//! The exponential and the error function, for loops that become vector instructions.

/// `eˣ`, within 2 units in the last place, for every f32: subnormal results, infinities and NaN included.
///
/// `eˣ = 2ⁿ · eʳ`, with r in ±ln 2 / 2: Cody and Waite's reduction, and the polynomial of Cephes' `expf`.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
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

/// The error function, within 2 units in the last place, for every f32; NaN stays.
///
/// By two polynomials, of N. Juffa ("An accurate erff", 2016): that of the logarithm of `1 - erf` for magnitudes above 0.928, that of erf below.
#[inline(always)]
pub(crate) fn erf(x: f32) -> f32 {
    const SMALL: [f32; 6] = [
        -5.967_617e-4,
        4.991_194_2e-3,
        -2.676_813_5e-2,
        1.128_199_25e-1,
        -3.761_253_4e-1,
        1.283_791_7e-1,
    ];
    const LARGE: [f32; 3] = [-1.067_778_8e-1, -6.348_467e-1, -1.287_175_1e-1];
    let (t, square) = (x.abs(), x * x);
    let mut small = SMALL[0];
    for coefficient in &SMALL[1..] {
        small = small.mul_add(square, *coefficient);
    }
    let small = small.mul_add(x, x);

    let high = (-1.728_534_7e-5f32).mul_add(t, 3.831_97e-4);
    let low = (-3.883_964_4e-3f32).mul_add(t, 2.425_462_2e-2);
    let mut large = high.mul_add(square, low);
    for coefficient in LARGE {
        large = large.mul_add(t, coefficient);
    }
    let large = (1.0 - exp(large.mul_add(t, -t))).copysign(x);
    // Both sides are computed: there is no branch in a vector. Beyond 4 erf is ±1, and the polynomial has no say.
    let large = if t > 4.0 { 1f32.copysign(x) } else { large };
    if t > 0.927_734_4 { large } else { small }
}

#[cfg(test)]
mod tests {
    use super::{erf, exp};

    /// Units in the last place between a result and the exact one.
    fn error(y: f32, exact: f64) -> f64 {
        let y = f64::from(y);
        if y == f64::from(exact as f32) {
            return 0.0;
        }
        // The distance of f32 numbers there.
        let exponent = (exact.to_bits() >> 52) as i32 - 1023;
        (y - exact).abs() / 2f64.powi(exponent.max(-126) - 23)
    }

    /// All bf16 numbers, and 10⁷ f32 ones evenly over a range.
    #[track_caller]
    fn assert_within_2_ulp(range: [f64; 2], f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) {
        let bf16 = (0..=u16::MAX).map(|bits| f32::from_bits(u32::from(bits) << 16));
        let [start, end] = range;
        let f32s = (0..10_000_000u32).map(|i| (start + f64::from(i) / 1e7 * (end - start)) as f32);
        let mut worst = (0.0, 0.0);
        for x in bf16.chain(f32s).filter(|x| !x.is_nan()) {
            let error = error(f(x), exact(f64::from(x)));
            if error > worst.0 {
                worst = (error, x);
            }
        }
        println!("{} ulp at {}", worst.0, worst.1);
        assert!(worst.0 <= 2.0, "{} ulp at {}", worst.0, worst.1);
    }

    #[test]
    fn error_of_exp_is_at_most_2_ulp() {
        // What does not give 0 or infinity.
        assert_within_2_ulp([-104.5, 89.5], exp, f64::exp);
    }

    #[test]
    fn error_of_erf_is_at_most_2_ulp() {
        // What does not give ±1.
        assert_within_2_ulp([-4.2, 4.2], erf, libm::erf);
    }

    #[test]
    fn special_values_are_those_of_the_function() {
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(f32::MAX), f32::INFINITY);
        assert_eq!([exp(0.0), exp(-0.0)], [1.0; 2]);
        assert_eq!([erf(f32::INFINITY), erf(f32::NEG_INFINITY), erf(f32::MAX)], [1.0, -1.0, 1.0]);
        assert_eq!(erf(-0.0).to_bits(), (-0f32).to_bits());
        assert!(exp(f32::NAN).is_nan() && erf(f32::NAN).is_nan());
    }
}
