//! Losses by epoch: what Burn's Learner logs, kept in a file that outlives the process.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use burn::train::logger::MetricLogger;
use burn::train::metric::store::{EpochSummary, MetricsUpdate, Split};
use burn::train::metric::{MetricDefinition, MetricId, NumericEntry};
use serde::{Deserialize, Deserializer, Serialize};

/// The name of Burn's loss metric.
const LOSS: &str = "Loss";

/// The losses of an epoch, in nats a character.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// The epoch, from 1.
    pub epoch: usize,
    /// The mean loss of its training batches, with dropout; NaN, in JSON `null`, where the training diverged.
    #[serde(deserialize_with = "null_is_nan")]
    pub train_loss: f64,
    /// The mean loss of the validation batches after it; NaN as above.
    #[serde(deserialize_with = "null_is_nan")]
    pub valid_loss: f64,
}

/// JSON has no NaN.
fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Reads the points of a run, each on a line of JSON; a last line that a killed process left unfinished is none of them.
///
/// # Errors
/// Where the file cannot be read or holds something else.
pub fn read(path: &Path) -> Result<Vec<Point>> {
    let parse = |text: &str| -> Result<Vec<Point>> {
        let mut points = Vec::new();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for (index, line) in whole.lines().enumerate() {
            let point: Point =
                serde_json::from_str(line).with_context(|| format!("line {}", index + 1))?;
            ensure!(point.epoch == index + 1, "line {} is of epoch {}", index + 1, point.epoch);
            points.push(point);
        }
        Ok(points)
    };
    match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        text => text.map_err(anyhow::Error::from),
    }
    .and_then(|text| parse(&text))
    .with_context(|| format!("losses {}", path.display()))
}

/// The losses of a run so far, shared by the Learner's logger, which adds to them, and those who wait for them.
#[derive(Clone)]
pub struct Curve {
    state: Arc<(Mutex<State>, Condvar)>,
}

/// What a curve has to know of its run.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    /// The epochs that it was asked for.
    pub epochs: usize,
    /// The batches of a whole validation.
    pub valid_batches: usize,
    /// Whether nothing is said of an epoch.
    pub quiet: bool,
}

struct State {
    points: Vec<Point>,
    train_loss: f64,
    running: f64,
    /// The batches of this validation so far.
    valid_batches: usize,
    loss: Option<MetricId>,
    file: File,
    course: Course,
}

impl Curve {
    /// A curve that begins with these points, which replace what is in the file.
    pub fn new(path: &Path, points: Vec<Point>, course: Course) -> Result<Self> {
        let lines = points.iter().map(|point| serde_json::to_string(point).map(|line| line + "\n"));
        let lines = lines.collect::<Result<String, _>>()?;
        // As a whole: without any points, no checkpoint would be gone on from.
        examples_common::write(path, lines)?;
        let file = OpenOptions::new().append(true).open(path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        let state = State {
            points,
            train_loss: f64::NAN,
            running: f64::NAN,
            valid_batches: 0,
            loss: None,
            file,
            course,
        };
        Ok(Self { state: Arc::new((Mutex::new(state), Condvar::new())) })
    }

    /// Waits until the losses of so many epochs are known, and returns them. The Learner computes them on another thread.
    pub fn wait(&self, epochs: usize) -> Vec<Point> {
        let (state, changed) = &*self.state;
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = changed.wait_while(state, |state| state.points.len() < epochs);
        state.unwrap_or_else(PoisonError::into_inner).points.clone()
    }
}

impl MetricLogger for Curve {
    /// Of all metrics that the Learner shows, the loss alone is kept.
    fn log(&mut self, update: MetricsUpdate, _epoch: usize, split: &Split) {
        let mut state = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        let loss =
            update.entries_numeric.iter().find(|u| Some(&u.entry.metric_id) == state.loss.as_ref());
        if let Some(loss) = loss {
            state.running = loss.running_entry.current();
            state.valid_batches += usize::from(*split == Split::Valid);
        }
    }

    fn read_numeric(
        &mut self,
        name: &str,
        epoch: usize,
        split: &Split,
    ) -> Result<Vec<NumericEntry>, String> {
        let state = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        let points = state.points.iter().filter(|point| name == LOSS && point.epoch == epoch);
        let loss = |point: &Point| match split {
            Split::Train => point.train_loss,
            _ => point.valid_loss,
        };
        Ok(points.map(|point| NumericEntry::Value(loss(point))).collect())
    }

    fn log_metric_definition(&mut self, definition: MetricDefinition) {
        if definition.name == LOSS {
            let mut state = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.loss = Some(definition.metric_id);
        }
    }

