//! What several peers saw of one step: they train the same model, each on samples of its own.

use burn_fp8_core::{GemmRole, Operand};

use super::{Shape, SiteEntry};
use crate::sample::{OperandStats, ProductStats, SumStats};
use crate::{Histogram, MatrixSqnr, Sqnr};

/// A step's entries as a peer sends them. One that no log may hold is sent as none.
pub fn to_bytes(entries: &[SiteEntry]) -> Vec<u8> {
    let entries: Vec<_> =
        entries.iter().map(|entry| entry.check().is_ok().then_some(entry)).collect();
    serde_json::to_vec(&entries).expect("finite numbers serialize")
}

/// One list of entries from those of all peers; of a site that could not be merged, why, in one line.
///
/// Counts, powers and rows are added up. Of amaxes and scales the largest stays, and of the SQNR of lines the lowest, as lines of several peers are never in one place. The weight is the
/// same everywhere and counts once.
///
/// # Errors
/// In one line, where peers saw other numbers of products, or sent something else.
pub fn merged(peers: &[Vec<u8>]) -> Result<(Vec<SiteEntry>, Option<String>), String> {
    let (mut merged, mut failure) = (None::<Vec<Option<SiteEntry>>>, None);
    for (rank, bytes) in peers.iter().enumerate() {
        let theirs: Vec<Option<SiteEntry>> = serde_json::from_slice(bytes)
            .map_err(|error| format!("what rank {rank} saw cannot be read: {error}"))?;
        let Some(entries) = &mut merged else {
            merged = Some(theirs);
            continue;
        };
        if theirs.len() != entries.len() {
            return Err(format!(
                "rank {rank} saw {} products in a step, rank 0 {}",
                theirs.len(),
                entries.len()
            ));
        }
        for (site, (entry, theirs)) in (1..).zip(entries.iter_mut().zip(theirs)) {
            let added = match (entry.as_mut(), &theirs) {
                (Some(entry), Some(theirs)) => entry.add(theirs),
                _ => Err("its scale is 0, or something else of it no number".into()),
            };
            if let Err(reason) = added {
                failure
                    .get_or_insert(format!("product {site}, with that of rank {rank}: {reason}"));
                *entry = None;
            }
        }
    }
    let entries = merged.unwrap_or_default();
    Ok((entries.into_iter().flatten().collect(), failure))
}

impl SiteEntry {
    fn add(&mut self, theirs: &Self) -> Result<(), String> {
        let Shape { batch, m, n, k } = theirs.gemm;
        let site = |entry: &Self| {
            let Self { step, site, name, kind, recipe, .. } = entry;
            (*step, *site, name.clone(), kind.clone(), recipe.clone())
        };
        if site(self) != site(theirs) || [self.gemm.n, self.gemm.k] != [n, k] {
            return Err(format!(
                "{} {} `{}` is not {} {} `{}`",
                self.kind, self.gemm, self.name, theirs.kind, theirs.gemm, theirs.name
            ));
        }
        match self.gemm.batch > 1 && self.gemm.m == m {
            true => self.gemm.batch += batch,
            false => self.gemm.m += m,
        }
        for operand in Operand::ALL {
            let mine = match operand {
                Operand::Input => &mut self.operands.input,
                Operand::Weight => continue,
                Operand::OutputGrad => &mut self.operands.output_grad,
            };
            both(mine.as_mut(), theirs.operands.of(operand), OperandStats::add_peer)?;
        }
        for role in GemmRole::ALL {
            let mine = match role {
                GemmRole::Output => &mut self.products.output,
                GemmRole::GradInput => &mut self.products.grad_input,
                GemmRole::GradWeight => &mut self.products.grad_weight,
            };
            both(mine.as_mut(), theirs.products.of(role), ProductStats::add_peer)?;
        }
        Ok(())
    }
}

/// Adds where both have it.
fn both<T>(
    mine: Option<&mut T>,
    theirs: Option<&T>,
    add: impl FnOnce(&mut T, &T) -> Result<(), String>,
) -> Result<(), String> {
    match (mine, theirs) {
        (Some(mine), Some(theirs)) => add(mine, theirs),
        (None, None) => Ok(()),
        _ => Err("only one of them was in FP8".into()),
    }
}

