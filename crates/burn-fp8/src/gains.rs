//! What FP8 gains on this machine, measured: [`Fp8Config::measured`].
//!
//! FP8 is faster where a matrix unit multiplies codes, or where products are large. Elsewhere it costs time. By default products run in FP8 all the same,
//! so that a model computes the same on every machine. Who wants speed alone lets the machine decide:
//!
//! ```no_run
//! use burn::backend::{Autodiff, Flex};
//! use burn_fp8::{Fp8Backend, Fp8Config};
//!
//! type B = Fp8Backend<Autodiff<Flex>>;
//! Fp8Config::default().measured::<B>(&Default::default())?.set_default();
//! # Ok::<(), burn_fp8::Fp8Error>(())
//! ```

use std::env;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, Tensor, TensorData};
use burn_fp8_core::{Filter, Gains};

use crate::Fp8Error;
use crate::backend::Fp8Matmul;
use crate::config::Fp8Config;
use crate::file;
use crate::product::delayed::DelayedState;
use crate::report::trace;

/// M, N and K that are measured.
const SIZES: [usize; 5] = [16, 64, 256, 1024, 4096];

/// The most multiplications of a product that is measured: a larger one gains what the next smaller one does. Without optimizations few are worth the time.
const MOST_WORK: usize = if cfg!(debug_assertions) { 1 << 24 } else { 1 << 31 };

/// How often, and how long, a product is measured at least. The shortest time counts: what else runs on a machine only adds to it.
const ROUNDS: usize = 5;
const TIME: Duration = Duration::from_millis(40);

/// The folder of the cache, instead of the user's own.
const CACHE: &str = "BURN_FP8_CACHE";

/// The largest file of gains that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

impl Fp8Config {
    /// The same configuration, whose filter leaves those products in high precision that FP8 would not make faster on this device, and with
    /// [`join`](Self::join): products in high precision run as they were measured. Batches of matrices are not measured, and go by the rest of the filter.
    ///
    /// Measures products of f32 on the first call, which takes about a minute, and then reads what it has kept ([`file`](file())). Call it last: another recipe or
    /// execution gains something else, and setting one forgets what was measured. Call it outside of [`trace`](crate::trace()) and of an observatory's steps, whose own
    /// cost would be measured. The gains are a part of the configuration: saved and loaded with it, they decide the same on another machine. A product with gradients
    /// goes by what it gains together with them; the same product in inference may be decided otherwise. A trace tells which products were left alone. Where the file
    /// cannot be written, every process measures: [`kept`] tells.
    ///
    /// # Errors
    /// As [`check`](Self::check); [`Fp8Error::Invalid`] where products of `B` do not run in FP8, because no `Fp8Backend` is in it.
    pub fn measured<B: AutodiffBackend + Fp8Matmul>(
        self,
        device: &B::Device,
    ) -> Result<Self, Fp8Error> {
        // Two measurements at a time would measure each other.
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let gains = match kept::<B>(&self, device) {
            Some(gains) => gains,
            None => measure::<B>(&self, device, |_, _| ())?,
        };
        drop(one);
        Ok(Self { filter: self.filter.with_gains(gains), ..self }.with_join(true))
    }
}

/// The file that the gains of this configuration on this device are kept in: in the folder that `BURN_FP8_CACHE` names, else in `burn-fp8` in
/// the user's folder for caches. None where there is neither. Another CPU, number of threads, device, recipe, execution or version of this crate has another file. Of
/// a GPU only the device's number counts, and of a build only whether it has debug assertions: measure again where another GPU is put in, or dependencies are optimized otherwise.
pub fn file<B: Fp8Matmul>(config: &Fp8Config, device: &B::Device) -> Option<PathBuf> {
    let folder = match env::var_os(CACHE) {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder),
        _ => dirs::cache_dir()?.join("burn-fp8"),
    };
    let mut hasher = DefaultHasher::new();
    measured_on::<B>(config, device).hash(&mut hasher);
    Some(folder.join(format!("gains-{:016x}.json", hasher.finish())))
}

/// The gains that were measured before, of this configuration on this device. None where there is no file, or one that is damaged or of another
/// machine: then they are to be measured again.
pub fn kept<B: Fp8Matmul>(config: &Fp8Config, device: &B::Device) -> Option<Gains> {
    read(&file::<B>(config, device)?, &measured_on::<B>(config, device))
}

fn read(path: &Path, measured_on: &str) -> Option<Gains> {
    let bytes = file::read(path, MAX_FILE).ok()?;
    let gains: Gains = serde_json::from_slice(&bytes).ok()?;
    (gains.measured_on() == measured_on).then_some(gains)
}

