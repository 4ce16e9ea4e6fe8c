//! Published checkpoints, one layer of a Llama each, against what the libraries that wrote them make of the same weights.

use std::path::PathBuf;

use burn_fp8::checkpoint::{Activations, Checkpoint, QuantizedLinear, Scales};
use safetensors::SafeTensors;

use super::*;

/// Folders, and whether one scale serves each weight and each input.
pub const CHECKPOINTS: [(&str, bool); 8] = [
    ("ct_tensor_static", true),
    ("ct_channel_dynamic", false),
    ("ct_block", false),
    ("ct_mxfp8", false),
    ("fp8_block", false),
    ("fp8_block_ue8m0", false),
    ("fp8_tensor_static", true),
    ("modelopt", true),
];

pub fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../burn-fp8-checkpoint/tests/golden").join(name)
}

/// A layer of a checkpoint.
pub struct Published<'a, B: Backend> {
    pub layer: FrozenLinear<B>,
    pub checkpoint: &'a Checkpoint,
    pub name: &'a str,
    is_per_tensor: bool,
    expected: &'a SafeTensors<'a>,
    what: String,
}

impl<B: Backend> Published<'_, B> {
    /// Numbers of `expected.safetensors`, and their shape.
    pub fn part(&self, part: &str) -> (Vec<f32>, [usize; 2]) {
        let view = self.expected.tensor(&format!("{}/{part}", self.name)).expect("it is there");
        let numbers = view.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        (numbers, view.shape().try_into().expect("a matrix"))
    }
}

/// Calls `check` for each layer of each checkpoint, whose weight is exactly that of its library.
pub fn for_each_published<B: Fp8Matmul>(check: impl Fn(Published<'_, B>)) {
    for (folder_name, is_per_tensor) in CHECKPOINTS {
        let checkpoint = Checkpoint::open(folder(folder_name)).expect(folder_name);
        let expected = std::fs::read(folder(folder_name).join("expected.safetensors"));
        let expected = expected.expect("in the repository");
        let expected = SafeTensors::deserialize(&expected).expect("a safetensors file");
        assert_eq!(checkpoint.layers().len(), 7, "{folder_name}");
        for info in checkpoint.layers() {
            let what = format!("{folder_name}, {}", info.name);
            let layer = FrozenLinear::from_checkpoint(&checkpoint, &info.name, &Default::default());
            let (layer, name) = (layer.expect(&what), &info.name[..]);
            let (checkpoint, expected) = (&checkpoint, &expected);
            let published = Published { layer, checkpoint, name, is_per_tensor, expected, what };
            let (weight, [n, k]) = published.part("weight");
            assert_eq!(published.layer.dims(), [k, n], "{}", published.what);
            let of_file = values(published.layer.weight().transpose());
            assert_eq!(bits(&of_file), bits(&weight), "{}", published.what);
            check(published);
        }
    }
}

/// Weights exactly, outputs with the activations that the file declares and with those of f32.
pub fn layers_are_those_of_their_libraries<B: Fp8Matmul>() {
    for_each_published::<B>(|published| {
        let Published { layer, is_per_tensor, what, .. } = &published;
        let [k, n] = layer.dims();
        // Codes, and what their scales and a bias take.
        let others = layer.bytes() - n * k;
        assert!(others <= 4 * (n + n.max(2) * k.div_ceil(32)), "{what}: {others}");

        let (x, shape @ [m, _]) = published.part("input");
        let x = tensor::<B, 2>(&x, shape);
        let (unquantized, _) = published.part("output");
        let (output, _) = published.part("output_w8a8");
        let plain = high_precision(|| values(layer.forward(x.clone())));
        assert_close(&plain, &unquantized, 1e-5, what);
        let (ours, report) = trace(|| values(layer.forward(x.clone())));
        match layer.activation() {
            ActivationScale::PerToken => {
                rows_have_scales_of_their_own(&published, x.clone(), &output)
            }
            _ => assert_close(&ours, &output, 1e-5, what),
        }
        let [product] = &report.products[..] else { panic!("one product: {report}") };
        let operand = product.lhs.expect("in FP8");
        assert_eq!(operand.granularity == Granularity::PerTensor, *is_per_tensor, "{what}");
        assert_eq!(product.ran, implementation::<B>(), "{what}");

        // Leading dimensions, and an empty batch.
        assert_close(&values(layer.forward(x.reshape([m, 1, k]))), &ours, 1e-6, what);
        let none = layer.forward(Tensor::<B, 2>::zeros([0, k], &Default::default()));
        assert_eq!(none.dims(), [0, n]);
    });
}

/// compressed-tensors 0.20 takes the amax of an input of two dimensions over no dimension, which torch takes for all: its expected output has one scale for all
/// rows. A row by itself has that scale, too.
fn rows_have_scales_of_their_own<B: Fp8Matmul>(
    published: &Published<'_, B>,
    x: Tensor<B, 2>,
    expected: &[f32],
) {
    let Published { layer: per_token, checkpoint, name, what, .. } = published;
    let layer = checkpoint.linear(name).expect("a layer");
    let (shape, scales) = (layer.shape(), layer.scales().clone());
    let bias = layer.bias().map(<[f32]>::to_vec);
    let layer =
        QuantizedLinear::new(shape, layer.into_codes(), scales, bias, Activations::PerTensor);
    let with_one_scale =
        FrozenLinear::<B>::from_published(layer.expect("a layer"), &Default::default());
    assert_close(&values(with_one_scale.forward(x.clone())), expected, 1e-5, what);
    let row = |row| values(with_one_scale.forward(x.clone().narrow(0, row, 1)));
    let each: Vec<_> = (0..x.dims()[0]).flat_map(row).collect();
    let together = values(per_token.forward(x.clone()));
    assert_close(&together, &each, 1e-6, what);
    // Rows differ in size, so that the two are not the same.
    assert!(bits(&together) != bits(&values(with_one_scale.forward(x))), "{what}");
}

/// Files may declare blocks of any size: nothing is allocated for what a matrix does not have.
pub fn blocks_larger_than_the_weight_are_as_large_as_it<B: Fp8Matmul>() {
    let [n, k] = [3, 70];
    let codes = Random(2).picks(&fp8::finite_codes(E4M3), n * k);
    let run = |block: [usize; 2], size| {
        let scales = Scales::new([n, k], block, vec![0.5; n.div_ceil(block[0])]).expect("scales");
        let activations = Activations::Blocks { size, power_of_two: false };
        let layer = QuantizedLinear::new([n, k], codes.clone(), scales, None, activations);
        let layer = FrozenLinear::from_published(layer.expect("a layer"), &Default::default());
        let (y, report) = trace(|| values(layer.forward(random::<B, 2>(1, [2, k]))));
        assert_eq!(report.products[0].ran, implementation::<B>(), "{block:?}, {size}");
        y
    };
    let expected = run([3, 70], 70);
    assert!(expected.iter().all(|y| y.is_finite() && *y != 0.0));
    for (block, size) in
        [([3, 128], 128), ([1 << 40, 1 << 40], 1 << 40), ([2, usize::MAX], 1 << 62)]
    {
        assert_close(&run(block, size), &expected, 1e-6, &format!("{block:?}, {size}"));
    }
}
