//! One trait method: its signature for `Fp8Backend<B>` and the call that forwards it.

use anyhow::{Context, Result, bail, ensure};
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, FnArg, Pat, PathArguments, ReturnType, Signature, TraitItemFn, Type, TypePath,
};

use super::traits::{BURNS, Burn, Spec};
use super::types::{Kind, kind};

/// A forwarded method, or an associated type, as source text.
#[derive(Debug, PartialEq)]
pub struct Method {
    pub text: String,
    pub form: Form,
    /// Its `cfg` attribute.
    pub cfg: Option<String>,
    /// The paths of all names in its signature.
    pub imports: Vec<String>,
}

/// How a method is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// With a body.
    Whole,
    /// As its signature, among the arguments of the macro `forward`: `backend/forward.rs` explains the word.
    Line(&'static str),
}

/// How an argument or a result crosses from one backend to the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Crossing {
    AsItIs,
    Rewrapped,
    RewrappedRef,
}

/// Forwards `item`, a method of the trait of `spec` in the version of Burn at place `burn`. Fails on whatever it does not understand.
pub fn forward(burn: usize, spec: &Spec, item: &TraitItemFn) -> Result<Method> {
    let name = item.sig.ident.to_string();
    method(&BURNS[burn], spec, item)
        .with_context(|| format!("cannot forward {}::{name}", spec.name))
}

fn method(burn: &Burn, spec: &Spec, item: &TraitItemFn) -> Result<Method> {
    let name = item.sig.ident.to_string();
    let cfg = cfg_of(&item.attrs)?;
    let mut sig = item.sig.clone();
    ensure!(
        sig.asyncness.is_none() && sig.abi.is_none() && sig.variadic.is_none(),
        "async, extern and variadic methods are not supported"
    );
    if ["QTensorOps", "TransactionOps"].contains(&spec.name) {
        return of_quantized(burn, spec, sig, cfg);
    }
    let arguments = name_arguments(&mut sig)?;
    let imports = collect_imports(&sig)?;
    let result = match &sig.output {
        ReturnType::Default => Crossing::AsItIs,
        ReturnType::Type(_, ty) => crossing(ty).context("in the result")?,
    };
    ensure!(result != Crossing::RewrappedRef, "the result borrows a struct over the backend");
    let intercepted = burn.is_intercepted(spec.name, &name);
    ensure!(!intercepted || sig.unsafety.is_none(), "an intercepted method cannot be unsafe");
    let once = burn.once(spec.name, &name);
    ensure!(
        once.is_none_or(|once| arguments.iter().any(|(name, _)| name == once)),
        "it has no argument `{}`",
        once.unwrap_or_default()
    );

    NameTheDecorator.visit_signature_mut(&mut sig);
    let is_line = sig.generics.params.is_empty()
        && sig.generics.where_clause.is_none()
        && sig.unsafety.is_none()
        && arguments.iter().all(|(_, crossing)| *crossing == Crossing::AsItIs);
    let how = match (result, intercepted, once) {
        (Crossing::AsItIs, false, None) => Some("plain"),
        (Crossing::Rewrapped, false, None) => Some("rewrapped"),
        (Crossing::AsItIs, true, None) => Some("intercepted"),
        (Crossing::AsItIs, false, Some("grad")) => Some("once grad"),
        (Crossing::AsItIs, false, Some("output_grad")) => Some("once output_grad"),
        _ => None,
    };
    let signature = sig.to_token_stream();
    if let Some(how) = how.filter(|_| is_line) {
        let (text, form) = (format!("{signature};"), Form::Line(how));
        return Ok(Method { text, form, cfg, imports });
    }

    let passed: Vec<String> =
        arguments.iter().map(|(name, crossing)| crossing.pass(name)).collect();
    let passed = passed.join(", ");
    let mut call = match intercepted {
        true => format!("intercept::{name}::<B>({passed})"),
        false => format!("B::{name}({passed})"),
    };
    let mut allow = "";
    if sig.unsafety.is_some() {
        allow = "#[allow(unsafe_code)]\n";
        call = format!(
            "// SAFETY: the caller keeps the contract of this method, which is that of `B`'s.\nunsafe {{ {call} }}"
        );
    }
    if result == Crossing::Rewrapped {
        call.push_str(".rewrap()");
    }
    if let Some(output_grad) = once {
        call = format!("intercept::differentiates_once::<B>(&{output_grad}, \"{name}\");\n{call}");
    }
    let text = format!("{allow}{signature} {{\n{call}\n}}\n");
    Ok(Method { text, form: Form::Whole, cfg, imports })
}