/// Measures the gains of this configuration on this device and keeps them in [`file`](file()), if it can be written. `told` is told how many shapes
/// are measured, and of how many.
///
/// # Errors
/// As [`Fp8Config::measured`].
pub fn measure<B: AutodiffBackend + Fp8Matmul>(
    config: &Fp8Config,
    device: &B::Device,
    told: impl FnMut(usize, usize),
) -> Result<Gains, Fp8Error> {
    let enabled = Fp8Config { enabled: true, filter: Filter::every_matmul(), ..*config };
    enabled.check::<B>(device)?;
    if !config.recipe.products.any_in_fp8() {
        let reason = format!("the recipe has nothing in FP8: {}", config.recipe);
        return Err(Fp8Error::Invalid { what: "the gains of FP8", reason });
    }
    let small = Timed::<B>::new([16; 3], device);
    let (_, report) = trace(|| enabled.scope(|| small.delayed.step(|| small.seconds(false))));
    if report.fp8().count() == 0 {
        let reason = format!(
            "products of `{}` do not run in FP8; measure the backend that your model has, Fp8Backend<…>",
            B::name(device)
        );
        return Err(Fp8Error::Invalid { what: "the gains of FP8", reason });
    }
    let gains = measure_at::<B>(&SIZES, config, device, told);
    if let Some(path) = file::<B>(config, device) {
        keep(&path, &gains);
    }
    Ok(gains)
}

/// At these sizes of M, N and K, as far as a product is not too much work.
fn measure_at<B: AutodiffBackend + Fp8Matmul>(
    sizes: &[usize],
    config: &Fp8Config,
    device: &B::Device,
    mut told: impl FnMut(usize, usize),
) -> Gains {
    let in_fp8 = Fp8Config { enabled: true, filter: Filter::every_matmul(), ..*config };
    let count = sizes.len();
    let shape = |index: usize| {
        [index / (count * count), index / count % count, index % count].map(|axis| sizes[axis])
    };
    let is_measured = |shape: [usize; 3]| shape.iter().product::<usize>() <= MOST_WORK;
    let total = (0..count.pow(3)).filter(|index| is_measured(shape(*index))).count();
    let (mut forward, mut training) = (vec![], vec![]);
    let mut done = 0;
    for index in 0..count.pow(3) {
        let dims = shape(index);
        if !is_measured(dims) {
            // That of the shape with the next smaller one of its largest dimension, which came before.
            let step = match dims {
                [m, n, k] if m >= n && m >= k => count * count,
                [_, n, k] if n >= k => count,
                _ => 1,
            };
            forward.push(forward[index - step]);
            training.push(training[index - step]);
            continue;
        }
        let product = Timed::<B>::new(dims, device);
        forward.push(product.gain(&in_fp8, false));
        training.push(product.gain(&in_fp8, true));
        done += 1;
        told(done, total);
    }
    let name = measured_on::<B>(config, device);
    Gains::new(name, sizes.to_vec(), forward, training).expect("each size has its gains")
}

/// A cache that cannot be written is none: the next process measures again.
fn keep(path: &Path, gains: &Gains) {
    let json = serde_json::to_vec(gains).expect("numbers and text always serialize");
    if let Some(folder) = path.parent() {
        let _ = std::fs::create_dir_all(folder);
    }
    let _ = file::write(path, &json);
}

/// All that the gains depend on: what runs, and how.
fn measured_on<B: Fp8Matmul>(config: &Fp8Config, device: &B::Device) -> String {
    #[cfg(feature = "flex")]
    let machine = {
        use burn_fp8_cpu::{Unit, cpu_name, threads};
        // Of a name that there is no unit of, an error comes where something is measured.
        let unit = Unit::try_current().map_or_else(|error| error.to_string(), |u| u.to_string());
        format!("{}, {unit}, threads: {}", cpu_name(), threads())
    };
    #[cfg(not(feature = "flex"))]
    let machine = std::env::consts::ARCH;
    let build = if cfg!(debug_assertions) { "without optimizations" } else { "optimized" };
    let recipe = serde_json::to_string(&config.recipe).expect("a recipe always serializes");
    let execution = config.execution;
    format!(
        "{} on {machine}; {device:?}; {execution:?}, native blocks: {}; {recipe}; burn-fp8 {}, {build}",
        B::name(device),
        config.native_blocks,
        env!("CARGO_PKG_VERSION")
    )
}

/// A product that is timed, and the gradient of its output.
struct Timed<B: AutodiffBackend> {
    x: Tensor<B, 2>,
    weight: Tensor<B, 2>,
    grad: Tensor<B, 2>,
    device: B::Device,
    delayed: DelayedState,
}

impl<B: AutodiffBackend + Fp8Matmul> Timed<B> {
    fn new([m, n, k]: [usize; 3], device: &B::Device) -> Self {
        // Not the backend's own random numbers, whose order belongs to the user.
        let numbers = |rows: usize, columns: usize| {
            let number = |index: usize| (index * 7919 % 10_007) as f32 / 10_007.0 - 0.5;
            let numbers: Vec<f32> = (0..rows * columns).map(number).collect();
            let data = TensorData::new(numbers, [rows, columns]);
            Tensor::from_data(data, (device, DType::F32))
        };
        let (x, weight, grad) = (numbers(m, k), numbers(k, n), numbers(m, n));
        Self { x, weight, grad, device: device.clone(), delayed: DelayedState::new() }
    }

