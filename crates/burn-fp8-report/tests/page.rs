//! The page: whole, self-contained, and safe to open.
#![allow(missing_docs)]

mod common;

use burn_fp8_report::Observations;
use common::{entry, header};

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
    assert!(html.contains("&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot;&amp;"));
}

#[test]
fn every_site_has_a_card_and_few_are_open() {
    let html = page(100, "", 2);
    assert_eq!(html.matches("class=\"card\" id=\"site-").count(), 100);
    assert_eq!(html.matches(" open>").count(), 4);
    assert_eq!(html.matches("exponent histogram").count(), 300);
    assert!(html.contains("276 more"), "300 products, of which 24 are shown");
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
