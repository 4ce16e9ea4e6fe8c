//! The step that is sampled on this thread.

use core::fmt::Display;
use std::cell::RefCell;

use burn_fp8_core::Gemm;
use burn_fp8_core::sums::{Accumulations, Sums};
use burn_fp8_report::log::SiteEntry;

use super::ObservatoryOptions;
use super::tap::Tap;
use crate::config::scope::within;

/// A step while it is sampled.
struct Step {
    number: u64,
    max_elements: usize,
    /// The cards asked about.
    sums: Vec<Sums>,
    /// How many names there were outside of it, which are not those of its products.
    first_name: usize,
    taps: Vec<Tap>,
}

thread_local! {
    /// The steps that run on this thread, the innermost one last: `None` is one that is not sampled.
    static STEPS: RefCell<Vec<Option<Step>>> = const { RefCell::new(Vec::new()) };
    /// The names that products have here.
    static NAMES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Whether a step is sampled: all that products read where there is none.
fn is_sampled() -> bool {
    STEPS.with_borrow(|steps| matches!(steps.last(), Some(Some(_))))
}

/// Samples the products of `f`.
pub(super) fn sampled<R>(
    number: u64,
    options: &ObservatoryOptions,
    f: impl FnOnce() -> R,
) -> (R, Vec<SiteEntry>) {
    let first_name = NAMES.with_borrow(Vec::len);
    let (max_elements, sums) = (options.max_elements, options.sums.clone());
    let step = Step { number, max_elements, sums, first_name, taps: Vec::new() };
    let (result, step) = within(&STEPS, Some(step), f);
    let taps = step.map_or(Vec::new(), |step| step.taps);
    (result, taps.iter().filter_map(Tap::close).collect())
}

/// Runs `f` outside of any step.
pub(super) fn outside<R>(f: impl FnOnce() -> R) -> R {
    within(&STEPS, None, f).0
}

/// A tap for a product that is about to run with these sums, where a step is sampled.
pub(crate) fn observe(
    kind: impl Display,
    forward: Gemm,
    sums: Sums,
    accumulation: Accumulations,
) -> Option<Tap> {
    STEPS.with_borrow_mut(|steps| {
        let Step { number, max_elements, sums: asked, first_name, taps } =
            steps.last_mut()?.as_mut()?;
        let site = taps.len() as u64 + 1;
        let name = NAMES.with_borrow(|names| names[*first_name..].join("."));
        let mut cards = vec![];
        for card in [sums].iter().chain(&*asked) {
            if *card != Sums::F32 && !cards.contains(card) {
                cards.push(*card);
            }
        }
        let sums = (cards, accumulation);
        let tap = Tap::new([*number, site], *max_elements, name, kind.to_string(), forward, sums);
        taps.push(tap.clone());
        Some(tap)
    })
}

/// Names the forward products that `f` runs in a sampled step of an [`Observatory`](super::Observatory); outer names come first:
/// `blocks.0.mlp`. Products of the backward pass belong to the forward product that they come from.
///
/// Costs a read of a thread-local where no step is sampled.
///
#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/named.md"))]
pub fn named<R>(name: &str, f: impl FnOnce() -> R) -> R {
    match is_sampled() {
        true => within(&NAMES, name.to_owned(), f).0,
        false => f(),
    }
}
