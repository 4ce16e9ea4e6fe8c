//! The state of delayed scaling in files: saved, loaded, refused.

use burn_fp8::DelayedRecord;
use burn_fp8::burn_fp8_core::AmaxHistory;
use burn_fp8::delayed::{KnownBy, SiteRecord};

use crate::common::delayed::under;
use crate::common::models::Net;
use crate::common::*;

type B = Outer<Flex>;

fn record() -> DelayedRecord {
    let history = |entries: &[f32]| AmaxHistory::from_entries(entries.to_vec()).expect("valid");
    let site = |index, k, n, amax: f32| SiteRecord {
        index,
        k,
        n,
        known_by: (index > 0).then_some(KnownBy { weight: None, after: Some(0), offset: index }),
        input: history(&[amax, 0.0, f32::MAX]),
        weight: history(&[1e-40, amax]),
        output_grad: history(&[f32::MIN_POSITIVE]),
    };
    DelayedRecord { sites: vec![site(0, 32, 48, 1.5), site(3, 48, 16, 0.1)] }
}

#[test]
fn records_survive_files_and_json() {
    let (folder, path) = files::path("state.json");
    for record in [record(), DelayedRecord::default()] {
        record.save(&path).expect("written");
        assert_eq!(DelayedRecord::load(&path).expect("just written"), record);
        let state = DelayedState::new();
        state.load(&path).expect("just written");
        assert_eq!(state.export(), record);
        let json = serde_json::to_string(&record).expect("serializes");
        assert_eq!(serde_json::from_str::<DelayedRecord>(&json).expect("valid"), record);
    }
    // Nothing is left beside the file.
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

#[test]
fn damaged_files_are_refused_and_nothing_is_overwritten() {
    let (_folder, path) = files::path("state.json");
    record().save(&path).expect("written");
    let good = std::fs::read(&path).expect("just written");
    let state = DelayedState::new();
    state.import(record()).expect("in order");

    let refused_now = |bytes: &[u8], part: &str| {
        std::fs::write(&path, bytes).expect("written");
        let error = state.load(&path).expect_err("damaged");
        assert!(matches!(error, Fp8Error::InvalidState { .. }), "{error:?}");
        says(&error, [part, "it is no state of delayed scaling", "nothing was loaded"]);
        says(&error, ["state.json"]);
        assert_eq!(error.to_string().lines().count(), 1);
        assert_eq!(state.export(), record(), "{error}");
    };
    // Cut at every length.
    for length in 0..good.len() {
        refused_now(&good[..length], "at line 1 column");
    }
    refused_now(&[&good[..], b"]"].concat(), "trailing characters");
    refused_now(b"no JSON at all", "expected");
    let text = String::from_utf8(good.clone()).expect("JSON");
    for (from, to, part) in [
        ("{\"sites\":", "{\"layers\":", "unknown field `layers`"),
        ("\"k\":32", "\"k\":-32", "invalid value"),
        ("\"k\":32,", "", "missing field `k`"),
        ("\"k\":32", "\"k\":32,\"m\":1", "unknown field `m`"),
        ("\"index\":3", "\"index\":0", "site 0 occurs twice"),
        ("\"index\":0", "\"index\":4", "site 3 comes after site 4"),
        ("[1.5,", "[-1.5,", "no finite magnitude"),
        ("[1.5,", "[1.5e39,", ""),
        ("[1.5,", "[null,", "invalid type"),
        ("[1e-40,1.5]", "[]", "no finite magnitude"),
    ] {
        let damaged = text.replacen(from, to, 1);
        assert_ne!(damaged, text, "{from}");
        refused_now(damaged.as_bytes(), part);
    }
    std::fs::write(&path, &good).expect("written");
    state.load(&path).expect("the same, well-formed");

    let missing = state.load(path.with_file_name("missing")).expect_err("no such file");
    assert!(matches!(missing, Fp8Error::Io { action: "read", .. }), "{missing}");
}

#[test]
fn sites_out_of_order_or_twice_are_refused_wherever_they_come_from() {
    let (_folder, path) = files::path("state.json");
    let [first, second] = <[SiteRecord; 2]>::try_from(record().sites).expect("two");
    for (sites, expected) in [
        (vec![first.clone(), first.clone()], "site 0 occurs twice"),
        (vec![second, first], "site 0 comes after site 3"),
    ] {
        let bad = DelayedRecord { sites };
        let error = bad.save(&path).expect_err("could not be loaded");
        assert!(matches!(error, Fp8Error::Invalid { .. }) && !path.exists(), "{error:?}");
        says(error, [expected]);

        let state = DelayedState::new();
        state.import(record()).expect("in order");
        refused(state.import(bad.clone()), [expected]);
        assert_eq!(state.export(), record());

        let json = serde_json::to_string(&bad).expect("serializes");
        refused(serde_json::from_str::<DelayedRecord>(&json), [expected]);

        let optimizer = Fp8Optimizer::new(AdamWConfig::new().init::<B, Net<B>>());
        let optimizer = optimizer.with_delayed_state(state.clone());
        let mut saved = optimizer.to_record();
        saved.delayed = Some(bad);
        panics(|| optimizer.load_record(saved), [expected]);
        assert_eq!(state.export(), record());
    }
}

#[test]
fn a_failed_save_leaves_the_old_file() {
    let (folder, path) = files::path("state.json");
    record().save(&path).expect("written");
    // A folder in place of the file cannot be replaced by a file.
    let blocked = folder.path().join("blocked");
    std::fs::create_dir_all(blocked.join("child")).expect("created");
    let error = record().save(&blocked).expect_err("a folder is in the way");
    assert!(matches!(error, Fp8Error::Io { action: "write", .. }), "{error}");
    assert!(record().save(folder.path().join("..")).is_err());
    assert_eq!(DelayedRecord::load(&path).expect("untouched"), record());
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 2, "nothing is left");
}

#[test]
fn loaded_states_are_used_from_the_first_product_on() {
    let state = DelayedState::new();
    let site = SiteRecord { index: 0, k: 32, n: 16, known_by: None, ..record().sites.remove(1) };
    state.import(DelayedRecord { sites: vec![site] }).expect("in order");
    under(&state, Recipe::delayed().with_history_length(3), || {
        let (_, report) = trace(|| ones::<B, 2>([32, 32]).matmul(ones([32, 16]).require_grad()));
        let scale = report.products[0].lhs.expect("in FP8").scale;
        assert_eq!(scale, f32::MAX / 448.0, "{report}");
    });
}
