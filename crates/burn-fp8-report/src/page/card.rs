//! One site: advice, products, operands.

use burn_fp8_core::{GemmRole, Operand};
use maud::{Markup, html};

use super::text::{count, counted, magnitude, percent};
use super::{bars, lines};
use crate::observations::printed;
use crate::sample::{Alternative, OperandStats, Prediction, ProductStats};
use crate::sqnr::decibels;
use crate::{Advice, Ranked, SiteSeries};

/// The card of a site, of its products, the worst first. Empty without any.
pub(super) fn card(ranked: &[&Ranked], is_open: bool) -> Markup {
    let Some(Ranked { site, index: id, role, sqnr, .. }) = ranked.first() else {
        return html! {};
    };
    let last = &site.last;
    html! {
        details.card id={ "site-" (id) } open[is_open] {
            summary {
                b { (site.label()) }
                span.faint { (printed(&last.kind)) ", M×N×K " (last.gemm) }
                span { (role) ": " (decibels(*sqnr)) }
            }
            .body {
                ul.advice {
                    @for ranked in ranked {
                        li { b { (ranked.role) } " " span class=(class(ranked)) { (ranked.sentence()) } }
                    }
                }
                (products(site))
                .grid {
                    @for operand in Operand::ALL {
                        @if let Some(stats) = last.operands.of(operand) { (operand_figure(operand, stats)) }
                    }
                }
                @if site.points.len() > 1 { (over_time(site)) }
                p.facts {
                    "Recipe: " (printed(&last.recipe)) ". Last sampled in step " (count(last.step)) "; " (counted(site.samples, "sample")) "."
                }
            }
        }
    }
}

pub(super) fn class(ranked: &Ranked) -> &'static str {
    match ranked.advice {
        _ if ranked.is_action() => "act",
        Advice::Fits => "fits",
        _ => "faint",
    }
}

/// What each product has, and would have otherwise.
fn products(site: &SiteSeries) -> Markup {
    let stats = || GemmRole::ALL.into_iter().filter_map(|role| site.last.products.of(role));
    let with_sums = stats().any(|stats| stats.sums.is_some());
    html! {
        .scroll {
            table {
                tr {
                    th { "product" } th.wide { "formats" } th.num { "SQNR now" } th.num.wide { "all / median line" } th.num.wide { "lowest" }
                    @if with_sums { th { "SQNR of sums" } }
                    th.alternatives { "alternatives, on the same sample" } th.num.wide { "computed" }
                }
                @for (role, lowest) in GemmRole::ALL.into_iter().zip(site.lowest) {
                    @if let Some(stats) = site.last.products.of(role) {
                        tr {
                            td.one { (key(role as usize)) (role) }
                            td.one.wide { (stats.formats[0]) " × " (stats.formats[1]) }
                            td.num { (decibels(stats.sqnr.decibels())) }
                            td.num.faint.wide { (decibels(stats.sqnr.whole.decibels())) " / " (decibels(stats.sqnr.line.decibels())) }
                            td.num.wide { (decibels(lowest)) }
                            @if with_sums { td { (sums(stats)) } }
                            td { (alternatives(stats)) }
                            td.num.faint.wide { (counted(stats.outputs, "sum")) " of " (count(stats.terms)) }
                        }
                    }
                }
            }
        }
    }
}

/// The SQNR of the sums of each card, one below the other.
pub(super) fn sums(stats: &ProductStats) -> Markup {
    let cards = stats.sums.iter().flat_map(|sums| &sums.cards);
    html! { @for (place, card) in cards.enumerate() { @if place > 0 { br; } span.one { (card) } } }
}

/// The square in the colour of a curve.
fn key(curve: usize) -> Markup {
    html! { span class={ "key k" (curve) } {} }
}

fn alternatives(stats: &ProductStats) -> Markup {
    let advised = match Advice::of(stats) {
        Advice::Change { alternative, .. } => Some(alternative),
        _ => None,
    };
    let texts = stats.alternatives.iter().map(|Prediction { alternative, sqnr }| {
        let name = match alternative {
            Alternative::PerRow => "row-wise".into(),
            Alternative::CurrentScale => "current scale".into(),
            formats => formats.to_string(),
        };
        let text = html! { span.one { (name) " " (decibels(sqnr.decibels())) } };
        html! { @if advised == Some(*alternative) { b { (text) } } @else { (text) } }
    });
    joined(texts)
}

fn joined(texts: impl IntoIterator<Item = Markup>) -> Markup {
    html! { @for (place, text) in texts.into_iter().enumerate() { @if place > 0 { " · " } (text) } }
}

fn operand_figure(operand: Operand, stats: &OperandStats) -> Markup {
    let share = |name: &str, number: u64| {
        let text = format!("{} {name}", percent(stats.share(number)));
        html! { @if name == "zero" || number == 0 { (text) } @else { b { (text) } } }
    };
    let mut shares = vec![
        share("zero", stats.zeros),
        share("flushed", stats.flushed),
        share("saturated", stats.saturated),
    ];
    if stats.non_finite > 0 {
        shares.push(share("not finite", stats.non_finite));
    }
    let title = html! { (operand) " " span.faint { (stats.format) ", " (decibels(stats.sqnr.decibels())) } };
    let facts = html! {
        "amax " (magnitude(stats.amax.into())) " · " @if stats.per_row { "scales to" } @else { "scale" } " " (magnitude(stats.scale.into())) " · "
        @if stats.sampled == stats.elements { "all " } @else { (count(stats.sampled)) " of " }
        (counted(stats.elements, "element")) br; (joined(shares))
    };
    figure(title, bars::histogram(stats), facts)
}

fn figure(title: Markup, picture: Markup, facts: Markup) -> Markup {
    html! { figure { figcaption { h3 { (title) } } (picture) .facts { (facts) } } }
}

/// The share of elements lost from which on it is drawn over time.
const SHOWN: f64 = 0.001;

fn over_time(site: &SiteSeries) -> Markup {
    let has =
        |role: &GemmRole| site.points.iter().any(|point| point.products[*role as usize].is_some());
    let loses = |operand: &Operand| {
        let operands = site.points.iter().filter_map(|point| point.operands[*operand as usize]);
        operands.into_iter().any(|o| o.flushed + o.saturated + o.non_finite >= SHOWN)
    };
    let keys = html! { @for role in GemmRole::ALL.into_iter().filter(has) { (key(role as usize)) (role) } };
    html! {
        .grid {
            (figure(html! { "SQNR of the products" }, lines::sqnr(site), keys))
            @for operand in Operand::ALL {
                @if let Some(stats) = site.last.operands.of(operand) {
                    (figure(html! { "amax and scale of " (operand) }, lines::amax(site, operand), html! {
                        (key(0)) "amax" (key(1)) "scale × " (stats.format.max()) ", the largest number that has a code"
                    }))
                }
            }
            @for operand in Operand::ALL.into_iter().filter(loses) {
                (figure(html! { "What " (operand) " loses" }, lines::shares(site, operand), html! {
                    (key(0)) "flushed" (key(1)) "saturated" (key(2)) "not finite"
                }))
            }
        }
    }
}
