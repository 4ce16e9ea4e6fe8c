//! Operations of our own in a stream of Burn's Fusion: registered here, run when the stream is.

use core::fmt;

use burn::tensor::{DType, Shape};
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{FusionHandle, FusionRuntime, FusionTensor};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};

/// The tensors that are alive while a stream runs.
pub(super) type Handles<R> = HandleContainer<FusionHandle<R>>;

/// Registers an operation, and returns its outputs, of the shapes and types given.
///
/// `run` takes the inputs out of the handles, in their order, and registers every output. It may run more than once, where a stream
/// is replayed.
pub(super) fn register<R: FusionRuntime>(
    name: &'static str,
    inputs: Vec<FusionTensor<R>>,
    outputs: Vec<(Shape, DType)>,
    run: impl Fn(&CustomOpIr, &mut Handles<R>) + Send + Sync + 'static,
) -> Vec<FusionTensor<R>> {
    let client = inputs[0].client.clone();
    let streams = OperationStreams::with_inputs(&inputs);
    let outputs: Vec<_> = outputs
        .into_iter()
        .map(|(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype))
        .collect();
    let inputs: Vec<_> = inputs.into_iter().map(FusionTensor::into_ir).collect();
    let description = CustomOpIr::new(name, &inputs, &outputs);
    let operation = Custom { description: description.clone(), run };
    client.register(streams, OperationIr::Custom(description), operation)
}

struct Custom<F> {
    description: CustomOpIr,
    run: F,
}

impl<F> fmt::Debug for Custom<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.description.fmt(f)
    }
}

impl<R, F> Operation<R> for Custom<F>
where
    R: FusionRuntime,
    F: Fn(&CustomOpIr, &mut Handles<R>) + Send + Sync,
{
    fn execute(&self, handles: &mut Handles<R>) {
        (self.run)(&self.description, handles);
    }
}

/// A number on the device.
pub(super) fn one() -> (Shape, DType) {
    (Shape::new([1]), DType::F32)
}

/// The output of an operation that has one.
pub(super) fn single<T>(outputs: Vec<T>) -> T {
    outputs.into_iter().next().expect("one was registered")
}
