//! Which unit runs, and what names of units this machine refuses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Output as Ran};

use crate::common::{PLAIN, alone};
use burn_fp8_core::Fp8Format::E4M3;
use burn_fp8_cpu::{Codes, Instructions, Output, Unit, UnitError, matmul, matmul_with_amax};

const VARIABLE: &str = "BURN_FP8_CPU_UNIT";

/// Set for the processes that this test program starts.
const CHILD: &str = "BURN_FP8_CPU_TEST_CHILD";

const ALL: [Unit; 3] = [Unit::Portable, Unit::Avx512Bf16, Unit::AmxBf16];

fn missing() -> Vec<Unit> {
    let available = Unit::available();
    let missing: Vec<_> = ALL.into_iter().filter(|unit| !available.contains(unit)).collect();
    println!("this machine has {available:?} and lacks {missing:?}");
    missing
}

/// What every message ends with.
fn there_are() -> String {
    let narrower = Instructions::available().into_iter().skip(1).map(Instructions::name);
    let names: Vec<_> = Unit::available().into_iter().map(Unit::name).chain(narrower).collect();
    format!("this machine has {}", names.join(", "))
}

#[test]
fn units_come_most_capable_first_and_end_with_the_portable_one() {
    let available = Unit::available();
    assert_eq!(available.last(), Some(&Unit::Portable));
    assert!(available.is_sorted_by(|a, b| a > b), "{available:?}");
}

#[test]
fn a_name_of_no_unit_is_an_error_that_lists_the_units() {
    for name in ["x", "", "amx_bf16", "portable ", "avx512"] {
        let error = name.parse::<Unit>().unwrap_err();
        assert_eq!(error.to_string(), format!("{name:?} is no unit; {}", there_are()));
        let UnitError::Unknown { name: given, available } = error else { panic!("{error:?}") };
        assert_eq!((given.as_str(), available), (name, Unit::available()));
    }
    for (name, unit) in ["portable", "avx512-bf16", "amx-bf16"].into_iter().zip(ALL) {
        assert_eq!((name.parse(), unit.name()), (Ok(unit), name));
    }
    for (name, unit) in [
        ("AMX-BF16", Unit::AmxBf16),
        ("Amx-bf16", Unit::AmxBf16),
        ("AVX512-BF16", Unit::Avx512Bf16),
        ("f32", Unit::Portable),
        ("PORTABLE", Unit::Portable),
    ] {
        assert_eq!(name.parse(), Ok(unit), "{name}");
    }
}

/// Everything that forces, in one test: the choice is of the whole process.
#[test]
fn forcing_takes_the_units_there_are_and_refuses_the_others() {
    alone(|| {
        for unit in Unit::available() {
            Unit::force(Some(unit)).unwrap();
            assert_eq!((Unit::current(), Unit::try_current()), (unit, Ok(unit)));
            for missing in missing() {
                let error = Unit::force(Some(missing)).unwrap_err();
                let text = error.to_string();
                assert!(text.starts_with(&format!("this machine has no {missing}: ")), "{text}");
                assert!(text.ends_with(&there_are()), "{text}");
                assert!(matches!(error, UnitError::Unavailable { unit, .. } if unit == missing));
                assert_eq!(Unit::current(), unit, "a refusal changes nothing");
            }
            let faster = ALL.into_iter().filter(|other| *other > unit).count();
            assert_eq!(Unit::why_not_faster().len(), faster);
        }
        Unit::force(None).unwrap();
        assert!(Unit::available().contains(&Unit::current()));
    });
}

#[test]
fn a_missing_unit_never_runs() {
    let codes = [0x38; 4];
    for unit in missing() {
        let mut y = [7f32; 4];
        let [lhs, rhs] = [Codes::rows(&codes, E4M3, [2, 2]); 2];
        let run = AssertUnwindSafe(|| matmul(unit, lhs, rhs, &PLAIN, Output::F32(&mut y)));
        let payload = catch_unwind(run).unwrap_err();
        let message = payload.downcast::<String>().unwrap();
        assert!(message.starts_with(&format!("this machine has no {unit}: ")), "{message}");
        assert!(message.ends_with(&there_are()), "{message}");
        // Not even where there is nothing to compute.
        let empty = Codes::rows(&[], E4M3, [0, 0]);
        let run = || matmul_with_amax(unit, empty, empty, &PLAIN, Output::F32(&mut []));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert_eq!(y, [7.0; 4]);
    }
}

/// Runs `child` in a process of its own.
fn with_variable(value: &str) -> (Ran, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "units::child", "--nocapture", "--test-threads=1"]);
    let ran = command.env(CHILD, "1").env(VARIABLE, value).output().unwrap();
    let text = [&*ran.stdout, &*ran.stderr].map(String::from_utf8_lossy).concat();
    (ran, text)
}

/// Does nothing but in a process that `with_variable` has started.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        let tried = Unit::try_expected();
        println!("expected {tried:?}");
        let tried = Unit::try_current();
        println!("tried {tried:?}");
        println!("runs on {} with {}", Unit::current().name(), Instructions::current());
        assert_eq!(tried, Ok(Unit::current()));
    }
}

#[test]
fn the_variable_chooses_the_unit() {
    for unit in Unit::available() {
        for name in [unit.name().to_owned(), unit.to_string(), unit.name().to_uppercase()] {
            let (ran, text) = with_variable(&name);
            assert!(
                ran.status.success()
                    && text.contains(&format!("runs on {} with portable\n", unit.name())),
                "{text}"
            );
        }
    }
    for narrower in Instructions::available().into_iter().skip(1) {
        for name in [narrower.name().to_owned(), narrower.name().to_uppercase()] {
            let (ran, text) = with_variable(&name);
            let runs = text.contains(&format!("runs on portable with {narrower}\n"));
            assert!(ran.status.success() && runs, "{text}");
        }
    }
    // Empty is as good as not there.
    let (ran, text) = with_variable("");
    assert!(ran.status.success() && text.contains("runs on "), "{text}");
}

#[test]
fn an_unknown_name_in_the_variable_is_a_panic_that_lists_the_units() {
    let (ran, text) = with_variable("tpu");
    assert!(!ran.status.success() && !text.contains("runs on"), "{text}");
    let message = format!("{VARIABLE}: \"tpu\" is no unit; {}", there_are());
    assert!(text.contains(&message) && text.contains("tried Err(Unknown"), "{text}");
    assert!(text.contains("expected Err(Unknown"), "{text}");
}

#[test]
fn a_missing_unit_in_the_variable_is_a_panic_that_lists_the_units() {
    for unit in missing() {
        let (ran, text) = with_variable(unit.name());
        assert!(!ran.status.success() && !text.contains("runs on"), "{text}");
        let start = format!("{VARIABLE}: this machine has no {unit}: ");
        let line =
            text.lines().find(|line| line.contains(&start)).unwrap_or_else(|| panic!("{text}"));
        assert!(line.ends_with(&there_are()), "{text}");
    }
}
