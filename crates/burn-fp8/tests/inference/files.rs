//! Tensors and frozen layers in files: kept, documented, damaged, of other programs, and files that mean harm: headers, names and shapes without end, names that
//! command a terminal, pipes.

use std::path::Path;
use std::time::Duration;

use burn_fp8::DelayedRecord;
use burn_fp8::nn::ActivationScale::{Current, Static};
use burn_fp8::nn::LoraConfig;
use burn_fp8::nn::frozen::{load_all, save_all};
use burn_fp8::nn::lora::save_adapters;
use safetensors::{Dtype, SafeTensors};

use crate::common::files::{NO_SCALES, f32s, write, write_raw};
use crate::common::frozen::{layer, parts};
use crate::common::*;
use crate::tensors::mx;

type Matrix = Fp8Tensor<Flex, 2>;
type Layer = FrozenLinear<Flex>;

tests_on_cpu!([files_keep_tensors, files_keep_layers]);

#[test]
fn files_of_the_decorator_keep_tensors_and_layers() {
    files_keep_tensors::<Outer<Flex>>();
    files_keep_layers::<Outer<Flex>>();
}

fn files_keep_tensors<B: Fp8Matmul>() {
    let (folder, path) = files::path("tensors.safetensors");
    let device = Default::default();
    let x = tensor::<B, 2>(&Random(3).spread(15), [5, 3]);
    let on_device = tensor::<B, 1>(&[0.125], [1]);
    let empty = |shape| Fp8Tensor::from_bytes(vec![], shape, E4M3, 0.5, &device).expect("no codes");
    let zeros = Tensor::<B, 2>::zeros([2, 40], &device);
    let zeros = Fp8Tensor::quantize_blocks(zeros, E4M3, [1, 32], Recipe::mxfp8());
    let tensors = [
        ("fc1.weight", Fp8Tensor::quantize(x.clone(), E4M3)),
        ("fc2.weight", Fp8Tensor::quantize_with(x.clone(), E5M2, on_device).expect("good")),
        ("fc3", Fp8Tensor::quantize(x, E4M3).transpose()),
        ("empty", empty([0, 3])),
        ("turned and empty", empty([0, 3]).transpose()),
        ("nothing", empty([0, 0])),
        ("mx", mx::<B>([3, 70])),
        ("turned", mx::<B>([2, 40]).transpose()),
        ("zeros", zeros.expect("blocks")),
    ];
    let same = |loaded: &Fp8Tensor<B, 2>, saved: &Fp8Tensor<B, 2>, name: &str| {
        assert_eq!((loaded.dims(), loaded.format()), (saved.dims(), saved.format()), "{name}");
        assert_eq!(
            (loaded.block(), loaded.to_bytes()),
            (saved.block(), saved.to_bytes()),
            "{name}"
        );
        assert_eq!(values(loaded.scales()), values(saved.scales()), "{name}");
        assert_eq!(values(loaded.dequantize()), values(saved.dequantize()), "{name}");
        assert!(!loaded.is_transposed());
    };
    let named = tensors.iter().map(|(name, tensor)| (*name, tensor));
    Fp8Tensor::save_all(&path, named.clone()).expect("written");
    let loaded = Fp8Tensor::<B, 2>::load_all(&path, &device).expect("read");
    assert_eq!(loaded.len(), tensors.len());
    for (name, tensor) in named {
        same(&loaded[name], tensor, name);
        same(&Fp8Tensor::load(&path, name, &device).expect("read"), tensor, name);
    }
    let bytes = std::fs::read(&path).expect("written");
    let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("valid");
    let metadata = metadata.metadata().clone().expect("there");
    assert_eq!((&metadata["mx_block"][..], &metadata["turned_block"][..]), ("1x32", "32x1"));
    tensors[0].1.save(&path, "w").expect("written");
    same(&Fp8Tensor::load(&path, "w", &device).expect("read"), &tensors[0].1, "w");
    assert_eq!(std::fs::read_dir(&folder).expect("there").count(), 1, "nothing left beside");
}

