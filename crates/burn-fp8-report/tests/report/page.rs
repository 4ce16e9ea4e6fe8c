//! The page: whole, self-contained, and safe to open.

use crate::common::{entry, header};
use burn_fp8_report::Observations;
use burn_fp8_report::log::{Operands, SiteEntry};

fn page(sites: u64, name: &str, steps: u64) -> String {
    let mut observations = Observations::new(header());
    for step in 0..steps {
        for site in 1..=sites {
            observations
                .push(entry(10 * step, site, name, 10f32.powi(site as i32 % 5)))
                .expect("in order");
        }
    }
    observations.to_html()
}

/// Asserts that every element is closed where it has to be.
fn assert_well_formed(html: &str) {
    let html = html.strip_prefix("<!DOCTYPE html>").expect("a doctype");
    let mut open: Vec<&str> = Vec::new();
    for tag in html.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').expect("tags end");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().expect("a name");
        match tag {
            tag if tag.starts_with('/') => assert_eq!(open.pop(), Some(name), "{tag}"),
            tag if tag.ends_with('/') || matches!(name, "meta" | "br" | "wbr") => {}
            _ => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn pages_are_whole() {
    for html in [page(0, "", 0), page(1, "", 1), page(3, "up", 4), page(100, "", 2)] {
        assert_well_formed(&html);
    }
}

#[test]
fn pages_need_nothing_else() {
    let html = page(3, "up", 3);
    for outside in ["http:", "https:", "<script", "<link", "@import", "url(", "<img", "<iframe"] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn names_cannot_break_out() {
    let html = page(2, "<script>alert('1')</script>\"&", 2);
    assert_well_formed(&html);
    assert!(!html.contains("<script"));
    assert!(html.contains("&lt;script&gt;alert('1')&lt;/script&gt;&quot;&amp;"));
}

#[test]
fn every_site_has_a_card_and_few_are_open() {
    let html = page(100, "", 2);
    assert_eq!(html.matches("class=\"card\" id=\"site-").count(), 100);
    assert_eq!(html.matches(" open>").count(), 4);
    assert_eq!(html.matches("exponent histogram").count(), 300);
    assert!(html.contains("276 more"), "300 products, of which 24 are shown");
}

/// In the words that a page of one sample has and others have in the plural.
#[test]
fn one_of_something_is_singular() {
    let html = page(1, "up", 1);
    for name in ["site", "sample", "product", "element", "sum", "step"] {
        let plural = [" ", ">"].map(|before| format!("{before}1 {name}s"));
        assert!(!plural.iter().any(|plural| html.contains(plural)), "{plural:?}");
    }
    assert!(html.contains("; 1 sample.") && page(1, "up", 2).contains("; 2 samples."));
}

#[test]
fn what_sqnr_is_stands_before_the_first_of_it() {
    let html = page(3, "up", 2);
    let place = |text| html.find(text).unwrap_or_else(|| panic!("no {text}"));
    assert!(place("SQNR: the power of a result") < place("<table"));
    assert!(place("Higher is better") < place("<table"));
}

#[test]
fn the_largest_logs_have_pages_of_their_worst_sites() {
    let mut observations = Observations::new(header());
    let sample = entry(0, 1, "up", 10.0);
    let mut worse = sample.clone();
    worse.products.output.as_mut().unwrap().sqnr.line.noise *= 1e6;
    for site in 0..4096 {
        let sample = if site < 4000 { &sample } else { &worse };
        observations.push(SiteEntry { site, ..sample.clone() }).expect("as many as that");
    }
    let html = observations.to_html();
    assert_well_formed(&html);
    assert!(html.len() < 10_000_000, "{} bytes", html.len());
    assert_eq!(html.matches("class=\"card\" id=\"site-").count(), 256);
    assert!(html.contains("3\u{202f}840 sites") && html.contains("left out"), "4096 - 256");
    // Every row leads to the card of its own site; of those that are worse, all are there.
    for (site, rows) in [(0, 3), (4000, 3), (4095, 3), (3999, 0)] {
        let link = format!("<a href=\"#site-{site}\">up #{site}</a>");
        let card = format!("id=\"site-{site}\"");
        let cards = usize::from(rows > 0);
        assert_eq!(
            (html.matches(&link).count(), html.matches(&card).count()),
            (rows, cards),
            "{site}"
        );
        if let Some(card) = html.find(&card) {
            let card = &html[card..][..200];
            assert!(card.contains(&format!("<b>up #{site}</b>")), "{card}");
        }
    }
    assert!(!page(256, "", 1).contains("left out"));
}

#[test]
fn long_curves_are_drawn_with_their_ends_and_extremes() {
    let mut observations = Observations::new(header());
    let sample = entry(0, 1, "up", 1.0);
    let mut expected = [f64::INFINITY, f64::NEG_INFINITY];
    for step in 0..512 {
        let mut sample = SiteEntry { step, ..sample.clone() };
        let input = sample.operands.input.as_mut().unwrap();
        // A spike up and one down, each a single point.
        input.amax *= match step {
            101 => 1e6,
            302 => 1e-6,
            _ => 1.0 + (step % 7) as f32 / 10.0,
        };
        expected = [expected[0].min(input.amax.into()), expected[1].max(input.amax.into())];
        observations.push(sample).expect("in order");
    }
    assert_eq!(observations.sites[0].points.len(), 512);
    let html = observations.to_html();
    let chart = html.split("amax and scale over time").nth(1).expect("a chart");
    let curve = chart.split("class=\"line c0\" points=\"").nth(1).expect("a curve");
    let curve: Vec<[f64; 2]> = curve[..curve.find('"').expect("an end")]
        .split_whitespace()
        .map(|point| point.split_once(',').expect("a pair"))
        .map(|(x, y)| [x, y].map(|number| number.parse().expect("a number")))
        .collect();
    assert!((100..=172).contains(&curve.len()), "{}", curve.len());
    let x = |step: f64| curve[0][0] + step / 511.0 * (curve[curve.len() - 1][0] - curve[0][0]);
    assert!(curve.windows(2).all(|pair| pair[0][0] <= pair[1][0]));
    for (step, is_beyond) in [(101.0, f64::lt as fn(&f64, &f64) -> bool), (302.0, f64::gt)] {
        // y grows downwards.
        let extreme =
            curve.iter().copied().reduce(|a, b| if is_beyond(&a[1], &b[1]) { a } else { b });
        assert!((extreme.expect("points")[0] - x(step)).abs() < 0.2, "{step}");
    }
    // Both ends of the axis.
    assert!(curve[0][0] < 70.0 && curve[curve.len() - 1][0] > 320.0);
}

/// The elements of an SVG's text: where it is anchored, how, and its characters.
fn labels(svg: &str) -> Vec<(f64, &str, String)> {
    let attribute = |tag: &'_ str, name: &str| -> Option<String> {
        let value = tag.split(&format!(" {name}=\"")).nth(1)?;
        Some(value[..value.find('"')?].to_string())
    };
    let texts = svg.split("<text").skip(1).map(|text| text.split_once("</text>").expect("ends").0);
    texts
        .map(|text| {
            let (tag, content) = text.split_once('>').expect("tags end");
            let characters = content.split('<').enumerate().map(|(part, text)| match part {
                0 => text,
                _ => text.split_once('>').expect("tags end").1,
            });
            let anchor = match attribute(tag, "text-anchor").as_deref() {
                None => "start",
                Some("middle") => "middle",
                Some("end") => "end",
                other => panic!("{other:?}"),
            };
            let x = attribute(tag, "x").expect("a place").parse().expect("a number");
            (x, anchor, characters.collect())
        })
        .collect()
}

#[test]
fn labels_lie_within_their_pictures() {
    let mut observations = Observations::new(header());
    for step in [0, 999_990] {
        // Few elements and many; exponents of one digit, two and three.
        for (site, scale) in (1..).zip([1.0, 1e-35, 1e35, 1e-4, 1e4]) {
            let mut sample = entry(step, site, "up", 1e4);
            let Operands { input, weight, output_grad } = &mut sample.operands;
            for stats in [input, weight, output_grad].into_iter().flatten() {
                (stats.amax, stats.scale) = (stats.amax * scale, stats.scale * scale);
                stats.histogram.first += scale.log2().round() as i32;
                (stats.elements, stats.sampled) = (1 << 20, 256 << (2 * site));
                // 0.010 % and 0.101 % of the largest number of elements.
                let lost = if step == 0 { 27 } else { 265 };
                (stats.flushed, stats.saturated, stats.non_finite) = (lost, lost, lost);
            }
            observations.push(sample).expect("within limits");
        }
    }
    let html = observations.to_html();
    let pictures: Vec<&str> = html.split("<svg ").skip(1).collect();
    let mut seen = Vec::new();
    for picture in pictures {
        let picture = &picture[..picture.find("</svg>").expect("an end")];
        let width = picture.split("viewBox=\"0 0 ").nth(1).expect("a size").split(' ').next();
        let width: f64 = width.expect("a width").parse().expect("a number");
        for (x, anchor, text) in labels(picture) {
            let length = 6.0 * text.chars().count() as f64;
            let start = match anchor {
                "start" => x,
                "middle" => x - length / 2.0,
                _ => x - length,
            };
            assert!(start >= 0.0 && start + length <= width, "{text}: {start} of {length}");
            seen.push(text);
        }
    }
    for label in ["0.0001 %", "2-104", "2120", "|x|", "0.00485 %", "step 999\u{202f}990"] {
        assert!(seen.iter().any(|seen| seen == label), "{label}: {seen:?}");
    }
}

#[test]
fn numbers_that_are_not_finite_are_no_coordinates() {
    let mut observations = Observations::new(header());
    for step in 0..3 {
        let mut sample = entry(step, 1, "up", 1.0);
        let products = &mut sample.products;
        let output = &mut products.output.as_mut().unwrap().sqnr;
        (output.whole.noise, output.line.noise) = (0.0, 0.0);
        products.grad_input.as_mut().unwrap().sqnr.whole.signal = 0.0;
        if step == 1 {
            products.grad_weight = None;
        }
        sample.operands.weight.as_mut().unwrap().amax = 0.0;
        observations.push(sample).expect("in order");
    }
    let html = observations.to_html();
    assert_well_formed(&html);
    for coordinate in ["NaN", "inf,", "\"inf", "-inf"] {
        assert!(!html.contains(coordinate), "{coordinate}");
    }
    assert!(html.contains("exact") && html.contains("no signal"));
}
