//! Where measurements go as they come: a run that is cut short has those before it.

use std::path::PathBuf;

use anyhow::Result;

use crate::json::write_json;
use crate::rows::Row;

pub struct Sink {
    rows: Vec<Row>,
    json: Option<PathBuf>,
}

impl Sink {
    /// With the file that holds all rows, if there is to be one.
    pub fn new(json: Option<PathBuf>) -> Self {
        Self { rows: vec![], json }
    }

    /// Adds rows and writes all.
    pub fn add(&mut self, rows: impl IntoIterator<Item = Row>) -> Result<()> {
        self.rows.extend(rows);
        self.json.as_ref().map_or(Ok(()), |path| write_json(path, &self.rows))
    }

    pub fn into_rows(self) -> Vec<Row> {
        self.rows
    }
}
