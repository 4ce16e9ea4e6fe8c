//! Convolutions. The backend runs them; the trace is told which matrix products they come to.

use burn_backend::Shape;
use burn_fp8_core::Gemm;

/// The product of a convolution: `kernel` is `[filters, channels / groups, …]`, `output` `[batch, filters, …]`. Zeros of the padding are multiplied, too, as
/// backends do, and counters of FLOPs count.
pub(crate) fn forward(output: &Shape, kernel: &Shape, groups: usize) -> Gemm {
    let [m, n, k] = sides(output, kernel, groups);
    Gemm { batch: groups, ..Gemm::matrix(m, n, k) }
}

/// The product of a transposed convolution, which is the gradient of the input of another one, whose output has the shape of this `input`.
pub(crate) fn transposed(input: &Shape, kernel: &Shape, groups: usize) -> Gemm {
    let [m, k, n] = sides(input, kernel, groups);
    Gemm { batch: groups, ..Gemm::matrix(m, n, k) }
}

/// How often the window is laid on the batch, the filters of a group, and the numbers under the window.
fn sides(positions: &Shape, kernel: &Shape, groups: usize) -> [usize; 3] {
    let positions = positions[0] * positions[2..].iter().product::<usize>();
    [positions, kernel[0] / groups, kernel[1..].iter().product()]
}

/// Writes the operations that convolve: each does what `B` does, and tells `$told` the role and the forward product.
macro_rules! convolutions {
    ($told:ident) => {
        crate::backend::convolution::of_dimensions! { $told;
            1: conv1d conv1d_x_backward conv1d_weight_backward
                conv_transpose1d conv_transpose1d_x_backward conv_transpose1d_weight_backward;
            2: conv2d conv2d_x_backward conv2d_weight_backward
                conv_transpose2d conv_transpose2d_x_backward conv_transpose2d_weight_backward;
            3: conv3d conv3d_x_backward conv3d_weight_backward
                conv_transpose3d conv_transpose3d_x_backward conv_transpose3d_weight_backward;
        }

        pub(crate) fn deform_conv2d<B: crate::backend::Fp8Matmul>(
            x: FloatTensor<B>,
            offset: FloatTensor<B>,
            weight: FloatTensor<B>,
            mask: Option<FloatTensor<B>>,
            bias: Option<FloatTensor<B>>,
            options: burn_backend::ops::DeformConvOptions<2>,
        ) -> FloatTensor<B> {
            let (kernel, groups) = (weight.shape(), options.weight_groups);
            let output = B::deform_conv2d(x, offset, weight, mask, bias, options);
            $told(GemmRole::Output, convolution::forward(&output.shape(), &kernel, groups));
            output
        }

        pub(crate) fn deform_conv2d_backward<B: crate::backend::Fp8Matmul>(
            x: FloatTensor<B>,
            offset: FloatTensor<B>,
            weight: FloatTensor<B>,
            mask: Option<FloatTensor<B>>,
            bias: Option<FloatTensor<B>>,
            output_grad: FloatTensor<B>,
            options: burn_backend::ops::DeformConvOptions<2>,
        ) -> burn_backend::ops::DeformConv2dBackward<B> {
            let forward =
                convolution::forward(&output_grad.shape(), &weight.shape(), options.weight_groups);
            $told(GemmRole::GradInput, forward);
            $told(GemmRole::GradWeight, forward);
            B::deform_conv2d_backward(x, offset, weight, mask, bias, output_grad, options)
        }
    };
}

macro_rules! of_dimensions {
    ($told:ident; $(
        $dimensions:literal: $conv:ident $x_backward:ident $weight_backward:ident
            $transpose:ident $transpose_x_backward:ident $transpose_weight_backward:ident;
    )*) => {$(
        pub(crate) fn $conv<B: crate::backend::Fp8Matmul>(
            x: FloatTensor<B>,
            weight: FloatTensor<B>,
            bias: Option<FloatTensor<B>>,
            options: burn_backend::ops::ConvOptions<$dimensions>,
        ) -> FloatTensor<B> {
            let (kernel, groups) = (weight.shape(), options.groups);
            let output = B::$conv(x, weight, bias, options);
            $told(GemmRole::Output, convolution::forward(&output.shape(), &kernel, groups));
            output
        }

        pub(crate) fn $x_backward<B: crate::backend::Fp8Matmul>(
            x: FloatTensor<B>,
            weight: FloatTensor<B>,
            output_grad: FloatTensor<B>,
            options: burn_backend::ops::ConvOptions<$dimensions>,
        ) -> FloatTensor<B> {
            let (output, kernel) = (output_grad.shape(), weight.shape());
            $told(GemmRole::GradInput, convolution::forward(&output, &kernel, options.groups));
            B::$x_backward(x, weight, output_grad, options)
        }

        pub(crate) fn $weight_backward<B: crate::backend::Fp8Matmul>(
            x: FloatTensor<B>,
            weight: FloatTensor<B>,
            output_grad: FloatTensor<B>,
            options: burn_backend::ops::ConvOptions<$dimensions>,
        ) -> FloatTensor<B> {
            let (output, kernel) = (output_grad.shape(), weight.shape());
            $told(GemmRole::GradWeight, convolution::forward(&output, &kernel, options.groups));
            B::$weight_backward(x, weight, output_grad, options)
        }

        pub(crate) fn $transpose<B: crate::backend::Fp8Matmul>(
            x: FloatTensor<B>,
            weight: FloatTensor<B>,
            bias: Option<FloatTensor<B>>,
            options: burn_backend::ops::ConvTransposeOptions<$dimensions>,
        ) -> FloatTensor<B> {
            let (input, kernel) = (x.shape(), weight.shape());
            $told(GemmRole::Output, convolution::transposed(&input, &kernel, options.groups));
            B::$transpose(x, weight, bias, options)
        }

        pub(crate) fn $transpose_x_backward<B: crate::backend::Fp8Matmul>(
            weight: FloatTensor<B>,
            output_grad: FloatTensor<B>,
            options: burn_backend::ops::ConvTransposeOptions<$dimensions>,
        ) -> FloatTensor<B> {
            let (kernel, groups) = (weight.shape(), options.groups);
            let x_grad = B::$transpose_x_backward(weight, output_grad, options);
            $told(GemmRole::GradInput, convolution::transposed(&x_grad.shape(), &kernel, groups));
            x_grad
        }

        pub(crate) fn $transpose_weight_backward<B: crate::backend::Fp8Matmul>(
            x: FloatTensor<B>,
            weight: FloatTensor<B>,
            output_grad: FloatTensor<B>,
            options: burn_backend::ops::ConvTransposeOptions<$dimensions>,
        ) -> FloatTensor<B> {
            let (input, kernel) = (x.shape(), weight.shape());
            $told(GemmRole::GradWeight, convolution::transposed(&input, &kernel, options.groups));
            B::$transpose_weight_backward(x, weight, output_grad, options)
        }
    )*};
}

// The test's foreign backend and burn-fp8-next write them, too.
pub(crate) use {convolutions, of_dimensions};
