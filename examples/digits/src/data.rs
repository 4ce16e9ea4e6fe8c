//! The images: gzipped CSV, built in or from a file that may hold anything.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use csv::StringRecord;
use flate2::read::MultiGzDecoder;

/// Pixels of an image.
pub const PIXELS: usize = 64;
/// Digits to tell apart.
pub const CLASSES: usize = 10;

const BUILT_IN: &[u8] = include_bytes!("../data/digits.csv.gz");
/// The value of a pixel that is all ink.
const INK: u8 = 16;
/// Hundred times the built-in file; a file beyond that is a mistake.
const MAX_FILE_BYTES: u64 = 5 << 20;
/// Hundred times the built-in data. Keeps a small file that unpacks to terabytes from filling the memory.
const MAX_CSV_BYTES: u64 = 25 << 20;

/// Images and what they show.
#[derive(Debug, Default)]
pub struct Samples {
    /// The pixels of all images, from 0 to 1: [`PIXELS`] an image, row by row.
    pub pixels: Vec<f32>,
    /// The digit each image shows.
    pub labels: Vec<i32>,
}

impl Samples {
    /// The number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// The images at these positions, in this order.
    pub fn select(&self, indices: &[usize]) -> Self {
        let image = |&i: &usize| self.pixels[i * PIXELS..][..PIXELS].iter().copied();
        Self {
            pixels: indices.iter().flat_map(image).collect(),
            labels: indices.iter().map(|&i| self.labels[i]).collect(),
        }
    }
}

/// The two halves of the data set, neither of them empty.
#[derive(Debug, Default)]
pub struct Digits {
    /// What the model learns from.
    pub train: Samples,
    /// What it has never seen.
    pub test: Samples,
}

impl Digits {
    /// Reads `file`, or the built-in data.
    ///
    /// # Errors
    /// Where the file cannot be read or is anything but a gzipped CSV of the built-in one's columns; names the file and the line.
    pub fn load(file: Option<&Path>) -> Result<Self> {
        match file {
            Some(path) => read_file(path)
                .and_then(|bytes| parse(&bytes))
                .with_context(|| format!("data file {}", path.display())),
            None => parse(BUILT_IN).context("built-in data"),
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The size a file claims may be wrong, as for devices: the limit holds for what is read.
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .context("cannot be read")?;
    ensure!(
        bytes.len() as u64 <= MAX_FILE_BYTES,
        "is larger than the limit of {} MiB",
        MAX_FILE_BYTES >> 20
    );
    Ok(bytes)
}

fn parse(gzipped: &[u8]) -> Result<Digits> {
    let mut text = Vec::new();
    MultiGzDecoder::new(gzipped)
        .take(MAX_CSV_BYTES + 1)
        .read_to_end(&mut text)
        .context("is no intact gzip file")?;
    ensure!(
        text.len() as u64 <= MAX_CSV_BYTES,
        "unpacks to more than the limit of {} MiB",
        MAX_CSV_BYTES >> 20
    );

    // Rows of another length are told by `check_columns`, in this program's words.
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(text.as_slice());
    check_header(reader.headers().context("line 1")?).context("line 1")?;
    let mut digits = Digits::default();
    let mut record = StringRecord::new();
    while reader.read_record(&mut record)? {
        let line = record.position().map_or(0, csv::Position::line);
        push(&mut digits, &record).with_context(|| format!("line {line}"))?;
    }
    for (name, samples, split) in [("training", &digits.train, 0), ("test", &digits.test, 1)] {
        ensure!(samples.len() > 0, "has no {name} rows (split = {split})");
    }
    Ok(digits)
}

fn check_columns(record: &StringRecord) -> Result<()> {
    let expected = PIXELS + 2;
    ensure!(record.len() == expected, "{} columns instead of {expected}", record.len());
    Ok(())
}

fn check_header(header: &StringRecord) -> Result<()> {
    check_columns(header)?;
    for (column, name) in header.iter().enumerate() {
        let expected = column_name(column);
        ensure!(
            name == expected,
            "column {} is called {} instead of {expected}",
            column + 1,
            shorten(name)
        );
    }
    Ok(())
}

fn push(digits: &mut Digits, record: &StringRecord) -> Result<()> {
    check_columns(record)?;
    let label = number(record, 0, CLASSES as u8 - 1)?;
    let samples = match number(record, 1, 1)? {
        0 => &mut digits.train,
        _ => &mut digits.test,
    };
    for column in 2..record.len() {
        samples.pixels.push(f32::from(number(record, column, INK)?) / f32::from(INK));
    }
    samples.labels.push(label.into());
    Ok(())
}

fn number(record: &StringRecord, column: usize, max: u8) -> Result<u8> {
    match record[column].parse() {
        Ok(value) if value <= max => Ok(value),
        _ => bail!(
            "column {} is {}, not an integer from 0 to {max}",
            column_name(column),
            shorten(&record[column])
        ),
    }
}

fn column_name(column: usize) -> String {
    match column {
        0 => "label".into(),
        1 => "split".into(),
        column => format!("p{}", column - 2),
    }
}

/// A field quoted for a message: on one line, and never the megabytes it may hold.
fn shorten(field: &str) -> String {
    const MAX: usize = 20;
    match field.char_indices().nth(MAX) {
        Some((end, _)) => format!("{:?}…", &field[..end]),
        None => format!("{field:?}"),
    }
}
