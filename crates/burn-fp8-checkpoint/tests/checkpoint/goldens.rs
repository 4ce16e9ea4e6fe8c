//! Checkpoints that compressed-tensors, transformers and ModelOpt wrote, against the weights and the configuration that they mean.

use std::collections::BTreeMap;

use burn_fp8_checkpoint::{
    ActivationScaling, Activations, Checkpoint, Dtype, Method, WeightScaling,
};

use crate::common::{self, GOLDENS, assert_says, golden};

/// Tensors of a golden file by name: the name of the type, shape, bytes.
fn stored(name: &str, file: &str) -> BTreeMap<String, (String, Vec<usize>, Vec<u8>)> {
    let tensors = common::tensors(&golden(name).join(file)).into_iter();
    tensors
        .map(|(name, dtype, shape, bytes)| (name, (format!("{dtype:?}"), shape, bytes)))
        .collect()
}

#[test]
fn weights_are_those_of_the_libraries_bit_by_bit() {
    for name in GOLDENS {
        let checkpoint = Checkpoint::open(golden(name)).unwrap();
        let expected = stored(name, "expected.safetensors");
        let weights: Vec<_> = expected.iter().filter(|(key, _)| key.ends_with("/weight")).collect();
        assert_eq!(weights.len(), 7, "{name}");
        assert_eq!(checkpoint.layers().len(), 7, "{name}");
        for (key, (_, shape, bytes)) in weights {
            let layer = checkpoint.linear(key.strip_suffix("/weight").unwrap()).unwrap();
            assert_eq!(layer.shape().to_vec(), *shape, "{name} {key}");
            let weight: Vec<u8> = layer.dequantize().iter().flat_map(|x| x.to_le_bytes()).collect();
            assert!(weight == *bytes, "{name} {key}");
        }
        assert!(checkpoint.warnings().is_empty(), "{name}: {:?}", checkpoint.warnings());
        checkpoint.verify().unwrap();
    }
}

#[test]
fn formats_are_told() {
    use ActivationScaling::{Blocks, Mx, PerToken, Static};
    use Method::{CompressedTensors, Fp8, ModelOpt};
    let tensor = (WeightScaling::PerTensor, "per tensor");
    let channel = (WeightScaling::PerChannel, "per channel");
    let by_128 = (WeightScaling::Blocks([128, 128]), "per 128×128 block");
    let by_32 = (WeightScaling::Mx, "per 1×32 block (MXFP8)");
    let fixed = (Static, None, "static, per tensor");
    let per_token = (PerToken, Some(Activations::PerToken), "dynamic, per token");
    let mx = (Mx, Some(Activations::Mx), "dynamic, per 1×32 block (MXFP8)");
    let blocks = |power_of_two, text| {
        let size = 128;
        let each = Activations::Blocks { size, power_of_two };
        (Blocks { size, power_of_two }, Some(each), text)
    };
    let plain = blocks(false, "dynamic, per 1×128 block");
    let rounded = blocks(true, "dynamic, per 1×128 block, scales powers of two");
    for (name, method, (weight, per), dtype, (activations, each, how)) in [
        ("ct_tensor_static", CompressedTensors, tensor, Dtype::BF16, fixed),
        ("ct_channel_dynamic", CompressedTensors, channel, Dtype::BF16, per_token),
        ("ct_block", CompressedTensors, by_128, Dtype::BF16, plain),
        ("ct_mxfp8", CompressedTensors, by_32, Dtype::U8, mx),
        ("fp8_block", Fp8, by_128, Dtype::F32, plain),
        ("fp8_block_ue8m0", Fp8, by_128, Dtype::F8_E8M0, rounded),
        ("fp8_tensor_static", Fp8, tensor, Dtype::F32, fixed),
        ("modelopt", ModelOpt, tensor, Dtype::F32, fixed),
    ] {
        let checkpoint = Checkpoint::open(golden(name)).unwrap();
        let format = checkpoint.format();
        assert_eq!((format.method, format.kinds.len()), (method, 1), "{name}");
        let kind = format.kinds[0];
        assert_eq!((kind.weight, kind.scale_dtype), (weight, dtype), "{name}");
        assert_eq!((kind.activations, kind.layers), (activations, 7), "{name}");
        let of_weights = format!("7 layers, E4M3 weights with {dtype} scales {per}");
        let expected = format!("{method}: {of_weights}, activations {how}");
        assert_eq!(format.to_string(), expected);
        for info in checkpoint.layers() {
            let layer = checkpoint.linear(&info.name).unwrap();
            let is_rounded = matches!(dtype, Dtype::U8 | Dtype::F8_E8M0);
            assert_eq!(layer.scales().are_powers_of_two(), is_rounded, "{name} {}", info.name);
            if let Some(each) = each {
                assert_eq!(layer.activations(), each, "{name} {}", info.name);
            }
        }
    }
    let names = [CompressedTensors, Fp8, ModelOpt].map(|method| method.to_string());
    assert_eq!(names, ["compressed-tensors", "fp8", "modelopt"]);
}

#[test]
fn static_scales_are_those_of_the_file() {
    for (name, field) in [
        ("ct_tensor_static", "input_scale"),
        ("fp8_tensor_static", "activation_scale"),
        ("modelopt", "input_scale"),
    ] {
        let checkpoint = Checkpoint::open(golden(name)).unwrap();
        let stored = stored(name, "model.safetensors");
        for info in checkpoint.layers() {
            let (dtype, _, bytes) = &stored[&format!("{}.{field}", info.name)];
            let expected = match (&dtype[..], &bytes[..]) {
                ("F32", bytes) => f32::from_le_bytes(bytes.try_into().unwrap()),
                // bfloat16 is the upper half of f32.
                ("BF16", &[low, high]) => f32::from_le_bytes([0, 0, low, high]),
                _ => panic!("{dtype}"),
            };
            let layer = checkpoint.linear(&info.name).unwrap();
            assert_eq!(layer.activations(), Activations::Static(expected), "{name} {}", info.name);
        }
    }
}

