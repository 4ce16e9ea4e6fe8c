//! What an observatory samples.

use std::path::PathBuf;

use burn_fp8_core::sums::Sums;
use burn_fp8_report::sample::MAX_CARDS;

use crate::Fp8Error;

/// What an [`Observatory`](super::Observatory) samples, and where it logs that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservatoryOptions {
    /// Every how many steps one is sampled; 100 unless set.
    pub every: u64,
    /// The number of the first step, for a run that goes on; 0 unless set.
    pub first_step: u64,
    /// How many elements of an operand are read at most; 2^18 unless set.
    pub max_elements: usize,
    /// The log: JSON lines, written after each sampled step; none unless set. It must not exist.
    pub log: Option<PathBuf>,
    /// The cards whose sums are measured beside what rounding to FP8 loses, at most 7; f32 is none. The one whose sums training emulates
    /// ([`Fp8Config::sums`](crate::Fp8Config::sums)) is measured as well; none besides unless set.
    pub sums: Vec<Sums>,
}

impl Default for ObservatoryOptions {
    fn default() -> Self {
        Self { every: 100, first_step: 0, max_elements: 1 << 18, log: None, sums: vec![] }
    }
}

impl ObservatoryOptions {
    /// The same options with every `every`-th step sampled.
    pub fn with_every(self, every: u64) -> Self {
        Self { every, ..self }
    }

    /// The same options with steps numbered from `first_step` on.
    pub fn with_first_step(self, first_step: u64) -> Self {
        Self { first_step, ..self }
    }

    /// The same options with at most `max_elements` elements of an operand read.
    pub fn with_max_elements(self, max_elements: usize) -> Self {
        Self { max_elements, ..self }
    }

    /// The same options with a log.
    pub fn with_log(self, path: impl Into<PathBuf>) -> Self {
        Self { log: Some(path.into()), ..self }
    }

    /// The same options with the sums of these cards measured: [`sums`](Self::sums).
    pub fn with_sums(self, sums: impl IntoIterator<Item = Sums>) -> Self {
        Self { sums: sums.into_iter().collect(), ..self }
    }

    pub(super) fn check(&self) -> Result<(), Fp8Error> {
        // One more may be that of the configuration.
        let most = MAX_CARDS - 1;
        let wrong = self.sums.iter().find_map(|sums| sums.validate().err());
        let reason = match (self, wrong) {
            (Self { every: 0, .. }, _) => "every = 0; sample every step with 1".into(),
            (Self { max_elements: 0, .. }, _) => "max_elements = 0; 2^18 is usual".into(),
            (Self { sums, .. }, _) if sums.len() > most => {
                format!("sums of {} cards; at most {most}", sums.len())
            }
            (_, Some(error)) => error.to_string(),
            _ => return Ok(()),
        };
        Err(Fp8Error::Invalid { what: "an observatory", reason })
    }
}
