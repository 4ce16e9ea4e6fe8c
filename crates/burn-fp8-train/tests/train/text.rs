//! Policies as strings: JMP's grammar by its golden file, the key `m`, errors that name what is wrong.

use burn_fp8::{AttentionPrecision, Scaling};
use burn_fp8_train::policy::{MatmulPolicy, PolicyDType};
use proptest::prelude::*;
use serde_json::Value;

use crate::common::*;

const DTYPES: [FloatDType; 5] =
    [FloatDType::F32, FloatDType::BF16, FloatDType::F16, FloatDType::F64, FloatDType::Flex32];

fn golden() -> Vec<Value> {
    let golden: Value = serde_json::from_str(include_str!("../golden/jmp.json")).expect("JSON");
    golden["policies"].as_array().expect("a list").clone()
}

fn dtype(name: &Value) -> FloatDType {
    match name.as_str().expect("a name") {
        "float32" => FloatDType::F32,
        "bfloat16" => FloatDType::BF16,
        "float16" => FloatDType::F16,
        other => panic!("{other} is not in this golden file"),
    }
}

fn error(text: &str) -> String {
    let message = Policy::parse(text).expect_err(text).to_string();
    assert!(message.starts_with("policy: "), "{message}");
    assert!(!message.contains('\n'), "{message:?} is one line");
    message
}

#[test]
fn what_jmp_reads_is_read_alike_but_for_a_key_given_twice() {
    let rows = golden();
    assert_eq!(rows.len(), 26);
    for row in rows {
        let text = row["policy"].as_str().expect("a policy");
        let ok = row["ok"].as_bool().expect("a boolean") && text != "p=f32,p=bf16";
        if !ok {
            error(text);
            continue;
        }
        let [param, compute, output] = ["param", "compute", "output"].map(|key| dtype(&row[key]));
        assert_eq!(Policy::parse(text).unwrap(), Policy::new(param, compute, output), "{text}");
    }
}

#[test]
fn errors_name_the_offending_part_and_what_would_be_right() {
    for (text, parts) in [
        ("", &["empty"][..]),
        ("float8", &["`float8`", "bf16"]),
        ("p", &["`p`"]),
        ("p=f99,c=f32,o=f32", &["`f99` in `p=f99`", "float16"]),
        ("x=f32", &["unknown key `x` in `x=f32`", "p or params"]),
        ("P=f32", &["unknown key `P`"]),
        (" p=f32", &["unknown key ` p`"]),
        ("p=f32;c=bf16", &["unknown dtype `f32;c=bf16`"]),
        ("p=f32,c=", &["unknown dtype `` in `c=`"]),
        ("p=f32,c=bf16,o=f32,", &["`` is not a part", "comma"]),
        ("p=f32,bf16", &["`bf16` is not a part", "key=value"]),
        ("p=f32,p=bf16", &["`p=bf16` sets what an earlier part has set"]),
        ("compute=f32,c=f32", &["`c=f32` sets"]),
        ("m=fp8,m=fp8", &["`m=fp8` sets"]),
        (
            "m=fp4",
            &[
                "`fp4` in `m=fp4`",
                "high, bf16, fp8, fp8_e4m3, fp8_rowwise, fp8_rowwise_e4m3, mxfp8, fp8_block, fp8_block_f32, fp8_delayed, fp8_delayed_e4m3",
            ],
        ),
        ("m=f16", &["`f16` in `m=f16`"]),
        ("a=f32", &["`f32` in `a=f32`", "it can be high, bf16, fp8"]),
        ("a=fp8,attention=bf16", &["`attention=bf16` sets"]),
        ("m=fp8_current", &["`fp8_current` in `m=fp8_current`", "current scaling is `fp8`"]),
        ("c=fp8", &["unknown dtype `fp8`"]),
        ("p=f32\nc=f16", &["`f32\\nc=f16`"]),
    ] {
        let message = error(text);
        parts.iter().for_each(|part| says(&message, [part]));
    }
}

#[test]
fn long_texts_are_refused_without_being_repeated() {
    let message = error(&"é".repeat(1 << 20));
    assert!(message.len() < 250 && message.contains("2097152 bytes"), "{message}");
    let message = error(&format!("p={}", "f".repeat(100)));
    assert!(message.contains(&format!("`{}…{}`", "f".repeat(27), "f".repeat(13))), "{message}");
}

