//! The state of delayed scaling in files: saved, loaded, resumed, refused.

mod common;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::backend::Flex;
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::activation::gelu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};
use burn_fp8::burn_fp8_core::AmaxHistory;
use burn_fp8::delayed::SiteRecord;
use burn_fp8::optim::Fp8Optimizer;
use burn_fp8::{DelayedRecord, DelayedState, Fp8Config, Fp8Error, Recipe};
use common::{Outer, Random, bits, panic_of, tensor, values};

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

/// Flex draws random numbers from one generator for all threads: runs that must repeat take turns.
static RANDOM_NUMBERS: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    RANDOM_NUMBERS.lock().unwrap_or_else(PoisonError::into_inner)
}

const BATCH: usize = 16;
const BATCHES: u64 = 3;

/// What a training run consists of: weights, optimizer and the state of delayed scaling.
struct Run {
    model: Model<B>,
    optimizer: burn::optim::adaptor::OptimizerAdaptor<burn::optim::AdamW, Model<B>, B>,
    state: DelayedState,
}

impl Run {
    fn new() -> Self {
        let device = Default::default();
        <B as Backend>::seed(&device, 42);
        Self {
            model: Model::new(&device),
            optimizer: AdamWConfig::new().init(),
            state: DelayedState::new(),
        }
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

    fn save(&self, folder: &Path) {
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
        let model = Recorder::<B>::record(&recorder, self.model.clone().into_record(), ());
        let optimizer = Recorder::<B>::record(&recorder, self.optimizer.to_record(), ());
        std::fs::write(folder.join("model"), model.expect("recorded")).expect("written");
        std::fs::write(folder.join("optimizer"), optimizer.expect("recorded")).expect("written");
        self.state.save(folder.join("state.safetensors")).expect("written");
    }

    fn load(folder: &Path) -> Self {
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
        let device = Default::default();
        let read = |name: &str| std::fs::read(folder.join(name)).expect("written before");
        let Self { model, optimizer, state } = Self::new();
        let model_record = recorder.load(read("model"), &device).expect("recorded before");
        let optimizer_record =
            Recorder::<B>::load(&recorder, read("optimizer"), &device).expect("recorded before");
        state.load(folder.join("state.safetensors")).expect("saved before");
        Self {
            model: model.load_record(model_record),
            optimizer: optimizer.load_record(optimizer_record),
            state,
        }
    }

    fn weights(&self) -> Vec<u32> {
        let mut weights = bits(&values(self.model.first.weight.val()));
        weights.extend(bits(&values(self.model.second.weight.val())));
        weights
    }
}

#[test]
fn a_resumed_run_ends_with_the_same_bits() {
    let _alone = alone();
    Fp8Config::default().with_recipe(Recipe::delayed().with_history_length(4)).scope(|| {
        let mut whole = Run::new();
        (0..4).for_each(|epoch| whole.epoch(epoch));

        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut first = Run::new();
        (0..2).for_each(|epoch| first.epoch(epoch));
        first.save(folder.path());
        drop(first);
        let mut second = Run::load(folder.path());
        (2..4).for_each(|epoch| second.epoch(epoch));
        assert!(second.weights() == whole.weights(), "weights differ");
        assert_eq!(second.state.export(), whole.state.export());

        // The state matters: without it the run takes another course.
        let mut forgetful = Run::load(folder.path());
        forgetful.state.clear();
        (2..4).for_each(|epoch| forgetful.epoch(epoch));
        assert!(forgetful.weights() != whole.weights(), "the state has no influence");
    });
}

fn record() -> DelayedRecord {
    let history = |entries: &[f32]| AmaxHistory::from_entries(entries.to_vec()).expect("valid");
    let site = |index, k, n, amax: f32| SiteRecord {
        index,
        k,
        n,
        input: history(&[amax, 0.0, f32::MAX]),
        weight: history(&[1e-40, amax]),
        output_grad: history(&[f32::MIN_POSITIVE]),
    };
    DelayedRecord { sites: vec![site(0, 32, 48, 1.5), site(3, 48, 16, 0.1)] }
}

#[test]
fn records_survive_files_and_json() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("state.safetensors");
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

/// A safetensors file made of a header and data, whatever they say.
fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn damaged_files_are_refused_and_nothing_is_overwritten() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("state.safetensors");
    record().save(&path).expect("written");
    let good = std::fs::read(&path).expect("just written");
    let state = DelayedState::new();
    state.import(record()).expect("in order");

