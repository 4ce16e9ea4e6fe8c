//! The sums of tensor cores, against core's exact reference and against sums by hand.

use burn_fp8_core::Fp8Format::{self, E4M3, E5M2};
use burn_fp8_core::sums::{Accumulation, Accumulator, Sums, dot};
use burn_fp8_core::{GemmRole, Overflow, Recipe};
use burn_fp8_report::log::{SiteEntry, Writer, read};
use burn_fp8_report::sample::{
    Alternative, CardSums, MAX_SIDE, MatrixSample, OperandSample, Prediction, ProductStats,
    SumStats, product, spread, sums,
};
use burn_fp8_report::{MatrixSqnr, Observations, SplitSums, Sqnr, rounding_limit};
use burn_fp8_test_support::{fp8, sqnr, transpose};

use crate::common::{entry, header, operand, random};

/// An accumulator of nobody's: few bits, blocks of 8 and short chains.
const OWN: Accumulator =
    Accumulator { products: 8, fraction: 9, result: 11, chain: 24, ..Accumulator::ADA };

/// Codes and scales of the lines that a product sums over, by definition.
struct Lines {
    codes: Vec<Vec<u8>>,
    scales: Vec<f32>,
    format: Fp8Format,
}

impl Lines {
    fn new(values: &[f32], k: usize, format: Fp8Format, scale: Option<f32>) -> Self {
        let lines = || values.chunks(k);
        let of = |line: &[f32]| scale.unwrap_or_else(|| fp8::scale(line, format));
        let scales: Vec<f32> = lines().map(of).collect();
        let code = |x: &f32, scale| fp8::encode(f64::from(x / scale), format, Overflow::Saturate);
        let codes = lines().zip(&scales);
        let codes = codes.map(|(line, scale)| line.iter().map(|x| code(x, *scale)).collect());
        Self { codes: codes.collect(), scales, format }
    }

    fn numbers(&self, line: usize) -> Vec<f64> {
        fp8::numbers(&self.codes[line], self.format, 1.0)
    }
}

/// The SQNR in dB of all sums by this accumulator.
fn reference([a, b]: [&Lines; 2], accumulator: Accumulator, accumulation: Accumulation) -> f64 {
    let (mut exact, mut by_card) = (vec![], vec![]);
    for row in 0..a.codes.len() {
        for column in 0..b.codes.len() {
            let scale = f64::from(a.scales[row]) * f64::from(b.scales[column]);
            let terms = a.numbers(row).into_iter().zip(b.numbers(column));
            exact.push(terms.map(|(a, b)| a * b).sum::<f64>() * scale);
            let codes = [&a.codes[row][..], &b.codes[column]];
            let sum = dot(accumulator, codes, [a.format, b.format], accumulation, None);
            by_card.push(f64::from(sum) * scale);
        }
    }
    sqnr(&exact, &by_card)
}

fn card(stats: &SumStats, sums: Sums) -> [f64; 2] {
    let card = stats.cards.iter().find(|card| card.sums == sums).expect("measured");
    [card.fast, card.split].map(|sqnr| sqnr.whole.decibels().expect("a signal"))
}