impl OperandStats {
    fn add_peer(&mut self, theirs: &Self) -> Result<(), String> {
        if (self.format, self.per_row) != (theirs.format, theirs.per_row) {
            return Err("their formats differ".into());
        }
        self.amax = self.amax.max(theirs.amax);
        self.scale = self.scale.max(theirs.scale);
        self.elements += theirs.elements;
        self.sampled += theirs.sampled;
        self.zeros += theirs.zeros;
        self.flushed += theirs.flushed;
        self.saturated += theirs.saturated;
        self.non_finite += theirs.non_finite;
        self.sqnr = self.sqnr.and(theirs.sqnr);
        self.histogram = self.histogram.and(&theirs.histogram);
        Ok(())
    }
}

impl ProductStats {
    fn add_peer(&mut self, theirs: &Self) -> Result<(), String> {
        if self.formats != theirs.formats {
            return Err("their formats differ".into());
        }
        self.outputs += theirs.outputs;
        self.non_finite += theirs.non_finite;
        self.terms = self.terms.min(theirs.terms);
        self.sqnr = self.sqnr.and(theirs.sqnr);
        self.alternatives.retain_mut(|mine| {
            let mut theirs = theirs.alternatives.iter();
            let theirs = theirs.find(|theirs| theirs.alternative == mine.alternative);
            theirs.inspect(|theirs| mine.sqnr = mine.sqnr.and(theirs.sqnr)).is_some()
        });
        // Of cards, as of alternatives, those that all asked about.
        self.sums = match (self.sums.take(), &theirs.sums) {
            (Some(mine), Some(theirs)) => mine.and(theirs)?,
            _ => None,
        };
        Ok(())
    }
}

impl SumStats {
    fn and(mut self, theirs: &Self) -> Result<Option<Self>, String> {
        if self.accumulation != theirs.accumulation {
            return Err("one of them accumulates fast".into());
        }
        self.cards.retain_mut(|mine| {
            let Some(theirs) = theirs.cards.iter().find(|theirs| theirs.sums == mine.sums) else {
                return false;
            };
            mine.fast = mine.fast.and(theirs.fast);
            mine.split = mine.split.and(theirs.split);
            true
        });
        Ok((!self.cards.is_empty()).then_some(self))
    }
}

impl MatrixSqnr {
    fn and(self, other: Self) -> Self {
        let ratio = |line: Sqnr| line.decibels().unwrap_or(f64::INFINITY);
        let lower = ratio(other.line) < ratio(self.line);
        Self {
            whole: self.whole.and(other.whole),
            line: if lower { other.line } else { self.line },
        }
    }
}

impl Sqnr {
    fn and(self, other: Self) -> Self {
        Self { signal: self.signal + other.signal, noise: self.noise + other.noise }
    }
}

