//! The observatory in Burn's `Learner`: what its metrics show and log.
#![cfg(feature = "train")]

use burn::train::{Learner, SupervisedTraining};
use burn_fp8::report::metric::{Fp8Metric, Statistic};
use burn_fp8::report::{Observatory, ObservatoryOptions, log};

use crate::common::learner::{BATCHES, Layers, Model, Shown, loader, samples};
use crate::common::*;

const EPOCHS: usize = 2;

#[test]
fn the_learner_shows_and_logs_what_is_seen() {
    let (folder, path) = files::path("fp8.jsonl");
    let options = ObservatoryOptions::default().with_every(2).with_log(&path);
    let observatory = Observatory::new(options).expect("created");
    let model = Model { observatory: Some(observatory.clone()), ..Model::new(Layers::Plain) };
    let shown = Shown::default();
    let metric = |statistic| Fp8Metric::new(observatory.clone(), statistic);
    let train = loader::<Outer<Flex>>(samples(1, BATCHES));
    SupervisedTraining::new(folder.path(), train, loader::<Fp8Backend<Flex>>(samples(1, 1)))
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
    for metrics in shown.chunks(5) {
        let (text, value) = &metrics[0];
        assert!(worst.contains(value), "{value} of {worst:?}");
        assert!(text.contains("dB"), "{text}");
        assert!(metrics.iter().all(|(_, value)| value.is_finite()), "{metrics:?}");
        assert_eq!(metrics[3].1, 0.0, "current scaling does not saturate");
    }

    // Burn's own log of the metric, and the observatory's.
    let epochs = std::fs::read_dir(folder.path().join("train")).expect("a log of the training");
    let logged = epochs.flatten().any(|epoch| {
        std::fs::read_dir(epoch.path()).is_ok_and(|files| {
            files.flatten().any(|file| file.file_name().to_string_lossy().contains("SQNR"))
        })
    });
    assert!(logged);
    assert_eq!(log::read(&path).expect("whole").to_string(), seen.to_string());
}

/// What five metrics show in a training whose steps run outside of the observatory, or in it; and what it says at the end.
fn without_samples(observe: bool) -> (Vec<(String, f64)>, Option<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let observatory = Observatory::new(ObservatoryOptions::default()).expect("without a log");
    let observed = observe.then(|| observatory.clone());
    let model = Model { observatory: observed, ..Model::new(Layers::Plain) };
    let shown = Shown::default();
    let train = loader::<Outer<Flex>>(samples(1, BATCHES));
    let training = || {
        SupervisedTraining::new(folder.path(), train, loader::<Fp8Backend<Flex>>(samples(1, 1)))
            .renderer(shown.clone())
            .with_application_logger(None)
            .metric_train_numeric(Fp8Metric::new(observatory.clone(), Statistic::WorstSqnr))
            .metric_train_numeric(Fp8Metric::new(observatory.clone(), Statistic::Flushed))
            .num_epochs(EPOCHS)
            .launch(Learner::new(model, AdamWConfig::new().init(), 1e-3))
    };
    match observe {
        // Nothing is in FP8.
        true => high_precision(training),
        false => training(),
    };
    let shown = shown.0.lock().expect("unpoisoned").clone();
    assert_eq!(shown.len(), 2 * BATCHES * EPOCHS);
    (shown, observatory.failure())
}

#[test]
fn a_step_outside_of_the_observatory_is_told() {
    for (observe, reason) in [
        (false, "run the body of `TrainStep::step` in `Observatory::step`"),
        (true, "the sampled steps had no product in FP8"),
    ] {
        let (shown, failure) = without_samples(observe);
        for (text, value) in shown {
            assert!(value.is_nan() && text.contains(reason), "{text}");
        }
        let failure = failure.expect("told when the first epoch ends");
        says(failure, ["the metrics of the observatory are NaN", reason]);
    }
}
