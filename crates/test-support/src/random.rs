//! One generator of test data: SplitMix64 (Steele, Lea, Flood, 2014), the same numbers on every machine.

use std::f64::consts::TAU;

/// A generator, and its state: equal seeds give equal numbers.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    /// An integer in `0..end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// So many of these.
    pub fn picks<T: Copy>(&mut self, of: &[T], count: usize) -> Vec<T> {
        (0..count).map(|_| self.pick(of)).collect()
    }

    /// Uniform in -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Uniform in -1..1.
    pub fn units(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }

    /// Uniform in `low..high`.
    pub fn between(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * ((self.bits() >> 40) as f32 / (1u64 << 24) as f32)
    }

    /// Uniform in `low..high`.
    pub fn betweens(&mut self, low: f32, high: f32, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.between(low, high)).collect()
    }

    /// Of a normal distribution with deviation 1, by Box and Muller.
    pub fn normal(&mut self) -> f64 {
        // The logarithm never sees a zero.
        let u = (f64::from(self.unit()) + 1.0 + 2f64.powi(-24)) / 2.0;
        let v = f64::from(self.unit());
        (-2.0 * u.min(1.0).ln()).sqrt() * (TAU * v).cos()
    }

    /// Of a normal distribution with deviation 1.
    pub fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.normal() as f32).collect()
    }

    /// Values of different magnitudes: uniform in -1..1, times a power of two from 2^-12 to 2^4.
    pub fn spread(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit() * 2f32.powi((self.bits() % 17) as i32 - 12)).collect()
    }

    /// Values of both signs, whose magnitudes are spread over `2^-exponent..2^exponent`.
    pub fn magnitudes(&mut self, exponent: i32, count: usize) -> Vec<f32> {
        let one =
            |random: &mut Self| (random.unit() * exponent as f32).exp2().copysign(random.unit());
        (0..count).map(|_| one(self)).collect()
    }

    /// Any bits, so any f32: subnormal, infinite and NaN too.
    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| f32::from_bits((self.bits() >> 32) as u32)).collect()
    }

    /// Values in -1..1 times `amax`, of which one is `-amax`.
    pub fn with_amax(&mut self, amax: f32, count: usize) -> Vec<f32> {
        let mut values: Vec<f32> = (0..count).map(|_| self.unit() * amax * 0.9).collect();
        values[count / 3] = -amax;
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_splitmix64() {
        // The first outputs that are published for the seed 1234567.
        let mut random = Random(1_234_567);
        let bits = [(); 3].map(|()| random.bits());
        let expected =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(bits, expected);
    }

    #[test]
    fn numbers_are_where_they_are_said_to_be() {
        let mut random = Random(1);
        assert!(random.units(1000).iter().all(|x| (-1.0..1.0).contains(x)));
        assert!(random.betweens(2.0, 3.0, 1000).iter().all(|x| (2.0..3.0).contains(x)));
        let normals = random.normals(10_000);
        let deviation = normals.iter().map(|x| f64::from(x * x)).sum::<f64>() / 10_000.0;
        assert!((0.9..1.1).contains(&deviation), "{deviation}");
        let spread = random.magnitudes(20, 1000);
        assert!(spread.iter().all(|x| (20f32.exp2().recip()..20f32.exp2()).contains(&x.abs())));
        assert!(spread.iter().any(|x| *x < 0.0) && spread.iter().any(|x| *x > 0.0));
        let amax = random.with_amax(3.0, 100).iter().fold(0f32, |amax, x| amax.max(x.abs()));
        assert_eq!(amax, 3.0);
    }
}