#[test]
fn blocks_are_those_of_the_configuration_also_where_the_last_are_ragged() {
    // Shapes [out, in] of a layer, then its block and grid, from the description of the files.
    for (name, layer, shape, block, grid) in [
        ("ct_tensor_static", "mlp.gate_proj", [160, 96], [160, 96], [1, 1]),
        ("ct_channel_dynamic", "mlp.gate_proj", [160, 96], [1, 96], [160, 1]),
        ("ct_block", "self_attn.k_proj", [64, 256], [128, 128], [1, 2]),
        ("ct_mxfp8", "mlp.down_proj", [128, 224], [1, 32], [128, 7]),
        ("fp8_block", "mlp.down_proj", [256, 352], [128, 128], [2, 3]),
        ("fp8_block", "mlp.up_proj", [352, 256], [128, 128], [3, 2]),
        ("fp8_block", "self_attn.o_proj", [256, 64], [128, 128], [2, 1]),
        ("fp8_block_ue8m0", "mlp.down_proj", [256, 320], [128, 128], [2, 3]),
    ] {
        let checkpoint = Checkpoint::open(golden(name)).unwrap();
        let linear = checkpoint.linear(&format!("model.layers.0.{layer}")).unwrap();
        assert_eq!(linear.shape(), shape, "{name} {layer}");
        assert_eq!(linear.scales().block(), block, "{name} {layer}");
        assert_eq!(linear.scales().grid(), grid, "{name} {layer}");
        assert_eq!(linear.scales().values().len(), grid[0] * grid[1], "{name} {layer}");
    }
}

#[test]
fn plain_tensors_and_biases_are_those_of_the_file() {
    for name in GOLDENS {
        let checkpoint = Checkpoint::open(golden(name)).unwrap();
        let stored = stored(name, "model.safetensors");
        // Embeddings, output, three norms.
        assert_eq!(checkpoint.tensors().len(), 5, "{name}");
        for info in checkpoint.tensors() {
            let tensor = checkpoint.tensor(&info.name).unwrap();
            let (dtype, shape, bytes) = &stored[&info.name];
            assert_eq!(info.dtype.name(), dtype, "{name} {}", info.name);
            assert_eq!(&info.shape, shape, "{name} {}", info.name);
            assert_eq!(tensor.bytes(), bytes, "{name} {}", info.name);
            assert_eq!(dtype, "BF16");
            assert_eq!(bits(&tensor.to_f32().unwrap()), widened(bytes), "{name} {}", info.name);
        }
        for info in checkpoint.layers() {
            let bias = stored.get(&format!("{}.bias", info.name));
            assert_eq!(info.bias, bias.is_some(), "{name} {}", info.name);
            assert_eq!(info.bias, info.name.contains("self_attn"), "{name} {}", info.name);
            let layer = checkpoint.linear(&info.name).unwrap();
            let expected = bias.map(|(_, _, bytes)| widened(bytes));
            assert_eq!(layer.bias().map(bits), expected, "{name} {}", info.name);
        }
        let bytes = checkpoint.layers().iter().map(|info| info.bytes).sum::<u64>()
            + checkpoint.tensors().iter().map(|info| info.bytes).sum::<u64>();
        let all: usize = stored.values().map(|(_, _, bytes)| bytes.len()).sum();
        assert_eq!(bytes, all as u64, "{name}: each tensor belongs to one layer, or is plain");
    }
}

/// The bits of f32 that bfloat16 bytes are the upper halves of.
fn widened(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(2).map(|b| u32::from_le_bytes([0, 0, b[0], b[1]])).collect()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

#[test]
fn a_file_is_opened_with_the_configuration_beside_it() {
    let checkpoint = Checkpoint::open(golden("ct_block").join("model.safetensors")).unwrap();
    assert_eq!(checkpoint.layers().len(), 7);
    assert!(checkpoint.config().contains("LlamaForCausalLM"));
}

#[test]
fn threads_may_read_at_once() {
    let checkpoint = Checkpoint::open(golden("ct_block")).unwrap();
    let alone: Vec<_> =
        checkpoint.layers().iter().map(|info| checkpoint.linear(&info.name).unwrap()).collect();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for (info, layer) in checkpoint.layers().iter().zip(&alone) {
                    assert_eq!(&checkpoint.linear(&info.name).unwrap(), layer, "{}", info.name);
                }
            });
        }
    });
}

#[test]
fn codes_have_no_numbers_without_their_scales() {
    let checkpoint = Checkpoint::open(golden("fp8_block")).unwrap();
    let tensor = checkpoint.tensor("model.layers.0.mlp.down_proj.weight").unwrap();
    assert_eq!(tensor.bytes().len(), 256 * 352);
    assert_says(tensor.to_f32().unwrap_err(), &["down_proj.weight", "`linear`"]);
}

#[test]
fn an_unknown_name_is_told_with_those_that_there_are() {
    let checkpoint = Checkpoint::open(golden("fp8_block")).unwrap();
    let error = checkpoint.linear("model.layers.0.mlp.gate").unwrap_err();
    assert_says(error, &["`model.layers.0.mlp.gate`", "`model.layers.0.mlp.gate_proj`"]);
    assert_says(checkpoint.tensor("lm_head").unwrap_err(), &["`lm_head.weight`"]);
}
