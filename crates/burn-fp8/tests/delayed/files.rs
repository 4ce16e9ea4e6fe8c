//! The state of delayed scaling in files: saved, loaded, resumed, refused.

use std::path::Path;

use burn::nn::{Dropout, DropoutConfig};
use burn::optim::AdamW;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::tensor::activation::gelu;
use burn_fp8::DelayedRecord;
use burn_fp8::burn_fp8_core::AmaxHistory;
use burn_fp8::delayed::{KnownBy, SiteRecord};

use crate::common::delayed::under;
use crate::common::models::parameters;
use crate::common::*;

type B = Outer<Flex>;

#[derive(Module, Debug)]
struct Model<B: Backend> {
    first: Linear<B>,
    dropout: Dropout,
    second: Linear<B>,
}

impl<B: Backend> Model<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            first: LinearConfig::new(32, 48).init(device),
            dropout: DropoutConfig::new(0.3).init(),
            second: LinearConfig::new(48, 16).init(device),
        }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        self.second.forward(self.dropout.forward(gelu(self.first.forward(x))))
    }
}

const BATCH: usize = 16;
const BATCHES: u64 = 3;

/// What a training run consists of: weights, optimizer and the state of delayed scaling.
struct Run {
    model: Model<B>,
    optimizer: OptimizerAdaptor<AdamW, Model<B>, B>,
    state: DelayedState,
}

impl Run {
    fn new() -> Self {
        let device = Default::default();
        <B as Backend>::seed(&device, 42);
        let model = Model::new(&device);
        // Parameters are drawn when they are first read.
        parameters(&model);
        Self { model, optimizer: AdamWConfig::new().init(), state: DelayedState::new() }
    }

    /// One pass over the data, in an order and with dropout that depend on the epoch only.
    fn epoch(&mut self, epoch: u64) {
        let device = Default::default();
        <B as Backend>::seed(&device, 1000 + epoch);
        let mut order: Vec<u64> = (0..BATCHES).collect();
        order.rotate_left((epoch % BATCHES) as usize);
        for batch in order {
            let mut random = Random(batch);
            let x = tensor::<B, 2>(&random.spread(BATCH * 32), [BATCH, 32]);
            let y = tensor::<B, 2>(&random.spread(BATCH * 16), [BATCH, 16]);
            let grads = self.state.step(|| {
                let loss = (self.model.forward(x) - y).powf_scalar(2.0).mean();
                GradientsParams::from_grads(loss.backward(), &self.model)
            });
            self.model = self.optimizer.step(0.01, self.model.clone(), grads);
        }
    }

    /// Of the first batch, without dropout.
    fn loss(&self) -> f32 {
        type Valid = <B as AutodiffBackend>::InnerBackend;
        let mut random = Random(0);
        let x = tensor::<Valid, 2>(&random.spread(BATCH * 32), [BATCH, 32]);
        let y = tensor(&random.spread(BATCH * 16), [BATCH, 16]);
        values((self.model.valid().forward(x) - y).powf_scalar(2.0).mean())[0]
    }

    fn save(&self, folder: &Path) {
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
        let model = Recorder::<B>::record(&recorder, self.model.clone().into_record(), ());
        let optimizer = Recorder::<B>::record(&recorder, self.optimizer.to_record(), ());
        std::fs::write(folder.join("model"), model.expect("recorded")).expect("written");
        std::fs::write(folder.join("optimizer"), optimizer.expect("recorded")).expect("written");
        self.state.save(folder.join("state.json")).expect("written");
    }

    fn load(folder: &Path) -> Self {
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
        let device = Default::default();
        let read = |name: &str| std::fs::read(folder.join(name)).expect("written before");
        let Self { model, optimizer, state } = Self::new();
        let model_record = recorder.load(read("model"), &device).expect("recorded before");
        let optimizer_record =
            Recorder::<B>::load(&recorder, read("optimizer"), &device).expect("recorded before");
        state.load(folder.join("state.json")).expect("saved before");
        Self {
            model: model.load_record(model_record),
            optimizer: optimizer.load_record(optimizer_record),
            state,
        }
    }
}

/// Dropout draws its numbers from one generator of the process.
#[test]
fn a_resumed_run_ends_with_the_same_bits() {
    alone(|| {
        let config = Fp8Config::default().with_recipe(Recipe::delayed().with_history_length(4));
        config.scope(resume);
    });
}

fn resume() {
    let mut whole = Run::new();
    let before = whole.loss();
    (0..4).for_each(|epoch| whole.epoch(epoch));

    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut first = Run::new();
    (0..2).for_each(|epoch| first.epoch(epoch));
    first.save(folder.path());
    drop(first);
    let mut second = Run::load(folder.path());
    (2..4).for_each(|epoch| second.epoch(epoch));
    assert!(parameters(&second.model) == parameters(&whole.model), "weights differ");
    assert_eq!(second.state.export(), whole.state.export());

    // The state matters: without it the run takes another course.
    let mut forgetful = Run::load(folder.path());
    forgetful.state.clear();
    (2..4).for_each(|epoch| forgetful.epoch(epoch));
    assert!(parameters(&forgetful.model) != parameters(&whole.model), "the state has no influence");

    // It trains at all, so that equal bits mean something.
    (4..10).for_each(|epoch| whole.epoch(epoch));
    assert!(whole.loss() < 0.7 * before, "{} {before}", whole.loss());
}

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

        let optimizer = Fp8Optimizer::new(AdamWConfig::new().init::<B, Model<B>>());
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
        let x = Tensor::<B, 2>::full([32, 32], 0.01, &Default::default());
        let w = x.clone().slice([0..32, 0..16]).require_grad();
        let (_, report) = trace(|| x.matmul(w));
        let scale = report.products[0].lhs.expect("in FP8").scale;
        assert_eq!(scale, f32::MAX / 448.0, "{report}");
    });
}