#[test]
fn sums_of_every_role_are_those_of_the_reference() {
    let [m, k, n] = [5, 300, 7];
    let cards = [Sums::Hopper, Sums::F32, Sums::Ada, Sums::Custom(OWN)];
    let (x, w, g) = (random(1, m * k), random(2, k * n), random(3, m * n));
    let samples = [
        operand(x.clone(), [m, k], E4M3),
        operand(w.clone(), [k, n], E4M3),
        operand(g.clone(), [m, n], E5M2),
    ];
    let by_row = samples.clone().map(|sample| OperandSample { scale: None, ..sample });
    let (xt, wt, gt) = (transpose(&x, [m, k]), transpose(&w, [k, n]), transpose(&g, [m, n]));
    for (role, pair, values, terms) in [
        (GemmRole::Output, [0, 1], [&x, &wt], k),
        (GemmRole::GradInput, [2, 1], [&g, &w], n),
        (GemmRole::GradWeight, [0, 2], [&xt, &gt], m),
    ] {
        for (samples, recipe) in [(&samples, Recipe::current()), (&by_row, Recipe::rowwise())] {
            let operands = pair.map(|operand| &samples[operand]);
            let stats = sums(role, operands, recipe, Accumulation::Fast, &cards).expect("measured");
            assert_eq!(stats.cards.len(), 3, "f32 is no card");
            let is_one = operands[0].scale.is_some();
            assert_eq!(stats.accumulation == Accumulation::Fast, is_one, "{role}");
            let lines = [0, 1].map(|which| {
                let OperandSample { format, scale, .. } = *operands[which];
                let chosen = spread(values[which].len() / terms, MAX_SIDE);
                let line = |line: usize| values[which][line * terms..][..terms].to_vec();
                let chosen: Vec<f32> = chosen.into_iter().flat_map(line).collect();
                Lines::new(&chosen, terms, format, scale)
            });
            let mut differ = false;
            for sums in [Sums::Hopper, Sums::Ada, Sums::Custom(OWN)] {
                let accumulator = sums.accumulator().expect("a card");
                let measured = card(&stats, sums);
                let expected = [Accumulation::Fast, Accumulation::Split]
                    .map(|how| reference(lines.each_ref(), accumulator, how));
                for (measured, expected) in measured.into_iter().zip(expected) {
                    let is_same = measured == expected || (measured - expected).abs() < 1e-6;
                    assert!(is_same, "{role} {sums}: {measured} {expected}");
                }
                differ |= measured[0] != measured[1];
            }
            assert_eq!(differ, terms > 24, "{role}: chains shorter than K");
        }
    }
}

/// A row of 256 and 383 twos, times itself: a product of 2^16, beside which Hopper keeps no bit below 2^3, and 383 of 4.
fn forgotten() -> OperandSample {
    let mut row = vec![2.0; 384];
    row[0] = 256.0;
    OperandSample { scale: Some(1.0), ..operand(row, [1, 384], E4M3) }
}

fn forgotten_by(accumulation: Accumulation, cards: &[Sums]) -> ProductStats {
    let row = forgotten();
    let mut column = row.clone();
    column.matrix = MatrixSample::whole(row.matrix.values().to_vec(), [384, 1]);
    let recipe = Recipe::current();
    let operands = [&row, &column];
    let mut stats = product(GemmRole::Output, operands, recipe);
    stats.sums = sums(GemmRole::Output, operands, recipe, accumulation, cards);
    stats
}

#[test]
fn what_the_bits_of_a_card_forget_is_its_error() {
    let stats = forgotten_by(Accumulation::Fast, &Sums::CARDS);
    assert_eq!(stats.sqnr.decibels(), Some(f64::INFINITY), "powers of two are codes");
    let sums = stats.sums.expect("measured");
    let exact = 65536.0 + 383.0 * 4.0;
    // Fast forgets all of them; split those of the first 128 terms, and has 2 · 128 · 4 of the others.
    let by_hand = |sum: f64| 10.0 * (exact * exact / ((exact - sum) * (exact - sum))).log10();
    let expected = [by_hand(65536.0), by_hand(65536.0 + 1024.0)];
    for sums_of in [Sums::Hopper, Sums::Ada] {
        for (measured, expected) in card(&sums, sums_of).into_iter().zip(expected) {
            assert!((measured - expected).abs() < 1e-9, "{measured} {expected}");
        }
    }
    assert_eq!(card(&sums, Sums::Blackwell), [f64::INFINITY; 2], "25 bits hold all of them");
    assert_eq!(sums.cards[0].to_string(), "hopper fast 32.8 dB / split 42.4 dB");
}

