//! The device: its clock, its copies, and waiting for it.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Distribution, FloatDType, Tensor, TensorPrimitive};
use cudarc::driver::sys::CUdevice_attribute;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use crate::rows::{Measured, Row};

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
    name: &'a str,
    bytes: Option<usize>,
    flops: Option<f64>,
    call: &'a mut dyn FnMut(usize) -> Result<()>,
}

impl<'a> Side<'a> {
    /// `call` enqueues a call with the inputs of this number.
    pub fn new(name: &'a str, call: &'a mut dyn FnMut(usize) -> Result<()>) -> Self {
        Self { name, bytes: None, flops: None, call }
    }

    /// The same, measured by the bytes that a call reads and writes.
    pub fn with_bytes(self, bytes: usize) -> Self {
        Self { bytes: Some(bytes), ..self }
    }

    /// The same, with the floating-point operations of a call.
    pub fn with_flops(self, flops: f64) -> Self {
        Self { flops: Some(flops), ..self }
    }
}

/// Something to be measured often, each time over as many calls as fill a sample.
struct Sampled<'a> {
    call: &'a mut dyn FnMut(usize) -> Result<()>,
    calls: usize,
    measured: Measured<'a>,
}

impl<'a> Sampled<'a> {
    /// Warms up: compiles kernels, chooses algorithms, fills memory pools.
    fn new(side: Side<'a>, wait: &dyn Fn() -> Result<()>) -> Result<Self> {
        let Side { name, bytes, flops, call } = side;
        let measured = Measured { name, bytes, flops, seconds: vec![] };
        let mut sampled = Self { call, calls: 8, measured };
        sampled.sample(wait)?;
        let seconds = sampled.sample(wait)?;
        sampled.calls = ((SAMPLE_SECONDS / seconds).ceil() as usize).clamp(4, MAX_CALLS);
        sampled.measured.seconds.clear();
        Ok(sampled)
    }

    /// Seconds a call.
    fn sample(&mut self, wait: &dyn Fn() -> Result<()>) -> Result<f64> {
        wait()?;
        let start = Instant::now();
        for index in 0..self.calls {
            (self.call)(index)?;
        }
        wait()?;
        let seconds = start.elapsed().as_secs_f64() / self.calls as f64;
        self.measured.seconds.push(seconds);
        Ok(seconds)
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
    (group, target): (&str, Option<f64>),
    subjects: Vec<Side<'_>>,
    reference: Side<'_>,
    samples: usize,
) -> Result<Vec<Row>> {
    let wait = || gpu.wait::<B>();
    let warm = |side| Sampled::new(side, &wait);
    let mut subjects = subjects.into_iter().map(warm).collect::<Result<Vec<_>>>()?;
    let mut reference = Sampled::new(reference, &wait)?;
    for _ in 0..samples {
        for subject in &mut subjects {
            subject.sample(&wait)?;
        }
        reference.sample(&wait)?;
    }
    let row =
        |subject: &Sampled| Row::new((group, 1, target), &subject.measured, &reference.measured);
    Ok(subjects.iter().map(row).collect())
}

/// What the backend makes of a tensor of floats.
pub fn primitive<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> FloatTensor<B> {
    match tensor.into_primitive() {
        TensorPrimitive::Float(tensor) => tensor,
        TensorPrimitive::QFloat(_) => unreachable!("made of floats"),
    }
}

/// Normally distributed numbers in bf16.
pub fn random<B: Backend>(shape: [usize; 2]) -> Tensor<B, 2> {
    let normal = Distribution::Normal(0.0, 1.0);
    Tensor::<B, 2>::random(shape, normal, &Default::default()).cast(FloatDType::BF16)
}