fn files_keep_layers<B: Fp8Matmul>() {
    let (folder, path) = files::path("layer.safetensors");
    let device = Default::default();
    let mut random = Random(4);
    let first = layer::<B>(&mut random, [6, 5], Static(0.25)).0;
    let second = layer::<B>(&mut random, [5, 3], Current).0;
    let second = second.with_activation(Static(0.5)).expect("good");
    let third = FrozenLinear::<B>::from_weight(tensor(&[1.0, f32::NAN], [1, 2]), None, Current);
    let third = third.expect("good");
    for layer in [&first, &second, &third] {
        layer.save(&path).expect("written");
        let loaded = FrozenLinear::<B>::load(&path, &device).expect("read");
        assert_eq!(parts(&loaded), parts(layer));
    }
    let layers = [("fc1", &first), ("block.0.weight", &second), ("block.0", &third)];
    save_all(&path, layers).expect("written");
    let loaded = load_all::<B>(&path, &device).expect("read");
    assert_eq!(loaded.len(), 3);
    for (name, layer) in layers {
        assert_eq!(parts(&loaded[name]), parts(layer), "{name}");
    }
    refused(FrozenLinear::<B>::load(&path, &device), ["`block.0`, `block.0.weight`, `fc1`"]);
    let twice = [("a", &first), ("a", &first)];
    refused(save_all(&path, twice), ["two layers have the name `a`"]);
    assert_eq!(std::fs::read_dir(&folder).expect("there").count(), 1, "nothing left beside");
}

#[test]
fn files_have_the_documented_tensors() {
    let (_folder, path) = files::path("model.safetensors");
    let assert_file = |expected: &[(&str, Dtype, &[usize], Vec<u8>)]| {
        let bytes = std::fs::read(&path).expect("there");
        let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        assert_eq!(file.len(), expected.len());
        for (name, dtype, shape, bytes) in expected {
            let view = file.tensor(name).expect("there");
            assert_eq!((view.dtype(), view.shape()), (*dtype, *shape), "{name}");
            assert_eq!(view.data(), bytes, "{name}");
        }
    };
    let tensor = |format| {
        let codes = vec![1, 2, 3, 4, 5, 6];
        Matrix::from_bytes(codes, [2, 3], format, 0.5, &Default::default()).expect("good")
    };
    let (a, b) = (tensor(E4M3), tensor(E5M2).transpose());
    Fp8Tensor::save_all(&path, [("a", &a), ("b", &b)]).expect("written");
    assert_file(&[
        ("a", Dtype::F8_E4M3, &[2, 3], vec![1, 2, 3, 4, 5, 6]),
        ("b", Dtype::F8_E5M2, &[3, 2], vec![1, 4, 2, 5, 3, 6]),
        ("a_scale", Dtype::F32, &[1], f32s(&[0.5])),
        ("b_scale", Dtype::F32, &[1], f32s(&[0.5])),
    ]);

    let (layer, weight, bias) = layer::<Flex>(&mut Random(12), [3, 2], Static(0.125));
    save_all(&path, [("fc", &layer)]).expect("written");
    let scale = reference::scale(&weight, E4M3);
    let codes = weight.iter().map(|w| E4M3.encode(w / scale, Default::default())).collect();
    assert_file(&[
        ("fc.weight", Dtype::F8_E4M3, &[3, 2], codes),
        ("fc.weight_scale", Dtype::F32, &[1], f32s(&[scale])),
        ("fc.input_scale", Dtype::F32, &[1], f32s(&[0.125])),
        ("fc.bias", Dtype::F32, &[2], f32s(&bias)),
    ]);
}