#[test]
fn lines_weigh_as_much_as_their_scales_say() {
    // Beside the first row, which is exact, another is nothing: of all the power, not of its own line.
    let mut x = vec![2.0; 2 * 384];
    (x[0], x[384]) = (256.0, 256.0);
    x[1..384].fill(0.0);
    x[..384].iter_mut().for_each(|x| *x *= 2f32.powi(20));
    let x = OperandSample { scale: None, ..operand(x, [2, 384], E4M3) };
    let mut w = vec![2.0; 384];
    w[0] = 256.0;
    let w = OperandSample { scale: None, ..operand(w, [384, 1], E4M3) };
    let recipe = Recipe::rowwise().with_power_of_two(true);
    let stats = sums(GemmRole::Output, [&x, &w], recipe, Accumulation::Fast, &[Sums::Hopper]);
    let fast = stats.expect("measured").cards[0].fast;
    assert!((fast.whole.decibels().unwrap() - (32.8 + 120.4)).abs() < 0.5, "{:?}", fast.whole);
    // Of two rows the worse is the median.
    assert!((fast.line.decibels().unwrap() - 32.8).abs() < 0.1, "{:?}", fast.line);
}

#[test]
fn scales_of_blocks_and_no_card_have_no_sums() {
    let of_blocks = OperandSample { scale: None, ..operand(random(1, 64), [8, 8], E4M3) };
    let whole = operand(random(1, 64), [8, 8], E4M3);
    let measure = |sample: &OperandSample, recipe, cards: &[Sums]| {
        sums(GemmRole::Output, [sample, sample], recipe, Accumulation::Fast, cards)
    };
    for recipe in [Recipe::blockwise(), Recipe::mxfp8()] {
        assert_eq!(measure(&of_blocks, recipe, &Sums::CARDS), None);
    }
    for cards in [&[][..], &[Sums::F32]] {
        assert_eq!(measure(&whole, Recipe::current(), cards), None);
    }
    assert!(measure(&whole, Recipe::current(), &[Sums::F32, Sums::Ada]).is_some());
}

fn ratio(decibels: f64) -> MatrixSqnr {
    let sqnr = Sqnr { signal: 10f64.powf(decibels / 10.0), noise: 1.0 };
    MatrixSqnr { whole: sqnr, line: sqnr }
}

fn with_sums(
    entry: SiteEntry,
    accumulation: Accumulation,
    cards: &[(Sums, [f64; 2])],
) -> SiteEntry {
    let mut entry = entry;
    let cards = cards.iter().map(|(sums, [fast, split])| CardSums {
        sums: *sums,
        fast: ratio(*fast),
        split: ratio(*split),
    });
    let stats = SumStats { accumulation, cards: cards.collect() };
    entry.products.output.as_mut().expect("measured").sums = Some(stats);
    entry
}

#[test]
fn splitting_is_advised_by_its_thresholds() {
    use Accumulation::{Fast, Split};
    let limit = rounding_limit([E4M3; 2]);
    let advised = |now: f64, accumulation, cards: &[(Sums, [f64; 2])]| {
        let mut entry = with_sums(entry(0, 1, "up", 1.0), accumulation, cards);
        let stats = entry.products.output.as_mut().expect("measured");
        (stats.sqnr, stats.alternatives) = (ratio(now), vec![]);
        SplitSums::of(stats).map(|split| split.sums)
    };
    let hopper = |fast, split| [(Sums::Hopper, [fast, split])];
    let some = Some(Sums::Hopper);
    // A tenth of the power of the rounding's error, and half of it gained.
    assert_eq!(advised(25.0, Fast, &hopper(34.9, 40.0)), some);
    assert_eq!(advised(25.0, Fast, &hopper(35.1, 50.0)), None);
    assert_eq!(advised(25.0, Fast, &hopper(30.0, 33.1)), some);
    assert_eq!(advised(25.0, Fast, &hopper(30.0, 32.9)), None);
    assert_eq!(advised(25.0, Split, &hopper(10.0, 40.0)), None, "it is");
    // Operands that are codes have an error of no rounding: beside that of others a sum's is small all the same.
    assert_eq!(advised(90.0, Fast, &hopper(limit + 9.9, 60.0)), some);
    assert_eq!(advised(90.0, Fast, &hopper(limit + 10.1, 60.0)), None);
    let mut several = with_sums(entry(0, 1, "up", 1.0), Fast, &hopper(20.0, 40.0));
    let stats = several.products.output.as_mut().expect("measured");
    stats.sqnr = ratio(20.0);
    for (alternative, expected) in
        [(Alternative::PerRow, None), (Alternative::Mxfp8, None), (Alternative::CurrentScale, some)]
    {
        stats.alternatives = vec![Prediction { alternative, sqnr: ratio(30.0) }];
        let split = SplitSums::of(stats).map(|split| split.sums);
        assert_eq!(split, expected, "{alternative}: several scales are split anyway");
    }
    let cards =
        [(Sums::Hopper, [30.0, 40.0]), (Sums::Ada, [29.0, 40.0]), (Sums::Blackwell, [28.0; 2])];
    assert_eq!(advised(25.0, Fast, &cards), Some(Sums::Ada), "the one that loses most");
}

