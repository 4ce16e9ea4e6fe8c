//! A device on which unmodified models run in FP8.
//!
//! Tensors of Burn 0.22 have no backend in their type, and the devices that Burn knows are fixed. But one of them is a remote one, and its server takes any
//! backend: here it is Flex with its products in FP8, on a thread of this process. Operations go there through a connection on the loopback interface,
//! which a random token keeps others off.
//!
//! ```
//! use burn::nn::LinearConfig;
//! use burn::tensor::{Distribution, Tensor};
//! use burn_fp8_next::{device, ops};
//!
//! let device = device::flex().autodiff();
//! let layer = LinearConfig::new(64, 32).init(&device);
//! let x = Tensor::<2>::random([16, 64], Distribution::Default, &device);
//!
//! let (gradients, report) =
//!     device::trace(&device, || ops::backward(layer.forward(x).powi_scalar(2).mean()));
//! assert!(layer.weight.grad(&gradients).is_some());
//! assert_eq!(report.fp8().count(), 2); // the output, and the gradient of the weight; the input needs none
//! ```
//!
//! # What differs from the layers
//! - Only [`ops::backward`](crate::ops::backward) tells the server that a backward pass runs. With `loss.backward()` gradients are products like any other:
//!   output gradients are in E4M3.
//! - The server does not see this thread's scopes. [`scope`] and [`trace`] of this module take the place of [`Fp8Config::scope`],
//!   [`high_precision`](crate::high_precision) and [`trace`](crate::trace()); inside those `ops::backward` and the layers and operations of this crate
//!   panic, and Burn's own layers are not reached. The default of the process holds on the server.
//! - All products are plain ones, those of linear layers too: [`Filter::linear_only`](crate::Filter::linear_only) leaves nothing. The filter is asked
//!   for each product of the backward pass, by that product's own sides, and the configuration is that of the backward pass.
//! - Delayed scaling and exceptions by the names of layers are refused.
//! - Quantized tensors of FP8 are on Burn 0.23 what they are on Flex, but for scales of tensors that are not finite, which follow from the finite elements; products take their codes. On a device with gradients Burn dequantizes a weight first: then
//!   it is one of numbers, quantized again as the configuration says. `nn::FrozenLinear::from_quantized`, on Flex, has codes and gradients.
//! - Only the device of the loss is told: parts of the model on another one have output gradients in E4M3.
//! - Inputs of three and more dimensions that gradient checkpointing computes again are new tensors there: the gradients of their weights may stay in high
//!   precision.
//! - [`Fp8Config::join`] joins products of the forward pass only.
//! - Burn's feature `fusion` is refused: it puts operations in another order.
//! - An operation that fails ends the connection: what it was is on standard error, and the next result that is read panics. [`flex`] and [`flex_with`]
//!   make a new device then. `Execution::Native` fails so for what the matrix unit does not run, such as the batched gradients of MXFP8.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError, mpsc};

use burn::backend::DispatchDevice;
use burn::remote::RemoteHost;
use burn::tensor::Device;
use burn_flex::{Flex, FlexDevice};
use burn_fp8_core::Scaling;
use burn_ir::{CustomOpIr, ScalarIr};
use burn_remote::server::{BackendServer, TokenAuthorizer, WebSocketTransport};
use burn_remote::{CustomOpClient, RemoteBackend, RemoteDevice};
use tokio::runtime::{Builder, Runtime};

use crate::Fp8Error;
use crate::backend::Fp8Backend;
use crate::backend::session::{self, NO_DELAYED, Stream};
use crate::config::{Fp8Config, is_in_scope};
use crate::report::{Report, is_tracing};

/// Flex with its products in FP8, as the default of the process says ([`Fp8Config::set_default`]). There is one, which every call returns.
///
/// # Panics
/// Where [`flex_with`] of that configuration fails.
pub fn flex() -> Device {
    served(None).unwrap_or_else(|error| panic!("{error}"))
}

/// Flex with its products in FP8 as `config` says, whatever the default is. There is one for each configuration.
///
/// # Errors
/// [`Fp8Error::InvalidConfig`] for a recipe out of range, for delayed scaling, and for exceptions by names; [`Fp8Error::NativeUnavailable`] as [`Fp8Config::check`];
/// [`Fp8Error::Invalid`] where this process cannot connect to itself, and with Burn's feature `fusion`.
pub fn flex_with(config: Fp8Config) -> Result<Device, Fp8Error> {
    served(Some(config))
}