    /// The Learner numbers what it logs from 1 in a resumed run, but its summaries right.
    fn log_epoch_summary(&mut self, summary: EpochSummary) {
        let (state, changed) = &*self.state;
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if summary.split == Split::Train {
            state.train_loss = state.running;
            return;
        }
        let point = Point {
            epoch: summary.epoch_number,
            train_loss: state.train_loss,
            valid_loss: state.running,
        };
        let Course { epochs, valid_batches, quiet } = state.course;
        // The Learner ends an interrupted validation as it ends a whole one: the mean of a few batches would become the loss of a resumed
        // run. Without it the checkpoint of this epoch is passed over.
        if std::mem::take(&mut state.valid_batches) == valid_batches {
            let line = serde_json::to_string(&point).expect("numbers serialize") + "\n";
            // A full disk costs the curve of a resume, not the training.
            if let Err(error) = state.file.write_all(line.as_bytes()) {
                eprintln!("warning: cannot write the losses of epoch {}: {error}", point.epoch);
            }
            if !quiet {
                eprintln!(
                    "epoch {:>3}/{epochs}: training loss {:.4}, validation loss {:.4}",
                    point.epoch, point.train_loss, point.valid_loss
                );
            }
        }
        // Also where it was interrupted: somebody may wait for it.
        state.points.push(point);
        changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::train::metric::store::NumericMetricUpdate;
    use burn::train::metric::{MetricAttributes, MetricEntry, SerializedEntry};

    /// What the Learner logs of a batch: the mean loss so far, behind another metric.
    fn batch(loss: f64) -> MetricsUpdate {
        let update = |name: &str, value: f64| {
            let entry = SerializedEntry::new(value.to_string(), value.to_string());
            let entry = MetricEntry::new(MetricId::new(name.to_owned().into()), entry);
            let value = NumericEntry::Value(value);
            NumericMetricUpdate::new(entry, value.clone(), value)
        };
        MetricsUpdate::new(vec![], vec![update("FP8 worst SQNR", 25.0), update(LOSS, loss)])
    }

    #[test]
    fn an_interrupted_validation_is_not_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("losses.jsonl");
        let course = Course { epochs: 3, valid_batches: 2, quiet: true };
        let mut curve = Curve::new(&path, vec![], course).expect("a curve");
        for name in ["FP8 worst SQNR", LOSS] {
            curve.log_metric_definition(MetricDefinition {
                metric_id: MetricId::new(name.to_owned().into()),
                name: name.into(),
                description: None,
                attributes: MetricAttributes::None,
            });
        }
        let mut epoch = |epoch, valid: &[f64]| {
            for loss in [3.0, 2.5, 2.25] {
                curve.log(batch(loss), epoch, &Split::Train);
            }
            curve.log_epoch_summary(EpochSummary::new(epoch, Split::Train));
            for &loss in valid {
                curve.log(batch(loss), epoch, &Split::Valid);
            }
            curve.log_epoch_summary(EpochSummary::new(epoch, Split::Valid));
        };
        let point = |epoch, valid_loss| Point { epoch, train_loss: 2.25, valid_loss };
        epoch(1, &[2.0, 1.75]);
        assert_eq!(read(&path).expect("losses"), [point(1, 1.75)]);
        epoch(2, &[1.5]);
        assert_eq!(read(&path).expect("losses"), [point(1, 1.75)], "half of a validation");
        // Who waits for the epoch is not left waiting.
        assert_eq!(curve.wait(2), [point(1, 1.75), point(2, 1.5)]);
    }

    /// A resumed run writes the points again that it read: they must not change by that.
    #[test]
    fn points_are_read_to_the_last_bit() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("losses.jsonl");
        // Numbers that serde_json reads an ulp off unless it is asked for more; their bits are those that Python gives them.
        let line = r#"{"epoch":1,"train_loss":1.9955537200728461,"valid_loss":2.4330640790563614}"#;
        fs::write(&path, format!("{line}\n")).expect("written");
        let points = read(&path).expect("one point");
        assert_eq!(points[0].train_loss.to_bits(), 0x3fff_edc9_bcd1_fbf5);
        assert_eq!(points[0].valid_loss.to_bits(), 0x4003_76ea_4cc4_f498);
        let course = Course { epochs: 1, valid_batches: 1, quiet: true };
        drop(Curve::new(&path, points, course).expect("a curve"));
        assert_eq!(fs::read_to_string(&path).expect("losses"), format!("{line}\n"));
    }

    #[test]
    fn an_unfinished_line_is_no_point_and_another_text_no_curve() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("losses.jsonl");
        assert_eq!(read(&path).expect("no file, no points"), []);
        let point = Point { epoch: 1, train_loss: 2.5, valid_loss: 2.25 };
        let line = serde_json::to_string(&point).expect("numbers");
        fs::write(&path, format!("{line}\n{}", &line[..20])).expect("written");
        assert_eq!(read(&path).expect("one point"), [point]);
        fs::write(&path, format!("{line}\n{line}\n")).expect("written");
        assert!(format!("{:#}", read(&path).unwrap_err()).contains("line 2 is of epoch 1"));
        let diverged = "{\"epoch\": 1, \"train_loss\": null, \"valid_loss\": null}\n";
        fs::write(&path, diverged).expect("written");
        assert!(read(&path).expect("one point")[0].valid_loss.is_nan());
        fs::write(&path, "[1]\n").expect("written");
        assert!(format!("{:#}", read(&path).unwrap_err()).contains("line 1"));
    }
}
