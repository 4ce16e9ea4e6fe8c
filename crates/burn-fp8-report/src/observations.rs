//! What was seen, over time.

use std::collections::HashMap;

use burn_fp8_core::text::shown;
use burn_fp8_core::{GemmRole, Operand};

use crate::log::{Header, MAX_TEXT, SiteEntry};
use crate::sample::OperandStats;

/// The largest number of sites.
const MAX_SITES: usize = 1 << 12;
/// The largest number of samples kept of a site; a power of two.
const MAX_POINTS: usize = 512;

/// What an observatory saw: every site, over time.
///
/// Of each site the last sample is kept whole and at most 512 points in time: where there were more, every other one is dropped, again and
/// again. The lowest SQNR is that of all samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Observations {
    /// How it was sampled.
    pub header: Header,
    /// The sites, in the order in which they were first seen.
    pub sites: Vec<SiteSeries>,
    /// How many steps were sampled.
    pub steps: u64,
    /// The first and the last step sampled.
    pub span: Option<[u64; 2]>,
    /// The last line of the log, where that was cut off and left out.
    pub cut_line: Option<usize>,
    index: HashMap<Key, usize>,
}

/// What makes samples of two steps those of one site.
type Key = (u64, String, String, [u64; 2]);

/// One site over time.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteSeries {
    /// The last sample.
    pub last: SiteEntry,
    /// Points in time, the oldest first.
    pub points: Vec<Point>,
    /// The lowest SQNR, of [`MatrixSqnr::decibels`](crate::MatrixSqnr::decibels), of the products output, grad_input and
    /// grad_weight in any sample, in dB.
    pub lowest: [Option<f64>; 3],
    /// How many samples there were.
    pub samples: u64,
    /// Of how many samples one is kept.
    stride: u64,
}

/// A site in one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// The step.
    pub step: u64,
    /// Input, weight and output gradient.
    pub operands: [Option<OperandPoint>; 3],
    /// The SQNR of the products output, grad_input and grad_weight, in dB: [`MatrixSqnr::decibels`](crate::MatrixSqnr::decibels).
    pub products: [Option<f64>; 3],
}

/// An operand in one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperandPoint {
    /// The largest finite magnitude.
    pub amax: f64,
    /// The scale.
    pub scale: f64,
    /// The share of elements flushed to zero.
    pub flushed: f64,
    /// The share of elements saturated.
    pub saturated: f64,
    /// The share of elements that are infinite or NaN.
    pub non_finite: f64,
    /// In dB; `None` without signal.
    pub sqnr: Option<f64>,
}

impl Observations {
    /// Nothing seen.
    pub fn new(header: Header) -> Self {
        let (sites, index) = (Vec::new(), HashMap::new());
        Self { header, sites, steps: 0, span: None, cut_line: None, index }
    }

    /// Adds a sample, of the same step as the one before or of a later one.
    ///
    /// # Errors
    /// In one line, where steps go back, a site comes twice in a step, there are more than 4096 sites, or a sample cannot be one: a
    /// scale of 0, a sum that is not finite. Nothing changes then.
    pub fn push(&mut self, entry: SiteEntry) -> Result<(), String> {
        entry.check()?;
        let (step, number) = (entry.step, entry.site);
        let last = self.span.map(|[_, last]| last);
        if let Some(last) = last.filter(|last| *last > step) {
            return Err(format!("step {step} after step {last}; a log is that of one run"));
        }
        let shape = [entry.gemm.n, entry.gemm.k];
        let key = (number, entry.name.clone(), entry.kind.clone(), shape);
        match self.index.get(&key) {
            Some(site) if self.sites[*site].last.step == step => {
                return Err(format!(
                    "site {number} of step {step} is there already; a log is that of one run"
                ));
            }
            Some(site) => self.sites[*site].push(entry),
            None if self.sites.len() == MAX_SITES => {
                return Err(format!(
                    "more than {MAX_SITES} sites; give steps the same products each time"
                ));
            }
            None => {
                self.index.insert(key, self.sites.len());
                self.sites.push(SiteSeries::new(entry));
            }
        }
        self.steps += u64::from(last != Some(step));
        self.span = Some([self.span.map_or(step, |[first, _]| first), step]);
        Ok(())
    }

    /// The samples of the last step.
    pub fn latest(&self) -> impl Iterator<Item = &SiteEntry> {
        let last = self.span.map(|[_, last]| last);
        self.sites.iter().map(|site| &site.last).filter(move |entry| Some(entry.step) == last)
    }

