//! The images: gzipped CSV, built in.

use std::io::{BufRead, BufReader};

use anyhow::{Result, bail};
use flate2::read::GzDecoder;

/// Pixels of an image.
pub const PIXELS: usize = 64;
/// Digits to tell apart.
pub const CLASSES: usize = 10;

const BUILT_IN: &[u8] = include_bytes!("../data/digits.csv.gz");
/// The value of a pixel that is all ink.
const INK: u8 = 16;

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

/// The two halves of the data set.
#[derive(Debug, Default)]
pub struct Digits {
    /// What the model learns from.
    pub train: Samples,
    /// What it has never seen.
    pub test: Samples,
}

impl Digits {
    /// Reads the built-in data.
    pub fn load() -> Result<Self> {
        let mut digits = Self::default();
        for row in BufReader::new(GzDecoder::new(BUILT_IN)).lines().skip(1) {
            let row = row?.split(',').map(str::parse).collect::<Result<Vec<u8>, _>>()?;
            let [label, split, pixels @ ..] = &row[..] else { bail!("{} columns", row.len()) };
            let samples = if *split == 0 { &mut digits.train } else { &mut digits.test };
            samples.labels.push((*label).into());
            samples.pixels.extend(pixels.iter().map(|ink| f32::from(*ink) / f32::from(INK)));
        }
        Ok(digits)
    }
}
