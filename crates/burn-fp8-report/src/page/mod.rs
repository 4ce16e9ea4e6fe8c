//! The page: one HTML file with its style and drawings, without scripts and without anything from a network.

mod bars;
mod card;
mod lines;
pub(crate) mod text;

use std::collections::BTreeSet;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use text::{count, counted};

use crate::advice::have_sums;
use crate::observations::printed;
use crate::sqnr::decibels;
use crate::{Observations, Ranked};

const STYLE: PreEscaped<&str> = PreEscaped(include_str!("style.css"));
/// Rows of the ranking, and cards, that are shown at once; the rest is folded up.
const ROWS: usize = 24;
const OPEN_CARDS: usize = 4;
/// Sites that are drawn: each takes 25 KB, and a browser should open the page of any log.
const SITES: usize = 256;

impl Observations {
    /// The page that shows them, to be written to a file and opened from there.
    ///
    /// Everything that comes from a log is escaped. Site cards after the first four are folded up, as are rows after the 24th. Of more than 256 sites those that
    /// FP8 fits worst are drawn, and the page says how many are left out.
    pub fn to_html(&self) -> String {
        let ranked = self.ranked();
        let mut own = vec![Vec::new(); self.sites.len()];
        ranked.iter().for_each(|product| own[product.index].push(product));
        let cards = ranked.iter().map(|worst| core::mem::take(&mut own[worst.index]));
        let mut cards: Vec<_> = cards.filter(|own| !own.is_empty()).collect();
        let left_out = cards.split_off(cards.len().min(SITES));
        let drawn: BTreeSet<_> = cards.iter().map(|own| own[0].index).collect();
        let rows: Vec<_> = ranked.iter().filter(|row| drawn.contains(&row.index)).collect();
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { "FP8 observatory" }
                    style { (STYLE) }
                }
                body {
                    h1 { "FP8 observatory" }
                    (self.run(&ranked))
                    h2 { "Products, worst first" }
                    p.faint {
                        "SQNR: the power of a result over that of its rounding error, in dB. Higher is better: at 20 dB the error is a tenth of the result, at 40 dB a hundredth."
                    }
                    (ranking(&rows))
                    @if !left_out.is_empty() {
                        p.act {
                            (counted(left_out.len() as u64, "site")) " left out of this page, as FP8 fits them no worse than these; the observatory's table has all."
                        }
                    }
                    h2 { "Sites, worst first" }
                    (legend())
                    @for (place, own) in cards.iter().enumerate() { (card::card(own, place < OPEN_CARDS)) }
                    (reading())
                }
            }
        };
        page.into_string() + "\n"
    }

    fn run(&self, ranked: &[Ranked]) -> Markup {
        let recipes: BTreeSet<_> =
            self.sites.iter().map(|site| site.last.recipe.as_str()).collect();
        let recipes: Vec<_> = recipes.into_iter().take(8).map(printed).collect();
        let act = ranked.iter().filter(|ranked| ranked.is_action()).count();
        html! {
            p {
                @match (ranked.len(), act) {
                    (0, _) => "Nothing was sampled.",
                    (all, 0) => { "FP8 fits all of " (counted(all as u64, "product")) ", or another way would hardly help." }
                    (all, act) => span.act { "FP8 costs " (act) " of " (counted(all as u64, "product")) " more than it has to." }
                }
            }
            dl.run {
                dt { "recipe" }
                dd { (recipes.join("; ")) }
                dt { "steps" }
                dd {
                    @match self.span {
                        None => "none",
                        Some([first, last]) => {
                            (count(self.steps)) " sampled, from step " (count(first)) " to " (count(last)) ", every "
                            @match self.header.every { 1 => "step", every => { (count(every)) " steps" } }
                        }
                    }
                }
                dt { "sites" }
                dd { (count(self.sites.len() as u64)) " with " (counted(ranked.len() as u64, "product")) " in FP8" }
                dt { "sample" }
                dd { "at most " (counted(self.header.max_elements, "element")) " of an operand" }
            }
            @if let Some(line) = self.cut_line {
                p.act { "The log's last line, " (line) ", was cut off and left out." }
            }
        }
    }
}

