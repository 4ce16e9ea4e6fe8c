//! One site: advice, products, operands.

use core::fmt::Write;

use burn_fp8_core::{GemmRole, Operand};

use super::text::{count, escape, magnitude, percent};
use super::{bars, lines};
use crate::sample::{Alternative, OperandStats};
use crate::sqnr::decibels;
use crate::{Advice, Ranked, SiteSeries};

/// The card of a site, of its products, the worst first. Empty without any.
pub(super) fn card(ranked: &[&Ranked], is_open: bool) -> String {
    let Some(Ranked { site, index: id, role, sqnr, .. }) = ranked.first() else {
        return String::new();
    };
    let last = &site.last;
    let worst = format!("{role}: {}", decibels(*sqnr));
    let open = if is_open { " open" } else { "" };
    let mut html = format!(
        "<details class=\"card\" id=\"site-{id}\"{open}><summary><b>{}</b><span class=\"faint\">{}, M×N×K {}</span><span>{worst}</span></summary><div class=\"body\">",
        escape(&site.label()),
        escape(&last.kind),
        last.gemm
    );
    html += "<ul class=\"advice\">";
    for ranked in ranked {
        let class = class(&ranked.advice);
        let _ = write!(
            html,
            "<li><b>{}</b> <span class=\"{class}\">{}</span></li>",
            ranked.role,
            escape(&ranked.sentence())
        );
    }
    html += "</ul>";
    html += &products(site);
    html += "<div class=\"grid\">";
    for operand in Operand::ALL {
        if let Some(stats) = last.operands.of(operand) {
            html += &operand_figure(operand, stats);
        }
    }
    html += "</div>";
    if site.points.len() > 1 {
        html += &over_time(site);
    }
    let _ = write!(
        html,
        "<p class=\"facts\">Recipe: {}. Last sampled in step {}; {} samples.</p>",
        escape(&last.recipe),
        count(last.step),
        count(site.samples)
    );
    html + "</div></details>"
}

pub(super) fn class(advice: &Advice) -> &'static str {
    match advice {
        advice if advice.is_action() => "act",
        Advice::Fits => "fits",
        _ => "faint",
    }
}

/// What each product has, and would have otherwise.
fn products(site: &SiteSeries) -> String {
    let mut html = String::from(
        "<div class=\"scroll\"><table><tr><th>product</th><th class=\"wide\">formats</th><th class=\"num\">SQNR now</th><th class=\"num wide\">all / median line</th><th class=\"num wide\">lowest</th>\
         <th class=\"alternatives\">alternatives, on the same sample</th><th class=\"num wide\">computed</th></tr>",
    );
    for (role, lowest) in GemmRole::ALL.into_iter().zip(site.lowest) {
        let Some(stats) = site.last.products.of(role) else { continue };
        let [lhs, rhs] = stats.formats;
        let advised = match Advice::of(stats) {
            Advice::Change { alternative, .. } => Some(alternative),
            _ => None,
        };
        let alternatives: Vec<_> = stats
            .alternatives
            .iter()
            .map(|prediction| {
                let sqnr = prediction.sqnr.decibels();
                let name = match prediction.alternative {
                    Alternative::PerRow => "row-wise".into(),
                    Alternative::CurrentScale => "current scale".into(),
                    formats => formats.to_string(),
                };
                let text = format!("<span class=\"one\">{name} {}</span>", decibels(sqnr));
                match advised == Some(prediction.alternative) {
                    true => format!("<b>{text}</b>"),
                    false => text,
                }
            })
            .collect();
        let _ = write!(
            html,
            "<tr><td class=\"one\"><span class=\"key k{}\"></span>{role}</td><td class=\"one wide\">{lhs} × {rhs}</td><td class=\"num\">{}</td><td class=\"num faint wide\">{} / {}</td><td class=\"num wide\">{}</td>\
             <td>{}</td><td class=\"num faint wide\">{} sums of {}</td></tr>",
            role as usize,
            decibels(stats.sqnr.decibels()),
            decibels(stats.sqnr.whole.decibels()),
            decibels(stats.sqnr.line.decibels()),
            decibels(lowest),
            alternatives.join(" · "),
            count(stats.outputs),
            count(stats.terms)
        );
    }
    html + "</table></div>"
}

fn operand_figure(operand: Operand, stats: &OperandStats) -> String {
    let share = |name: &str, number: u64| {
        let share = percent(stats.share(number));
        match (name, number) {
            ("zero", _) | (_, 0) => format!("{share} {name}"),
            _ => format!("<b>{share} {name}</b>"),
        }
    };
    let mut shares = vec![
        share("zero", stats.zeros),
        share("flushed", stats.flushed),
        share("saturated", stats.saturated),
    ];
    if stats.non_finite > 0 {
        shares.push(share("not finite", stats.non_finite));
    }
    let sampled = match stats.sampled == stats.elements {
        true => format!("all {} elements", count(stats.elements)),
        false => format!("{} of {} elements", count(stats.sampled), count(stats.elements)),
    };
    format!(
        "<figure><figcaption><h3>{operand} <span class=\"faint\">{}, {}</span></h3></figcaption>{}\
         <div class=\"facts\">amax {} · {} {} · {sampled}<br>{}</div></figure>",
        stats.format,
        decibels(stats.sqnr.decibels()),
        bars::histogram(stats),
        magnitude(stats.amax.into()),
        if stats.per_row { "row scales to" } else { "scale" },
        magnitude(stats.scale.into()),
        shares.join(" · ")
    )
}

/// The share of elements lost from which on it is drawn over time.
const SHOWN: f64 = 0.001;

fn over_time(site: &SiteSeries) -> String {
    let keys: String = GemmRole::ALL
        .into_iter()
        .filter(|role| site.points.iter().any(|point| point.products[*role as usize].is_some()))
        .map(|role| format!("<span class=\"key k{}\"></span>{role}", role as usize))
        .collect();
    let mut html = format!(
        "<div class=\"grid\"><figure><figcaption><h3>SQNR of the products</h3></figcaption>{}\
         <div class=\"facts\">{keys}</div></figure>",
        lines::sqnr(site)
    );
    for operand in Operand::ALL {
        let Some(stats) = site.last.operands.of(operand) else { continue };
        let _ = write!(
            html,
            "<figure><figcaption><h3>amax and scale of {operand}</h3></figcaption>{}\
             <div class=\"facts\"><span class=\"key k0\"></span>amax<span class=\"key k1\"></span>scale × {}, the largest number that has a code</div></figure>",
            lines::amax(site, operand),
            stats.format.max()
        );
    }
    for operand in Operand::ALL {
        let lost = |point: &crate::Point| {
            point.operands[operand as usize]
                .is_some_and(|o| o.flushed + o.saturated + o.non_finite >= SHOWN)
        };
        if site.points.iter().any(lost) {
            let _ = write!(
                html,
                "<figure><figcaption><h3>What {operand} loses</h3></figcaption>{}\
                 <div class=\"facts\"><span class=\"key k0\"></span>flushed<span class=\"key k1\"></span>saturated<span class=\"key k2\"></span>not finite</div></figure>",
                lines::shares(site, operand)
            );
        }
    }
    html + "</div>"
}