/// A method that takes or gives quantized tensors: what takes one that holds FP8 does not go to `B`.
fn of_quantized(
    burn: &Burn,
    spec: &Spec,
    mut sig: Signature,
    cfg: Option<String>,
) -> Result<Method> {
    const QUANTIZED: &str = "QuantizedTensor < B >";
    for argument in &mut sig.inputs {
        // The names of arguments begin without the underline of those that a default does not use.
        if let FnArg::Typed(argument) = argument
            && let Pat::Ident(pattern) = argument.pat.as_mut()
        {
            let name = pattern.ident.to_string();
            pattern.ident = syn::Ident::new(name.trim_start_matches('_'), pattern.ident.span());
        }
    }
    let imports = collect_imports(&sig)?;
    let name = sig.ident.to_string();
    let result = sig.output.to_token_stream().to_string();
    let mut taken = Vec::new();
    for argument in &sig.inputs {
        let FnArg::Typed(argument) = argument else { bail!("takes `self`") };
        let ty = argument.ty.to_token_stream().to_string();
        match ty.contains("QuantizedTensor") && !burn.is_intercepted(spec.name, &name) {
            true if ty == QUANTIZED => taken.push(argument.pat.to_token_stream().to_string()),
            true => bail!("`{ty}`: intercept the method"),
            false => {}
        }
    }
    let taken: Vec<_> = taken.iter().map(String::as_str).collect();
    let is_own = result.contains("QuantizedTensor");
    let how = match (&taken[..], result.contains("TensorPrimitive"), is_own) {
        _ if burn.is_intercepted(spec.name, &name) => "intercepted",
        (["tensor"], false, false) => "quantized tensor",
        (["tensor"], false, true) => "requantized tensor",
        (["tensor"], true, false) => "flowing tensor",
        (["lhs"], true, false) => "flowing lhs",
        (["lhs", "rhs"], true, false) => "flowing lhs rhs",
        (taken, ..) => bail!("quantized arguments {taken:?}: teach `forward` their word"),
    };
    NameTheDecorator.visit_signature_mut(&mut sig);
    let text = format!("{};", sig.to_token_stream()).replace(QUANTIZED, "QuantizedTensor < Self >");
    Ok(Method { text, form: Form::Line(how), cfg, imports })
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
            cfg = Some(format!("#[cfg({})]", attr.meta.require_list()?.tokens));
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

/// How a value of type `ty` crosses. A struct over the trait's own backend may stand alone or behind `&`, but in nothing else.
fn crossing(ty: &Type) -> Result<Crossing> {
    let text = ty.to_token_stream().to_string();
    let words: Vec<&str> = text.split_whitespace().collect();
    let Some(at) = words.iter().position(|word| is_wrapped(word)) else {
        return Ok(Crossing::AsItIs);
    };
    let mut before = &words[..at];
    while let [rest @ .., _, "::"] = before {
        before = rest;
    }
    match (before, &words[at + 1..]) {
        // `B` of traits over a backend, `Self` of the backend traits themselves.
        ([], ["<", "B" | "Self", ">"]) => Ok(Crossing::Rewrapped),
        (["&"], ["<", "B" | "Self", ">"]) => Ok(Crossing::RewrappedRef),
        _ => bail!("`{}` inside `{text}`: teach xtask to rewrap that", words[at]),
    }
}

fn is_wrapped(name: &str) -> bool {
    matches!(kind(name), Some(Kind::Wrapped(_)))
}

/// Shortens `crate::a::Name` to `Name` and writes `Wrapped<B>` as `Wrapped<Self>`: `B` is the wrapped backend here.
struct NameTheDecorator;

impl VisitMut for NameTheDecorator {
    fn visit_type_path_mut(&mut self, path: &mut TypePath) {
        visit_mut::visit_type_path_mut(self, path);
        let last = path.path.segments.last_mut().expect("a path has a segment");
        if is_wrapped(&last.ident.to_string()) {
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

/// Finds every path in a signature.
#[derive(Default)]
struct Paths(Vec<syn::Path>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        visit::visit_path(self, path);
        self.0.push(path.clone());
    }
}

/// The paths that bring every name of a signature into scope.
fn collect_imports(sig: &Signature) -> Result<Vec<String>> {
    let generics: Vec<_> =
        sig.generics.type_params().map(|param| param.ident.to_string()).collect();
    let (mut paths, mut imports) = (Paths::default(), Vec::new());
    paths.visit_signature(sig);
    for path in paths.0 {
        let segments = path.segments.iter().map(|segment| segment.ident.to_string());
        let segments: Vec<String> = segments.collect();
        let (first, last) = (&segments[0], &segments[segments.len() - 1]);
        if first == "Self" || first == "B" || generics.contains(first) {
            continue;
        }
        match kind(last) {
            Some(Kind::Prelude) => {}
            Some(Kind::Shared(module) | Kind::Wrapped(module)) => {
                imports.push(format!("{module}::{last}"));
            }
            None => bail!(
                "unknown type `{}`: add it to xtask/src/delegate/types.rs",
                path.to_token_stream()
            ),
        }
    }
    Ok(imports)
}
