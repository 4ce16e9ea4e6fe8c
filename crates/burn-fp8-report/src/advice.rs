//! What to do about a product that FP8 does not fit, and the table of all of them, worst first.

use core::fmt;

use burn_fp8_core::sums::{Accumulation, Sums};
use burn_fp8_core::{Fp8Format, GemmRole, Operand};
use comfy_table::{CellAlignment, Table, presets};

use crate::sample::{Alternative, CardSums, ProductStats};
use crate::sqnr::{decibels, rounding_limit};
use crate::{Observations, SiteSeries};

/// How far below [`rounding_limit`] a product may be, and how much an alternative has to gain, in dB: a factor of two in noise power.
/// Smaller differences are those between one batch and the next.
pub const LEAST_GAIN: f64 = 3.0;

/// Below this SQNR, in dB, the error of a product is more than a tenth of its magnitude.
pub const POOR: f64 = 20.0;

/// How far the SQNR of fast sums has to be above that of rounding, in dB: their error then is less than a tenth of its power. Not less, as errors of
/// sums are cut toward zero, which no average over samples takes away, and grow with the terms that a sample leaves out.
pub const SUM_MARGIN: f64 = 10.0;

/// A product of a site, with what to do about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked<'a> {
    /// The site.
    pub site: &'a SiteSeries,
    /// Which one it is of [`Observations::sites`].
    pub index: usize,
    /// Which of its three products.
    pub role: GemmRole,
    /// What was measured in the last sample.
    pub stats: &'a ProductStats,
    /// Its SQNR in dB in the last sample, that of all of it or of its median line; `None` without signal.
    pub sqnr: Option<f64>,
    /// The lowest SQNR of all samples, in dB.
    pub lowest: Option<f64>,
    /// Its share of the floating-point operations of the FP8 products of all sites, each as last sampled; between 0 and 1.
    pub flops: f64,
    /// What to do.
    pub advice: Advice,
    /// How it should accumulate, where fast sums lose too much.
    pub split: Option<SplitSums>,
}

/// What to do about a product. The numbers are measured on the last sample, none is estimated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Advice {
    /// Nothing: it loses little more than the rounding of its formats.
    Fits,
    /// Nothing was measured: an operand is all zeros.
    NoSignal,
    /// Results are infinite or NaN.
    NonFinite,
    /// Another way to run it in FP8 loses less than half the noise power.
    Change {
        /// The way.
        alternative: Alternative,
        /// Its SQNR in dB.
        sqnr: f64,
        /// What it gains, in dB.
        gain: f64,
        /// Whether it is still below [`POOR`]: high precision is the other choice.
        is_poor: bool,
    },
    /// The error is large, and no other way in FP8 helps: run it in high precision.
    HighPrecision {
        /// The best alternative in FP8, in dB.
        best: Option<f64>,
    },
    /// It loses more than it would have to, but no alternative gains [`LEAST_GAIN`] dB.
    Bearable,
}

impl Advice {
    /// What to do about a product, from its measurements.
    pub fn of(stats: &ProductStats) -> Self {
        if stats.non_finite > 0 {
            return Self::NonFinite;
        }
        let Some(now) = stats.sqnr.decibels() else { return Self::NoSignal };
        if now >= rounding_limit(stats.formats) - LEAST_GAIN {
            return Self::Fits;
        }
        let predictions = stats.alternatives.iter();
        let known = |alternative: &Alternative, sqnr: Option<f64>| Some((*alternative, sqnr?));
        let predictions: Vec<_> =
            predictions.filter_map(|p| known(&p.alternative, p.sqnr.decibels())).collect();
        let best = predictions.iter().map(|(_, sqnr)| *sqnr).reduce(f64::max);
        // The simplest comes first; a more costly one has to be better by a worthwhile amount.
        let is_choice = |sqnr: f64| {
            sqnr >= now + LEAST_GAIN && best.is_some_and(|best| sqnr >= best - LEAST_GAIN)
        };
        match predictions.into_iter().find(|(_, sqnr)| is_choice(*sqnr)) {
            Some((alternative, sqnr)) => {
                Self::Change { alternative, sqnr, gain: sqnr - now, is_poor: sqnr < POOR }
            }
            _ if now < POOR => Self::HighPrecision { best },
            _ => Self::Bearable,
        }
    }

    /// Whether there is something to do.
    pub fn is_action(self) -> bool {
        matches!(self, Self::Change { .. } | Self::HighPrecision { .. } | Self::NonFinite)
    }
}

