//! Which traits are delegated, and reading them from the sources of `burn-backend`.

use std::{collections::BTreeSet, fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use syn::{GenericParam, Item, ItemTrait, TypeParamBound};

/// One trait that `Fp8Backend<B>` implements by forwarding to `B`.
pub struct Spec {
    /// The trait's name.
    pub name: &'static str,
    /// Its source file within `burn-backend`.
    pub source: &'static str,
    /// The generated file's name, without `.rs`.
    pub module: &'static str,
    /// Where `burn` exports the trait from.
    pub path: &'static str,
    /// The feature without which the trait does not exist.
    pub feature: Option<&'static str>,
    /// Bounds of the implementation, after `where`.
    pub bounds: &'static str,
    /// Associated types that are not simply those of `B`.
    pub types: &'static [(&'static str, &'static str)],
}

const OPS: Spec = Spec {
    name: "",
    source: "",
    module: "",
    path: "burn::tensor::ops",
    feature: None,
    bounds: "B: Fp8Matmul",
    types: &[],
};

/// All delegated traits. `check_supertraits` fails when burn's `Backend` asks for one that is not here.
pub const TRAITS: &[Spec] = &[
    Spec { name: "FloatTensorOps", source: "src/backend/ops/tensor.rs", module: "float", ..OPS },
    Spec { name: "IntTensorOps", source: "src/backend/ops/int_tensor.rs", module: "int", ..OPS },
    Spec { name: "BoolTensorOps", source: "src/backend/ops/bool_tensor.rs", module: "bool", ..OPS },
    Spec { name: "QTensorOps", source: "src/backend/ops/qtensor.rs", module: "quantized", ..OPS },
    Spec { name: "ModuleOps", source: "src/backend/ops/modules/base.rs", module: "module", ..OPS },
    Spec {
        name: "ActivationOps",
        source: "src/backend/ops/activation.rs",
        module: "activation",
        ..OPS
    },
    Spec {
        name: "TransactionOps",
        source: "src/backend/ops/transaction.rs",
        module: "transaction",
        ..OPS
    },
    Spec {
        name: "BackendTypes",
        source: "src/backend/base.rs",
        module: "types",
        path: "burn::tensor::backend",
        bounds: "B: BackendTypes",
        ..OPS
    },
    Spec {
        name: "Backend",
        source: "src/backend/base.rs",
        module: "backend",
        path: "burn::tensor::backend",
        ..OPS
    },
    Spec {
        name: "AutodiffBackend",
        source: "src/backend/base.rs",
        module: "autodiff",
        path: "burn::tensor::backend",
        bounds: "B: AutodiffBackend + Fp8Matmul, B::InnerBackend: Fp8Matmul",
        types: &[("InnerBackend", "Fp8Backend<B::InnerBackend>")],
        ..OPS
    },
    Spec {
        name: "DistributedBackend",
        source: "src/backend/distributed/ops.rs",
        module: "distributed",
        path: "burn::tensor::backend::distributed",
        feature: Some("distributed"),
        bounds: "B: DistributedBackend + Fp8Matmul",
        ..OPS
    },
];

/// Methods that are not forwarded but handed to `backend/intercept.rs`.
pub const INTERCEPTED: &[(&str, &str)] = &[
    ("FloatTensorOps", "float_into_data"),
    ("FloatTensorOps", "float_matmul"),
    ("IntTensorOps", "int_into_data"),
    ("BoolTensorOps", "bool_into_data"),
    ("ModuleOps", "linear"),
    ("ModuleOps", "linear_x_backward"),
    ("ModuleOps", "linear_weight_backward"),
    ("ModuleOps", "attention"),
    ("Backend", "name"),
    ("AutodiffBackend", "backward"),
];

/// Whether `method` of `trait_name` is handed to `backend/intercept.rs`.
pub fn is_intercepted(trait_name: &str, method: &str) -> bool {
    INTERCEPTED.contains(&(trait_name, method))
}

/// Reads the trait of `spec` from the sources of `burn-backend` under `root`.
pub fn read(root: &Path, spec: &Spec) -> Result<ItemTrait> {
    let path = root.join(spec.source);
    let text = fs::read_to_string(&path).with_context(|| {
        format!(
            "cannot read {}; has burn-backend moved the file? Correct `TRAITS` in xtask",
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
        format!("{} has no trait {}; correct `TRAITS` in xtask", path.display(), spec.name)
    })?;
    check_parameters(&item)?;
    Ok(item)
}

/// The generated code names the wrapped backend `B`, so a trait over a backend has to call its parameter so.
fn check_parameters(item: &ItemTrait) -> Result<()> {
    for param in &item.generics.params {
        match param {
            GenericParam::Type(param) if param.ident == "B" && item.generics.params.len() == 1 => {}
            _ => bail!("trait {}: expected no parameter or exactly one called `B`", item.ident),
        }
    }
    Ok(())
}

/// Fails if `backend` (the trait `Backend`) requires a trait of operations that is not delegated.
pub fn check_supertraits(backend: &ItemTrait) -> Result<()> {
    const DERIVED: [&str; 6] = ["Clone", "Default", "Sized", "Send", "Sync", "Debug"];
    for bound in &backend.supertraits {
        let TypeParamBound::Trait(bound) = bound else { continue };
        let Some(segment) = bound.path.segments.last() else { continue };
        let name = segment.ident.to_string();
        ensure!(
            DERIVED.contains(&name.as_str()) || TRAITS.iter().any(|spec| spec.name == name),
            "burn's trait Backend requires {name}, which `TRAITS` in xtask does not list: add it"
        );
    }
    Ok(())
}

/// Fails if an intercepted method no longer exists.
pub fn check_intercepted(methods: &BTreeSet<(String, String)>) -> Result<()> {
    for (trait_name, method) in INTERCEPTED {
        ensure!(
            methods.contains(&((*trait_name).to_string(), (*method).to_string())),
            "{trait_name} has no method {method}; correct `INTERCEPTED` in xtask"
        );
    }
    Ok(())
}
