//! The device: its clock, its copies, and waiting for it.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use burn::tensor::backend::Backend;
use burn::tensor::{Distribution, FloatDType, Tensor};
use cudarc::driver::sys::CUdevice_attribute;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use crate::rows::{Row, median};

/// A sample lasts at least so long, so that waiting for its end, some 10 µs, does not show.
const SAMPLE_SECONDS: f64 = 0.02;
/// Calls that are enqueued before they are waited for.
const MAX_CALLS: usize = 500;

/// The first device. Its context is the one that CubeCL uses.
pub struct Gpu {
    context: Arc<CudaContext>,
}

impl Gpu {
    pub fn new() -> Result<Self> {
        let context = CudaContext::new(0).context("cannot use the first CUDA device")?;
        Ok(Self { context })
    }

    pub fn name(&self) -> Result<String> {
        Ok(self.context.name()?)
    }

    pub fn l2_bytes(&self) -> Result<usize> {
        let bytes =
            self.context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?;
        Ok(usize::try_from(bytes)?)
    }

    /// How many sets of inputs of so many bytes exceed the L2 cache together, at most 8.
    pub fn sets(&self, bytes: usize) -> Result<usize> {
        Ok((3 * self.l2_bytes()?).div_ceil(bytes.max(1)).clamp(2, 8))
    }

    /// Waits until the device has done all that the backend was asked for, on whatever stream.
    pub fn wait<B: Backend>(&self) -> Result<()> {
        B::sync(&B::Device::default()).map_err(|error| anyhow!("the device failed: {error:?}"))?;
        self.context.synchronize().context("the device failed")
    }
}

/// Copies of device memory, as the driver makes them.
pub struct Copy {
    stream: Arc<CudaStream>,
    from: Vec<CudaSlice<u8>>,
    to: CudaSlice<u8>,
}

impl Copy {
    /// Of so many bytes, from any of `sets` buffers.
    pub fn new(gpu: &Gpu, bytes: usize, sets: usize) -> Result<Self> {
        let stream = gpu.context.new_stream()?;
        // Not zeros: what is copied may have an influence on the memory's clock.
        let pattern: Vec<u8> =
            (0..bytes).map(|i| (i.wrapping_mul(0x9E37_79B1) >> 13) as u8).collect();
        let from = (0..sets).map(|_| stream.clone_htod(&pattern));
        let from = from.collect::<Result<Vec<_>, _>>()?;
        let to = stream.alloc_zeros(bytes)?;
        Ok(Self { stream, from, to })
    }

    pub fn run(&mut self, set: usize) -> Result<()> {
        let set = set % self.from.len();
        Ok(self.stream.memcpy_dtod(&self.from[set], &mut self.to)?)
    }
}

/// One side of a comparison.
pub struct Side<'a> {
    pub name: &'a str,
    /// Bytes that a call reads and writes; `None` on both sides where calls are the measure.
    pub bytes: Option<usize>,
    /// Floating-point operations of a call.
    pub flops: Option<f64>,
    /// Enqueues a call with the inputs of this number.
    pub call: &'a mut dyn FnMut(usize) -> Result<()>,
}

/// Something to be measured often, each time over as many calls as fill a sample.
struct Measured<'a> {
    side: Side<'a>,
    calls: usize,
    milliseconds: Vec<f64>,
}

impl<'a> Measured<'a> {
    /// Warms up: compiles kernels, chooses algorithms, fills memory pools.
    fn new(side: Side<'a>, wait: &dyn Fn() -> Result<()>) -> Result<Self> {
        let mut measured = Self { side, calls: 8, milliseconds: vec![] };
        measured.sample(wait)?;
        let milliseconds = measured.sample(wait)?;
        let calls = (SAMPLE_SECONDS * 1e3 / milliseconds).ceil() as usize;
        measured.calls = calls.clamp(4, MAX_CALLS);
        measured.milliseconds.clear();
        Ok(measured)
    }

    /// Milliseconds a call.
    fn sample(&mut self, wait: &dyn Fn() -> Result<()>) -> Result<f64> {
        wait()?;
        let start = Instant::now();
        for index in 0..self.calls {
            (self.side.call)(index)?;
        }
        wait()?;
        let milliseconds = start.elapsed().as_secs_f64() * 1e3 / self.calls as f64;
        self.milliseconds.push(milliseconds);
        Ok(milliseconds)
    }
}

/// Measures `subject` and `reference` in turns, so that clocks and temperature are the same for both.
pub fn compare<B: Backend>(
    gpu: &Gpu,
    group: (&str, Option<f64>),
    subject: Side<'_>,
    reference: Side<'_>,
    samples: usize,
) -> Result<Row> {
    let mut rows = compare_all::<B>(gpu, group, vec![subject], reference, samples)?;
    rows.pop().context("a row for each subject")
}

/// The same for several subjects with one reference.
pub fn compare_all<B: Backend>(
    gpu: &Gpu,
    group: (&str, Option<f64>),
    subjects: Vec<Side<'_>>,
    reference: Side<'_>,
    samples: usize,
) -> Result<Vec<Row>> {
    let wait = || gpu.wait::<B>();
    let warm = |side| Measured::new(side, &wait);
    let mut subjects = subjects.into_iter().map(warm).collect::<Result<Vec<_>>>()?;
    let mut reference = Measured::new(reference, &wait)?;
    for _ in 0..samples {
        for subject in &mut subjects {
            subject.sample(&wait)?;
        }
        reference.sample(&wait)?;
    }
    Ok(subjects.iter().map(|subject| row(group, subject, &reference)).collect())
}

fn row(
    (group, target): (&str, Option<f64>),
    subject: &Measured<'_>,
    reference: &Measured<'_>,
) -> Row {
    let work = |side: &Side<'_>| side.bytes.map_or(1.0, |bytes| bytes as f64);
    let speed = |side: &Measured<'_>, time: f64| work(&side.side) / time;
    let mut ratios: Vec<_> = subject
        .milliseconds
        .iter()
        .zip(&reference.milliseconds)
        .map(|(time, reference_time)| speed(subject, *time) / speed(reference, *reference_time))
        .collect();
    let milliseconds = median(&mut subject.milliseconds.clone());
    Row {
        group: group.to_owned(),
        name: subject.side.name.to_owned(),
        threads: 1,
        milliseconds,
        gigabytes_per_second: subject.side.bytes.map(|bytes| bytes as f64 / milliseconds / 1e6),
        teraflops_per_second: subject.side.flops.map(|flops| flops / milliseconds / 1e9),
        reference: reference.side.name.to_owned(),
        reference_milliseconds: median(&mut reference.milliseconds.clone()),
        ratio: median(&mut ratios),
        target,
    }
}

/// The same measurement, beside one that another program made on this device.
pub fn beside(row: &Row, reference: &str, milliseconds: f64, target: Option<f64>) -> Row {
    Row {
        reference: reference.to_owned(),
        reference_milliseconds: milliseconds,
        ratio: milliseconds / row.milliseconds,
        target,
        ..row.clone()
    }
}

/// Normally distributed numbers in bf16.
pub fn random<B: Backend>(shape: [usize; 2]) -> Tensor<B, 2> {
    let normal = Distribution::Normal(0.0, 1.0);
    Tensor::<B, 2>::random(shape, normal, &Default::default()).cast(FloatDType::BF16)
}
