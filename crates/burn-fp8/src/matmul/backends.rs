//! Burn's backends, each behind the feature of its name. Flex has a file of its own.

#[cfg(feature = "ndarray")]
mod ndarray {
    use burn::backend::NdArray;
    use burn::backend::ndarray::{
        FloatNdArrayElement, IntNdArrayElement, NdArrayTensor, QuantElement, SharedArray,
    };

    impl<E, I, Q> crate::Fp8Matmul for NdArray<E, I, Q>
    where
        E: FloatNdArrayElement,
        I: IntNdArrayElement,
        Q: QuantElement,
        NdArrayTensor: From<SharedArray<E>>,
        NdArrayTensor: From<SharedArray<I>>,
    {
    }
}

/// Wgpu, Vulkan, Metal and WebGpu are one type, with or without Fusion.
#[cfg(feature = "wgpu")]
mod wgpu {
    use burn::backend::Wgpu;
    use burn::backend::wgpu::{BoolElement, FloatElement, IntElement};

    impl<F: FloatElement, I: IntElement, B: BoolElement> crate::Fp8Matmul for Wgpu<F, I, B> {}
}

#[cfg(feature = "candle")]
#[allow(deprecated, reason = "Burn deprecates its Candle backend, but 0.21 still has it")]
mod candle {
    use burn::backend::Candle;
    use burn::backend::candle::{FloatCandleElement, IntCandleElement};

    impl<F: FloatCandleElement, I: IntCandleElement> crate::Fp8Matmul for Candle<F, I> {}
}

#[cfg(feature = "tch")]
mod tch {
    use burn::backend::LibTorch;
    use burn::backend::libtorch::TchElement;

    impl<E: TchElement> crate::Fp8Matmul for LibTorch<E> {}
}

#[cfg(feature = "cuda")]
mod cuda {
    use burn::backend::Cuda;
    use burn_cubecl::{FloatElement, IntElement};

    impl<F: FloatElement, I: IntElement> crate::Fp8Matmul for Cuda<F, I> {}
}

#[cfg(feature = "rocm")]
mod rocm {
    use burn::backend::Rocm;
    use burn_cubecl::{BoolElement, FloatElement, IntElement};

    impl<F: FloatElement, I: IntElement, B: BoolElement> crate::Fp8Matmul for Rocm<F, I, B> {}
}

/// Router and Remote: products are emulated on the backend at the other end.
#[cfg(feature = "router")]
mod router {
    use burn::backend::router::{BackendRouter, RunnerChannel};

    impl<R: RunnerChannel> crate::Fp8Matmul for BackendRouter<R> {}
}
