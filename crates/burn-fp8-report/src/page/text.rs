//! Text and numbers in HTML and SVG.

use core::fmt::Write;

/// Text as HTML and attribute values hold it.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A magnitude with three significant digits.
pub(super) fn magnitude(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        0.001..1000.0 => {
            let digits = (2 - x.abs().log10().floor() as i32).max(0) as usize;
            format!("{x:.digits$}")
        }
        _ => format!("{x:.2e}"),
    }
}

/// A share, as a percentage.
pub(super) fn percent(share: f64) -> String {
    match share {
        0.0 => "0 %".into(),
        share if share < 1e-4 => "&lt; 0.01 %".into(),
        share if share < 0.1 => format!("{:.2} %", 100.0 * share),
        share if share < 1.0 && share > 0.999 => "&gt; 99.9 %".into(),
        share => format!("{:.1} %", 100.0 * share),
    }
}

/// A count with thin spaces between thousands.
pub(super) fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Points of a polyline.
pub(super) fn points(points: &[(f64, f64)]) -> String {
    points.iter().fold(String::new(), |mut text, (x, y)| {
        let _ = write!(text, "{x:.1},{y:.1} ");
        text
    })
}