/// A product that accumulates fast and should be split. The numbers are measured on the last sample; the error of the whole sum is larger.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitSums {
    /// Whose sums: of the cards asked about the one whose fast sums lose most.
    pub sums: Sums,
    /// The SQNR of fast sums, in dB.
    pub fast: f64,
    /// That of split ones, in dB.
    pub split: f64,
}

impl SplitSums {
    /// Whether fast sums of a product are less than [`SUM_MARGIN`] above its rounding, or above what its formats could leave, and split ones gain [`LEAST_GAIN`].
    pub fn of(stats: &ProductStats) -> Option<Self> {
        let sums = stats.sums.as_ref()?;
        // What is advised beside it may split by itself: with several scales every product is.
        let is_split = match Advice::of(stats) {
            Advice::Change { alternative, .. } if alternative.has_several_scales() => true,
            _ => sums.accumulation == Accumulation::Split,
        };
        if stats.non_finite > 0 || is_split {
            return None;
        }
        // Operands that happen to be codes lose nothing by rounding: every error would be too much beside that.
        let rounding = stats.sqnr.decibels()?.min(rounding_limit(stats.formats));
        let known = |CardSums { sums, fast, split }: &CardSums| {
            Some(Self { sums: *sums, fast: fast.decibels()?, split: split.decibels()? })
        };
        let loses = |of: &Self| of.fast < rounding + SUM_MARGIN && of.split >= of.fast + LEAST_GAIN;
        let losing = sums.cards.iter().filter_map(known).filter(loses);
        losing.min_by(|a, b| a.fast.total_cmp(&b.fast))
    }
}

impl Ranked<'_> {
    /// Whether there is something to do.
    pub fn is_action(&self) -> bool {
        self.advice.is_action() || self.split.is_some()
    }

    /// The advice in few words.
    pub fn in_short(&self) -> String {
        match self.split {
            None => self.advice.to_string(),
            Some(split) if self.advice.is_action() => format!("{}; {split}", self.advice),
            Some(split) => split.to_string(),
        }
    }

    /// The advice as a sentence, or as two where the product should also be split.
    pub fn sentence(&self) -> String {
        let of_rounding = self.of_rounding();
        let Some(SplitSums { sums, fast, split }) = self.split else { return of_rounding };
        let gain = match split.is_finite() {
            true => format!(", {:.1} dB more", split - fast),
            false => String::new(),
        };
        format!(
            "{of_rounding} Use with_accumulation(GemmRole::{:?}, Accumulation::Split): sums of {} have {} instead of {}{gain}.",
            self.role,
            sums.name(),
            decibels(Some(split)),
            decibels(Some(fast)),
        )
    }

    fn of_rounding(&self) -> String {
        let share = format!("{:.1} % of the FLOPs of all FP8 products", 100.0 * self.flops);
        let now = decibels(self.sqnr);
        match self.advice {
            Advice::Fits => {
                let limit = rounding_limit(self.stats.formats);
                match self.sqnr.is_some_and(|sqnr| sqnr > limit) {
                    true => format!("FP8 fits: {now}."),
                    false => format!("FP8 fits: {now}; rounding alone leaves about {limit:.1} dB."),
                }
            }
            Advice::NoSignal => "Nothing to measure: an operand is all zeros.".into(),
            Advice::NonFinite => {
                let count = self.stats.non_finite;
                format!(
                    "{count} of the computed results are infinite or NaN: look for what diverges, not for a format."
                )
            }
            Advice::Change { alternative, sqnr, gain, is_poor } => {
                let (sqnr, how) = (decibels(Some(sqnr)), how(self.role, alternative));
                // A layer of FP8 has no recipe: the decorator around the plain one does.
                let how = match self.site.last.kind == FP8_LAYER {
                    true => format!("As a plain layer under Fp8Backend: {how}"),
                    false => how,
                };
                let gain = match gain.is_finite() {
                    true => format!(", {gain:.1} dB more"),
                    false => String::new(),
                };
                let also = match is_poor {
                    true => {
                        format!(" Still poor: high precision for this product would cost {share}.")
                    }
                    false => String::new(),
                };
                format!("{how}: {sqnr} instead of {now}{gain}.{also}")
            }
            Advice::HighPrecision { best } => {
                let best = best.map_or(String::new(), |best| {
                    format!(" The best of the alternatives in FP8 gives {}.", decibels(Some(best)))
                });
                format!("Run this product in high precision: {now} in FP8; it is {share}.{best}")
            }
            Advice::Bearable => {
                format!(
                    "{now}: less than its formats can give, but no alternative gains {LEAST_GAIN} dB."
                )
            }
        }
    }
}

