//! Text and numbers of the page.

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
        share if share < 1e-4 => "< 0.01 %".into(),
        share if share < 0.1 => format!("{:.2} %", 100.0 * share),
        share if share < 1.0 && share > 0.999 => "> 99.9 %".into(),
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

/// So many of something, whose name gets an s where it is not one.
pub(super) fn counted(number: u64, name: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {name}{plural}", count(number))
}

/// A coordinate.
pub(crate) fn px(x: f64) -> String {
    format!("{x:.1}")
}

/// Points of a polyline.
pub(super) fn points(points: impl Iterator<Item = (f64, f64)>) -> String {
    points.map(|(x, y)| format!("{x:.1},{y:.1} ")).collect()
}
