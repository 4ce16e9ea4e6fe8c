//! The text: built in, split into training and validation, as numbers of a vocabulary.

use std::io::Read;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;

const BUILT_IN: &[u8] = include_bytes!("../data/kjv.txt.gz");
/// Lines of a block; every tenth block is for validation.
const BLOCK: usize = 100;
const VALIDATION_EVERY: usize = 10;
/// The head of the model is as wide as the vocabulary, rounded up to this: FP8 GEMMs want multiples of 16.
const WIDTH_MULTIPLE: usize = 16;
/// More different characters are no text of an alphabet; numbers of characters are kept in a byte.
const MAX_CHARACTERS: usize = 240;

/// The characters that a model knows, in the order of their numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vocabulary {
    characters: Vec<char>,
}

impl Vocabulary {
    /// The characters of a text, sorted.
    ///
    /// # Errors
    /// Where there are none, or more than 240.
    pub fn of(text: &str) -> Result<Self> {
        let mut seen = vec![false; char::MAX as usize + 1];
        text.chars().for_each(|character| seen[character as usize] = true);
        let characters: Vec<char> = ('\0'..=char::MAX).filter(|c| seen[*c as usize]).collect();
        ensure!(
            (1..=MAX_CHARACTERS).contains(&characters.len()),
            "a vocabulary of {} characters: it has 1 to {MAX_CHARACTERS}",
            characters.len()
        );
        Ok(Self { characters })
    }

    /// The number of characters.
    pub fn len(&self) -> usize {
        self.characters.len()
    }

    /// Columns of the model's head: [`len`](Self::len) rounded up to a multiple of 16. The columns beyond stand for nothing and are
    /// never a target.
    pub fn width(&self) -> usize {
        self.len().next_multiple_of(WIDTH_MULTIPLE)
    }

    /// The numbers of the characters of a text.
    ///
    /// # Errors
    /// Names the first character that is not in the vocabulary.
    pub fn encode(&self, text: &str) -> Result<Vec<u8>> {
        let end = self.characters.last().map_or(0, |last| *last as usize + 1);
        let mut numbers = vec![None; end];
        for (number, character) in (0u8..).zip(&self.characters) {
            numbers[*character as usize] = Some(number);
        }
        let number = |character: char| match numbers.get(character as usize) {
            Some(Some(number)) => Ok(*number),
            _ => bail!("the character {character:?} is not among the {} of the text", self.len()),
        };
        text.chars().map(number).collect()
    }

    /// The character of a number; `None` beyond the vocabulary.
    pub fn character(&self, number: usize) -> Option<char> {
        self.characters.get(number).copied()
    }
}

impl std::fmt::Display for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.characters.iter().try_for_each(|character| write!(f, "{character}"))
    }
}

/// A text in two parts.
#[derive(Debug)]
pub struct Text {
    /// The characters of the training part.
    pub vocabulary: Vocabulary,
    /// What the model learns from.
    pub train: Vec<u8>,
    /// What it has never seen.
    pub valid: Vec<u8>,
    /// CRC-32 of the whole text: a run goes on with the text that it began with.
    pub checksum: u32,
}

impl Text {
    /// The King James Bible; see `data/README.md`.
    ///
    /// # Errors
    /// Where the program was built with a file that is damaged.
    pub fn built_in() -> Result<Self> {
        let mut text = String::new();
        GzDecoder::new(BUILT_IN).read_to_string(&mut text).context("data/kjv.txt.gz")?;
        Self::split(&text)
    }

    /// Splits a text by blocks of lines, so that both parts are of the same kind: every tenth block is for validation.
    fn split(text: &str) -> Result<Self> {
        let (mut train, mut valid) = (String::new(), String::new());
        for (index, line) in text.split_inclusive('\n').enumerate() {
            match (index / BLOCK) % VALIDATION_EVERY == VALIDATION_EVERY - 1 {
                true => valid.push_str(line),
                false => train.push_str(line),
            }
        }
        let vocabulary = Vocabulary::of(&train)?;
        Ok(Self {
            train: vocabulary.encode(&train)?,
            valid: vocabulary.encode(&valid).context("the validation part")?,
            vocabulary,
            checksum: crc32fast::hash(text.as_bytes()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tenth_block_is_for_validation() {
        let text: String = (0..2050).map(|line| format!("{line:04}\n")).collect();
        let text = Text::split(&text).expect("a text");
        // Blocks 9 and 19, of lines 900 to 999 and 1900 to 1999.
        assert_eq!((text.train.len(), text.valid.len()), (1850 * 5, 200 * 5));
        assert_eq!(text.valid[..5], text.vocabulary.encode("0900\n").expect("digits"));
        assert_eq!(text.valid[5 * 199..], text.vocabulary.encode("1999\n").expect("digits"));
        assert_eq!((text.vocabulary.len(), text.vocabulary.width()), (11, 16));
        assert!(text.vocabulary.encode("12a").is_err());
    }

    #[test]
    fn built_in_text_is_the_one_described() {
        let text = Text::built_in().expect("intact");
        // The vocabulary is that of the training part, and covers the validation part.
        assert_eq!(text.train.len() + text.valid.len(), 4_137_850);
        assert_eq!(text.vocabulary.len(), 63);
        let start: String = text.train[..28]
            .iter()
            .filter_map(|n| text.vocabulary.character((*n).into()))
            .collect();
        assert_eq!(start, "In the beginning God created");
    }
}
