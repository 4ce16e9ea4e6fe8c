//! One trait method: its signature for `Fp8Backend<B>` and the call that forwards it.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use quote::ToTokens;
use syn::{
    Attribute, FnArg, GenericArgument, Pat, PathArguments, ReturnType, Signature, TraitItemFn,
    Type, TypePath,
    visit::{self, Visit},
    visit_mut::{self, VisitMut},
};

use super::traits::{Spec, is_intercepted};
use super::types::{Kind, kind};

/// Imports of a file: the path, and the `cfg` attribute that guards it (`None`: always needed).
pub type Imports = BTreeMap<String, Option<String>>;

/// A forwarded method as source text, with what it imports.
#[derive(Debug)]
pub struct Method {
    pub text: String,
    pub imports: Imports,
}

/// How an argument or a result crosses from one backend to the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Crossing {
    AsItIs,
    Rewrapped,
    RewrappedRef,
}

/// Forwards `item`, a method of the trait of `spec`. Fails on whatever it does not understand.
pub fn forward(spec: &Spec, item: &TraitItemFn) -> Result<Method> {
    let name = item.sig.ident.to_string();
    method(spec, item).with_context(|| format!("cannot forward {}::{name}", spec.name))
}

fn method(spec: &Spec, item: &TraitItemFn) -> Result<Method> {
    let name = item.sig.ident.to_string();
    let cfg = cfg_of(&item.attrs)?;
    let mut sig = item.sig.clone();
    ensure!(
        sig.asyncness.is_none() && sig.abi.is_none() && sig.variadic.is_none(),
        "async, extern and variadic methods are not supported"
    );
    let arguments = name_arguments(&mut sig)?;
    let mut imports = collect_imports(&sig, cfg.as_deref())?;
    let result = match &sig.output {
        ReturnType::Default => Crossing::AsItIs,
        ReturnType::Type(_, ty) => crossing(ty).context("in the result")?,
    };
    ensure!(result != Crossing::RewrappedRef, "the result borrows a struct over the backend");

    let intercepted = is_intercepted(spec.name, &name);
    let rewrapped =
        result != Crossing::AsItIs || arguments.iter().any(|(_, c)| *c != Crossing::AsItIs);
    ensure!(
        !(intercepted && (rewrapped || sig.unsafety.is_some())),
        "an intercepted method can neither be unsafe nor take structs over the backend"
    );
    if rewrapped {
        add_import(&mut imports, "crate::backend::convert::Rewrap", cfg.as_deref());
    }

    let passed: Vec<String> =
        arguments.iter().map(|(name, crossing)| crossing.pass(name)).collect();
    let passed = passed.join(", ");
    let mut call = if intercepted {
        add_import(&mut imports, "crate::backend::intercept", cfg.as_deref());
        format!("intercept::{name}::<B>({passed})")
    } else {
        let backend = if spec.path == "burn::tensor::ops" { "<B>" } else { "" };
        format!("<B as {}{backend}>::{name}({passed})", spec.name)
    };
    if sig.unsafety.is_some() {
        call = format!(
            "// SAFETY: the caller keeps the contract of this method, which is that of `B`'s.\nunsafe {{ {call} }}"
        );
    }
    if result == Crossing::Rewrapped {
        call.push_str(".rewrap()");
    }

    NameTheDecorator.visit_signature_mut(&mut sig);
    let cfg = cfg.map(|cfg| cfg + "\n").unwrap_or_default();
    Ok(Method { text: format!("{cfg}{} {{\n{call}\n}}\n", sig.to_token_stream()), imports })
}

impl Crossing {
    fn pass(self, name: &str) -> String {
        match self {
            Self::AsItIs => name.to_string(),
            Self::Rewrapped => format!("{name}.rewrap()"),
            Self::RewrappedRef => format!("&{name}.clone().rewrap()"),
        }
    }
}

/// The `cfg` attribute of a method, as text. Documentation and lint levels are dropped, anything else is an error.
fn cfg_of(attrs: &[Attribute]) -> Result<Option<String>> {
    let mut cfg = None;
    for attr in attrs {
        let path = attr.path();
        if path.is_ident("cfg") {
            ensure!(cfg.is_none(), "several `cfg` attributes");
            cfg = Some(attr.to_token_stream().to_string());
        } else if !["doc", "allow", "expect", "inline", "must_use"]
            .iter()
            .any(|known| path.is_ident(known))
        {
            bail!("unknown attribute `{}`", attr.to_token_stream());
        }
    }
    Ok(cfg)
}

/// Turns `_device` and `mut tensor` into plain names, which the forwarding call can use.
fn name_arguments(sig: &mut Signature) -> Result<Vec<(String, Crossing)>> {
    let mut arguments = Vec::new();
    for argument in &mut sig.inputs {
        let FnArg::Typed(argument) = argument else { bail!("takes `self`") };
        let Pat::Ident(pattern) = argument.pat.as_mut() else {
            bail!("argument pattern `{}` is not a name", argument.pat.to_token_stream())
        };
        let name = pattern.ident.to_string().trim_start_matches('_').to_string();
        ensure!(!name.is_empty(), "an argument has no name");
        pattern.ident = syn::Ident::new(&name, pattern.ident.span());
        pattern.mutability = None;
        let crossing =
            crossing(&argument.ty).with_context(|| format!("in the argument `{name}`"))?;
        arguments.push((name, crossing));
    }
    Ok(arguments)
}

