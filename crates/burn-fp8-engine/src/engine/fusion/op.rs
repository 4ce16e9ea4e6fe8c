//! Operations of our own in a stream of Burn's Fusion: registered here, run when the stream is.

use core::fmt;
use std::{slice, vec};

use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, Shape};
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{FusionBackend, FusionHandle, FusionRuntime, FusionTensor};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};

/// The tensors that are alive while a stream runs.
type Handles<R> = HandleContainer<FusionHandle<R>>;

/// The shape and type of an output.
pub(super) type Spec = (Shape, DType);

/// An operation while it runs: its inputs, to be taken out in the order in which they were registered, and places for its outputs, to be filled in theirs.
pub(super) struct Node<'a, B: FusionBackend> {
    inputs: slice::Iter<'a, TensorIr>,
    outputs: slice::Iter<'a, TensorIr>,
    handles: &'a mut Handles<B::FusionRuntime>,
}

impl<B: FusionBackend> Node<'_, B> {
    /// The next input, a float tensor.
    pub(super) fn float(&mut self, (): ()) -> FloatTensor<B> {
        self.handles.get_float_tensor::<B>(self.inputs.next().expect("as many as were registered"))
    }

    /// The next input, an integer tensor.
    pub(super) fn int(&mut self, (): ()) -> IntTensor<B> {
        self.handles.get_int_tensor::<B>(self.inputs.next().expect("as many as were registered"))
    }

    /// The next output, a float tensor.
    pub(super) fn write_float(&mut self, tensor: FloatTensor<B>) {
        let output = self.outputs.next().expect("as many as were registered");
        self.handles.register_float_tensor::<B>(&output.id, tensor);
    }

    /// The next output, an integer tensor.
    pub(super) fn write_int(&mut self, tensor: IntTensor<B>) {
        let output = self.outputs.next().expect("as many as were registered");
        self.handles.register_int_tensor::<B>(&output.id, tensor);
    }
}

/// Something without its tensors, and these as inputs in order: `split` pushes them.
pub(super) fn into_inputs<T, R>(split: impl FnOnce(&mut Vec<T>) -> R) -> (R, Vec<T>) {
    let mut inputs = vec![];
    let rest = split(&mut inputs);
    (rest, inputs)
}

/// Something whose tensors are to be made, without their shapes and types, and these in order.
pub(super) fn specs<R>(split: impl FnOnce(&mut Vec<Spec>) -> R) -> (R, Vec<Spec>) {
    into_inputs(split)
}

/// The next output of an operation.
pub(super) fn next<T>(outputs: &mut vec::IntoIter<T>, (): ()) -> T {
    outputs.next().expect("as many as were registered")
}

/// Registers an operation, and returns its outputs, of the shapes and types given.
///
/// `run` takes every input and writes every output. It may run more than once, where a stream is replayed.
pub(super) fn register<B: FusionBackend>(
    name: &'static str,
    inputs: Vec<FusionTensor<B::FusionRuntime>>,
    outputs: Vec<Spec>,
    run: impl Fn(&mut Node<'_, B>) + Send + Sync + 'static,
) -> Vec<FusionTensor<B::FusionRuntime>> {
    let client = inputs[0].client.clone();
    let streams = OperationStreams::with_inputs(&inputs);
    let outputs: Vec<_> = outputs
        .into_iter()
        .map(|(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype))
        .collect();
    let inputs: Vec<_> = inputs.into_iter().map(FusionTensor::into_ir).collect();
    let description = CustomOpIr::new(name, &inputs, &outputs);
    let run = move |ir: &CustomOpIr, handles: &mut Handles<B::FusionRuntime>| {
        run(&mut Node { inputs: ir.inputs.iter(), outputs: ir.outputs.iter(), handles });
    };
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
pub(super) fn one() -> Spec {
    (Shape::new([1]), DType::F32)
}

/// The output of an operation that has one.
pub(super) fn single<T>(outputs: Vec<T>) -> T {
    outputs.into_iter().next().expect("one was registered")
}
