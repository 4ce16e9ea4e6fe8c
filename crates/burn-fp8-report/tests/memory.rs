//! What a profile says of allocations that are known. Alone in its program, since the allocator counts for all of it.

use std::hint::black_box;

use burn_fp8_report::memory::{Counting, Mark, Profile, bars};

#[global_allocator]
static MEMORY: Counting = Counting;

/// So many bytes that what the test's own harness allocates meanwhile is less than half of it.
const UNIT: usize = 1 << 14;

fn units(count: usize) -> Vec<u8> {
    black_box(vec![1; count * UNIT])
}

#[test]
fn phases_have_the_peaks_of_what_they_allocate() {
    let before = units(500);
    let mut profile = Profile::start();
    let weights = units(1000);
    profile.mark("weights");
    for step in 1..=3 {
        // Saved, and gradients made of it.
        let saved = (units(300), black_box(vec![0u8; 500 * UNIT]));
        let gradients = units(1000 * step);
        drop(saved);
        profile.mark("backward");
        drop(gradients);
        // Grows where it lies, or moves: while it does, both count.
        let mut grown = units(100);
        grown.reserve_exact(100 * UNIT);
        profile.mark("step & end");
        drop(grown);
    }
    drop(weights);
    drop(before);
    profile.mark("left");
    let in_units = |bytes: usize| (bytes + UNIT / 2) / UNIT;
    let mark = |name: &str, sizes: [usize; 3]| {
        let Mark { before, held, peak, .. } = *profile.at(name);
        assert_eq!([before, held, peak].map(in_units), sizes, "{name}");
    };
    mark("weights", [0, 1000, 1000]);
    mark("backward", [1200, 4000, 4800]);
    mark("step & end", [4000, 1200, 4000]);
    // More was freed than there was at the start.
    mark("left", [1200, 0, 1200]);
    assert_eq!(profile.marks().len(), 4);
    let sizes = [profile.peak(), profile.at("backward").on_top()];
    assert_eq!(sizes.map(in_units), [4800, 800]);

    let table = profile.to_string();
    assert!(table.contains("| weights | 0 | 15.6 | 15.6 |"), "{table}");
    let picture = profile.to_svg("A <title>");
    assert!(picture.contains("A &lt;title&gt;") && picture.contains("step &amp; end"), "{picture}");

    // A bar of 1 and 3 MiB is as long as one of 4, and its first part a quarter of it.
    let [one, three] = [1 << 20, 3 << 20];
    let rows = [("a".to_owned(), vec![one, three]), ("b".to_owned(), vec![one + three])];
    let picture = bars("bars", &["first", "second"], &rows);
    let widths: Vec<f64> = picture
        .split("<rect ")
        .filter(|rect| rect.contains("height=\"20\""))
        .map(|rect| rect.split("width=\"").nth(1).unwrap().split('"').next().unwrap())
        .map(|width| width.parse().unwrap())
        .collect();
    assert_eq!(widths, [86.0, 258.0, 344.0]);
    assert_eq!(picture.matches(">4.00<").count(), 2, "{picture}");
    assert_eq!(bars("none", &[], &[]).matches("<rect").count(), 1);
}
