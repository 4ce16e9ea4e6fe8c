//! The page: one HTML file with its style and drawings, without scripts and without anything from a network.

mod bars;
mod card;
mod lines;
mod text;

use core::fmt::Write;
use std::collections::BTreeSet;

use text::{count, escape};

use crate::sqnr::decibels;
use crate::{Observations, Ranked};

const STYLE: &str = include_str!("style.css");
/// Rows of the ranking, and cards, that are shown at once; the rest is folded up.
const ROWS: usize = 24;
const OPEN_CARDS: usize = 4;

impl Observations {
    /// The page that shows them, to be written to a file and opened from there.
    ///
    /// Everything that comes from a log is escaped. Site cards after the first four are folded up, as are rows after the 24th.
    pub fn to_html(&self) -> String {
        let ranked = self.ranked();
        let mut html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <title>FP8 observatory</title><style>{STYLE}</style></head><body><h1>FP8 observatory</h1>"
        );
        html += &self.run(&ranked);
        html += "<h2>Products, worst first</h2>";
        html += &ranking(&ranked);
        html += "<h2>Sites, worst first</h2>";
        html += LEGEND;
        let mut own = vec![Vec::new(); self.sites.len()];
        ranked.iter().for_each(|product| own[product.index].push(product));
        let mut shown = 0;
        for worst in &ranked {
            let own = core::mem::take(&mut own[worst.index]);
            if !own.is_empty() {
                html += &card::card(&own, shown < OPEN_CARDS);
                shown += 1;
            }
        }
        html += READING;
        html + "</body></html>\n"
    }

    fn run(&self, ranked: &[Ranked]) -> String {
        let recipes: BTreeSet<_> =
            self.sites.iter().map(|site| site.last.recipe.as_str()).collect();
        let recipes: Vec<_> = recipes.into_iter().take(8).map(escape).collect();
        let steps = match self.span {
            None => "none".into(),
            Some([first, last]) => format!(
                "{} sampled, from step {} to {}, every {}",
                count(self.steps),
                count(first),
                count(last),
                match self.header.every {
                    1 => "step".into(),
                    every => format!("{} steps", count(every)),
                }
            ),
        };
        let act = ranked.iter().filter(|ranked| ranked.advice.is_action()).count();
        let verdict = match (ranked.len(), act) {
            (0, _) => "Nothing was sampled.".into(),
            (all, 0) => {
                format!("FP8 fits all {all} products, or another way would hardly help.")
            }
            (all, act) => {
                format!(
                    "<span class=\"act\">FP8 costs {act} of {all} products more than it has to.</span>"
                )
            }
        };
        let mut html = format!(
            "<p>{verdict}</p><dl class=\"run\"><dt>recipe</dt><dd>{}</dd><dt>steps</dt><dd>{steps}</dd>\
             <dt>sites</dt><dd>{} with {} products in FP8</dd><dt>sample</dt><dd>at most {} elements of an operand</dd></dl>",
            recipes.join("; "),
            count(self.sites.len() as u64),
            count(ranked.len() as u64),
            count(self.header.max_elements)
        );
        if let Some(line) = self.cut_line {
            let _ = write!(
                html,
                "<p class=\"act\">The log's last line, {line}, was cut off and left out.</p>"
            );
        }
        html
    }
}

fn ranking(ranked: &[Ranked]) -> String {
    let mut html = rows(&ranked[..ranked.len().min(ROWS)], 1);
    if ranked.len() > ROWS {
        let rest = ranked.len() - ROWS;
        let _ = write!(
            html,
            "<details class=\"card\"><summary>{} more</summary><div class=\"body\">{}</div></details>",
            count(rest as u64),
            rows(&ranked[ROWS..], ROWS + 1)
        );
    }
    html
}

fn rows(ranked: &[Ranked], first: usize) -> String {
    let mut html = String::from(
        "<div class=\"scroll\"><table><tr><th class=\"num wide\">#</th><th>site</th><th>product</th><th class=\"wide\">M×N×K</th>\
         <th class=\"num\">SQNR now</th><th class=\"num wide\">lowest</th><th class=\"wide\">over time</th>\
         <th class=\"choice\">advice</th><th class=\"num wide\">FLOPs</th></tr>",
    );
    for (place, ranked) in (first..).zip(ranked) {
        let _ = write!(
            html,
            "<tr><td class=\"num faint wide\">{place}</td><td class=\"site\"><a href=\"#site-{}\">{}</a></td><td>{}</td><td class=\"wide\">{}</td>\
             <td class=\"num\">{}</td><td class=\"num wide\">{}</td><td class=\"wide\">{}</td><td class=\"{}\">{}</td><td class=\"num wide\">{:.1} %</td></tr>",
            ranked.index,
            escape(&ranked.site.label()).replace('.', ".<wbr>"),
            ranked.role,
            ranked.site.last.gemm.for_role(ranked.role),
            decibels(ranked.sqnr),
            decibels(ranked.lowest),
            lines::sparkline(ranked.site, ranked.role),
            card::class(&ranked.advice),
            escape(&ranked.advice.to_string()).replace(" dB", "&nbsp;dB"),
            100.0 * ranked.flops
        );
    }
    html + "</table></div>"
}

const LEGEND: &str = "<p class=\"faint\">Histograms: share of the elements by exponent, on a logarithmic axis, over what the format can represent at \
    its scale: <span class=\"one\"><span class=\"key kn\"></span>normal numbers</span>, <span class=\"key ks\"></span>subnormal ones, which have fewer bits, \
    <span class=\"key kl\"></span>too small (flushed to zero) or too large (saturated).</p>";

const READING: &str = "<h2>How to read this</h2>\
    <p>SQNR is the power of a result over the power of its quantization error, in dB: at 20 dB the error is a tenth of the result's \
    magnitude, at 40 dB a hundredth. Rounding alone leaves about 29.5 dB to a product of E4M3 and E4M3, 25.5 dB to one of E4M3 and E5M2, more where values lie near codes or many are zero. \
    That of a product is the lower of two: that of all its elements, and that of its median row or column, since few large rows would hide that all others \
    are lost. It is measured on up to 32 × 32 of its results, with and without quantized operands, both summed in f64: what \
    tensor cores lose while they add is not in it.</p>\
    <p>Alternatives are measured in the same way on the same sample. Row-wise scales: one for each row of the left operand and each column \
    of the right one. A recipe sets formats by operand, for all three products of a site at once, and hardware never multiplies E5M2 by E5M2. \
    High precision is exact by definition; its price is the share of FLOPs. \
    A product fits where it is at most 3 dB below what rounding alone leaves, whatever others would give; an alternative is advised, and bold, where it gains at least 3 dB, \
    the one that changes least first. FP8 layers have one scale per tensor from earlier steps: another way means the plain layer under Fp8Backend.</p>";
