//! Products beside streams that know nothing of them.

use burn_fp8_core::Fp8Format::E4M3;
use burn_fp8_cublaslt::*;
use cudarc::driver::result;
use cudarc::driver::result::stream::{
    StreamKind, begin_capture, create, destroy, end_capture, synchronize,
};
use cudarc::driver::sys::{CUstream, CUstreamCaptureMode};

use crate::device::{Buffer, Gpu, fewer};

/// How often: enough for each number of streams and codes to meet on a slow device.
fn rounds() -> usize {
    fewer(200, 10)
}

/// Bytes whose copy takes long.
fn slow() -> usize {
    fewer(64 << 20, 32)
}

const M: u64 = 256;
const N: u64 = 256;
const K: u64 = 512;

/// E4M3 codes and the numbers that they stand for.
const CODES: [(u8, f32); 5] = [(0x38, 1.0), (0x40, 2.0), (0x30, 0.5), (0x3C, 1.5), (0xB8, -1.0)];

/// A product of codes alone.
fn problem() -> ScaledMatmul {
    ScaledMatmul { scales: Scales::None, ..ScaledMatmul::new(M, N, K, E4M3, E4M3, DataType::F32) }
}

/// A and B of ones, and a D that nothing has been written to.
struct Ones {
    a: Buffer,
    _b: Buffer,
    d: Buffer,
    pointers: Pointers,
}

impl Ones {
    fn new() -> Self {
        let [a, b] = [M, N].map(|rows| Buffer::new(&vec![CODES[0].0; (rows * K) as usize]));
        let d = Buffer::filled((M * N * 4) as usize);
        let pointers = Pointers { a: a.pointer, b: b.pointer, d: d.pointer, ..Pointers::default() };
        Self { a, _b: b, d, pointers }
    }

    fn multiply(&self, gpu: &Gpu) -> Result<Launch, Error> {
        // SAFETY: the buffers cover the product; whoever calls this keeps them until the context has been synchronized.
        unsafe { gpu.lt.run(&problem(), &self.pointers, 1.0, 0.0) }
    }
}

/// Each round, on streams that are not ordered with anything by themselves: something slow, then A is filled with a number; the
/// product; then D is copied away. Every copy must be the product of its own round. `writer` gives a stream before the product,
/// `reader` after it.
fn stress(
    gpu: &Gpu,
    writer: impl Fn(usize) -> CUstream,
    mut reader: impl FnMut(usize) -> CUstream,
) {
    let ones = Ones::new();
    let (a, d) = (&ones.a, &ones.d);
    let results = Buffer::filled(rounds() * d.bytes);
    let (slow_from, slow_to) = (Buffer::filled(slow()), Buffer::filled(slow()));
    gpu.lt.prepare(&problem()).unwrap();
    gpu.synchronize();

    for round in 0..rounds() {
        let writer = writer(round);
        let (code, _) = CODES[round % CODES.len()];
        // SAFETY: all buffers live until the synchronization and are as long as said.
        unsafe {
            result::memcpy_dtod_async(slow_to.pointer, slow_from.pointer, slow_to.bytes, writer)
                .unwrap();
            result::memset_d8_async(a.pointer, code, a.bytes, writer).unwrap();
            let launch = ones.multiply(gpu).unwrap();
            assert_eq!(launch.ordering, gpu.lt.ordering());
            let to = results.pointer + (round * d.bytes) as u64;
            result::memcpy_dtod_async(to, d.pointer, d.bytes, reader(round)).unwrap();
        }
    }
    gpu.synchronize();

    let bytes = results.read();
    for (round, bytes) in bytes.chunks(d.bytes).enumerate() {
        let expected = CODES[round % CODES.len()].1 * K as f32;
        for (at, value) in bytes.chunks(4).enumerate() {
            let got = f32::from_le_bytes(value.try_into().unwrap());
            assert_eq!(got, expected, "round {round}, element {at}");
        }
    }
}

/// A non-blocking stream, destroyed with its owner, when it is idle.
struct Stream(CUstream);