#[test]
fn one_key_sets_how_matrix_products_run() {
    let around = Fp8Config::off().with_recipe(Recipe::delayed().with_margin(3));
    for (name, config) in [
        ("high", Fp8Config { enabled: false, ..around }),
        ("fp8", Fp8Config { enabled: true, recipe: Recipe::default(), ..around }),
        ("mxfp8", Fp8Config { enabled: true, recipe: Recipe::mxfp8(), ..around }),
        ("fp8_block", Fp8Config { enabled: true, recipe: Recipe::blockwise(), ..around }),
        ("fp8_rowwise", Fp8Config { enabled: true, recipe: Recipe::rowwise(), ..around }),
        (
            "fp8_rowwise_e4m3",
            Fp8Config {
                enabled: true,
                recipe: Recipe::rowwise().with_formats(Formats::E4M3),
                ..around
            },
        ),
        ("fp8_delayed", Fp8Config { enabled: true, recipe: Recipe::delayed(), ..around }),
        (
            "fp8_delayed_e4m3",
            Fp8Config {
                enabled: true,
                recipe: Recipe::delayed().with_formats(Formats::E4M3),
                ..around
            },
        ),
        (
            "fp8_block_f32",
            Fp8Config {
                enabled: true,
                recipe: Recipe::blockwise().with_power_of_two(false),
                ..around
            },
        ),
    ] {
        for key in ["m", "matmul"] {
            let policy = Policy::parse(&format!("{key}={name}")).unwrap();
            assert_eq!(
                policy,
                Policy { matmul: policy.matmul, ..Policy::uniform(FloatDType::F32) }
            );
            assert_eq!(policy.configure(around), config, "{name}");
        }
    }
    let recipe = Policy::parse("bf16").unwrap().configure(around).recipe;
    assert_eq!(recipe, around.recipe, "without the key nothing changes");
    let recipe = Policy::parse("m=fp8_e4m3").unwrap().configure(around).recipe;
    let e4m3 = Fp8Format::E4M3;
    assert_eq!(recipe.formats, Formats { input: e4m3, weight: e4m3, output_grad: e4m3 });
    assert_eq!(recipe.scaling, Scaling::Current(Granularity::PerTensor));
    for policy in MatmulPolicy::all() {
        assert!(policy.recipe().is_none_or(|recipe| recipe.validate().is_ok()));
    }
}

#[test]
fn policies_are_printed_in_one_way() {
    for (text, printed) in [
        ("full", "p=f32,c=f32,o=f32"),
        ("o=half,c=bfloat16", "p=f32,c=bf16,o=f16"),
        ("attention=fp8,m=fp8", "p=f32,c=f32,o=f32,m=fp8,a=fp8"),
        ("a=bf16", "p=f32,c=f32,o=f32,a=bf16"),
        ("matmul=fp8_e4m3,params=float64,output=flex32", "p=f64,c=f64,o=flex32,m=fp8_e4m3"),
    ] {
        assert_eq!(Policy::parse(text).unwrap().to_string(), printed);
    }
}

#[test]
fn policies_are_serialized_as_strings() {
    let policy = Policy::parse("c=bf16,m=high").unwrap();
    let json = serde_json::to_string(&policy).unwrap();
    assert_eq!(json, r#""p=f32,c=bf16,o=bf16,m=high""#);
    assert_eq!(serde_json::from_str::<Policy>(&json).unwrap(), policy);
    refused(serde_json::from_str::<Policy>(r#""c=f8""#), ["unknown dtype `f8` in `c=f8`"]);
    assert!(serde_json::from_str::<Policy>("8").is_err());
}

#[test]
fn semantic_dtypes_are_the_policys_and_concrete_ones_their_own() {
    let policy = Policy::parse("p=f32,c=bf16,o=f16").unwrap();
    for (text, under, without) in [
        ("param", FloatDType::F32, None),
        ("compute", FloatDType::BF16, None),
        ("output", FloatDType::F16, None),
        ("f64", FloatDType::F64, Some(FloatDType::F64)),
        ("half", FloatDType::F16, Some(FloatDType::F16)),
    ] {
        let dtype: PolicyDType = text.parse().unwrap();
        assert_eq!(dtype.resolve(Some(&policy)), Some(under), "{text}");
        assert_eq!(dtype.resolve(None), without, "{text}");
        assert_eq!(dtype.to_string().parse::<PolicyDType>().unwrap(), dtype);
    }
    refused("computes".parse::<PolicyDType>(), ["`computes`", "param, compute, output, f32"]);
}

fn policies() -> impl Strategy<Value = Policy> {
    let dtype = || prop::sample::select(DTYPES.to_vec());
    let matmul = prop::option::of(prop::sample::select(MatmulPolicy::all().collect::<Vec<_>>()));
    let attention = prop::option::of(prop::sample::select(&AttentionPrecision::ALL[..]));
    let parts = (dtype(), dtype(), dtype(), matmul, attention);
    parts.prop_map(|(param, compute, output, matmul, attention)| Policy {
        param,
        compute,
        output,
        matmul,
        attention,
    })
}

proptest! {
    #[test]
    fn a_printed_policy_reads_back(policy in policies()) {
        prop_assert_eq!(Policy::parse(&policy.to_string()).unwrap(), policy);
    }

    #[test]
    fn any_text_is_a_policy_or_one_line(text in r"([a-z0-9_=,;\n\PC]|p=|c=|,o=|f32|bf16|m=fp8){0,12}") {
        match Policy::parse(&text) {
            Ok(policy) => prop_assert_eq!(Policy::parse(&policy.to_string()).unwrap(), policy),
            Err(error) => prop_assert_eq!(error.to_string().lines().count(), 1),
        }
    }
}