/// Runs `f` with this configuration for what this thread asks of a device of this module, and returns its result: `Fp8Config::off()` is high precision.
///
/// # Panics
/// Where the device is none of this module, where it cannot run products as the configuration says, and where `f` panics.
pub fn scope<R>(device: &Device, config: &Fp8Config, f: impl FnOnce() -> R) -> R {
    check(config).unwrap_or_else(|error| panic!("{error}"));
    let config = *config;
    let enter = move |stream: &mut Stream| stream.scopes.push(config);
    within(&of(device), enter, |stream| stream.scopes.truncate(stream.scopes.len() - 1), f)
}

/// Runs `f` and returns its result with a report of every product that this thread asked a device of this module for.
///
/// # Panics
/// Where the device is none of this module, where `f` panics, and where the device has ended.
pub fn trace<R>(device: &Device, f: impl FnOnce() -> R) -> (R, Report) {
    let remote = of(device);
    let (sender, receiver) = mpsc::channel();
    let enter = |stream: &mut Stream| stream.traces.push(Report::default());
    let result = within(
        &remote,
        enter,
        |stream| stream.traces.truncate(stream.traces.len() - 1),
        || {
            let result = f();
            call(&remote, move || {
                let report = session::change(|stream| stream.traces.last().cloned());
                // Nobody waits where the trace has panicked.
                let _ = sender.send(report.unwrap_or_default());
            });
            result
        },
    );
    device.sync().unwrap_or_else(|error| panic!("the traced device has ended: {error}"));
    (result, receiver.recv().expect("a device in sync has run what it was sent"))
}

/// Runs a backward pass. A device of this module is told.
pub(crate) fn backward<R>(device: &Device, f: impl FnOnce() -> R) -> R {
    if !is_ours(device) {
        return f();
    }
    let remote = of(device);
    within(&remote, |stream| stream.backward += 1, Stream::end_backward, f)
}

/// The devices so far, each with the configuration that it was given.
static DEVICES: Mutex<Vec<(Option<Fp8Config>, Device)>> = Mutex::new(Vec::new());

/// What the servers are to run, by a number that comes with the operations.
static CALLS: LazyLock<Mutex<HashMap<u64, Call>>> = LazyLock::new(Mutex::default);

type Call = Box<dyn FnOnce() + Send>;

/// The operation that runs a call.
const CALL: &str = "burn_fp8_call";

/// A holder leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check(config: &Fp8Config) -> Result<(), Fp8Error> {
    if let Scaling::Delayed(_) = config.recipe.scaling {
        return Err(Fp8Error::InvalidConfig(NO_DELAYED.into()));
    }
    if !config.filter.except.is_empty() {
        return Err(Fp8Error::InvalidConfig(NO_NAMES.into()));
    }
    config.check::<Flex>(&FlexDevice)
}

const NO_NAMES: &str = "a served device sees products without the layers that they belong to, so it knows no exceptions by names: give it a configuration \
    without, and keep these layers on another device, or train with nn::Fp8Linear on Device::flex()";

const NO_FUSION: &str = "Burn's feature fusion puts the operations for a remote device in another order, and a served device has to see them as they are asked \
    for: turn it off, or train with nn::Fp8Linear on Device::flex()";

fn served(config: Option<Fp8Config>) -> Result<Device, Fp8Error> {
    if std::any::type_name::<RemoteBackend>().contains("Fusion") {
        return Err(Fp8Error::Invalid { what: "a served device", reason: NO_FUSION.into() });
    }
    // A thread of its own is in no scope: this is the default of the process, which the server will ask for.
    let default = || std::thread::spawn(Fp8Config::current).join().expect("it reads a lock");
    check(&config.unwrap_or_else(default))?;
    let mut devices = lock(&DEVICES);
    // One that has failed is made anew.
    devices.retain(|(known, device)| *known != config || device.sync().is_ok());
    if let Some((_, device)) = devices.iter().find(|(known, _)| *known == config) {
        return Ok(device.clone());
    }
    let (_, device) = serve()?;
    if let (Some(config), Some(remote)) = (config, remote(&device)) {
        call(remote, move || session::set_config(config));
    }
    devices.push((config, device.clone()));
    Ok(device)
}

