//! Which traits are delegated, and reading them from the sources of `burn-backend`.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use syn::{GenericParam, Item, ItemTrait, TypeParamBound};

/// One trait that `Fp8Backend<B>` implements by forwarding to `B`.
pub struct Spec {
    /// The trait's name.
    pub name: &'static str,
    /// Its source file within `burn-backend`.
    pub source: &'static str,
    /// The generated file's name, without `.rs`.
    pub module: &'static str,
    /// Where `burn-backend` exports the trait from.
    pub path: &'static str,
    /// The feature without which the trait does not exist.
    pub feature: Option<&'static str>,
    /// Bounds of the implementation, after `where`.
    pub bounds: &'static str,
    /// Associated types that are not simply those of `B`.
    pub types: &'static [(&'static str, &'static str)],
}

impl Spec {
    /// Whether the trait has the backend as a parameter: traits of operations do.
    pub fn is_over_backend(&self) -> bool {
        self.name.ends_with("Ops")
    }
}

/// A crate with a decorator, and the versions of Burn that it is compiled with.
pub struct House {
    /// The folder of the generated files.
    pub folder: &'static str,
    /// The versions, the oldest first.
    pub burns: &'static [Burn],
    /// What it implements beside [`COMMON`].
    own: &'static [Spec],
    /// What it intercepts beside [`INTERCEPTED`].
    intercepted: &'static [(&'static str, &'static str)],
    /// Gradients of which Burn's Autodiff has no derivative, and the argument that holds the output gradient: `intercept::differentiates_once` says so first.
    pub once: &'static [(&'static str, &'static str)],
}

/// A version of Burn that a decorator is compiled with.
pub struct Burn {
    /// The manifest that asks for it.
    pub manifest: &'static str,
    /// The package of that manifest.
    pub package: &'static str,
    /// The attribute of what other versions do not have.
    pub cfg: Option<&'static str>,
}

impl House {
    /// All delegated traits.
    pub fn traits(&self) -> impl Iterator<Item = &'static Spec> {
        COMMON.iter().chain(self.own)
    }

    /// Methods that are not forwarded but handed to `backend/intercept.rs`.
    pub fn intercepted(&self) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        INTERCEPTED.iter().chain(self.intercepted)
    }

    /// The output gradient of a method of `ModuleOps` that Burn's Autodiff has no derivative of.
    pub fn once(&self, trait_name: &str, method: &str) -> Option<&'static str> {
        let known = self.once.iter().find(|(name, _)| *name == method && trait_name == "ModuleOps");
        known.map(|(_, output_grad)| *output_grad)
    }

    /// Whether `method` of `trait_name` is handed to `backend/intercept.rs`.
    pub fn is_intercepted(&self, trait_name: &str, method: &str) -> bool {
        self.intercepted().any(|known| *known == (trait_name, method))
    }
}

/// Both decorators.
pub const HOUSES: &[House] = &[
    House {
        folder: "crates/burn-fp8/src/backend/delegate",
        burns: &[Burn { manifest: "Cargo.toml", package: "burn-fp8", cfg: None }],
        own: &[
            Spec {
                types: &[("InnerBackend", "Fp8Backend<B::InnerBackend>")],
                ..backend(
                    "AutodiffBackend",
                    "autodiff",
                    "B: AutodiffBackend + Fp8Matmul, B::InnerBackend: Fp8Matmul",
                )
            },
            Spec {
                source: "src/backend/distributed/ops.rs",
                path: "burn_backend::distributed",
                feature: Some("distributed"),
                ..backend("DistributedBackend", "distributed", "B: DistributedBackend + Fp8Matmul")
            },
        ],
        intercepted: &[
            ("QTensorOps", "dequantize"),
            ("AutodiffBackend", "backward"),
            ("AutodiffBackend", "inner"),
            ("AutodiffBackend", "from_inner"),
        ],
        once: &[
            ("embedding_backward", "output_grad"),
            ("linear_x_backward", "output_grad"),
            ("linear_weight_backward", "output_grad"),
            ("linear_bias_backward", "output_grad"),
            ("deform_conv2d_backward", "output_grad"),
            ("avg_pool1d_backward", "grad"),
            ("avg_pool2d_backward", "grad"),
            ("adaptive_avg_pool1d_backward", "grad"),
            ("adaptive_avg_pool2d_backward", "grad"),
            ("max_pool1d_with_indices_backward", "output_grad"),
            ("max_pool2d_with_indices_backward", "output_grad"),
            ("interpolate_backward", "grad"),
        ],
    },
    House {
        folder: "crates/burn-fp8-next/src/backend/delegate",
        burns: &[
            Burn {
                manifest: "Cargo.toml",
                package: "burn-fp8-next",
                cfg: Some("#[cfg(not(feature = \"burn-0-23\"))]"),
            },
            Burn {
                manifest: "crates/burn-fp8-next/burn-0.23/Cargo.toml",
                package: "burn-fp8-next-on-burn-0-23",
                cfg: Some("#[cfg(feature = \"burn-0-23\")]"),
            },
        ],
        own: &[
            Spec {
                path: "burn_backend::distributed",
                ..ops("DistributedOps", "src/backend/distributed/ops.rs", "distributed")
            },
            Spec {
                feature: Some("burn-0-23"),
                ..ops("CollectiveOps", "src/backend/ops/collective.rs", "collective")
            },
        ],
        intercepted: &[("FloatTensorOps", "float_swap_dims")],
        once: &[],
    },
];