#[test]
fn names_that_collide_and_scales_that_are_none_are_not_written() {
    let (_folder, path) = files::path("tensors.safetensors");
    let good = Matrix::quantize(Tensor::ones([2, 2], &Default::default()), E4M3);
    let nan = tensor::<Flex, 1>(&[f32::NAN], [1]);
    let nan = Matrix::quantize_with(Tensor::ones([2, 2], &Default::default()), E4M3, nan);
    let nan = nan.expect("not looked at");
    for (tensors, expected) in [
        (&[("a", &good), ("a", &good)][..], "two tensors of the file have the name `a`"),
        (&[("a", &good), ("a_scale", &good)], "two tensors of the file have the name `a_scale`"),
        (&[("", &good)], "a tensor has no name"),
        (&[("a", &nan)], "a_scale is NaN"),
    ] {
        let error = Fp8Tensor::save_all(&path, tensors.iter().copied()).expect_err("refused");
        assert!(matches!(error, Fp8Error::Invalid { .. }), "{error:?}");
        says(error, [expected]);
        assert!(!path.exists());
    }
}

/// What a file holds: tensors, or layers.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Tensors,
    Layers,
}

const F8: Dtype = Dtype::F8_E4M3;
const LAYERS: &[(&str, &str)] = &[("format", "burn-fp8 frozen layers"), ("version", "1")];

impl Kind {
    /// The names of codes and their scale, and the metadata that it needs.
    fn names(self) -> (&'static str, &'static str, &'static [(&'static str, &'static str)]) {
        match self {
            Self::Tensors => ("w", "w_scale", &[]),
            Self::Layers => ("weight", "weight_scale", LAYERS),
        }
    }

    /// Reads one and all: each has to say this, and the file's name.
    #[track_caller]
    fn refused(self, path: &Path, expected: &str) {
        let device = Default::default();
        let results = match self {
            Self::Tensors => {
                let one = Matrix::load(path, "w", &device).map(drop);
                [one, Matrix::load_all(path, &device).map(drop)]
            }
            Self::Layers => {
                let one = Layer::load(path, &device).map(drop);
                [one, load_all::<Flex>(path, &device).map(drop)]
            }
        };
        for result in results {
            let error = result.expect_err(expected);
            assert!(matches!(error, Fp8Error::InvalidState { .. }), "{error:?}");
            says(error, [expected, "file.safetensors"]);
        }
    }
}

#[test]
fn damaged_files_are_refused_with_the_reason() {
    let (_folder, path) = files::path("file.safetensors");
    for kind in [Kind::Tensors, Kind::Layers] {
        let (name, scale_name, metadata) = kind.names();
        let refused = |tensors: &[(&str, Dtype, &[usize], Vec<u8>)], expected: &str| {
            write(&path, tensors, metadata);
            kind.refused(&path, expected);
        };
        let raw = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("writable");
            kind.refused(&path, "not a complete safetensors file");
        };
        let codes = || (name, F8, &[2, 3][..], vec![0x38; 6]);
        let scale = || (scale_name, Dtype::F32, &[1][..], f32s(&[0.5]));
        write(&path, &[codes(), scale()], metadata);
        let whole = std::fs::read(&path).expect("there");
        for len in [0, 7, 8, 60, whole.len() - 1] {
            raw(&whole[..len]);
        }
        raw(b"{\"weight\": 1}, not a safetensors file at all");
        raw(&[&u64::MAX.to_le_bytes()[..], b"{}"].concat());
        // A shape far larger than the file.
        let huge =
            r#"{"w":{"dtype":"F8_E4M3","shape":[4294967296,4294967296],"data_offsets":[0,6]}}"#;
        write_raw(&path, huge, &[0; 6]);
        kind.refused(&path, "not a complete safetensors file");

        refused(&[codes()], &format!("it has no `{scale_name}`"));
        let (words, dtypes) = match kind {
            Kind::Tensors => {
                ("not F8_E4M3 or F8_E5M2 of 2 dimensions", [(Dtype::F8_E8M0, 6), (Dtype::U8, 6)])
            }
            Kind::Layers => {
                ("not F8_E4M3 [d_input, d_output]", [(Dtype::F8_E5M2, 6), (Dtype::U8, 6)])
            }
        };
        for (dtype, size) in dtypes.into_iter().chain([(Dtype::F32, 24)]) {
            refused(&[(name, dtype, &[2, 3], vec![0; size]), scale()], words);
        }
        for shape in [&[6][..], &[1, 2, 3], &[]] {
            refused(&[(name, F8, shape, vec![0; shape.iter().product()]), scale()], words);
        }
        for (dtype, shape, bytes) in [
            (Dtype::F32, &[2][..], f32s(&[1.0, 1.0])),
            (Dtype::F32, &[1, 1], f32s(&[1.0])),
            (Dtype::F32, &[0], vec![]),
            (Dtype::F64, &[1], vec![0; 8]),
            (Dtype::BF16, &[1], vec![0; 2]),
            (F8, &[1], vec![0]),
        ] {
            refused(&[codes(), (scale_name, dtype, shape, bytes)], "not F32 [1]");
        }
        for bad in NO_SCALES {
            let scale = (scale_name, Dtype::F32, &[1][..], f32s(&[bad]));
            refused(&[codes(), scale], &format!("{scale_name} is"));
        }
    }
    write(
        &path,
        &[("w", F8, &[usize::MAX, 0], vec![]), ("w_scale", Dtype::F32, &[1], f32s(&[0.5]))],
        &[],
    );
    Kind::Tensors.refused(&path, "do not fill the shape");
    std::fs::remove_file(&path).expect("there");
    for error in results(&path).map(|(_, result)| result.expect_err("not there")) {
        assert!(matches!(error, Fp8Error::Io { action: "read", .. }), "{error:?}");
    }
}

