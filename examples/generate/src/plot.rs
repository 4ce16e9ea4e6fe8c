//! A training as a picture.

use anyhow::Result;
use examples_common::charts;
use plotters::prelude::*;

/// A step and a loss, in nats a token.
type Point = (usize, f64);

/// The losses of what was learned from, as a line, and those of the held-out text, as dots. As SVG.
pub fn losses(title: &str, seen: &[Point], held_out: &[Point]) -> Result<String> {
    charts::svg("the losses", (760, 440), |area| {
        let all = || seen.iter().chain(held_out);
        let (low, high) = charts::range((f64::MAX, 0.0), all().map(|(_, loss)| *loss));
        let last = all().map(|(step, _)| *step).max().unwrap_or(0).max(1);
        let mut chart = ChartBuilder::on(area)
            .caption(title, charts::text(18))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..last as f64, low.min(high) - 0.1..high + 0.1)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("step").y_desc("nats a token");
        mesh.x_label_formatter(&|step| format!("{step:.0}"));
        charts::axes(mesh.y_label_formatter(&|loss| format!("{loss:.1}")), 14)?;
        let place = |(step, loss): &Point| (*step as f64, *loss);
        let (blue, red) = (charts::BLUE, charts::VERMILION);
        charts::line(&mut chart, seen.iter().map(place), (blue, 2), Some(("seen", 22)))?;
        let dot = |place| Circle::new(place, 5, red.filled());
        let dots = chart.draw_series(held_out.iter().map(place).map(dot))?;
        dots.label("held out").legend(move |(x, y)| Circle::new((x + 11, y), 5, red.filled()));
        charts::legend(&mut chart)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_losses_lie_lower() {
        let svg = losses("a text", &[(1, 5.0), (11, 4.0), (20, 3.0)], &[(0, 5.5), (20, 3.5)]);
        let svg = svg.expect("a picture");
        assert!(svg.contains("a text") && svg.contains("held out"));
        let lines = charts::elements(&svg, "polyline", charts::BLUE);
        let points = lines.iter().map(|line| charts::points(line)).find(|points| points.len() == 3);
        let points = points.expect("a line of three points");
        // Down the picture is up in numbers.
        assert!(points.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{points:?}");
        let dots = charts::elements(&svg, "circle", charts::VERMILION);
        let height = |dot: &str| charts::attribute(dot, "cy").parse::<i32>().expect("a number");
        assert_eq!(dots.len(), 3, "two and the legend's");
        assert!(height(dots[0]) < height(dots[1]));
    }
}