/// Starts a server, and connects to it.
fn serve() -> Result<(SocketAddr, Device), Fp8Error> {
    fn failed(error: impl Display) -> Fp8Error {
        let reason = format!(
            "{error}; it needs a port of 127.0.0.1: where a sandbox has none, use nn::Fp8Linear on Device::flex()"
        );
        Fp8Error::Invalid { what: "a served device", reason }
    }
    static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);

    let mut token = [0; 32];
    getrandom::fill(&mut token).map_err(failed)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let server = BackendServer::<Fp8Backend<Flex>>::new([FlexDevice])
        .with_authorizer(TokenAuthorizer::new(&token).map_err(failed)?)
        .with_custom_op(CALL, |_, operation, _| {
            let [ScalarIr::UInt(number)] = operation.scalars[..] else { return };
            let called = lock(&CALLS).remove(&number);
            if let Some(called) = called {
                called();
            }
        });
    let serving = server.serve_async(WebSocketTransport::from_listener(listener));
    let mut runtime = lock(&RUNTIME);
    if runtime.is_none() {
        let builder = &mut Builder::new_multi_thread();
        let builder = builder.worker_threads(2).thread_name("burn-fp8-device").enable_all();
        *runtime = Some(builder.build().map_err(failed)?);
    }
    runtime.as_ref().expect("made").spawn(async move {
        if let Err(error) = serving.await {
            eprintln!("the server of an FP8 device has ended: {error}");
        }
    });
    let host = RemoteHost::websocket(&format!("ws://{address}")).with_credential(&token);
    let device = Device::remote_options(&host).init().map_err(failed)?;
    Ok((address, device))
}

fn remote(device: &Device) -> Option<&RemoteDevice> {
    match device.as_dispatch() {
        DispatchDevice::Remote(remote) => Some(remote),
        _ => None,
    }
}

/// The device as the client sees it, if it is one of this module.
fn find(device: &Device) -> Option<RemoteDevice> {
    let device = device.clone().without_autodiff();
    let remote = remote(&device)?;
    lock(&DEVICES).iter().any(|(_, known)| *known == device).then(|| remote.clone())
}

/// Whether this device is one of this module. Panics inside scopes that do not reach it.
pub(crate) fn is_ours(device: &Device) -> bool {
    let found = find(device).is_some();
    assert!(
        !(found && (is_in_scope() || is_tracing())),
        "Fp8Config::scope, high_precision and trace do not reach the device that this tensor is on, which runs elsewhere: use device::scope and device::trace"
    );
    found
}

fn of(device: &Device) -> RemoteDevice {
    find(device).unwrap_or_else(|| {
        panic!("{device:?} is no device of device::flex or device::flex_with: on other devices use Fp8Config::scope and trace")
    })
}

/// Has the server run something, after what it was sent before and before what it is sent later.
fn call(device: &RemoteDevice, run: impl FnOnce() + Send + 'static) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    lock(&CALLS).insert(number, Box::new(run));
    let number = vec![ScalarIr::UInt(number)];
    CustomOpClient::new(device).register(CustomOpIr::with_scalars(CALL, &[], &[], number));
}

/// Runs `f` between two changes of what holds for this thread on the server, the second one also where `f` panics.
fn within<R>(
    device: &RemoteDevice,
    enter: impl FnOnce(&mut Stream) + Send + 'static,
    leave: fn(&mut Stream),
    f: impl FnOnce() -> R,
) -> R {
    struct Leave<'a>(&'a RemoteDevice, fn(&mut Stream));

    impl Drop for Leave<'_> {
        fn drop(&mut self) {
            let leave = self.1;
            // A device that has ended says so where results are read.
            let _ = catch_unwind(AssertUnwindSafe(|| call(self.0, move || session::change(leave))));
        }
    }

    call(device, move || session::change(enter));
    let _leave = Leave(device, leave);
    f()
}

#[cfg(test)]
mod tests {
    use burn::tensor::Tensor;
    use burn_fp8_core::GemmRole;

    use super::*;

    #[test]
    fn a_panic_ends_a_backward_pass() {
        let device = flex();
        let products = || {
            let x = Tensor::<2>::ones([32, 32], &device);
            let (_, report) = trace(&device, || x.clone().matmul((x * 2.0).transpose()));
            report.products.into_iter().map(|product| product.role).collect::<Vec<_>>()
        };
        assert_eq!(backward(&device, products), [GemmRole::GradInput]);
        let failed = AssertUnwindSafe(|| backward(&device, || panic!("on purpose")));
        assert!(catch_unwind(failed).is_err());
        assert_eq!(products(), [GemmRole::Output]);
    }

    #[test]
    fn a_client_with_another_token_is_refused() {
        let (address, _) = serve().unwrap();
        let host = RemoteHost::websocket(&format!("ws://{address}"));
        for host in [host.clone(), host.with_credential("guessed")] {
            let refused = Device::remote_options(&host).init().unwrap_err();
            assert!(refused.to_string().contains("rejected the credential"), "{refused}");
        }
        assert!(address.ip().is_loopback());
    }
}