/// How a value of type `ty` crosses. A struct over the backend may stand alone or behind `&`, but in nothing else.
fn crossing(ty: &Type) -> Result<Crossing> {
    let alone = match ty {
        Type::Path(path) => Some((path, Crossing::Rewrapped)),
        Type::Reference(reference) if reference.mutability.is_none() => {
            match reference.elem.as_ref() {
                Type::Path(path) => Some((path, Crossing::RewrappedRef)),
                _ => None,
            }
        }
        _ => None,
    };
    if let Some((path, crossing)) = alone
        && is_wrapped(path)
    {
        ensure!(
            is_over_backend(path),
            "`{}` is not over the trait's own backend",
            path.to_token_stream()
        );
        return Ok(crossing);
    }
    let mut nested = FindWrapped(None);
    nested.visit_type(ty);
    match nested.0 {
        None => Ok(Crossing::AsItIs),
        Some(name) => {
            bail!("`{name}` inside `{}`: teach xtask to rewrap that", ty.to_token_stream())
        }
    }
}

fn is_wrapped(path: &TypePath) -> bool {
    let name = path.path.segments.last().map(|segment| segment.ident.to_string());
    matches!(name.as_deref().and_then(kind), Some(Kind::Wrapped(_)))
}

/// Whether the only parameter is `B` (traits over a backend) or `Self` (the backend traits themselves).
fn is_over_backend(path: &TypePath) -> bool {
    let Some(PathArguments::AngleBracketed(arguments)) =
        path.path.segments.last().map(|segment| &segment.arguments)
    else {
        return false;
    };
    matches!(arguments.args.first(), Some(GenericArgument::Type(Type::Path(parameter)))
        if arguments.args.len() == 1 && (parameter.path.is_ident("B") || parameter.path.is_ident("Self")))
}

struct FindWrapped(Option<String>);

impl<'ast> Visit<'ast> for FindWrapped {
    fn visit_type_path(&mut self, path: &'ast TypePath) {
        if is_wrapped(path) {
            self.0 = Some(path.to_token_stream().to_string());
        }
        visit::visit_type_path(self, path);
    }
}

/// Shortens `crate::a::Name` to `Name` and writes `Wrapped<B>` as `Wrapped<Self>`: `B` is the wrapped backend here.
struct NameTheDecorator;

impl VisitMut for NameTheDecorator {
    fn visit_type_path_mut(&mut self, path: &mut TypePath) {
        visit_mut::visit_type_path_mut(self, path);
        if is_wrapped(path) {
            let last = path.path.segments.last_mut().expect("a path has a segment");
            last.arguments = PathArguments::AngleBracketed(syn::parse_quote!(<Self>));
        }
    }

    fn visit_path_mut(&mut self, path: &mut syn::Path) {
        visit_mut::visit_path_mut(self, path);
        if path
            .segments
            .first()
            .is_some_and(|first| ["crate", "burn_std", "core"].iter().any(|c| first.ident == c))
        {
            let last = path.segments.last().expect("a path has a segment").clone();
            *path = last.into();
        }
    }
}

/// Finds every name in a signature and the import that brings it into scope.
struct Names<'a> {
    generics: Vec<String>,
    cfg: Option<&'a str>,
    imports: Imports,
    error: Option<anyhow::Error>,
}

fn collect_imports(sig: &Signature, cfg: Option<&str>) -> Result<Imports> {
    let generics = sig.generics.type_params().map(|param| param.ident.to_string()).collect();
    let mut names = Names { generics, cfg, imports: Imports::new(), error: None };
    names.visit_signature(sig);
    match names.error {
        Some(error) => Err(error),
        None => Ok(names.imports),
    }
}

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        visit::visit_path(self, path);
        let segments: Vec<String> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let (Some(first), Some(last)) = (segments.first(), segments.last()) else { return };
        let parameter = first == "Self" || first == "B" || self.generics.contains(first);
        if parameter && (segments.len() > 1 || first == last) {
            return;
        }
        match kind(last) {
            Some(Kind::Prelude) => {}
            Some(Kind::Shared(module) | Kind::Wrapped(module)) => {
                add_import(&mut self.imports, &format!("{module}::{last}"), self.cfg);
            }
            None => {
                let text = path.to_token_stream();
                self.error = Some(anyhow::anyhow!(
                    "unknown type `{text}`: add it to xtask/src/delegate/types.rs"
                ));
            }
        }
    }
}

/// Adds an import. One that is needed without a `cfg` anywhere is needed always.
pub fn add_import(imports: &mut Imports, path: &str, cfg: Option<&str>) {
    let cfg = cfg.map(str::to_string);
    imports
        .entry(path.to_string())
        .and_modify(|known| {
            if *known != cfg {
                *known = None;
            }
        })
        .or_insert(cfg);
}
