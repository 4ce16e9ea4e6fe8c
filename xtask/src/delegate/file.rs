//! The generated file: imports, and the implementation of each trait.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use syn::{ItemTrait, TraitItem, TraitItemFn};

use super::method::{Form, Method, forward};
use super::traits::{BURNS, Spec};
use crate::repository;

/// The paths that the file imports, each with the version of Burn that needs it, and the `cfg` attribute under which it does
/// (`None`: always).
pub type Imports = BTreeMap<(String, usize), Option<String>>;

/// Which versions have something.
type Versions = [bool; BURNS.len()];

/// Where something stands that not all versions have: in the arguments of a macro, or under an attribute there.
type Place = (&'static str, Option<&'static str>);

/// The methods of a trait, in its order.
pub fn methods(item: &ItemTrait) -> impl Iterator<Item = &TraitItemFn> {
    item.items.iter().filter_map(|item| match item {
        TraitItem::Fn(method) => Some(method),
        _ => None,
    })
}

/// Adds an import. One that is needed without a `cfg` anywhere is needed always.
fn add_import(imports: &mut Imports, path: &str, burn: usize, cfg: Option<&str>) {
    let cfg = cfg.map(str::to_string);
    imports
        .entry((path.to_string(), burn))
        .and_modify(|known| {
            if *known != cfg {
                *known = None;
            }
        })
        .or_insert(cfg);
}

