//! The observatory in Burn's `Learner`: what its metrics show and log.
#![cfg(all(feature = "flex", feature = "train"))]
#![allow(missing_docs)]

mod common;

use burn::backend::Flex;
use burn::module::Module;
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamWConfig;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::{
    InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
};
use burn_fp8::report::metric::{Fp8Metric, Statistic};
use burn_fp8::report::{Observatory, ObservatoryOptions, named};
use common::learner::{Batch, Sample, Shown, loader};
use common::{Outer, Random};

const WIDTH: usize = 16;
const BATCHES: usize = 4;
const EPOCHS: usize = 2;

#[derive(Module, Debug)]
struct Model<B: Backend> {
    first: Linear<B>,
    second: Linear<B>,
    #[module(skip)]
    observatory: Observatory,
}

impl<B: Backend> Model<B> {
    fn regression(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let output =
            named("second", || self.second.forward(named("first", || self.first.forward(batch.x))));
        let loss = MseLoss::new().forward(output.clone(), batch.y.clone(), Reduction::Mean);
        RegressionOutput::new(loss, output, batch.y)
    }
}

impl<B: AutodiffBackend> TrainStep for Model<B> {
    type Input = Batch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<RegressionOutput<B>> {
        self.observatory.step(|| {
            let output = self.regression(batch);
            TrainOutput::new(self, output.loss.backward(), output)
        })
    }
}

impl<B: Backend> InferenceStep for Model<B> {
    type Input = Batch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Batch<B>) -> RegressionOutput<B> {
        self.regression(batch)
    }
}

fn samples(batches: usize) -> Vec<Sample> {
    let mut random = Random(1);
    let rows = (0..batches * WIDTH).map(|_| random.spread(WIDTH));
    rows.map(|row| (row.clone(), row)).collect()
}

#[test]
fn the_learner_shows_and_logs_what_is_seen() {
    type B = Outer<Flex>;
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("fp8.jsonl");
    let options = ObservatoryOptions::default().with_every(2).with_log(&log);
    let observatory = Observatory::new(options).expect("created");
    let device = Default::default();
    let linear = || LinearConfig::new(WIDTH, WIDTH).init::<B>(&device);
    let model = Model { first: linear(), second: linear(), observatory: observatory.clone() };
    let shown = Shown::default();
    let metric = |statistic| Fp8Metric::new(observatory.clone(), statistic);
    let (train, valid) = (loader::<B>(samples(BATCHES), WIDTH), loader::<Flex8>(samples(1), WIDTH));
    SupervisedTraining::new(folder.path(), train, valid)
        .renderer(shown.clone())
        .with_application_logger(None)
        .metric_train_numeric(metric(Statistic::WorstSqnr))
        .metric_train_numeric(metric(Statistic::MeanSqnr))
        .metric_train_numeric(metric(Statistic::Flushed))
        .metric_train_numeric(metric(Statistic::Saturated))
        .metric_train_numeric(metric(Statistic::NonFinite))
        .num_epochs(EPOCHS)
        .launch(Learner::new(model, AdamWConfig::new().init(), 1e-3));

    let seen = observatory.report();
    assert_eq!(observatory.failure(), None);
    // Validation ran outside of steps.
    assert_eq!(seen.steps, (BATCHES * EPOCHS / 2) as u64);
    let labels: Vec<String> = seen.sites.iter().map(|site| site.label()).collect();
    assert_eq!(labels, ["second.first #1", "second #2"]);

    // The lowest SQNR of each sampled step, taken from the products themselves.
    let worst: Vec<f64> = (0..seen.steps as usize)
        .map(|step| {
            let products = seen.sites.iter().flat_map(|site| site.points[step].products);
            products.flatten().fold(f64::INFINITY, f64::min)
        })
        .collect();
    let shown = shown.0.lock().expect("unpoisoned");
    assert_eq!(shown.len(), 5 * BATCHES * EPOCHS);
    let decibels = shown.iter().step_by(5);
    for (text, value) in decibels {
        assert!(worst.contains(value), "{value} of {worst:?}");
        assert!(text.contains("dB"), "{text}");
    }
    assert!(shown.iter().all(|(_, value)| value.is_finite()), "{shown:?}");
    assert!(
        shown.iter().skip(3).step_by(5).all(|(_, saturated)| *saturated == 0.0),
        "current scaling"
    );

    // Burn's own log of the metric, and the observatory's.
    let epochs = std::fs::read_dir(folder.path().join("train")).expect("a log of the training");
    let logged = epochs.flatten().any(|epoch| {
        std::fs::read_dir(epoch.path()).is_ok_and(|files| {
            files.flatten().any(|file| file.file_name().to_string_lossy().contains("SQNR"))
        })
    });
    assert!(logged);
    assert_eq!(burn_fp8::report::log::read(&log).expect("whole").to_string(), seen.to_string());
}

type Flex8 = burn_fp8::Fp8Backend<Flex>;
