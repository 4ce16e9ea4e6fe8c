//! Reads a package: where its `mod` declarations put its modules, what they define and import, and which paths they mention.
//!
//! All is read from tokens: what a macro makes of its own is not known, but a path in them is a path as any other.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::{Expr, ItemUse, Lit, Meta, MetaList, Token, UseTree};

/// What the files of a package say.
#[derive(Default)]
pub struct Source {
    /// The name by which other crates, and the package's own programs, know the library; its root module.
    pub library: Option<(String, usize)>,
    /// Each with its number of lines.
    pub files: Vec<(PathBuf, usize)>,
    pub modules: Vec<Module>,
    pub mentions: Vec<Mention>,
    declared: Vec<Declared>,
}

#[derive(Default)]
pub struct Module {
    pub file: usize,
    pub parent: Option<usize>,
    /// All that a name may stand for: a name has several meanings in different namespaces and under different `cfg`. A macro stands
    /// under `name!`, too.
    pub names: BTreeMap<String, Vec<Binding>>,
    /// What is imported with `*`.
    pub globs: Vec<Vec<String>>,
    /// The folder in which files of child modules lie.
    children: PathBuf,
}

pub enum Binding {
    Module(usize),
    /// Something that is no module, and the module that defines it: another one for an exported macro in the root.
    Item(usize),
    Import(Vec<String>),
}

/// A path in the source.
pub struct Mention {
    pub module: usize,
    pub path: Vec<String>,
    pub line: usize,
    pub kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// In a type, an expression, a pattern, a bound, an import, a macro or an attribute.
    Path,
    /// `pub use`, with any visibility: it hands the name on.
    ReExport,
    /// The name of a macro that is invoked: it may come from a module further up, by textual scope.
    Macro,
}

/// `mod name;` in a module: it lies in a file that has not been read yet, which `#[path]` may name.
struct Declared {
    parent: usize,
    name: String,
    path: Option<String>,
}

/// Where tokens stand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In a module: what is defined here has a path.
    Module,
    /// In an item.
    Inside,
    /// In an attribute: serde and others name functions in strings, `#[serde(with = "crate::text")]`.
    Attribute,
}

/// What stood before an item.
#[derive(Default)]
struct Before {
    public: bool,
    exported: bool,
    path: Option<String>,
}

impl Source {
    /// Reads all modules of a library, if there is one, which comes with its name in paths, and of programs.
    pub fn read(library: Option<&(String, PathBuf)>, programs: &[PathBuf]) -> Result<Self> {
        let mut source = Self::default();
        if let Some((name, root)) = library {
            source.library = Some((name.clone(), source.file(root, None, folder(root))?));
        }
        for root in programs {
            source.file(root, None, folder(root))?;
        }
        while let Some(declared) = source.declared.pop() {
            let (path, children) = source.find(&declared)?;
            let module = source.file(&path, Some(declared.parent), children)?;
            source.bind(declared.parent, declared.name, Binding::Module(module));
        }
        Ok(source)
    }

