//! Where the memory of a program goes: an allocator that counts, and a profile of phases that the program names.
//!
//! ```
//! use burn_fp8_report::memory::{Counting, Profile};
//!
//! #[global_allocator]
//! static MEMORY: Counting = Counting;
//!
//! let mut profile = Profile::start();
//! let weights = vec![0f32; 1 << 20];
//! profile.mark("weights");
//! for _step in 0..2 {
//!     let activations = vec![0f32; 3 << 20];
//!     let gradients = weights.clone();
//!     drop(activations);
//!     profile.mark("backward");
//!     drop(gradients);
//!     profile.mark("step");
//! }
//! let backward = &profile.marks()[1];
//! assert_eq!((backward.held >> 20, backward.peak >> 20), (8, 20)); // MiB
//! println!("{profile}");
//! let picture = profile.to_svg("Memory of a training step");
//! assert!(picture.starts_with("<svg"));
//! ```

mod bars;
mod counting;

use core::fmt;
use core::hint::black_box;

pub use bars::bars;
pub use counting::Counting;

/// What a program holds above what it held at the start, phase by phase. All threads count, as do buffers that a library keeps for later.
///
/// The program marks what is to be told apart: the model is made, the backward pass is done, the optimizer has stepped. The first step makes moments and buffers that
/// later ones find: run several, under the same names.
#[derive(Clone, Debug)]
pub struct Profile {
    /// What was held at the start, and the profile's own memory.
    start: usize,
    marks: Vec<Mark>,
    /// What was held at the last mark.
    held: usize,
}

/// A phase, which ends at its mark. Bytes above those at the start of the profile; 0 where more was freed than allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its name.
    pub name: String,
    /// What was held when it began.
    pub before: usize,
    /// What was held at its end.
    pub held: usize,
    /// The most that was held in between.
    pub peak: usize,
}

impl Mark {
    /// What came on top of what the phase found or left, whichever is more, at its peak.
    pub fn on_top(&self) -> usize {
        self.peak.saturating_sub(self.before.max(self.held))
    }
}

impl Profile {
    /// Begins. One at a time: each start and each mark begins a new peak for the whole program.
    ///
    /// # Panics
    /// Where [`Counting`] is not the program's allocator.
    pub fn start() -> Self {
        // Now something is held, whatever ran before.
        let probe = black_box(Box::new(0u8));
        let is_counting = counting::held() > 0;
        drop(probe);
        assert!(
            is_counting,
            "nothing counts: the program needs `#[global_allocator] static MEMORY: Counting = Counting;`"
        );
        counting::begin_peak();
        Self { start: counting::held(), marks: Vec::new(), held: 0 }
    }

    /// Ends a phase. Of several with one name the last counts, in the place of the first.
    pub fn mark(&mut self, name: &str) {
        let (now, peak) = (counting::held(), counting::peak());
        let [held, peak] = [now, peak].map(|bytes| bytes.saturating_sub(self.start));
        let mark = Mark { name: name.to_owned(), before: self.held, held, peak };
        match self.marks.iter_mut().find(|mark| mark.name == name) {
            Some(same) => *same = mark,
            None => self.marks.push(mark),
        }
        self.held = held;
        // Its own memory is nobody's.
        self.start += counting::held().saturating_sub(now);
        counting::begin_peak();
    }

    /// The phases, in the order of their first marks.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// The phase of a name.
    ///
    /// # Panics
    /// Where none was marked so.
    #[track_caller]
    pub fn at(&self, name: &str) -> &Mark {
        let mark = self.marks.iter().find(|mark| mark.name == name);
        mark.unwrap_or_else(|| panic!("no phase was marked as {name:?}"))
    }

    /// The most that was held in any phase.
    pub fn peak(&self) -> usize {
        self.marks.iter().map(|mark| mark.peak).max().unwrap_or_default()
    }

    /// A bar for each phase, of what is held at its end and of what came on top at its peak, as SVG.
    pub fn to_svg(&self, title: &str) -> String {
        let bar = |mark: &Mark| (mark.name.clone(), vec![mark.peak - mark.on_top(), mark.on_top()]);
        let rows: Vec<_> = self.marks.iter().map(bar).collect();
        bars(title, &["held before or after", "on top at the peak"], &rows)
    }
}

/// A table in Markdown, in MiB.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| phase | before | after | peak, MiB |\n|---|---:|---:|---:|")?;
        self.marks.iter().try_for_each(|Mark { name, before, held, peak }| {
            let [before, held, peak] = [before, held, peak].map(|bytes| bars::in_mib(*bytes));
            writeln!(f, "| {name} | {before} | {held} | {peak} |")
        })
    }
}
