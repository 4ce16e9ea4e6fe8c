//! Pictures as SVG, all in one style. An error is one of the plotting library.

use std::ops::Range;

use anyhow::{Context, Result};
use plotters::chart::MeshStyle;
use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

/// Of Okabe and Ito, told apart by colour-blind readers too.
pub const SKY_BLUE: RGBColor = RGBColor(86, 180, 233);
/// As above.
pub const VERMILION: RGBColor = RGBColor(213, 94, 0);
/// As above.
pub const BLUE: RGBColor = RGBColor(0, 114, 178);
/// Of text and axes.
pub const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);

/// A picture, or a part of one.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// A picture with axes.
pub type Chart<'a, 'b, X, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<X, Y>>;
/// The colour of a line, and its width in pixels.
pub type Stroke = (RGBColor, u32);

/// A picture of this width and height, as SVG.
///
/// # Errors
/// Where `draw` fails; `what` says what cannot be drawn.
pub fn svg(what: &str, size: (u32, u32), draw: impl FnOnce(&Area) -> Result<()>) -> Result<String> {
    let mut svg = String::new();
    let drawn = || -> Result<()> {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        draw(&area)?;
        Ok(area.present()?)
    };
    drawn().with_context(|| format!("cannot draw {what}"))?;
    Ok(svg)
}

/// Text of this size.
pub fn text(size: u32) -> TextStyle<'static> {
    ("sans-serif", size).into_font().color(&INK)
}

/// Draws axes and grid, with labels of this size.
pub fn axes<X, Y>(mesh: &mut MeshStyle<X, Y, SVGBackend>, label_size: u32) -> Result<()>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    mesh.bold_line_style(GRID).light_line_style(TRANSPARENT).axis_style(INK);
    mesh.label_style(text(label_size)).axis_desc_style(text(label_size));
    Ok(mesh.draw()?)
}

/// Draws a line; with a label it is in the legend, there as a stroke of this length.
pub fn line<X, Y>(
    chart: &mut Chart<X, Y>,
    points: impl IntoIterator<Item = (f64, f64)>,
    (colour, width): Stroke,
    label: Option<(&str, i32)>,
) -> Result<()>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let series = chart.draw_series(LineSeries::new(points, colour.stroke_width(width)))?;
    if let Some((label, length)) = label {
        series.label(label).legend(move |(x, y)| {
            PathElement::new([(x, y), (x + length, y)], colour.stroke_width(width.max(2)))
        });
    }
    Ok(())
}

/// Draws the legend of a picture into its upper right corner.
pub fn legend<'a, 'b: 'a, X, Y>(chart: &mut Chart<'a, 'b, X, Y>) -> Result<()>
where
    X: Ranged<ValueType = f64>,
    Y: Ranged<ValueType = f64>,
{
    let mut labels = chart.configure_series_labels();
    labels.position(SeriesLabelPosition::UpperRight).background_style(WHITE).border_style(GRID);
    Ok(labels.legend_area_size(30).margin(10).label_font(text(14)).draw()?)
}

/// The range `start`, widened to hold these values; those that are no numbers do not count.
pub fn range(start: (f64, f64), values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    let finite = values.into_iter().filter(|value| value.is_finite());
    finite.fold(start, |(low, high), value| (low.min(value), high.max(value)))
}

/// Named rows over one axis.
pub struct Rows<'a> {
    /// What stands above.
    pub title: String,
    /// The names, from top to bottom.
    pub names: Vec<String>,
    /// Pixels for the names.
    pub name_width: u32,
    /// Pixels of a row.
    pub height: u32,
    /// What the axis spans.
    pub range: Range<f64>,
    /// What stands below the axis.
    pub axis: &'a str,
    /// The label of a number of the axis.
    pub number: fn(&f64) -> String,
}

impl Rows<'_> {
    /// Draws the rows as SVG: `draw` is given their chart, in which row `index` has its middle at [`Self::middle`].
    ///
    /// # Errors
    /// Where `draw` fails; `what` says what cannot be drawn.
    pub fn svg(
        &self,
        what: &str,
        draw: impl FnOnce(&mut Chart<RangedCoordf64, RangedCoordf64>) -> Result<()>,
    ) -> Result<String> {
        let size = (860, 130 + self.height * self.names.len() as u32);
        svg(what, size, |area| {
            let mut chart = ChartBuilder::on(area)
                .caption(&self.title, text(20))
                .margin(16)
                .x_label_area_size(44)
                .y_label_area_size(self.name_width)
                .build_cartesian_2d(self.range.clone(), 0.0..self.count())?;
            let name = |y: &f64| match (y - y.floor() - 0.5).abs() < 1e-6 {
                true => self.names.get((self.count() - 1.0 - y.floor()) as usize).cloned(),
                false => None,
            };
            let name = |y: &f64| name(y).unwrap_or_default();
            let mut mesh = chart.configure_mesh();
            mesh.disable_y_mesh().x_desc(self.axis).x_label_formatter(&self.number);
            axes(mesh.y_labels(2 * self.count() as usize + 1).y_label_formatter(&name), 14)?;
            draw(&mut chart)
        })
    }

    fn count(&self) -> f64 {
        self.names.len().max(1) as f64
    }

    /// The middle of a row.
    pub fn middle(&self, index: usize) -> f64 {
        self.count() - index as f64 - 0.5
    }

    /// Draws the line of 0.
    pub fn zero(&self, chart: &mut Chart<RangedCoordf64, RangedCoordf64>) -> Result<()> {
        let line = PathElement::new([(0.0, 0.0), (0.0, self.count())], INK.stroke_width(1));
        chart.draw_series([line])?;
        Ok(())
    }
}

/// For tests: the elements of this name and colour in a picture.
pub fn elements<'a>(svg: &'a str, name: &str, RGBColor(r, g, b): RGBColor) -> Vec<&'a str> {
    let (start, colour) = (format!("<{name} "), format!("=\"#{r:02X}{g:02X}{b:02X}\""));
    svg.lines().filter(|line| line.starts_with(&start) && line.contains(&colour)).collect()
}

/// For tests: the text of an attribute of an element.
pub fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let value = element.split_once(&format!(" {name}=\"")).and_then(|(_, end)| end.split_once('"'));
    value.unwrap_or_else(|| panic!("no {name} in {element}")).0
}

/// For tests: the points of a line in pixels, y downwards.
pub fn points(element: &str) -> Vec<(i32, i32)> {
    let number = |text: &str| text.parse().expect("a number");
    let points = attribute(element, "points").split_whitespace();
    let pairs = points.map(|point| point.split_once(',').expect("x and y"));
    pairs.map(|(x, y)| (number(x), number(y))).collect()
}