    /// The module itself, its parent, and so on up to the root of its crate.
    pub fn ancestors(&self, module: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(module), |module| self.modules[*module].parent)
    }

    pub fn root(&self, module: usize) -> usize {
        self.ancestors(module).last().unwrap_or(module)
    }

    /// Reads a module from its file. `children` is the folder in which files of its child modules lie.
    fn file(&mut self, path: &Path, parent: Option<usize>, children: PathBuf) -> Result<usize> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read the module {}", path.display()))?;
        let tokens: TokenStream =
            text.parse().map_err(|error| anyhow!("cannot parse {}: {error}", path.display()))?;
        // A file may be a module of two programs: it is still one file.
        let known = self.files.iter().position(|(known, _)| known == path);
        let file = known.unwrap_or(self.files.len());
        if known.is_none() {
            self.files.push((path.to_path_buf(), text.lines().count()));
        }
        let module = self.module(file, parent, children);
        self.walk(tokens, module, Place::Module);
        Ok(module)
    }

    fn module(&mut self, file: usize, parent: Option<usize>, children: PathBuf) -> usize {
        self.modules.push(Module { file, parent, children, ..Module::default() });
        self.modules.len() - 1
    }

    /// Where a declared module lies, and the folder in which files of its child modules lie.
    fn find(&self, declared: &Declared) -> Result<(PathBuf, PathBuf)> {
        let Module { file, children, .. } = &self.modules[declared.parent];
        let declaring = &self.files[*file].0;
        if let Some(path) = &declared.path {
            let path = folder(declaring).join(path);
            let path = fs::canonicalize(&path).with_context(|| format!("no {}", path.display()))?;
            let children = folder(&path);
            return Ok((path, children));
        }
        let inside = children.join(&declared.name);
        let candidates = [inside.with_added_extension("rs"), inside.join("mod.rs")];
        match candidates.iter().find(|path| path.is_file()) {
            Some(path) => Ok((path.clone(), inside)),
            None => bail!(
                "{} declares `mod {};`, but neither {} nor {} exists",
                declaring.display(),
                declared.name,
                candidates[0].display(),
                candidates[1].display()
            ),
        }
    }

    fn bind(&mut self, module: usize, name: String, binding: Binding) {
        self.modules[module].names.entry(name).or_default().push(binding);
    }

    fn walk(&mut self, tokens: TokenStream, module: usize, place: Place) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let ident = |at: usize| match tokens.get(at) {
            Some(TokenTree::Ident(ident)) => Some(ident),
            _ => None,
        };
        let mut before = Before::default();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let next = ident(at + 1);
            let word = ident(at).map(Ident::to_string).unwrap_or_default();
            match (word.as_str(), token) {
                (_, TokenTree::Punct(punct)) if punct.as_char() == '#' => {
                    at = self.attribute(&tokens, at, module, &mut before);
                    continue;
                }
                // `pub(in crate::room)` takes nothing from there.
                ("pub", _) => {
                    before.public = true;
                    at += 1 + usize::from(is_restriction(tokens.get(at + 1)));
                    continue;
                }
                ("use", _) if place != Place::Attribute => {
                    let end = (at..tokens.len()).find(|at| is_punct(&tokens, *at, ';'));
                    let end = end.map_or(tokens.len(), |end| end + 1);
                    let statement = tokens[at..end].iter().cloned().collect();
                    if let Ok(item) = syn::parse2::<ItemUse>(statement) {
                        let kind = if before.public { Kind::ReExport } else { Kind::Path };
                        self.import(&item.tree, vec![], module, kind);
                        at = end - 1;
                    }
                }
                ("mod", _) if let Some(name) = next.map(name) => {
                    if let Some(TokenTree::Group(group)) = tokens.get(at + 2) {
                        let Module { file, children, .. } = &self.modules[module];
                        let (file, children) = (*file, children.join(&name));
                        let inline = self.module(file, Some(module), children);
                        self.bind(module, name, Binding::Module(inline));
                        self.walk(group.stream(), inline, Place::Module);
                    } else {
                        let path = before.path.take();
                        self.declared.push(Declared { parent: module, name, path });
                    }
                    at += 2;
                }
                ("macro_rules", _) if let Some(defined) = ident(at + 2) => {
                    if before.exported {
                        self.bind(self.root(module), name(defined), Binding::Item(module));
                    }
                    self.bind(module, name(defined), Binding::Item(module));
                    self.bind(module, format!("{defined}!"), Binding::Item(module));
                    at += 2;
                }
                ("const" | "enum" | "fn" | "static" | "struct" | "trait" | "type" | "union", _)
                    if let Some(defined) = next.filter(|next| !is_modifier(next)) =>
                {
                    if place == Place::Module {
                        self.bind(module, name(defined), Binding::Item(module));
                    }
                    at += 1;
                }
                (_, TokenTree::Ident(ident)) if begins_path(&tokens, at) => {
                    let line = ident.span().start().line;
                    let (path, end) = path_at(&tokens, at);
                    let group = |at: usize| match tokens.get(at) {
                        Some(TokenTree::Group(group)) => Some(group.delimiter()),
                        _ => None,
                    };
                    if is_punct(&tokens, end, '!') && group(end + 1).is_some() {
                        self.mentions.push(Mention { module, path, line, kind: Kind::Macro });
                    } else {
                        let is_generic = is_punct(&tokens, end - 1, ':');
                        let called = group(end) == Some(Delimiter::Parenthesis) || is_generic;
                        self.mention(path, line, module, called);
                    }
                    at = end - 1;
                }
                (_, TokenTree::Group(group)) => {
                    let inner = if place == Place::Module { Place::Inside } else { place };
                    self.walk(group.stream(), module, inner);
                }
                (_, TokenTree::Literal(literal)) if place == Place::Attribute => {
                    if let Lit::Str(text) = Lit::new(literal.clone())
                        && let Ok(path) = text.parse::<syn::Path>()
                    {
                        let path = path.segments.iter().map(|segment| name(&segment.ident));
                        self.mention(path.collect(), text.span().start().line, module, false);
                    }
                }
                _ => {}
            }
            before = Before::default();
            at += 1;
        }
    }

    /// Reads the attribute at a token. Returns the place after it, or after its item if that is built for tests alone.
    fn attribute(
        &mut self,
        tokens: &[TokenTree],
        at: usize,
        module: usize,
        before: &mut Before,
    ) -> usize {
        let is_inner = is_punct(tokens, at + 1, '!');
        let end = at + 2 + usize::from(is_inner);
        let Some(TokenTree::Group(group)) = tokens.get(end - 1) else { return at + 1 };
        if group.delimiter() != Delimiter::Bracket {
            return at + 1;
        }
        match syn::parse2::<Meta>(group.stream()) {
            Ok(Meta::List(list)) if list.path.is_ident("cfg") && !is_inner => {
                let is_for_tests = list.parse_args().is_ok_and(|meta| implies_test(&meta));
                return if is_for_tests { item_end(tokens, end) } else { end };
            }
            Ok(Meta::NameValue(pair)) if pair.path.is_ident("path") => {
                if let Expr::Lit(value) = &pair.value
                    && let Lit::Str(path) = &value.lit
                {
                    before.path = Some(path.value());
                }
            }
            Ok(Meta::Path(path)) => before.exported |= path.is_ident("macro_export"),
            Ok(Meta::List(list)) => self.walk(list.tokens, module, Place::Attribute),
            _ => {}
        }
        end
    }

    fn import(&mut self, tree: &UseTree, mut path: Vec<String>, module: usize, kind: Kind) {
        let (leaf, bound) = match tree {
            UseTree::Path(tree) => {
                path.push(name(&tree.ident));
                return self.import(&tree.tree, path, module, kind);
            }
            UseTree::Group(group) => {
                let trees = group.items.iter();
                return trees.for_each(|tree| self.import(tree, path.clone(), module, kind));
            }
            UseTree::Glob(glob) => {
                self.modules[module].globs.push(path.clone());
                path.push("*".to_string());
                let line = glob.star_token.spans[0].start().line;
                return self.mentions.push(Mention { module, path, line, kind });
            }
            UseTree::Name(leaf) => (&leaf.ident, None),
            UseTree::Rename(leaf) => (&leaf.ident, Some(name(&leaf.rename))),
        };
        // `use a::{self}` imports `a`.
        if leaf != "self" || path.is_empty() {
            path.push(name(leaf));
        }
        let bound = bound.or_else(|| path.last().cloned()).unwrap_or_default();
        self.bind(module, bound, Binding::Import(path.clone()));
        self.mentions.push(Mention { module, path, line: leaf.span().start().line, kind });
    }

    /// Mentions a path, unless it may be the name of a local variable.
    fn mention(&mut self, path: Vec<String>, line: usize, module: usize, called: bool) {
        if called || path.len() > 1 || path[0].starts_with(char::is_uppercase) {
            self.mentions.push(Mention { module, path, line, kind: Kind::Path });
        }
    }
}