/// A trait of operations.
const fn ops(name: &'static str, source: &'static str, module: &'static str) -> Spec {
    let (path, bounds) = ("burn_backend::ops", "B: Fp8Matmul");
    Spec { name, source, module, path, feature: None, bounds, types: &[] }
}

/// A trait of backends.
const fn backend(name: &'static str, module: &'static str, bounds: &'static str) -> Spec {
    Spec { path: "burn_backend", bounds, ..ops(name, "src/backend/base.rs", module) }
}

/// The traits that both decorators implement. `check_supertraits` fails when burn's `Backend` asks for one that a decorator does not.
const COMMON: &[Spec] = &[
    ops("FloatTensorOps", "src/backend/ops/tensor.rs", "float"),
    ops("IntTensorOps", "src/backend/ops/int_tensor.rs", "int"),
    ops("BoolTensorOps", "src/backend/ops/bool_tensor.rs", "bool"),
    ops("QTensorOps", "src/backend/ops/qtensor.rs", "quantized"),
    ops("ModuleOps", "src/backend/ops/modules/base.rs", "module"),
    ops("ActivationOps", "src/backend/ops/activation.rs", "activation"),
    ops("TransactionOps", "src/backend/ops/transaction.rs", "transaction"),
    backend("BackendTypes", "types", "B: BackendTypes"),
    backend("Backend", "backend", "B: Fp8Matmul"),
];

/// The methods that both decorators intercept.
const INTERCEPTED: &[(&str, &str)] = &[
    ("FloatTensorOps", "float_into_data"),
    ("FloatTensorOps", "float_matmul"),
    ("IntTensorOps", "int_into_data"),
    ("BoolTensorOps", "bool_into_data"),
    ("QTensorOps", "q_matmul"),
    ("ModuleOps", "linear"),
    ("ModuleOps", "linear_x_backward"),
    ("ModuleOps", "linear_weight_backward"),
    ("ModuleOps", "attention"),
    ("ModuleOps", "layer_norm"),
    ("ModuleOps", "conv1d"),
    ("ModuleOps", "conv1d_x_backward"),
    ("ModuleOps", "conv1d_weight_backward"),
    ("ModuleOps", "conv2d"),
    ("ModuleOps", "conv2d_x_backward"),
    ("ModuleOps", "conv2d_weight_backward"),
    ("ModuleOps", "conv3d"),
    ("ModuleOps", "conv3d_x_backward"),
    ("ModuleOps", "conv3d_weight_backward"),
    ("ModuleOps", "conv_transpose1d"),
    ("ModuleOps", "conv_transpose1d_x_backward"),
    ("ModuleOps", "conv_transpose1d_weight_backward"),
    ("ModuleOps", "conv_transpose2d"),
    ("ModuleOps", "conv_transpose2d_x_backward"),
    ("ModuleOps", "conv_transpose2d_weight_backward"),
    ("ModuleOps", "conv_transpose3d"),
    ("ModuleOps", "conv_transpose3d_x_backward"),
    ("ModuleOps", "conv_transpose3d_weight_backward"),
    ("ModuleOps", "deform_conv2d"),
    ("ModuleOps", "deform_conv2d_backward"),
    ("ActivationOps", "gelu"),
    ("ActivationOps", "gelu_backward"),
    ("Backend", "name"),
];

/// Reads the trait of `spec` from the sources of `burn-backend` under `root`.
pub fn read(root: &Path, spec: &Spec) -> Result<ItemTrait> {
    let path = root.join(spec.source);
    let text = fs::read_to_string(&path).with_context(|| {
        format!(
            "cannot read {}; has burn-backend moved the file? Correct xtask/src/delegate/traits.rs",
            path.display()
        )
    })?;
    let file =
        syn::parse_file(&text).with_context(|| format!("cannot parse {}", path.display()))?;
    let found = file.items.into_iter().find_map(|item| match item {
        Item::Trait(item) if item.ident == spec.name => Some(item),
        _ => None,
    });
    let item = found.with_context(|| {
        format!(
            "{} has no trait {}; correct xtask/src/delegate/traits.rs",
            path.display(),
            spec.name
        )
    })?;
    // The generated code names the wrapped backend `B`, so a trait over a backend has to call its parameter so.
    let parameters: Vec<_> = item.generics.params.iter().collect();
    let is_known = match parameters[..] {
        [] => true,
        [GenericParam::Type(parameter)] => parameter.ident == "B",
        _ => false,
    };
    ensure!(is_known, "trait {}: expected no parameter or exactly one called `B`", spec.name);
    Ok(item)
}

/// Fails if `backend` (the trait `Backend`) requires a trait of operations that is not delegated.
pub fn check_supertraits(house: &House, backend: &ItemTrait) -> Result<()> {
    const DERIVED: [&str; 6] = ["Clone", "Default", "Sized", "Send", "Sync", "Debug"];
    for bound in &backend.supertraits {
        let TypeParamBound::Trait(bound) = bound else { continue };
        let Some(segment) = bound.path.segments.last() else { continue };
        let name = segment.ident.to_string();
        ensure!(
            DERIVED.contains(&name.as_str()) || house.traits().any(|spec| spec.name == name),
            "burn's trait Backend requires {name}, which xtask/src/delegate/traits.rs does not list: add it"
        );
    }
    Ok(())
}
