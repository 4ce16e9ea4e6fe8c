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
    /// Where `burn-backend` exports the trait from.
    pub path: &'static str,
    /// The versions that have it: places in [`BURNS`].
    pub burns: &'static [usize],
    /// The feature without which the trait does not exist.
    pub feature: Option<&'static str>,
    /// The bounds of `B`, and what else stands after `where`.
    pub bounds: [&'static str; 2],
    /// Associated types that are not simply those of `B`.
    pub types: &'static [(&'static str, &'static str)],
}

impl Spec {
    /// Whether the trait has the backend as a parameter: traits of operations do.
    pub fn is_over_backend(&self) -> bool {
        self.name.ends_with("Ops")
    }
}

/// A version of Burn that a decorator is compiled with.
pub struct Burn {
    /// The manifest that asks for it.
    pub manifest: &'static str,
    /// The package of that manifest.
    pub package: &'static str,
    /// The macro that keeps what only some versions have.
    pub only: &'static str,
    /// The attribute that tells it from the other version of its package.
    pub cfg: Option<&'static str>,
    /// What it intercepts beside [`INTERCEPTED`].
    intercepted: Methods,
    /// Gradients of which Burn's Autodiff has no derivative, and the argument that holds the output gradient:
    /// `intercept::differentiates_once` says so first.
    pub once: Methods,
}

/// Pairs that begin, or end, with the name of a method.
type Methods = &'static [(&'static str, &'static str)];

impl Burn {
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

/// The versions, the oldest first. The last two share a package, so that they share a macro.
pub const BURNS: [Burn; 3] = [
    Burn {
        manifest: "Cargo.toml",
        package: "burn-fp8",
        only: "burn_0_21",
        cfg: None,
        intercepted: &[
            ("QTensorOps", "q_device"),
            ("AutodiffBackend", "backward"),
            ("AutodiffBackend", "inner"),
            ("AutodiffBackend", "from_inner"),
            ("AutodiffBackend", "q_inner"),
            ("AutodiffBackend", "q_from_inner"),
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
    Burn {
        manifest: "Cargo.toml",
        package: "burn-fp8-next",
        only: "burn_0_22",
        cfg: Some("#[cfg(not(feature = \"burn-0-23\"))]"),
        intercepted: &[("FloatTensorOps", "float_swap_dims")],
        once: &[],
    },
    Burn {
        manifest: "crates/burn-fp8-next/burn-0.23/Cargo.toml",
        package: "burn-fp8-next-on-burn-0-23",
        only: "burn_0_22",
        cfg: Some("#[cfg(feature = \"burn-0-23\")]"),
        intercepted: &[("FloatTensorOps", "float_swap_dims")],
        once: &[],
    },
];

/// A trait of operations.
const fn ops(name: &'static str, source: &'static str) -> Spec {
    let (path, bounds) = ("burn_backend::ops", ["Fp8Matmul", ""]);
    Spec { name, source, path, burns: &[0, 1, 2], feature: None, bounds, types: &[] }
}

/// A trait of backends.
const fn backend(name: &'static str, bounds: [&'static str; 2]) -> Spec {
    Spec { path: "burn_backend", bounds, ..ops(name, "src/backend/base.rs") }
}

/// The traits that the decorators implement. `check_supertraits` fails when burn's `Backend` asks for one that is not here.
pub const TRAITS: &[Spec] = &[
    backend("BackendTypes", ["BackendTypes + 'static", ""]),
    backend("Backend", ["Fp8Matmul", ""]),
    Spec {
        burns: &[0],
        types: &[("InnerBackend", "Fp8Backend<B::InnerBackend>")],
        ..backend("AutodiffBackend", ["AutodiffBackend + Fp8Matmul", "B::InnerBackend: Fp8Matmul"])
    },
    ops("FloatTensorOps", "src/backend/ops/tensor.rs"),
    ops("IntTensorOps", "src/backend/ops/int_tensor.rs"),
    ops("BoolTensorOps", "src/backend/ops/bool_tensor.rs"),
    ops("QTensorOps", "src/backend/ops/qtensor.rs"),
    ops("ModuleOps", "src/backend/ops/modules/base.rs"),
    ops("ActivationOps", "src/backend/ops/activation.rs"),
    ops("TransactionOps", "src/backend/ops/transaction.rs"),
    Spec {
        source: "src/backend/distributed/ops.rs",
        path: "burn_backend::distributed",
        burns: &[0],
        feature: Some("distributed"),
        ..backend("DistributedBackend", ["DistributedBackend + Fp8Matmul", ""])
    },
    Spec {
        path: "burn_backend::distributed",
        burns: &[1, 2],
        ..ops("DistributedOps", "src/backend/distributed/ops.rs")
    },
    Spec { burns: &[2], ..ops("CollectiveOps", "src/backend/ops/collective.rs") },
];

/// The methods that are intercepted on every version.
const INTERCEPTED: Methods = &[
    ("FloatTensorOps", "float_into_data"),
    ("FloatTensorOps", "float_matmul"),
    ("FloatTensorOps", "float_random"),
    ("IntTensorOps", "int_into_data"),
    ("BoolTensorOps", "bool_into_data"),
    ("QTensorOps", "q_from_data"),
    ("QTensorOps", "quantize"),
    ("QTensorOps", "quantize_dynamic"),
    ("QTensorOps", "dequantize"),
    ("QTensorOps", "q_into_data"),
    ("QTensorOps", "q_is_require_grad"),
    ("QTensorOps", "q_cat"),
    ("QTensorOps", "q_matmul"),
    ("TransactionOps", "tr_execute"),
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
    ("ActivationOps", "softmax"),
    ("ActivationOps", "log_softmax"),
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
pub fn check_supertraits(burn: usize, backend: &ItemTrait) -> Result<()> {
    const DERIVED: [&str; 6] = ["Clone", "Default", "Sized", "Send", "Sync", "Debug"];
    for bound in &backend.supertraits {
        let TypeParamBound::Trait(bound) = bound else { continue };
        let Some(segment) = bound.path.segments.last() else { continue };
        let name = segment.ident.to_string();
        ensure!(
            DERIVED.contains(&name.as_str())
                || TRAITS.iter().any(|spec| spec.name == name && spec.burns.contains(&burn)),
            "burn's trait Backend requires {name}, which xtask/src/delegate/traits.rs does not list: add it"
        );
    }
    Ok(())
}
