//! Convolutions in the trace: which products they come to, and how many FLOPs.

use burn::tensor::module::{
    conv_transpose1d, conv_transpose2d, conv_transpose3d, conv1d, conv2d, conv3d, deform_conv2d,
    max_pool2d,
};
use burn::tensor::ops::{ConvOptions, ConvTransposeOptions, DeformConvOptions, PaddedConvOptions};

use crate::common::*;

/// A kernel of ResNet-18: filters, channels and width, stride and padding.
fn residual<B: Backend>(
    x: Tensor<B, 4>,
    [filters, width, stride, padding]: [usize; 4],
) -> Tensor<B, 4> {
    let channels = x.dims()[1];
    let kernel = Tensor::<B, 4>::ones([filters, channels, width, width], &x.device());
    let options = PaddedConvOptions::from(ConvOptions::new([stride; 2], [padding; 2], [1; 2], 1));
    conv2d(x, kernel, None, options)
}

/// Of images of 224 × 224 ResNet-18 is known to take 1.814 G multiplications: 1,813,561,344 in its convolutions and 512,000 in its head (torchvision, "GFLOPS 1.81").
/// Images of 32 × 32 have a 49th of the positions in each layer.
#[test]
fn of_a_resnet_the_share_of_flops_is_told() {
    const CONVOLUTIONS: u128 = 2 * 1_813_561_344 / 49;
    const HEAD: u128 = 2 * 512_000;
    const BATCH: usize = 16;
    type B = Fp8Backend<Flex>;

    let device = Default::default();
    let (_, report) = trace(|| {
        let x = residual(ones::<B, 4>([BATCH, 3, 32, 32]), [64, 7, 2, 3]);
        let mut x = max_pool2d(x, [3, 3], [2, 2], [1, 1], [1, 1], false);
        for (filters, first_stride) in [(64, 1), (128, 2), (256, 2), (512, 2)] {
            for stride in [first_stride, 1] {
                let shortcut = match x.dims()[1] == filters {
                    true => x.clone(),
                    false => residual(x.clone(), [filters, 1, stride, 0]),
                };
                let inner = residual(x, [filters, 3, stride, 1]);
                x = residual(inner, [filters, 3, 1, 1]) + shortcut;
            }
        }
        LinearConfig::new(512, 1000).init(&device).forward(x.reshape([BATCH, 512]))
    });
    let flops = |kind| -> u128 {
        let products = report.products.iter().filter(|product| product.kind == kind);
        products.map(|product| product.gemm.flops()).sum()
    };
    assert_eq!(flops(ProductKind::Convolution), BATCH as u128 * CONVOLUTIONS);
    assert_eq!(flops(ProductKind::Linear), BATCH as u128 * HEAD);
    let share = report.share_in_fp8().expect("products");
    assert_eq!(share, HEAD as f64 / (CONVOLUTIONS + HEAD) as f64);
    assert!(report.high_precision().all(|(_, reason)| reason == HighPrecision::Convolution));
    // 16 · 2 · 37,523,456 FLOPs in all, of which the first convolution has 5 %.
    let text = report.to_string();
    says(&text, ["convolution  output", "1 × 4096×64×147", "6.4%", "convolutions are left to the"]);
    assert!(text.ends_with("1 of 21 products in FP8, 1.4% of 1.2 GFLOPs"), "{text}");
}