    let refuse = |bytes: &[u8], part: &str| {
        std::fs::write(&path, bytes).expect("written");
        let error = state.load(&path).expect_err("damaged");
        assert!(matches!(error, Fp8Error::InvalidState { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(part), "{text}");
        assert!(
            text.contains("state.safetensors") && text.contains("nothing was loaded"),
            "{text}"
        );
        assert!(!text.contains('\n'), "{text}");
        assert_eq!(state.export(), record(), "{text}");
    };
    // Cut at every length.
    for length in 0..good.len() {
        refuse(&good[..length], "not a complete safetensors file");
    }
    refuse(&[good.as_slice(), &[0]].concat(), "not a complete safetensors file");
    refuse(b"not safetensors at all", "not a complete safetensors file");
    refuse(&safetensors("{}", &[]), "its metadata has no `format`");
    let header = |format: &str, version: &str, sites: &str, tensors: &str| {
        format!(
            r#"{{"__metadata__":{{"format":"{format}","version":"{version}","sites":"{sites}"}}{tensors}}}"#
        )
    };
    let state_format = "burn-fp8 delayed state";
    refuse(&safetensors(&header("a model", "1", "[]", ""), &[]), "it holds `a model`");
    refuse(&safetensors(&header(state_format, "2", "[]", ""), &[]), "it has version 2");
    refuse(&safetensors(&header(state_format, "1", "[[0,1]]", ""), &[]), "`sites` of its metadata");
    refuse(
        &safetensors(&header(state_format, "1", "[[0,1,-2]]", ""), &[]),
        "`sites` of its metadata",
    );
    refuse(&safetensors(&header(state_format, "1", "[[0,1,2]]", ""), &[]), "0 tensors for 1 sites");
    let tensors = |names: [&str; 3], dtype: &str, shape: &str| -> String {
        let entry = |(index, name): (usize, &str)| {
            let offsets = [index * 4, index * 4 + 4];
            format!(r#","{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets:?}}}"#)
        };
        names.into_iter().enumerate().map(entry).collect()
    };
    let names = ["site.0.input", "site.0.weight", "site.0.output_grad"];
    let with = |tensors: &str, data: [f32; 3]| {
        let data: Vec<u8> = data.iter().flat_map(|x| x.to_le_bytes()).collect();
        safetensors(&header(state_format, "1", "[[0,1,2]]", tensors), &data)
    };
    let misnamed = tensors(["site.0.input", "site.0.weight", "site.1.input"], "F32", "[1]");
    refuse(&with(&misnamed, [1.0; 3]), "it has no `site.0.output_grad`");
    refuse(&with(&tensors(names, "F32", "[1,1]"), [1.0; 3]), "not F32 [steps]");
    refuse(&with(&tensors(names, "I32", "[1]"), [1.0; 3]), "not F32 [steps]");
    for bad in [f32::NAN, f32::INFINITY, -1.0] {
        let bytes = with(&tensors(names, "F32", "[1]"), [1.0, bad, 1.0]);
        refuse(&bytes, "`site.0.weight` is empty, too long, or holds something");
    }
    for (sites, expected) in [
        ("[[1,1,2],[0,1,2]]", "site 0 comes after site 1"),
        ("[[0,1,2],[0,1,2]]", "site 0 occurs twice"),
    ] {
        let six: String = ["site.0", "site.1"]
            .iter()
            .enumerate()
            .flat_map(|(site, name)| {
                ["input", "weight", "output_grad"].into_iter().enumerate().map(move |(i, part)| {
                    let start = 12 * site + 4 * i;
                    let offsets = [start, start + 4];
                    format!(
                        r#","{name}.{part}":{{"dtype":"F32","shape":[1],"data_offsets":{offsets:?}}}"#
                    )
                })
            })
            .collect();
        let data = [1f32; 6].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let bytes = safetensors(&header(state_format, "1", sites, &six), &data);
        refuse(&bytes, expected);
    }
    std::fs::write(&path, with(&tensors(names, "F32", "[1]"), [1.0; 3])).expect("written");
    state.load(&path).expect("the same, well-formed");

    let missing = state.load(folder.path().join("missing")).expect_err("no such file");
    assert!(matches!(missing, Fp8Error::Io { action: "read", .. }), "{missing}");
    let json =
        r#"{"sites":[{"index":0,"k":1,"n":2,"input":[-1.0],"weight":[1.0],"output_grad":[1.0]}]}"#;
    let error = serde_json::from_str::<DelayedRecord>(json).expect_err("a negative amax");
    assert!(error.to_string().contains("no finite magnitude"), "{error}");
}

#[test]
fn sites_out_of_order_or_twice_are_refused_wherever_they_come_from() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("state.safetensors");
    let [first, second] = <[SiteRecord; 2]>::try_from(record().sites).expect("two");
    for (sites, expected) in [
        (vec![first.clone(), first.clone()], "site 0 occurs twice"),
        (vec![second, first], "site 0 comes after site 3"),
    ] {
        let bad = DelayedRecord { sites };
        let error = bad.save(&path).expect_err("could not be loaded");
        assert!(matches!(error, Fp8Error::Invalid { .. }) && !path.exists(), "{error:?}");
        assert!(error.to_string().contains(expected), "{error}");

        let state = DelayedState::new();
        state.import(record()).expect("in order");
        let error = state.import(bad.clone()).expect_err("one of them would be lost").to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(state.export(), record());

        let json = serde_json::to_string(&bad).expect("serializes");
        let error = serde_json::from_str::<DelayedRecord>(&json).expect_err("as in a file");
        assert!(error.to_string().contains(expected), "{error}");

        let optimizer = Fp8Optimizer::new(AdamWConfig::new().init::<B, Model<B>>());
        let optimizer = optimizer.with_delayed_state(state.clone());
        let mut saved = optimizer.to_record();
        saved.delayed = Some(bad);
        let message = panic_of(|| optimizer.load_record(saved));
        assert!(message.contains(expected), "{message}");
        assert_eq!(state.export(), record());
    }
}

#[test]
fn a_failed_save_leaves_the_old_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("state.safetensors");
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
    let site = SiteRecord { index: 0, k: 32, n: 16, ..record().sites.remove(1) };
    state.import(DelayedRecord { sites: vec![site] }).expect("in order");
    Fp8Config::default().with_recipe(Recipe::delayed().with_history_length(3)).scope(|| {
        state.scope(|| {
            let data = TensorData::new(vec![0.01f32; 32 * 32], [32, 32]);
            let x = Tensor::<B, 2>::from_data(data, &Default::default());
            let w = x.clone().slice([0..32, 0..16]).require_grad();
            let (_, report) = burn_fp8::trace(|| x.matmul(w));
            let scale = report.products[0].lhs.expect("in FP8").scale;
            assert_eq!(scale, f32::MAX / 448.0, "{report}");
        })
    });
}

/// That the run above trains at all, so that equal bits mean something.
#[test]
fn the_run_learns() {
    let _alone = alone();
    Fp8Config::default().with_recipe(Recipe::delayed()).scope(|| {
        let mut run = Run::new();
        let loss = |run: &Run| {
            let mut random = Random(0);
            let x = tensor::<<B as AutodiffBackend>::InnerBackend, 2>(
                &random.spread(BATCH * 32),
                [BATCH, 32],
            );
            let y = tensor(&random.spread(BATCH * 16), [BATCH, 16]);
            use burn::module::AutodiffModule;
            values((run.model.valid().forward(x) - y).powf_scalar(2.0).mean())[0]
        };
        let before = loss(&run);
        (0..10).for_each(|epoch| run.epoch(epoch));
        assert!(loss(&run) < 0.7 * before, "{} {before}", loss(&run));
    });
}