    /// The floating-point operations of the FP8 products of all sites, each as last sampled: the last step may lack sites, since a log
    /// may have been cut off.
    pub(crate) fn flops(&self) -> f64 {
        let products = |entry: &SiteEntry| {
            GemmRole::ALL.iter().filter(|role| entry.products.of(**role).is_some()).count() as f64
        };
        self.sites.iter().map(|site| products(&site.last) * site.last.gemm.flops()).sum()
    }
}

impl SiteSeries {
    fn new(entry: SiteEntry) -> Self {
        let mut series = Self {
            last: entry.clone(),
            points: Vec::new(),
            lowest: [None; 3],
            samples: 0,
            stride: 1,
        };
        series.push(entry);
        series
    }

    fn push(&mut self, entry: SiteEntry) {
        let point = Point::of(&entry);
        for (lowest, now) in self.lowest.iter_mut().zip(point.products) {
            *lowest = match (*lowest, now) {
                (Some(lowest), Some(now)) => Some(lowest.min(now)),
                (lowest, now) => lowest.or(now),
            };
        }
        if self.samples.is_multiple_of(self.stride) {
            if self.points.len() == MAX_POINTS {
                let mut index = 0;
                self.points.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.stride *= 2;
            }
            if self.samples.is_multiple_of(self.stride) {
                self.points.push(point);
            }
        }
        self.samples += 1;
        self.last = entry;
    }

    /// What it is called: its name, if it has one, and which product of the step it is. What cannot be printed is escaped, and what is long after that is
    /// shortened.
    pub fn label(&self) -> String {
        let SiteEntry { site, name, kind, gemm, products, .. } = &self.last;
        match (name.is_empty(), &products.output) {
            (false, _) => format!("{} #{site}", printed(name)),
            (true, None) => format!("{} #{site} (backward)", printed(kind)),
            (true, _) => format!("{} #{site} ({}→{})", printed(kind), gemm.k, gemm.n),
        }
    }
}

/// A text of a log as a table or a page has it: escaped, and then no longer than a line has room for.
pub(crate) fn printed(text: &str) -> String {
    const LENGTH: usize = 160;
    // Nothing is escaped twice.
    shown(&shown(text, MAX_TEXT), LENGTH)
}

impl Point {
    fn of(entry: &SiteEntry) -> Self {
        let operand = |operand| {
            let stats = entry.operands.of(operand)?;
            Some(OperandPoint {
                amax: stats.amax.into(),
                scale: stats.scale.into(),
                flushed: stats.share(stats.flushed),
                saturated: stats.share(stats.saturated),
                non_finite: stats.share(stats.non_finite),
                sqnr: stats.sqnr.decibels(),
            })
        };
        let product = |role| entry.products.of(role)?.sqnr.decibels();
        Self {
            step: entry.step,
            operands: Operand::ALL.map(operand),
            products: GemmRole::ALL.map(product),
        }
    }
}

/// The last sampled step in a few numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The step.
    pub step: u64,
    /// The lowest SQNR of a product, in dB; infinite where all are exact, `None` where none has a signal.
    pub worst_sqnr: Option<f64>,
    /// The mean of the SQNRs in dB of the products that are not exact; `None` where there are none.
    pub mean_sqnr: Option<f64>,
    /// The share of the sampled elements of all operands that were flushed to zero.
    pub flushed: f64,
    /// The share that saturated.
    pub saturated: f64,
    /// The share that is infinite or NaN.
    pub non_finite: f64,
}

impl Observations {
    /// The last sampled step; `None` where nothing was sampled.
    pub fn summary(&self) -> Option<Summary> {
        let [_, step] = self.span?;
        let products =
            self.latest().flat_map(|entry| GemmRole::ALL.map(|role| entry.products.of(role)));
        let sqnrs: Vec<f64> =
            products.flatten().filter_map(|stats| stats.sqnr.decibels()).collect();
        let finite: Vec<f64> = sqnrs.iter().copied().filter(|sqnr| sqnr.is_finite()).collect();
        let mean = finite.iter().sum::<f64>() / finite.len() as f64;

        let operands =
            || self.latest().flat_map(|entry| Operand::ALL.map(|o| entry.operands.of(o))).flatten();
        // In f64: counts are at most 2^53, their sums may be more than u64 has.
        let sum =
            |count: fn(&OperandStats) -> u64| operands().map(|o| count(o) as f64).sum::<f64>();
        let sampled = sum(|stats| stats.sampled).max(1.0);
        Some(Summary {
            step,
            worst_sqnr: sqnrs.iter().copied().reduce(f64::min),
            mean_sqnr: (!finite.is_empty()).then_some(mean),
            flushed: sum(|stats| stats.flushed) / sampled,
            saturated: sum(|stats| stats.saturated) / sampled,
            non_finite: sum(|stats| stats.non_finite) / sampled,
        })
    }
}