#[test]
fn splitting_is_advised_in_words_beside_what_rounding_is_told() {
    let cards = [(Sums::Hopper, [31.2, 45.0]), (Sums::Blackwell, [90.0, 91.0])];
    let current = Prediction { alternative: Alternative::CurrentScale, sqnr: ratio(41.0) };
    for (now, short) in [(28.0, "split sums"), (22.0, "current scaling: 41.0 dB; split sums")] {
        let mut seen = Observations::new(header());
        let mut entry = with_sums(entry(0, 1, "up", 1.0), Accumulation::Fast, &cards);
        let stats = entry.products.output.as_mut().expect("measured");
        (stats.sqnr, stats.alternatives) = (ratio(now), vec![current]);
        seen.push(entry).expect("sound");
        let ranked = seen.ranked();
        let of = |role| ranked.iter().find(|ranked| ranked.role == role).expect("measured");
        let output = of(GemmRole::Output);
        let sentence = output.sentence();
        assert!(output.is_action() && sentence.ends_with(" Use with_accumulation(GemmRole::Output, Accumulation::Split): sums of hopper have 45.0 dB instead of 31.2 dB, 13.8 dB more."), "{sentence}");
        assert_eq!(output.in_short(), format!("{short}: 45.0 dB"));
        assert!(!of(GemmRole::GradInput).sentence().contains("with_accumulation"));
        let shown = "hopper fast 31.2 dB / split 45.0 dB";
        for text in [seen.to_string(), seen.to_html()] {
            assert!(text.contains(shown) && text.contains("SQNR of sums"), "{text}");
            assert!(text.contains("blackwell fast 90.0 dB / split 91.0 dB"));
        }
        assert_eq!(seen.to_html().matches(">SQNR of sums<").count(), 2, "ranking and card");
        assert!(seen.to_html().contains("Accumulation::Split): sums of hopper"));
    }
    let mut seen = Observations::new(header());
    seen.push(entry(0, 1, "up", 1.0)).expect("sound");
    assert!(!seen.to_string().contains("SQNR of sums"));
    assert!(!seen.to_html().contains(">SQNR of sums<"), "no empty columns");
}