#[test]
fn layers_that_are_none_are_refused_with_the_reason() {
    let (_folder, path) = files::path("file.safetensors");
    let refused = |tensors: &[(&str, Dtype, &[usize], Vec<u8>)], expected: &str| {
        write(&path, tensors, LAYERS);
        Kind::Layers.refused(&path, expected);
    };
    let weight = || ("weight", F8, &[2, 3][..], vec![0x38; 6]);
    let scale = || ("weight_scale", Dtype::F32, &[1][..], f32s(&[0.5]));
    let bias =
        |numbers: &[f32], shape: &'static [usize]| ("bias", Dtype::F32, shape, f32s(numbers));
    write(&path, &[weight(), scale()], LAYERS);
    Layer::load(&path, &Default::default()).expect("good as it is");
    for metadata in [&[][..], &[("format", "burn-fp8 delayed state"), ("version", "1")]] {
        write(&path, &[weight(), scale()], metadata);
        Kind::Layers.refused(&path, "metadata does not say `format`");
    }
    write(&path, &[weight(), scale()], &[LAYERS[0], ("version", "2")]);
    Kind::Layers.refused(&path, "it has version 2; this burn-fp8 reads 1");
    write(&path, &[], LAYERS);
    crate::common::refused(Layer::load(&path, &Default::default()), ["it holds no layer"]);
    refused(&[("fc.weight", F8, &[2, 3], vec![0; 6])], "it has no `fc.weight_scale`");
    refused(&[scale()], "it has `weight_scale`, which belongs to no layer");
    let norm = ("norm", Dtype::F32, &[1][..], f32s(&[1.0]));
    refused(&[weight(), scale(), norm], "it has `norm`, which belongs to no layer");
    for shape in [&[0, 3][..], &[usize::MAX, 0]] {
        refused(&[("weight", F8, shape, vec![]), scale()], "has no elements");
    }
    for bad in NO_SCALES {
        let input = ("input_scale", Dtype::F32, &[1][..], f32s(&[bad]));
        refused(&[weight(), scale(), input], "input_scale is");
    }
    for (dtype, shape, bytes) in [
        (Dtype::F32, &[2][..], f32s(&[1.0, 1.0])),
        (Dtype::F32, &[], f32s(&[1.0])),
        (Dtype::F64, &[1], vec![0; 8]),
        (Dtype::F32, &[0], vec![]),
    ] {
        refused(&[weight(), scale(), ("input_scale", dtype, shape, bytes)], "`input_scale` is");
    }
    refused(&[weight(), ("weight_scale", Dtype::F32, &[], f32s(&[1.0]))], "not F32 [1]");
    refused(&[weight(), scale(), bias(&[1.0, 2.0], &[2])], "`bias` is F32 [2], not F32 [3]");
    let nan = ("weight", F8, &[2, 3][..], vec![0x7f, 0xff, 0x7f, 0x7f, 0x7f, 0x7f]);
    refused(&[nan, scale()], "`weight`: no element of the weight [2, 3] is finite");
    let nothing = bias(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY], &[3]);
    refused(&[weight(), scale(), nothing], "`weight`: no element of the bias [3] is finite");
}