fn name(ident: &Ident) -> String {
    ident.unraw().to_string()
}

fn is_punct(tokens: &[TokenTree], at: usize, wanted: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

/// Whether this stands between a keyword and what it defines, as in `static mut NAME`, `const fn name`.
fn is_modifier(ident: &Ident) -> bool {
    ["extern", "fn", "mut", "unsafe"].iter().any(|word| ident == word)
}

/// Whether this is `(crate)`, `(super)` or `(in crate::room)` after `pub`.
fn is_restriction(token: Option<&TokenTree>) -> bool {
    let Some(TokenTree::Group(group)) = token else { return false };
    let first = group.stream().into_iter().next().map(|token| token.to_string());
    group.delimiter() == Delimiter::Parenthesis
        && first.is_some_and(|first| ["crate", "in", "self", "super"].contains(&first.as_str()))
}

/// Whether a path begins at the identifier `tokens[at]`: not where a field, a method, a lifetime, a metavariable or the rest of a path
/// stands.
fn begins_path(tokens: &[TokenTree], at: usize) -> bool {
    let is_before = |back: usize, wanted: char| {
        at.checked_sub(back).is_some_and(|before| is_punct(tokens, before, wanted))
    };
    let is_field = is_before(1, '.') && !is_before(2, '.');
    let is_rest = is_before(1, ':') && is_before(2, ':');
    let is_crate = matches!(&tokens[at], TokenTree::Ident(ident) if ident == "crate");
    !is_field && !is_rest && !is_before(1, '\'') && (!is_before(1, '$') || is_crate)
}

/// The path that begins at a token, and the place of the token after it.
fn path_at(tokens: &[TokenTree], mut at: usize) -> (Vec<String>, usize) {
    let mut segments = vec![];
    while let Some(TokenTree::Ident(ident)) = tokens.get(at) {
        segments.push(name(ident));
        at += 1;
        if !is_punct(tokens, at, ':') || !is_punct(tokens, at + 1, ':') {
            break;
        }
        at += 2;
    }
    (segments, at)
}

/// The place after the item that stands here after its attributes; what is no item is not left out.
fn item_end(tokens: &[TokenTree], mut at: usize) -> usize {
    while is_punct(tokens, at, '#') {
        at += 2;
    }
    let first = tokens.get(at).map(TokenTree::to_string).unwrap_or_default();
    let items = "async const enum extern fn impl macro_rules mod pub static struct trait type union unsafe use";
    if !items.split(' ').any(|item| item == first) {
        return at;
    }
    let is_end = |at: &usize| {
        is_punct(tokens, *at, ';')
            || matches!(&tokens[*at], TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
    };
    (at..tokens.len()).find(is_end).map_or(tokens.len(), |end| end + 1)
}

/// Whether a condition holds in tests or documentation tests alone.
fn implies_test(condition: &Meta) -> bool {
    let parts = |list: &MetaList| {
        list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default()
    };
    match condition {
        Meta::Path(path) => path.is_ident("test") || path.is_ident("doctest"),
        Meta::List(list) if list.path.is_ident("all") => parts(list).iter().any(implies_test),
        Meta::List(list) if list.path.is_ident("any") => {
            let parts = parts(list);
            !parts.is_empty() && parts.iter().all(implies_test)
        }
        _ => false,
    }
}

fn folder(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_path_buf()
}