/// Results, and gradients of input and kernel, of one convolution of each kind.
fn each_kind<B: AutodiffBackend>() -> Vec<Vec<u32>> {
    fn step<B: AutodiffBackend, const D: usize>(
        shapes: [[usize; D]; 2],
        convolve: impl FnOnce(Tensor<B, D>, Tensor<B, D>) -> Tensor<B, D>,
    ) -> [Vec<u32>; 3] {
        let [x, kernel] = [(1, shapes[0]), (2, shapes[1])]
            .map(|(seed, shape)| random::<B, D>(seed, shape).require_grad());
        let y = convolve(x.clone(), kernel.clone());
        let grads = y.clone().powi_scalar(2).sum().backward();
        [values(y), grad(&x, &grads), grad(&kernel, &grads)].map(|numbers| bits(&numbers))
    }
    let plain = ConvOptions::new([1, 2], [1, 0], [1, 2], 1);
    let halved = ConvOptions::new([2; 3], [0; 3], [1; 3], 1);
    let grouped = ConvTransposeOptions::new([2], [1], [1], [1], 2);
    let turned = ConvTransposeOptions::new([1; 2], [0; 2], [0; 2], [1; 2], 1);
    let deep = ConvTransposeOptions::new([1; 3], [0; 3], [0; 3], [1; 3], 1);
    [
        step::<B, 3>([[2, 4, 10], [6, 2, 3]], |x, kernel| {
            conv1d(x, kernel, None, ConvOptions::new([2], [1], [1], 2))
        }),
        step::<B, 4>([[2, 3, 8, 6], [5, 3, 3, 2]], |x, kernel| conv2d(x, kernel, None, plain)),
        step::<B, 5>([[1, 2, 4, 4, 4], [3, 2, 2, 2, 2]], |x, w| conv3d(x, w, None, halved)),
        step::<B, 3>([[2, 4, 5], [4, 3, 3]], |x, w| conv_transpose1d(x, w, None, grouped)),
        step::<B, 4>([[1, 3, 4, 5], [3, 2, 2, 2]], |x, w| conv_transpose2d(x, w, None, turned)),
        step::<B, 5>([[1, 2, 2, 3, 2], [2, 3, 2, 2, 2]], |x, w| conv_transpose3d(x, w, None, deep)),
        step::<B, 4>([[1, 2, 5, 5], [3, 2, 3, 3]], |x, kernel| {
            let offset = Tensor::full([1, 18, 5, 5], 0.25, &x.device());
            let options = DeformConvOptions::new([1; 2], [1; 2], [1; 2], 1, 1);
            deform_conv2d(x, offset, kernel, None, None, options)
        }),
    ]
    .concat()
}

/// Batch times positions of the window, filters of a group, numbers under the window; counted by hand.
const SHAPES: [&str; 7] = [
    "2 × 10×3×6",  // 2 groups; 2 samples, 5 positions; 6 filters; 2 channels under 3
    "1 × 32×5×18", // 2 samples, 8 · 2 positions; 3 channels under 3 · 2
    "1 × 8×3×16",  // 2 · 2 · 2 positions; 2 channels under 2 · 2 · 2
    "2 × 10×9×2",  // transposed: 2 samples, 5 positions of the input; 3 filters of 3; 2 channels
    "1 × 20×8×3",  // transposed: 4 · 5 positions; 2 filters of 2 · 2
    "1 × 12×24×2", // transposed: 2 · 3 · 2 positions; 3 filters of 2 · 2 · 2
    "1 × 25×3×18", // deformed: 5 · 5 positions; 2 channels under 3 · 3
];

#[test]
fn each_convolution_and_its_gradients_are_listed() {
    let swapped = |gemm: &str, order: [usize; 3]| {
        let (batch, sides) = gemm.split_once(" × ").expect("a batch");
        let sides: Vec<_> = sides.split('×').collect();
        format!("{batch} × {}×{}×{}", sides[order[0]], sides[order[1]], sides[order[2]])
    };
    let of_autodiff = trace(each_kind::<Inner<Flex>>).1;
    let seen: Vec<_> = of_autodiff.products.iter().map(|p| (p.role, p.gemm.to_string())).collect();
    let expected = SHAPES.map(|gemm| {
        [
            (GemmRole::Output, gemm.to_owned()),
            (GemmRole::GradInput, swapped(gemm, [0, 2, 1])),
            (GemmRole::GradWeight, swapped(gemm, [2, 1, 0])),
        ]
    });
    assert_eq!(seen, expected.concat());

    // Autodiff inside computes the gradients itself.
    let (_, of_decorator) = trace(each_kind::<Outer<Flex>>);
    let seen: Vec<_> =
        of_decorator.products.iter().map(|product| product.gemm.to_string()).collect();
    assert_eq!(seen, SHAPES);
    let json: serde_json::Value = serde_json::from_str(&of_decorator.to_json()).expect("JSON");
    assert_eq!(json["products"][0]["kind"], "convolution");
}

#[test]
fn convolutions_are_those_of_the_backend_to_the_bit() {
    let reference = each_kind::<Autodiff<Flex>>();
    assert_eq!(reference.len(), 3 * SHAPES.len());
    for results in [
        each_kind::<Outer<Flex>>(),
        each_kind::<Inner<Flex>>(),
        trace(each_kind::<Inner<Flex>>).0,
        high_precision(each_kind::<Outer<Flex>>),
    ] {
        assert!(results == reference);
    }
}