#[test]
fn tensors_of_other_programs_are_read() {
    let (_folder, path) = files::path("file.safetensors");
    let device = Default::default();
    let w = || ("w", F8, &[2, 3][..], vec![0x38; 6]);
    let scale = |shape| ("w_scale", Dtype::F32, shape, f32s(&[0.5]));
    // No metadata, or its own; a scale without dimensions.
    for metadata in [&[][..], &[("format", "pt")], &[("format", "burn-fp8 frozen layers")]] {
        for shape in [&[1][..], &[]] {
            write(&path, &[w(), scale(shape)], metadata);
            let read = Matrix::load(&path, "w", &device).expect("good as it is");
            assert_eq!((read.to_bytes(), read.read_scale()), (vec![0x38; 6], 0.5));
            assert_eq!(Matrix::load_all(&path, &device).expect("good").len(), 1);
        }
    }
    write(&path, &[w(), scale(&[1][..])], &[("format", "burn-fp8 tensors"), ("version", "2")]);
    Kind::Tensors.refused(&path, "it has version 2; this burn-fp8 reads 1");
    // What else is in a file is of no concern to who wants one tensor of it.
    write(&path, &[w(), scale(&[1][..]), ("norm", Dtype::F32, &[1], f32s(&[1.0]))], &[]);
    Matrix::load(&path, "w", &device).expect("there");
    refused(Matrix::load_all(&path, &device), ["`norm` is F32 [1]"]);
    let missing = Matrix::load(&path, "v", &device);
    refused(missing, ["it has no `v`; it has `norm`, `w`, `w_scale`"]);
}

#[test]
fn blocks_that_do_not_fit_are_refused() {
    let (_folder, path) = files::path("file.safetensors");
    let refused = |block: &str, scales: (Dtype, &[usize], Vec<u8>), words: &str| {
        let scales = ("w_scale", scales.0, scales.1, scales.2);
        write(&path, &[("w", F8, &[2, 6], vec![0; 12]), scales], &[("w_block", block)]);
        refused(Matrix::load(&path, "w", &Default::default()), [words]);
    };
    let good = || (Dtype::F32, &[2usize, 2][..], f32s(&[1.0; 4]));
    for block in ["", "1", "x", "1x", "1x4x2", "-1x4", "1×4", "99999999999999999999x1"] {
        refused(block, good(), "not ROWSxCOLUMNS");
    }
    refused("0x4", good(), "no elements");
    refused("1x3", (Dtype::F32, &[2, 3], f32s(&[1.0; 6])), "have F32 [2, 2]");
    refused("1x4", (Dtype::BF16, &[2, 2], vec![0; 8]), "not F32 of 2 dimensions");
    refused("1x4", (Dtype::F32, &[4], f32s(&[1.0; 4])), "not F32 of 2 dimensions");
    for bad in NO_SCALES {
        refused("1x4", (Dtype::F32, &[2, 2], f32s(&[1.0, 1.0, bad, 1.0])), "w_scale is");
    }
}

