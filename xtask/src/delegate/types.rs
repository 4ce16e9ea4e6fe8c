//! What the generator knows about the types that occur in the backend traits' signatures.

/// Types that are the same for `Fp8Backend<B>` and for `B`, with the module of every version of `burn-backend` that has them.
///
/// `FloatTensor<B>` and its like belong here: they are aliases of associated types, which the decorator shares with `B`.
const SHARED: &[(&str, &str)] = &[
    ("core::ops", "Range"),
    (
        "burn_backend",
        "BackendGraph BoolDType DType DTypeUsageSet DeviceId Distribution ExecutionError FloatDType IntDType \
         MemoryPoolUsage ProfileDuration ProfileOptions ProfileToken Scalar Shape SlicedPoolReport Slice TensorData",
    ),
    ("burn_backend::quantization", "QuantScheme"),
    (
        "burn_backend::tensor",
        "BoolTensor Device FloatTensor IndexingUpdateOp IntTensor QuantizedTensor",
    ),
    (
        "burn_backend::ops",
        "AttentionModuleOptions ConvOptions ConvTransposeOptions DeformConvOptions GridSampleOptions InterpolateMode \
         InterpolateOptions PadMode TransactionPrimitiveData UnfoldOptions",
    ),
    (
        "burn_backend::distributed",
        "DistributedConfig DistributedParamId DistributedParams ReduceOperation",
    ),
];

/// Types that have the backend as a parameter of their own and are no alias: `backend/convert.rs` rewraps them.
const WRAPPED: &[(&str, &str)] = &[
    ("burn_backend", "TensorPrimitive"),
    ("burn_backend::quantization", "QuantizationParametersPrimitive"),
    (
        "burn_backend::ops",
        "AttentionBackward BatchNormTrain BatchNormTrainBackward DeformConv2dBackward MaxPool1dBackward MaxPool1dWithIndices \
         MaxPool2dBackward MaxPool2dWithIndices MaxPool3dBackward MaxPool3dWithIndices TransactionPrimitive",
    ),
    ("burn_backend::distributed", "CollectiveTensor TensorRef"),
];

/// Names of the prelude that a signature may use.
const PRELUDE: &str =
    "Fn FnOnce Future Iterator Option Result Send String Vec bool f32 f64 i64 u16 u64 usize";

/// How a type gets from the decorator's signature to that of the wrapped backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In scope everywhere, the same for both backends.
    Prelude,
    /// The same for both backends, imported from this module.
    Shared(&'static str),
    /// A struct over the backend, imported from this module, rewrapped on the way.
    Wrapped(&'static str),
}

/// Looks a type's name up. `None`: the generator does not know the type.
pub fn kind(name: &str) -> Option<Kind> {
    let has = |names: &str| names.split(' ').any(|known| known == name);
    let module_of = |table: &[(&'static str, &str)]| {
        table.iter().find(|(_, names)| has(names)).map(|(module, _)| *module)
    };
    if has(PRELUDE) {
        return Some(Kind::Prelude);
    }
    module_of(SHARED).map(Kind::Shared).or_else(|| module_of(WRAPPED).map(Kind::Wrapped))
}