impl Stream {
    fn new() -> Self {
        Self(create(StreamKind::NonBlocking).unwrap())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once.
        let _ = unsafe { destroy(self.0) };
    }
}

fn one_other_stream(gpu: &Gpu) {
    let stream = Stream::new();
    stress(gpu, |_| stream.0, |_| stream.0);
}

fn several_streams_that_take_turns(gpu: &Gpu) {
    let streams = [(); 4].map(|()| Stream::new());
    // Writer and reader differ, and change every round: only the product orders them.
    stress(gpu, |round| streams[round % 4].0, |round| streams[(round + 1) % 4].0);
}

/// The stream that reads D exists only once the product has been enqueued.
fn streams_made_after_the_product(gpu: &Gpu) {
    let writer = Stream::new();
    let mut readers = vec![];
    let reader = |_| {
        readers.push(Stream::new());
        readers[readers.len() - 1].0
    };
    stress(gpu, |_| writer.0, reader);
}

/// Ordered as on a driver older than CUDA 12.5.
fn synchronizing() -> Gpu {
    let Gpu { context, lt } = Gpu::new();
    let gpu = Gpu { context, lt: lt.synchronizing() };
    assert_eq!(gpu.lt.ordering(), Ordering::Synchronize);
    gpu
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn products_are_ordered_with_one_other_stream() {
    one_other_stream(&Gpu::new());
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn products_are_ordered_with_several_streams_that_take_turns() {
    several_streams_that_take_turns(&Gpu::new());
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn products_are_ordered_with_streams_made_after_them() {
    streams_made_after_the_product(&Gpu::new());
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn products_are_ordered_by_waiting_with_one_other_stream() {
    one_other_stream(&synchronizing());
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn products_are_ordered_by_waiting_with_several_streams_that_take_turns() {
    several_streams_that_take_turns(&synchronizing());
}

#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn the_host_does_not_wait_where_events_order() {
    let gpu = Gpu::new();
    let ones = Ones::new();
    let (from, to) = (Buffer::filled(4 * slow()), Buffer::filled(4 * slow()));
    ones.multiply(&gpu).unwrap();
    gpu.synchronize();
    let stream = Stream::new();
    let start = std::time::Instant::now();
    for _ in 0..50 {
        // SAFETY: the buffers live until the end.
        unsafe { result::memcpy_dtod_async(to.pointer, from.pointer, to.bytes, stream.0) }.unwrap();
    }
    ones.multiply(&gpu).unwrap();
    let enqueued = start.elapsed();
    // SAFETY: the stream is alive.
    unsafe { synchronize(stream.0) }.unwrap();
    let finished = start.elapsed();
    gpu.synchronize();
    println!("enqueued after {enqueued:?}, finished after {finished:?}");
    if gpu.lt.ordering() == Ordering::Events {
        assert!(enqueued < finished / 2, "the host waited: {enqueued:?} of {finished:?}");
    }
}

/// The driver refuses to order with a stream that is being captured into a graph (`CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`).
#[test]
#[ignore = "needs an NVIDIA GPU of sm_89 or newer"]
fn a_failure_of_the_driver_is_an_error_and_the_next_product_is_right() {
    let gpu = Gpu::new();
    if gpu.lt.ordering() == Ordering::Synchronize {
        println!("SKIPPED: the driver is older than CUDA 12.5 and orders by waiting");
        return;
    }
    let ones = Ones::new();
    gpu.lt.prepare(&problem()).unwrap();
    let captured = Stream::new();
    // SAFETY: the stream is alive.
    unsafe { begin_capture(captured.0, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) }
        .unwrap();
    let error = ones.multiply(&gpu).unwrap_err();
    println!("{error}");
    assert!(matches!(error, Error::Driver(_)), "{error}");
    // SAFETY: the stream is alive. The driver has invalidated the capture, so there is no graph.
    unsafe { end_capture(captured.0) }.unwrap_err();
    ones.multiply(&gpu).unwrap();
    gpu.synchronize();
    for value in ones.d.read().chunks(4) {
        assert_eq!(f32::from_le_bytes(value.try_into().unwrap()), K as f32);
    }
}