/// What every way of reading a safetensors file says of it.
fn results(path: &Path) -> [(&'static str, Result<(), Fp8Error>); 5] {
    let device = Default::default();
    [
        ("tensors", Matrix::load_all(path, &device).map(drop)),
        ("a tensor", Matrix::load(path, "w", &device).map(drop)),
        ("layers", load_all::<Flex>(path, &device).map(drop)),
        ("a layer", Layer::load(path, &device).map(drop)),
        ("state", DelayedRecord::load(path).map(drop)),
    ]
}

#[test]
fn headers_beyond_the_limit_are_refused_before_they_are_read() {
    let (_folder, path) = files::path("model.safetensors");
    // A hole after its first bytes: to read the header would take 64 GB of memory.
    for length in [(1u64 << 24) + 1, 84_000_000, 64_000_000_000] {
        std::fs::write(&path, [&length.to_le_bytes()[..], b"{"].concat()).expect("writable");
        let file = std::fs::File::options().write(true).open(&path).expect("there");
        file.set_len(length + 8).expect("a hole");
        for (what, result) in results(&path) {
            let error = result.expect_err(what);
            assert!(matches!(error, Fp8Error::InvalidState { .. }), "{what}: {error:?}");
            says(error, [&format!("its header has {length} bytes of at most 16777216")]);
        }
    }
}

#[test]
fn what_could_not_be_read_again_is_not_written() {
    let (_folder, path) = files::path("model.safetensors");
    let device = Default::default();
    let tensor = Matrix::from_bytes(vec![1; 6], [2, 3], Fp8Format::E4M3, 0.5, &device);
    let tensor = tensor.expect("good");
    for (name, expected) in [
        ("x".repeat(1 << 24), "bytes of at most 16777216"),
        ("__metadata__".into(), "is no name for a tensor"),
    ] {
        let error = tensor.save(&path, &name).expect_err("refused");
        assert!(matches!(error, Fp8Error::Invalid { .. }), "{error:?}");
        assert!(error.to_string().len() < 300, "{error}");
        says(error, [expected]);
        assert!(!path.exists());
    }
    // Twice, once with the name of the scale.
    let name = "x".repeat((1 << 22) - 100);
    tensor.save(&path, &name).expect("below the limit");
    assert_eq!(Matrix::load(&path, &name, &device).expect("read").to_bytes(), [1; 6]);
}

#[test]
fn messages_are_short_and_print_as_one_line() {
    let (_folder, path) = files::path("model.safetensors");
    let evil = format!("\\u001b]0;title\\u0007\\n{}", "x".repeat(1 << 20));
    let ones = format!("[{}1]", "1,".repeat(1 << 16));
    const FORMATS: [&str; 3] =
        ["burn-fp8 tensors", "burn-fp8 frozen layers", "burn-fp8 delayed state"];
    let mut headers = vec![];
    // The name is all that is wrong, or the shape, the type, the offsets.
    for (name, dtype, shape, bytes) in [
        (&evil[..], "U8", "[4]", 4),
        (&format!("{evil}.weight"), "F8_E4M3", "[2,2]", 4),
        ("weight", "F8_E4M3", &ones, 1),
        ("w", "F8_E4M3", &ones, 1),
        ("w", &evil, "[4]", 4),
        (&evil, "U8", "[4]", 8),
    ] {
        let entry =
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{bytes}]}}"#);
        headers.extend(FORMATS.map(|format| {
            let metadata = format!(r#""format":"{format}","version":"1","sites":"[]""#);
            (format!(r#"{{"__metadata__":{{{metadata}}},{entry}}}"#), bytes)
        }));
    }
    for [format, version, sites] in [
        [evil.as_str(), "1", "[]"],
        [FORMATS[0], &evil, "[]"],
        [FORMATS[1], &evil, "[]"],
        [FORMATS[2], &evil, "[]"],
        [FORMATS[2], "1", &format!(r#"\"{evil}\""#)],
    ] {
        let metadata = format!(r#""format":"{format}","version":"{version}","sites":"{sites}""#);
        headers.push((format!(r#"{{"__metadata__":{{{metadata}}}}}"#), 0));
    }
    for (header, bytes) in headers {
        write_raw(&path, &header, &vec![0; bytes]);
        let errors = results(&path).into_iter().filter_map(|(_, result)| result.err());
        let messages: Vec<_> = errors.map(|error| error.to_string()).collect();
        assert!(!messages.is_empty());
        for message in messages {
            let length = message.chars().count();
            assert!(length < 1000, "{length} characters: {message:.200}");
            assert!(!message.contains(char::is_control), "{message:?}");
        }
    }
}

#[test]
fn configurations_repeat_little_of_a_long_name() {
    let name = format!("{}\\u001b[2J", "x".repeat(1 << 19));
    let error = Fp8Config::from_json(&format!("{{\"{name}\": 1}}")).unwrap_err().to_string();
    assert!(error.chars().count() < 600 && !error.contains(char::is_control), "{:.700}", error);
    says(error, ["unknown field `xxx", "`execution`", "at line 1 column"]);
}

/// All that writes a file, by name.
#[cfg(unix)]
fn saved(path: &Path) -> [(&'static str, Result<(), Fp8Error>); 8] {
    let tensor = mx::<Flex>([2, 40]);
    let layer = layer::<Flex>(&mut Random(1), [6, 5], Current).0;
    [
        ("a tensor", tensor.save(path, "w")),
        ("tensors", Fp8Tensor::save_all(path, [("w", &tensor)])),
        ("a layer", layer.save(path)),
        ("layers", save_all(path, [("fc", &layer)])),
        ("a configuration", Fp8Config::default().save(path)),
        ("delayed scaling", DelayedState::new().save(path)),
        ("its record", DelayedRecord { sites: vec![] }.save(path)),
        // A folder of files, in which one is no file.
        ("adapters", save_in_place_of(path)),
    ]
}

/// Adapters in a folder where this stands for their weights.
#[cfg(unix)]
fn save_in_place_of(path: &Path) -> Result<(), Fp8Error> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let base = layer::<Flex>(&mut Random(1), [6, 5], Current).0;
    let adapter = LoraConfig::new(2).init(base)?;
    let weights = folder.path().join("adapter_model.safetensors");
    std::os::unix::fs::symlink(path, &weights).expect("made");
    let result = save_adapters(folder.path(), "base", [("fc", &adapter)], []);
    assert!(std::fs::symlink_metadata(&weights).expect("there").is_symlink());
    result
}

/// Pipes and folders stay what they are, and so do devices.
#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_not_replaced() {
    let (folder, pipe) = files::path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let sub = folder.path().join("folder");
    std::fs::create_dir(&sub).expect("made");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&pipe, &link).expect("made");
    let kind = |path: &Path| std::fs::symlink_metadata(path).expect("there").file_type();
    // No device: code that is wrong would take it from the machine.
    for path in [&pipe, &sub, &link] {
        let before = kind(path);
        for (what, result) in saved(path) {
            assert_eq!(kind(path), before, "{what}");
            let error = result.expect_err(what).to_string();
            says(&error, ["cannot write", "it is a folder, a pipe or a device"]);
        }
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 3, "nothing beside");
}

/// What a link leads to is replaced, not the link.
#[cfg(unix)]
#[test]
fn links_are_followed() {
    let (folder, target) = files::path("target.json");
    let link = folder.path().join("link.json");
    std::fs::write(&target, "old").expect("written");
    std::os::unix::fs::symlink("target.json", &link).expect("made");
    let config = Fp8Config::off();
    config.save(&link).expect("written");
    assert!(std::fs::symlink_metadata(&link).expect("there").is_symlink());
    assert_eq!(Fp8Config::load(&target).expect("read"), config);
    // One that leads nowhere is told.
    std::fs::remove_file(&target).expect("removed");
    refused(config.save(&link), ["cannot write", "link.json"]);
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1, "nothing beside");
}

/// To open a pipe waits for its other end, which never comes.
#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let (folder, pipe) = files::path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    for path in [pipe, folder.path().into(), "/dev/zero".into()] {
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread_path = path.clone();
        std::thread::spawn(move || {
            let config = Fp8Config::load(&thread_path).map(drop);
            let all = results(&thread_path).into_iter().map(|(_, result)| result).chain([config]);
            sender
                .send(
                    all.map(|result| result.expect_err("no file").to_string()).collect::<Vec<_>>(),
                )
                .ok();
        });
        let errors = receiver.recv_timeout(Duration::from_secs(60)).expect("an answer at once");
        for error in errors {
            says(error, ["a regular file", &path.display().to_string()]);
        }
    }
}