/// Implements a trait for `Fp8Backend<B>` as each of the versions that have it does; `items` are theirs. [`format()`] makes it Rust.
pub fn of_trait(spec: &Spec, items: &[ItemTrait], imports: &mut Imports) -> Result<String> {
    let feature = spec.feature.map(|feature| format!("#[cfg(feature = \"{feature}\")]"));
    let mut members: Vec<(Method, Versions)> = Vec::new();
    let mut all = Versions::default();
    for (&burn, item) in spec.burns.iter().zip(items) {
        all[burn] = true;
        add_import(imports, &format!("{}::{}", spec.path, spec.name), burn, feature.as_deref());
        for item in &item.items {
            let method = match item {
                TraitItem::Type(item) => associated_type(spec, &item.ident.to_string()),
                TraitItem::Fn(item) => forward(burn, spec, item)?,
                _ => bail!(
                    "{}: xtask forwards methods and types only, not constants or macros",
                    spec.name
                ),
            };
            for path in &method.imports {
                let cfg = feature.as_deref().or(method.cfg.as_deref());
                add_import(imports, path, burn, cfg);
            }
            let at = members.iter().position(|(known, _)| *known == method);
            let at = at.unwrap_or_else(|| {
                members.push((method, Versions::default()));
                members.len() - 1
            });
            members[at].1[burn] = true;
        }
    }

    // What all versions of the trait have stands first, and under nothing.
    let mut groups = BTreeMap::<_, BTreeMap<_, String>>::new();
    for (method, versions) in &members {
        for place in places(*versions, all) {
            let (only, cfg) = place.map_or((None, None), |(only, cfg)| (Some(only), cfg));
            let text = groups.entry(only).or_default().entry(method.form).or_default();
            for line in cfg.into_iter().chain(method.cfg.as_deref()).chain([&*method.text]) {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    let mut body = String::new();
    for (only, forms) in groups {
        let forms = forms.into_iter().map(|(form, lines)| match form {
            Form::Whole => lines,
            Form::Line(how) => {
                format!("trait {} {{\n{lines}}}\n", hidden(&format!("forward! {{ [{how}]")))
            }
        });
        let forms: String = forms.collect();
        body.push_str(&within(only.filter(|_| all == [true; BURNS.len()]), &forms));
    }

    let generic = if spec.is_over_backend() { "<Self>" } else { "" };
    let [bound, rest] = spec.bounds;
    let rest = if rest.is_empty() { " " } else { &format!("\nwhere\n    {rest},\n") };
    let head = format!("impl<B: {bound}> {}{generic} for Fp8Backend<B>{rest}{{", spec.name);
    let item = format!("{}mod {} {{\n{body}}}\n", feature.unwrap_or_default(), hidden(&head));
    let items = places(all, [true; BURNS.len()]).into_iter().map(|place| match place {
        Some((only, cfg)) => within(Some(only), &(cfg.unwrap_or_default().to_string() + &item)),
        None => item.clone(),
    });
    Ok(items.collect())
}

/// Where something stands that some of the versions of `all` have.
fn places(versions: Versions, all: Versions) -> Vec<Option<Place>> {
    if versions == all {
        return vec![None];
    }
    let mut places = Vec::new();
    for (burn, _) in BURNS.iter().zip(versions).filter(|(_, has)| *has) {
        let mut package = BURNS.iter().zip(versions).filter(|(other, _)| other.only == burn.only);
        let cfg = if package.all(|(_, has)| has) { None } else { burn.cfg };
        let place = Some((burn.only, cfg));
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// `text` in the arguments of the macro `only`.
fn within(only: Option<&str>, text: &str) -> String {
    only.map_or(text.to_string(), |only| {
        format!("mod {} {{\n{text}}}\n", hidden(&format!("{only}! {{")))
    })
}

fn associated_type(spec: &Spec, name: &str) -> Method {
    const QUANTIZED: (&str, &str) = ("QuantizedTensorPrimitive", "super::Fp8QTensor<B>");
    let known = spec.types.iter().chain([&QUANTIZED]).find(|(special, _)| *special == name);
    let value = known.map_or_else(|| format!("B::{name}"), |(_, value)| (*value).to_string());
    let text = format!("type {name} = {value};");
    Method { text, form: Form::Whole, cfg: None, imports: Vec::new() }
}

/// The imports: what all versions need, then what only some do.
pub fn use_lines(imports: &Imports) -> String {
    let mut needs = BTreeMap::<_, Versions>::new();
    for ((path, burn), cfg) in imports {
        needs.entry((path, cfg.as_deref())).or_default()[*burn] = true;
    }
    let mut groups = BTreeMap::<_, BTreeMap<_, Vec<&str>>>::new();
    for ((path, cfg), versions) in needs {
        let (module, name) = path.rsplit_once("::").expect("an import has a module");
        for place in places(versions, [true; BURNS.len()]) {
            let (only, of_version) = place.map_or((None, None), |(only, cfg)| (Some(only), cfg));
            let lines = groups.entry(only).or_default();
            lines.entry((of_version, cfg, module)).or_default().push(name);
        }
    }
    groups
        .into_iter()
        .map(|(only, lines)| {
            let lines = lines.into_iter().map(|((of_version, cfg, module), names)| {
                let cfgs: String = [of_version, cfg].into_iter().flatten().collect();
                format!("{cfgs} use {module}::{{{}}};\n", names.join(", "))
            });
            within(only, &lines.collect::<String>())
        })
        .collect()
}

/// A line that rustfmt does not know, as a name of a module or trait.
fn hidden(line: &str) -> String {
    let hex: String = line.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("hidden_{hex}")
}

/// Brings the lines back that are [`hidden`].
fn shown(text: &str) -> Result<String> {
    let mut lines = String::new();
    for line in text.lines() {
        match line.split_once("hidden_") {
            Some((before, name)) => {
                let hex = name.trim_end_matches(" {").as_bytes().chunks(2);
                let bytes = hex.map(|byte| Ok(u8::from_str_radix(str::from_utf8(byte)?, 16)?));
                let hidden = String::from_utf8(bytes.collect::<Result<_>>()?)?;
                let indent = " ".repeat(before.len() - before.trim_start().len());
                lines
                    .push_str(&format!("{indent}{}", hidden.replace('\n', &format!("\n{indent}"))));
            }
            None => lines.push_str(line),
        }
        lines.push('\n');
    }
    Ok(lines)
}

/// Formats a text in the repository's settings. What stands in macros is formatted as what it stands for, since rustfmt leaves macros
/// alone: arguments that do not fit a line fill several.
pub fn format(text: &str) -> Result<String> {
    let settings = repository::root().join("rustfmt.toml");
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("delegate.rs");
    let rustfmt = |text: &str, more: &str| -> Result<String> {
        fs::write(&path, text)?;
        fs::write(folder.path().join("rustfmt.toml"), fs::read_to_string(&settings)? + more)?;
        let output = Command::new("rustfmt").args(["--edition", "2024"]).arg(&path).output();
        let output = output
            .context("cannot start rustfmt; install it with `rustup component add rustfmt`")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "rustfmt refuses the generated code:\n{errors}");
        Ok(fs::read_to_string(&path)?)
    };
    let lines = shown(&rustfmt(text, "fn_params_layout = \"Compressed\"\n")?)?;
    rustfmt(&lines, "")
}
