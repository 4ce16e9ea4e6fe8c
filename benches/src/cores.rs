//! What steps on one thread and on two say of more cores, on paper.

use comfy_table::{CellAlignment, Table};

use crate::rows::{Row, median};

/// Numbers of cores that no step was measured on.
const CORES: [u32; 2] = [8, 32];

/// The times of something, in milliseconds, on one thread and on two.
struct Times {
    name: String,
    of_threads: [f64; 2],
}

impl Times {
    /// Of all subjects and references of these rows that were measured on both; the median where one was measured several times.
    fn all(rows: &[Row]) -> Vec<Self> {
        let mut names: Vec<&str> = vec![];
        let both = rows.iter().flat_map(|row| [&row.reference, &row.name]);
        for name in both {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        let of_threads = |name: &str, threads: usize| {
            let rows = rows.iter().filter(|row| row.threads == threads);
            let mut times: Vec<f64> = rows
                .flat_map(|row| {
                    let own = (row.name == name).then_some(row.milliseconds);
                    [own, (row.reference == name).then_some(row.reference_milliseconds)]
                })
                .flatten()
                .collect();
            (!times.is_empty()).then(|| median(&mut times))
        };
        let times = |name: &str| {
            let of_threads = [of_threads(name, 1)?, of_threads(name, 2)?];
            Some(Self { name: name.to_owned(), of_threads })
        };
        names.into_iter().filter_map(times).collect()
    }

    /// The part that two threads do not share, in milliseconds, by Amdahl's law: `t₁ = s + p`, `t₂ = s + p/2`.
    fn serial(&self) -> f64 {
        let [one, two] = self.of_threads;
        (2.0 * two - one).clamp(0.0, one)
    }

    /// What is left on so many cores if they share the rest evenly.
    fn on(&self, cores: u32) -> f64 {
        let serial = self.serial();
        serial + (self.of_threads[0] - serial) / f64::from(cores)
    }
}

/// Measured times, the serial part and what it leaves of a step on more cores; none where nothing was measured on one thread and on two.
pub fn table(rows: &[Row], preset: &str) -> Option<Table> {
    let all = Times::all(rows);
    let mut table = Table::new();
    let header = ["", "1 thread, ms", "2 threads, ms", "serial part, ms"].map(String::from);
    let cores = CORES.map(|cores| format!("{cores} cores on paper, ms"));
    table.load_preset(preset).set_header(header.into_iter().chain(cores));
    for times in &all {
        let [one, two] = times.of_threads;
        let serial = times.serial();
        let cells = [
            times.name.clone(),
            format!("{one:.0}"),
            format!("{two:.0}"),
            format!("{serial:.0} ({:.0}%)", 100.0 * serial / one),
        ];
        table
            .add_row(cells.into_iter().chain(CORES.map(|cores| format!("{:.0}", times.on(cores)))));
    }
    table
        .column_iter_mut()
        .skip(1)
        .for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    (!all.is_empty()).then_some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_serial_part_is_what_two_threads_do_not_share() {
        let times = |one: f64, two: f64| Times { name: String::new(), of_threads: [one, two] };
        // 20 ms serial, 80 shared.
        let step = times(100.0, 60.0);
        assert_eq!([step.serial(), step.on(2), step.on(8)], [20.0, 60.0, 30.0]);
        assert_eq!([times(100.0, 50.0).serial(), times(100.0, 45.0).serial()], [0.0, 0.0]);
        assert_eq!(times(100.0, 130.0).serial(), 100.0);
    }
}