impl Histogram {
    fn and(&self, other: &Self) -> Self {
        let used = [self, other].into_iter().filter(|histogram| !histogram.counts.is_empty());
        let Some(first) = used.clone().map(|histogram| histogram.first).min() else {
            return Self::default();
        };
        let end = |histogram: &Self| histogram.first + histogram.counts.len() as i32;
        let last = used.clone().map(end).max().unwrap_or(first);
        let mut counts = vec![0; (last - first) as usize];
        for (exponent, count) in used.flat_map(Self::bins) {
            counts[(exponent - first) as usize] += count;
        }
        Self { first, counts }
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use burn_fp8_core::{Fp8Format, Recipe};

    use super::*;
    use crate::log::{Operands, Products};
    use crate::sample::{Lines, MatrixSample, OperandSample, product};

    const COLUMNS: usize = 16;

    /// Numbers of both signs over some 40 powers of two, with zeros.
    fn numbers(count: usize, seed: u32) -> Vec<f32> {
        let number = |index: usize| {
            let hash = (index as u32 + seed).wrapping_mul(0x9E37_79B9);
            let magnitude = 2f32.powi((hash >> 8) as i32 % 40 - 30);
            if hash.is_multiple_of(17) {
                0.0
            } else {
                magnitude * (hash as i32 as f32 / 2f32.powi(31))
            }
        };
        (0..count).map(number).collect()
    }

    fn sample(values: &[f32], scale: f32) -> OperandSample {
        let amax = values.iter().fold(0f32, |amax, x| amax.max(x.abs()));
        OperandSample {
            matrix: MatrixSample::whole(values.to_vec(), [values.len() / COLUMNS, COLUMNS]),
            elements: values.len() as u64,
            format: Fp8Format::E4M3,
            scale: Some(scale),
            amax,
        }
    }

    /// The entry of a product of these rows with a weight of 16 × 16.
    fn entry(rows: &[f32]) -> SiteEntry {
        let (input, weight) =
            (sample(rows, 0.5), sample(&numbers(COLUMNS * COLUMNS, 1 << 20), 2.0));
        let recipe = Recipe::delayed();
        let m = (rows.len() / COLUMNS) as u64;
        let of_product = product(GemmRole::Output, [&input, &weight], recipe);
        let stats = |sample: &OperandSample, operand| sample.stats(operand, Lines::Rows, recipe);
        SiteEntry {
            step: 3,
            site: 1,
            name: "up".into(),
            kind: "linear".into(),
            gemm: Shape { batch: 1, m, n: COLUMNS as u64, k: COLUMNS as u64 },
            recipe: "delayed".into(),
            operands: Operands {
                input: Some(stats(&input, Operand::Input)),
                weight: Some(stats(&weight, Operand::Weight)),
                output_grad: None,
            },
            products: Products { output: Some(of_product), ..Products::default() },
        }
    }

    fn of_both(peers: [&[SiteEntry]; 2]) -> Result<(Vec<SiteEntry>, Option<String>), String> {
        merged(&peers.map(to_bytes))
    }

    /// All of 32 rows are sampled: what two peers saw of half of them each is what one saw of all, but for the order of sums.
    #[test]
    fn two_halves_are_the_whole() {
        let rows = numbers(24 * COLUMNS, 7);
        let whole = entry(&rows);
        let (first, second) = rows.split_at(10 * COLUMNS);
        let (merged, failure) = of_both([&[entry(first)], &[entry(second)]]).expect("of one site");
        assert_eq!(failure, None);
        let [merged] = &merged[..] else { panic!("one site, not {}", merged.len()) };
        assert_eq!((merged.gemm, &merged.operands.weight), (whole.gemm, &whole.operands.weight));
        let input = |entry: &SiteEntry| entry.operands.input.clone().expect("it is in FP8");
        let (mine, expected) = (input(merged), input(&whole));
        assert!(expected.flushed > 0 && expected.zeros > 0 && expected.saturated > 0);
        assert_eq!(OperandStats { sqnr: expected.sqnr, ..mine.clone() }, expected);
        let output = |entry: &SiteEntry| entry.products.output.clone().expect("it is in FP8");
        let (product, of_whole) = (output(merged), output(&whole));
        assert_eq!((product.outputs, product.terms), (of_whole.outputs, of_whole.terms));
        for (mine, expected) in
            [(mine.sqnr, expected.sqnr), (product.sqnr.whole, of_whole.sqnr.whole)]
        {
            assert!((mine.signal / expected.signal - 1.0).abs() < 1e-12);
            assert!((mine.noise / expected.noise - 1.0).abs() < 1e-12);
        }
        assert_eq!(product.alternatives.len(), of_whole.alternatives.len());
        // Of lines, the worse half.
        let halves = [entry(first), entry(second)].map(|entry| output(&entry).sqnr.line);
        assert!(halves.contains(&product.sqnr.line) && halves[0] != halves[1]);
    }

    #[test]
    fn what_differs_is_left_out_or_an_error() {
        let one = entry(&numbers(4 * COLUMNS, 1));
        let mut other = one.clone();
        other.name = "down".into();
        let both = [one.clone(), one.clone()];
        let (left, failure) = of_both([&both, &[one.clone(), other]]).expect("as many");
        assert_eq!(left.len(), 1);
        let failure = failure.expect("one was left out");
        assert!(failure.contains("product 2") && failure.contains("`down`"), "{failure}");
        // A scale of 0 is no entry of a log, whoever has it.
        let mut damaged = one.clone();
        damaged.operands.input.as_mut().expect("it is there").scale = 0.0;
        for peers in [[&damaged, &one], [&one, &damaged]] {
            let (left, failure) = of_both(peers.map(from_ref)).expect("as many");
            assert!(left.is_empty() && failure.is_some_and(|why| why.contains("scale is 0")));
        }
        let error = of_both([&both, from_ref(&one)]).expect_err("another number");
        assert_eq!(error, "rank 1 saw 1 products in a step, rank 0 2");
        let error = merged(&[to_bytes(&[one]), b"[1]".to_vec()]).expect_err("no entry");
        assert!(error.starts_with("what rank 1 saw cannot be read"), "{error}");
    }
}