fn ranking(ranked: &[&Ranked]) -> Markup {
    let (shown, rest) = ranked.split_at(ranked.len().min(ROWS));
    let with_sums = have_sums(ranked.iter().copied());
    html! {
        (rows(shown, 1, with_sums))
        @if !rest.is_empty() {
            details.card {
                summary { (count(rest.len() as u64)) " more" }
                .body { (rows(rest, ROWS + 1, with_sums)) }
            }
        }
    }
}

fn rows(ranked: &[&Ranked], first: usize, with_sums: bool) -> Markup {
    html! {
        .scroll {
            table {
                tr {
                    th.num.wide { "#" } th { "site" } th { "product" } th.wide { "M×N×K" } th.num { "SQNR now" } th.num.wide { "lowest" }
                    @if with_sums { th.wide { "SQNR of sums" } }
                    th.wide { "over time" } th.choice { "advice" } th.num.wide { "FLOPs" }
                }
                @for (place, ranked) in (first..).zip(ranked) {
                    tr {
                        td.num.faint.wide { (place) }
                        td.site {
                            a href={ "#site-" (ranked.index) } {
                                @for (part, name) in ranked.site.label().split('.').enumerate() {
                                    @if part > 0 { "." wbr; }
                                    (name)
                                }
                            }
                        }
                        td { (ranked.role) }
                        td.wide { (ranked.site.last.gemm.for_role(ranked.role)) }
                        td.num { (decibels(ranked.sqnr)) }
                        td.num.wide { (decibels(ranked.lowest)) }
                        @if with_sums { td.wide { (card::sums(ranked.stats)) } }
                        td.wide { (lines::sparkline(ranked.site, ranked.role)) }
                        td class=(card::class(ranked)) { (ranked.in_short().replace(" dB", "\u{a0}dB")) }
                        td.num.wide { (format_args!("{:.1} %", 100.0 * ranked.flops)) }
                    }
                }
            }
        }
    }
}

fn legend() -> Markup {
    html! {
        p.faint {
            "Histograms: share of the elements by exponent, on a logarithmic axis, over what the format can represent at its scale: "
            span.one { span.key.kn {} "normal numbers" } ", " span.key.ks {} "subnormal ones, which have fewer bits, "
            span.key.kl {} "too small (flushed to zero) or too large (saturated)."
        }
    }
}

fn reading() -> Markup {
    html! {
        h2 { "How to read this" }
        p {
            "SQNR is the power of a result over the power of its quantization error, in dB: at 20 dB the error is a tenth of the result's \
            magnitude, at 40 dB a hundredth. Rounding alone leaves about 29.5 dB to a product of E4M3 and E4M3, 25.5 dB to one of E4M3 and E5M2, more where values lie near codes or many are zero. \
            That of a product is the lower of two: that of all its elements, and that of its median row or column, since few large rows would hide that all others \
            are lost. It is measured on up to 32 × 32 of its results, with and without quantized operands, both summed in f64."
        }
        p {
            "SQNR of sums, where a card was asked about, is what its tensor cores lose while they add, apart from rounding: their sum of the very codes against the exact one. \
            Fast is one chain over K, split begins a new one now and then. The error grows with K: where fewer terms were sampled, that of the whole sum is larger. \
            Split is advised for a product that accumulates fast, less than 10 dB above what its rounding leaves, where it gains at least 3 dB. Products with scales of blocks have no such number."
        }
        p {
            "Alternatives are measured in the same way on the same sample. Row-wise scales: one for each row of the left operand and each column \
            of the right one. A recipe sets formats by operand, for all three products of a site at once, and hardware never multiplies E5M2 by E5M2. \
            High precision is exact by definition; its price is the share of FLOPs. \
            A product fits where it is at most 3 dB below what rounding alone leaves, whatever others would give; an alternative is advised, and bold, where it gains at least 3 dB, \
            the one that changes least first. FP8 layers have one scale per tensor from earlier steps: another way means the plain layer under Fp8Backend."
        }
    }
}