    /// The speed in FP8, in percent of that in high precision.
    fn gain(&self, in_fp8: &Fp8Config, with_gradients: bool) -> u32 {
        let configs = [Fp8Config::off(), *in_fp8];
        let mut shortest = [f64::INFINITY; 2];
        let begun = Instant::now();
        let mut rounds = 0;
        // The first round warms up.
        while rounds <= ROUNDS || begun.elapsed() < TIME {
            for (config, shortest) in configs.iter().zip(&mut shortest) {
                let seconds = config.scope(|| self.delayed.step(|| self.seconds(with_gradients)));
                if rounds > 0 {
                    *shortest = seconds.min(*shortest);
                }
            }
            rounds += 1;
        }
        let [high, fp8] = shortest;
        (100.0 * high / fp8).round() as u32
    }

    fn seconds(&self, with_gradients: bool) -> f64 {
        let (mut x, mut weight) = (self.x.clone(), self.weight.clone());
        if with_gradients {
            (x, weight) = (x.require_grad(), weight.require_grad());
        }
        let begun = Instant::now();
        let output = x.matmul(weight);
        let grads = with_gradients.then(|| (output.clone() * self.grad.clone()).sum().backward());
        B::sync(&self.device).expect("the device computes products");
        let seconds = begun.elapsed().as_secs_f64();
        drop((output, grads));
        seconds
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::{Autodiff, Flex};
    use burn_fp8_core::{Gemm, Recipe};

    use super::*;
    use crate::{Execution, Fp8Backend};

    type B = Fp8Backend<Autodiff<Flex>>;

    #[test]
    fn each_shape_is_measured_once_and_read_again() {
        let device = Default::default();
        for recipe in [Recipe::current(), Recipe::delayed(), Recipe::mxfp8()] {
            let config = Fp8Config::default().with_recipe(recipe);
            let mut shapes = vec![];
            let gains =
                measure_at::<B>(&[8, 32], &config, &device, |done, of| shapes.push([done, of]));
            assert_eq!(shapes, (1..=8).map(|done| [done, 8]).collect::<Vec<_>>());
            assert!(gains.of(Gemm::matrix(32, 32, 32), true) > 0);
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("burn-fp8/gains.json");
            keep(&path, &gains);
            assert_eq!(read(&path, gains.measured_on()), Some(gains.clone()));
            // Of another machine, damaged, or none: measured again.
            assert_eq!(read(&path, "another machine"), None);
            let json = std::fs::read_to_string(&path).expect("it was written");
            let damaged = json.replacen("[8,", "[", 1);
            for bad in [&json[..json.len() / 2], &damaged, "", "[]", "null"] {
                std::fs::write(&path, bad).expect("writable");
                assert_eq!(read(&path, gains.measured_on()), None, "{bad}");
            }
            std::fs::remove_file(&path).expect("it is there");
            assert_eq!(read(&path, gains.measured_on()), None);
        }
    }

    #[test]
    fn each_way_to_run_products_has_a_file_of_its_own() {
        let device = Default::default();
        let config = Fp8Config::default();
        let others = [
            config,
            config.with_recipe(Recipe::mxfp8()),
            config.with_execution(Execution::FakeQuantized),
            config.with_native_blocks(true),
        ];
        let mut names = others.map(|config| measured_on::<B>(&config, &device)).to_vec();
        names.push(measured_on::<Autodiff<Fp8Backend<Flex>>>(&config, &device));
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{name}");
            assert!(name.contains(&burn_fp8_cpu::cpu_name()), "{name}");
        }
    }

    #[test]
    fn a_backend_without_fp8_is_refused() {
        let device = Default::default();
        let error = measure::<Autodiff<Flex>>(&Fp8Config::default(), &device, |_, _| ());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("products of `autodiff<flex>` do not run in FP8"), "{error}");
    }

    #[test]
    fn what_was_measured_holds_for_one_recipe_and_execution() {
        let gains = Gains::new("made up".into(), vec![16], vec![90], vec![90]).expect("a table");
        let config = Fp8Config::default().with_filter(Filter::default().with_gains(gains));
        assert!(config.with_recipe(config.recipe).filter.gains.is_some());
        for other in [
            config.with_recipe(Recipe::mxfp8()),
            config.with_execution(Execution::FakeQuantized),
            config.with_native_blocks(true),
        ] {
            assert_eq!(other.filter, Filter::default());
        }
    }

    /// Products of which one dimension is too large gain what those with the next smaller one do.
    #[test]
    fn too_large_products_are_not_run() {
        let device = Default::default();
        let mut count = 0;
        let sizes = [1, 1 << 18];
        let gains = measure_at::<B>(&sizes, &Fp8Config::default(), &device, |_, of| count = of);
        assert_eq!(count, 4);
        let of = |m: usize, n: usize, k: usize| {
            gains.of(Gemm::matrix(sizes[m], sizes[n], sizes[k]), true)
        };
        assert_eq!([of(1, 1, 1), of(0, 1, 1), of(1, 0, 1)], [of(0, 0, 1); 3]);
        assert_eq!(of(1, 1, 0), of(0, 1, 0));
    }
}