/// The kind of sites that are layers with scales of their own.
pub const FP8_LAYER: &str = "FP8 layer";

/// An alternative as an instruction.
fn how(role: GemmRole, alternative: Alternative) -> String {
    match alternative {
        Alternative::CurrentScale => {
            "Use current scaling, or a shorter history: the delayed scale does not fit".into()
        }
        Alternative::Formats(formats) => {
            let mut is_e5m2 = role.operands().into_iter().zip(formats);
            let forward = is_e5m2.any(|(operand, format)| {
                operand != Operand::OutputGrad && format == Fp8Format::E5M2
            });
            // Hardware does not multiply E5M2 by E5M2, and a format holds in all products of an operand.
            let gradient = if forward { ", which needs E4M3 for the output gradient" } else { "" };
            format!("Use {} × {} for the operands{gradient}", formats[0], formats[1])
        }
        Alternative::PerRow => "Use row-wise scales".into(),
        Alternative::Blockwise => "Use scales of blocks of 128 (Recipe::blockwise)".into(),
        Alternative::Mxfp8 => "Use MXFP8 (Recipe::mxfp8)".into(),
    }
}

impl Observations {
    /// Every product of every site in its last sample, the one that FP8 fits worst first: by SQNR, products with results that are not
    /// finite before all others, those without signal last.
    pub fn ranked(&self) -> Vec<Ranked<'_>> {
        let flops = self.flops();
        let mut ranked: Vec<_> = self
            .sites
            .iter()
            .enumerate()
            .flat_map(|site| {
                let roles = GemmRole::ALL.into_iter().zip(site.1.lowest);
                roles.map(move |(role, lowest)| (site, role, lowest))
            })
            .filter_map(|((index, site), role, lowest)| {
                let stats = site.last.products.of(role)?;
                Some(Ranked {
                    site,
                    index,
                    role,
                    stats,
                    sqnr: stats.sqnr.decibels(),
                    lowest,
                    flops: site.last.gemm.flops() / flops,
                    advice: Advice::of(stats),
                    split: SplitSums::of(stats),
                })
            })
            .collect();
        let key = |ranked: &Ranked| match (ranked.advice, ranked.sqnr) {
            (Advice::NonFinite, _) => f64::NEG_INFINITY,
            (_, sqnr) => sqnr.unwrap_or(f64::INFINITY),
        };
        ranked.sort_by(|a, b| key(a).total_cmp(&key(b)));
        ranked
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fits => write!(f, "fits"),
            Self::NoSignal => write!(f, "no signal"),
            Self::NonFinite => write!(f, "not finite"),
            Self::Change { alternative, sqnr, .. } => {
                write!(f, "{alternative}: {}", decibels(Some(*sqnr)))
            }
            Self::HighPrecision { .. } => write!(f, "high precision"),
            Self::Bearable => write!(f, "bearable"),
        }
    }
}

impl fmt::Display for SplitSums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "split sums: {}", decibels(Some(self.split)))
    }
}

/// Whether the sums of any product were measured: without, there is nothing to show of them.
pub(crate) fn have_sums<'a>(ranked: impl IntoIterator<Item = &'a Ranked<'a>>) -> bool {
    ranked.into_iter().any(|ranked| ranked.stats.sums.is_some())
}

impl fmt::Display for Observations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        let ranked = self.ranked();
        let mut header = vec!["site", "product", "M×N×K", "SQNR", "lowest", "advice"];
        let with_sums = have_sums(&ranked);
        if with_sums {
            header.push("SQNR of sums");
        }
        table.set_header(header);
        for ranked in ranked {
            let mut row = vec![
                ranked.site.label(),
                ranked.role.to_string(),
                ranked.site.last.gemm.for_role(ranked.role).to_string(),
                decibels(ranked.sqnr),
                decibels(ranked.lowest),
                ranked.in_short(),
            ];
            if with_sums {
                let cards = ranked.stats.sums.iter().flat_map(|sums| &sums.cards);
                row.push(cards.map(CardSums::to_string).collect::<Vec<_>>().join("; "));
            }
            table.add_row(row);
        }
        for column in [2, 3, 4] {
            table
                .column_mut(column)
                .expect("at least six columns")
                .set_cell_alignment(CellAlignment::Right);
        }
        writeln!(f, "{}", table.trim_fmt())?;
        let span = self
            .span
            .map_or(String::new(), |[first, last]| format!(", from step {first} to {last}"));
        write!(f, "{} sites, {} steps sampled{span}", self.sites.len(), self.steps)
    }
}
