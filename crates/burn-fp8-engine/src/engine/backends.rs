//! Burn's backends, each behind the feature of its name. Flex has a file of its own.

#[cfg(feature = "ndarray")]
mod ndarray {
    use burn::backend::NdArray;
    use burn::backend::ndarray::{
        FloatNdArrayElement, IntNdArrayElement, NdArrayTensor, QuantElement, SharedArray,
    };

    crate::fp8_backend!([E, I, Q] NdArray<E, I, Q>
    where
        E: FloatNdArrayElement,
        I: IntNdArrayElement,
        Q: QuantElement,
        NdArrayTensor: From<SharedArray<E>>,
        NdArrayTensor: From<SharedArray<I>>);
}

#[cfg(feature = "candle")]
#[allow(deprecated, reason = "Burn deprecates its Candle backend, but 0.21 still has it")]
mod candle {
    use burn::backend::Candle;
    use burn::backend::candle::IntCandleElement;

    // Not for other element types: Candle rounds the constants of an operation on an f32 tensor to the default one.
    crate::fp8_backend!([I: IntCandleElement] Candle<f32, I>);
    crate::fp8_backend!([I: IntCandleElement] Candle<f64, I>);
}

#[cfg(feature = "tch")]
mod tch {
    use burn::backend::LibTorch;
    use burn::backend::libtorch::TchElement;

    crate::fp8_backend!([E: TchElement] LibTorch<E>);
}

/// Router and Remote: products are emulated on the backend at the other end.
#[cfg(feature = "router")]
mod router {
    use burn::backend::router::{BackendRouter, RunnerChannel};

    crate::fp8_backend!([R: RunnerChannel] BackendRouter<R>);
}
