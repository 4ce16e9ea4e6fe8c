//! One call of cuBLASLt among the launches of CubeCL, ordered on the device.
#![allow(unsafe_code, reason = "hands addresses of CubeCL's buffers to cuBLASLt")]

use burn_cubecl::CubeRuntime;
use burn_cubecl::cubecl::client::ComputeClient;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::cubecl::server::Handle;
use burn_cubecl::tensor::CubeTensor;
use burn_fp8_cublaslt::{Alignment, Error, Launch, Ordering, Pointers, ScaledMatmul};

use super::buffer::{Device, on_device};
use super::device::cublaslt;
use crate::engine::capability::Fallback;
use crate::engine::problem::host_factor;
use crate::engine::scalar::Scalar;

/// The buffers of a product. Each is as large as the product says.
#[derive(Clone)]
pub(super) struct Call {
    /// Codes of the left operand, `[M, K]`, of each product.
    pub(super) a: Handle,
    /// Codes of the right operand, `[N, K]`, of each product.
    pub(super) b: Handle,
    /// The output.
    pub(super) d: Handle,
    pub(super) scale_a: Option<Handle>,
    pub(super) scale_b: Option<Handle>,
    pub(super) inverse_scale_d: Option<Handle>,
    pub(super) amax_d: Option<Handle>,
    pub(super) bias: Option<Handle>,
    /// C, and what it is multiplied by.
    pub(super) added: Option<(Handle, f32)>,
    /// What the product is multiplied by, beside the scales.
    pub(super) alpha: f32,
}

impl Call {
    pub(super) fn new(a: Handle, b: Handle, d: Handle) -> Self {
        let [scale_a, scale_b, inverse_scale_d, amax_d, bias] = [const { None }; 5];
        Self { a, b, d, scale_a, scale_b, inverse_scale_d, amax_d, bias, added: None, alpha: 1.0 }
    }

    /// The same product times both scales. Those that the host knows travel with the call, unless their product is no normal number.
    pub(super) fn scaled<R: CubeRuntime>(
        self,
        client: &ComputeClient<CudaRuntime>,
        [a, b]: [&Scalar<CubeTensor<R>>; 2],
    ) -> Self {
        if let Some(alpha) = host_factor([a, b]) {
            return Self { alpha, ..self };
        }
        let [scale_a, scale_b] = [a, b].map(|scale| Some(on_device(client, scale)));
        Self { scale_a, scale_b, ..self }
    }
}

/// Enqueues a product after everything that CubeCL was given before, and before everything that it is given later. Returns what
/// runs it. When the host waits for the device is said at [`Ordering`].
///
/// # Errors
/// Where cuBLASLt cannot be set up, has no algorithm, or fails. A panic on that thread would lose its words: CubeCL catches it and says
/// that the thread is gone.
pub(super) fn launch(
    (client, device): Device<'_>,
    problem: ScaledMatmul,
    call: Call,
) -> Result<Launch, Fallback> {
    // On the thread that feeds the device, where the launches registered before have been enqueued.
    let enqueued = client.exclusive(move || enqueue(client, device, problem, call));
    enqueued.unwrap_or_else(|error| Err(failed(error)))
}

/// The reason to emulate a product that cuBLASLt does not run.
pub(super) fn not_run(error: Error) -> Fallback {
    match error {
        Error::Plan(_) | Error::NoAlgorithm { .. } | Error::Workspace { .. } => {
            Fallback::NoAlgorithm(error.to_string().into())
        }
        error => failed(error),
    }
}

/// The reason to emulate a product that something failed for.
pub(super) fn failed(error: impl ToString) -> Fallback {
    Fallback::Failed(error.to_string().into())
}

fn enqueue(
    client: &ComputeClient<CudaRuntime>,
    device: usize,
    mut problem: ScaledMatmul,
    call: Call,
) -> Result<Launch, Fallback> {
    // Held until the product is enqueued: CubeCL gives the memory of a dropped handle to work that comes later, in order.
    let mut held = vec![];
    let mut address = |handle: Option<Handle>| -> Result<u64, Fallback> {
        let Some(handle) = handle else { return Ok(0) };
        let resource = client.get_resource(handle).map_err(failed)?;
        let address = resource.resource().ptr;
        held.push(resource);
        Ok(address)
    };
    let Call { a, b, d, scale_a, scale_b, inverse_scale_d, amax_d, bias, added, alpha } = call;
    let (c, beta) = added.map_or((None, 0.0), |(c, beta)| (Some(c), beta));
    let pointers = Pointers {
        a: address(Some(a))?,
        b: address(Some(b))?,
        d: address(Some(d))?,
        scale_a: address(scale_a)?,
        scale_b: address(scale_b)?,
        inverse_scale_d: address(inverse_scale_d)?,
        amax_d: address(amax_d)?,
        bias: address(bias)?,
        c: address(c)?,
    };
    problem.alignment = Alignment {
        a: Alignment::of(pointers.a),
        b: Alignment::of(pointers.b),
        d: Alignment::of(pointers.d),
        bias: Alignment::of(pointers.bias),
        c: Alignment::of(pointers.c),
    };
    // Resolving a buffer has made the context of the device current to this thread.
    let library = cublaslt(device)?;
    // SAFETY: CubeCL vouches for the buffers, which `held` keeps allocated until after the call; they were made as large as the
    // product says by the callers of `launch`. What writes the inputs was given to CubeCL before this ran on its thread, so it
    // is enqueued. The output is a buffer of its own. CubeCL reuses memory in the order of its streams, all of which wait for the product.
    let launched = unsafe { library.run(&problem, &pointers, alpha, beta) };
    drop(held);
    launched.map_err(not_run)
}

/// What ran a product, for a report.
pub(super) fn describe(launch: &Launch) -> String {
    match launch.ordering {
        Ordering::Events => launch.algorithm.to_string(),
        Ordering::Synchronize => {
            format!("{}; the host waited, the driver is older than CUDA 12.5", launch.algorithm)
        }
    }
}
