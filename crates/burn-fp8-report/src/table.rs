//! Observations as a table of text.

use core::fmt;

use comfy_table::{CellAlignment, Table, presets};

use crate::Observations;
use crate::sqnr::decibels;

impl fmt::Display for Observations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["site", "product", "M×N×K", "SQNR", "lowest", "advice"]);
        for ranked in self.ranked() {
            table.add_row([
                ranked.site.label(),
                ranked.role.to_string(),
                ranked.site.last.gemm.for_role(ranked.role).to_string(),
                decibels(ranked.sqnr),
                decibels(ranked.lowest),
                ranked.advice.to_string(),
            ]);
        }
        for column in [2, 3, 4] {
            table.column_mut(column).expect("six columns").set_cell_alignment(CellAlignment::Right);
        }
        writeln!(f, "{}", table.trim_fmt())?;
        let span = self
            .span
            .map_or(String::new(), |[first, last]| format!(", from step {first} to {last}"));
        write!(f, "{} sites, {} steps sampled{span}", self.sites.len(), self.steps)
    }
}
