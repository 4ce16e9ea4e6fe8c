//! Checkpoints that compressed-tensors, transformers and ModelOpt wrote, against the weights and the configuration that they mean.

use std::collections::BTreeMap;

use burn_fp8_checkpoint::{
    ActivationScaling, Activations, Checkpoint, Dtype, Method, WeightScaling,
};

use crate::common::{self, GOLDENS, golden};

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
    let blocks = |power_of_two| ActivationScaling::Blocks { size: 128, power_of_two };
    let rows = [
        (
            "ct_tensor_static",
            Method::CompressedTensors,
            WeightScaling::PerTensor,
            Dtype::BF16,
            ActivationScaling::Static,
            "compressed-tensors: 7 layers, E4M3 weights with BF16 scales per tensor, activations static, per tensor",
        ),
        (
            "ct_channel_dynamic",
            Method::CompressedTensors,
            WeightScaling::PerChannel,
            Dtype::BF16,
            ActivationScaling::PerToken,
            "compressed-tensors: 7 layers, E4M3 weights with BF16 scales per channel, activations dynamic, per token",
        ),
        (
            "ct_block",
            Method::CompressedTensors,
            WeightScaling::Blocks([128, 128]),
            Dtype::BF16,
            blocks(false),
            "compressed-tensors: 7 layers, E4M3 weights with BF16 scales per 128×128 block, activations dynamic, per 1×128 block",
        ),
        (
            "ct_mxfp8",
            Method::CompressedTensors,
            WeightScaling::Mx,
            Dtype::U8,
            ActivationScaling::Mx,
            "compressed-tensors: 7 layers, E4M3 weights with U8 scales per 1×32 block (MXFP8), activations dynamic, per 1×32 block (MXFP8)",
        ),
        (
            "fp8_block",
            Method::Fp8,
            WeightScaling::Blocks([128, 128]),
            Dtype::F32,
            blocks(false),
            "fp8: 7 layers, E4M3 weights with F32 scales per 128×128 block, activations dynamic, per 1×128 block",
        ),
        (
            "fp8_block_ue8m0",
            Method::Fp8,
            WeightScaling::Blocks([128, 128]),
            Dtype::F8_E8M0,
            blocks(true),
            "fp8: 7 layers, E4M3 weights with F8_E8M0 scales per 128×128 block, activations dynamic, per 1×128 block, scales powers of two",
        ),
        (
            "fp8_tensor_static",
            Method::Fp8,
            WeightScaling::PerTensor,
            Dtype::F32,
            ActivationScaling::Static,
            "fp8: 7 layers, E4M3 weights with F32 scales per tensor, activations static, per tensor",
        ),
        (
            "modelopt",
            Method::ModelOpt,
            WeightScaling::PerTensor,
            Dtype::F32,
            ActivationScaling::Static,
            "modelopt: 7 layers, E4M3 weights with F32 scales per tensor, activations static, per tensor",
        ),
    ];
    for (name, method, weight, scale_dtype, activations, text) in rows {
        let checkpoint = Checkpoint::open(golden(name)).unwrap();
        let format = checkpoint.format();
        assert_eq!(format.method, method, "{name}");
        assert_eq!(format.kinds.len(), 1, "{name}");
        let kind = format.kinds[0];
        assert_eq!(
            (kind.weight, kind.scale_dtype, kind.activations, kind.layers),
            (weight, scale_dtype, activations, 7),
            "{name}"
        );
        assert_eq!(format.to_string(), text);
    }
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
fn dynamic_activations_are_declared_by_layers() {
    for (name, expected) in [
        ("ct_channel_dynamic", Activations::PerToken),
        ("ct_block", Activations::Blocks { size: 128, power_of_two: false }),
        ("ct_mxfp8", Activations::Mx),
        ("fp8_block", Activations::Blocks { size: 128, power_of_two: false }),
        ("fp8_block_ue8m0", Activations::Blocks { size: 128, power_of_two: true }),
    ] {
        let checkpoint = Checkpoint::open(golden(name)).unwrap();
        for info in checkpoint.layers() {
            assert_eq!(checkpoint.linear(&info.name).unwrap().activations(), expected, "{name}");
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
fn scales_of_e8m0_are_powers_of_two_and_others_are_not() {
    for name in GOLDENS {
        let checkpoint = Checkpoint::open(golden(name)).unwrap();
        let all = checkpoint.layers().iter();
        let all: Vec<_> = all
            .map(|info| checkpoint.linear(&info.name).unwrap().scales().are_powers_of_two())
            .collect();
        let expected = matches!(name, "ct_mxfp8" | "fp8_block_ue8m0");
        assert!(all.iter().all(|is| *is == expected), "{name}: {all:?}");
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
    let error = tensor.to_f32().unwrap_err().to_string();
    assert!(error.contains("down_proj.weight") && error.contains("`linear`"), "{error}");
}

#[test]
fn an_unknown_name_is_told_with_those_that_there_are() {
    let checkpoint = Checkpoint::open(golden("fp8_block")).unwrap();
    let error = checkpoint.linear("model.layers.0.mlp.gate").unwrap_err().to_string();
    assert!(error.contains("`model.layers.0.mlp.gate`"), "{error}");
    assert!(error.contains("`model.layers.0.mlp.gate_proj`"), "{error}");
    let error = checkpoint.tensor("lm_head").unwrap_err().to_string();
    assert!(error.contains("`lm_head.weight`"), "{error}");
}