#[test]
fn logs_hold_sums_within_limits_and_those_without_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let written = |name: &str, entry: &SiteEntry| {
        let path = folder.path().join(name);
        let mut log = Writer::create(&path, &header()).expect("created");
        log.append(std::slice::from_ref(entry)).map(|()| path)
    };
    let plain = entry(0, 1, "up", 1.0);
    let path = written("plain.jsonl", &plain).expect("written");
    // As logs were before there was such a field.
    assert!(!std::fs::read_to_string(&path).expect("there").contains("sums"));
    assert_eq!(
        read(&path).expect("read").sites[0].last.products.output.as_ref().unwrap().sums,
        None
    );

    let cards = [(Sums::Hopper, [31.5, 45.0]), (Sums::Custom(OWN), [20.0, 21.0])];
    let sound = with_sums(plain.clone(), Accumulation::Fast, &cards);
    let path = written("sums.jsonl", &sound).expect("written");
    let sums_of = |entry: &SiteEntry| entry.products.output.clone().expect("measured").sums;
    let read_back = sums_of(&read(&path).expect("read").sites[0].last).expect("measured");
    assert_eq!(read_back.accumulation, Accumulation::Fast);
    let shown = |sums: &SumStats| sums.cards.iter().map(CardSums::to_string).collect::<Vec<_>>();
    assert_eq!(shown(&read_back), shown(&sums_of(&sound).expect("measured")));
    assert_eq!(read_back.cards[1].sums, Sums::Custom(OWN));

    let own = |chain| Sums::Custom(Accumulator { chain, ..OWN });
    let many: Vec<_> = (1..=9).map(|chain| (own(chain), [20.0; 2])).collect();
    for (cards, expected) in [
        (&[][..], "sums of 0 cards"),
        (&many, "sums of 9 cards, of 1 to 8"),
        (&[(Sums::F32, [20.0; 2])], "sums of f32"),
        (&[(Sums::Ada, [20.0; 2]); 2], "sums of ada"),
        (&[(own(0), [20.0; 2])], "chain = 0"),
        (&[(Sums::Ada, [f64::INFINITY; 2])], "power"),
    ] {
        let entry = with_sums(plain.clone(), Accumulation::Fast, cards);
        let error = written(&format!("{expected}.jsonl"), &entry).expect_err(expected).to_string();
        assert!(
            error.contains("site 1 of step 0: output: ") && error.contains(expected),
            "{error}"
        );
        assert!(error.lines().count() == 1 && Observations::new(header()).push(entry).is_err());
    }
    let text = std::fs::read_to_string(&path).expect("there");
    for (from, to, expected) in [
        ("\"hopper\"", "\"volta\"", "unknown variant `volta`"),
        ("\"accumulation\":\"fast\"", "\"accumulation\":\"quick\"", "unknown variant `quick`"),
        ("\"cards\":", "\"kards\":", "unknown field `kards`"),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(&path, text.replacen(from, to, 1)).expect("written");
        let error = read(&path).expect_err(expected).to_string();
        assert!(error.contains("line 2") && error.contains(expected), "{error}");
    }
}

#[test]
fn peers_add_up_the_sums_that_all_measured() {
    use burn_fp8_report::log::peers::{merged, to_bytes};
    let plain = || entry(0, 1, "up", 1.0);
    let of_both = |theirs: SiteEntry| {
        let mine = with_sums(
            plain(),
            Accumulation::Fast,
            &[(Sums::Hopper, [30.0, 40.0]), (Sums::Ada, [30.0; 2])],
        );
        let (entries, failure) =
            merged(&[to_bytes(&[mine]), to_bytes(&[theirs])]).expect("as many");
        (entries.into_iter().next().and_then(|entry| entry.products.output?.sums), failure)
    };
    let other = with_sums(
        plain(),
        Accumulation::Fast,
        &[(Sums::Blackwell, [20.0; 2]), (Sums::Hopper, [20.0, 50.0])],
    );
    let (sums, failure) = of_both(other);
    let sums = sums.expect("measured by both");
    assert!(failure.is_none() && sums.cards.len() == 1 && sums.cards[0].sums == Sums::Hopper);
    let CardSums { fast, split, .. } = sums.cards[0];
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    assert!(near(fast.whole.signal, 1100.0) && fast.whole.noise == 2.0, "{fast:?}");
    assert!(near(split.whole.signal, 110_000.0) && split.whole.noise == 2.0, "{split:?}");
    // Of lines the worse.
    assert!(near(fast.line.signal, 100.0) && near(split.line.signal, 10_000.0));
    assert_eq!(of_both(plain()), (None, None));
    assert_eq!(
        of_both(with_sums(plain(), Accumulation::Fast, &[(Sums::Blackwell, [20.0; 2])])),
        (None, None)
    );
    let (sums, failure) =
        of_both(with_sums(plain(), Accumulation::Split, &[(Sums::Hopper, [20.0; 2])]));
    assert!(sums.is_none() && failure.is_some_and(|why| why.contains("accumulates fast")));
}
