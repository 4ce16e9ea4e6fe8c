//! Reads one file into the tree: what its modules define and import, and which paths they mention.

use std::mem;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Block, Expr, ExprCall, Ident, ImplItemFn, Item, ItemMod, ItemUse, Lit, LitStr,
    Macro, Meta, Path, Token, UseTree, Visibility,
};

use super::tree::{Binding, Declared, Mention, MentionKind, ModuleId, Tree, UsePath};

/// Walks through the syntax of a file.
pub struct Reader<'a> {
    tree: &'a mut Tree,
    module: ModuleId,
    /// Inside a function: what is defined there has no path.
    in_block: bool,
}

impl<'a> Reader<'a> {
    /// A reader of the file of `module`.
    pub fn new(tree: &'a mut Tree, module: ModuleId) -> Self {
        Self { tree, module, in_block: false }
    }

    fn mention(&mut self, path: UsePath, line: usize, kind: MentionKind) {
        self.tree.mentions.push(Mention { module: self.module, path, line, kind });
    }

    /// Mentions a path, unless it may be the name of a local variable.
    fn mention_path(&mut self, path: UsePath, line: usize, called: bool) {
        let is_named = |segment: &String| segment.starts_with(char::is_uppercase);
        if called || path.segments.len() > 1 || path.segments.first().is_some_and(is_named) {
            self.mention(path, line, MentionKind::Path);
        }
    }

    fn define(&mut self, item: &Item) {
        let ident = match item {
            Item::Const(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Fn(item) => &item.sig.ident,
            Item::Static(item) => &item.ident,
            Item::Struct(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::TraitAlias(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            Item::Macro(item) => match &item.ident {
                Some(ident) => {
                    if item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export"))
                    {
                        let root = self.tree.root(self.module);
                        self.tree.bind(root, &name(ident), Binding::Item(self.module));
                    }
                    ident
                }
                None => return,
            },
            _ => return,
        };
        self.tree.bind(self.module, &name(ident), Binding::Item(self.module));
    }

    fn import(&mut self, tree: &UseTree, mut path: UsePath, re_export: bool) {
        match tree {
            UseTree::Path(tree) => {
                path.segments.push(name(&tree.ident));
                self.import(&tree.tree, path, re_export);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, path.clone(), re_export);
                }
            }
            UseTree::Name(leaf) => self.import_as(path, &leaf.ident, None, re_export),
            UseTree::Rename(leaf) => {
                self.import_as(path, &leaf.ident, Some(&leaf.rename), re_export);
            }
            UseTree::Glob(glob) => {
                self.tree.modules[self.module].globs.push(path.clone());
                let line = glob.star_token.spans[0].start().line;
                self.mention(path, line, MentionKind::Use { re_export, glob: true });
            }
        }
    }

    fn import_as(
        &mut self,
        mut path: UsePath,
        leaf: &Ident,
        rename: Option<&Ident>,
        re_export: bool,
    ) {
        // `use a::{self}` imports `a`.
        if leaf != "self" || path.segments.is_empty() {
            path.segments.push(name(leaf));
        }
        if let Some(last) = path.segments.last() {
            let bound = rename.map_or_else(|| last.clone(), name);
            self.tree.bind(self.module, &bound, Binding::Import(path.clone()));
        }
        self.mention(path, leaf.span().start().line, MentionKind::Use { re_export, glob: false });
    }

    /// Mentions the paths in the tokens of a macro or an attribute: what the macro makes of them is not known, but a path to
    /// something of this crate is one.
    fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            match token {
                TokenTree::Group(group) => self.scan(group.stream()),
                TokenTree::Ident(ident) if ident == "use" => {
                    let end = tokens[at..].iter().position(|token| is_punct(Some(token), ';'));
                    let end = end.map_or(tokens.len(), |end| at + end + 1);
                    let statement: TokenStream = tokens[at..end].iter().cloned().collect();
                    if let Ok(item) = syn::parse2::<ItemUse>(statement) {
                        self.visit_item_use(&item);
                        at = end;
                        continue;
                    }
                }
                TokenTree::Ident(ident) if begins_path(&tokens, at) => {
                    let (segments, next) = path_at(&tokens, at);
                    let line = ident.span().start().line;
                    let path = UsePath { segments, absolute: false };
                    match tokens.get(next) {
                        Some(TokenTree::Punct(punct)) if punct.as_char() == '!' => {
                            self.mention(path, line, MentionKind::Macro);
                        }
                        Some(TokenTree::Group(group)) => {
                            let called = group.delimiter() == Delimiter::Parenthesis;
                            self.mention_path(path, line, called);
                        }
                        _ => self.mention_path(path, line, false),
                    }
                    at = next;
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
    }

    /// serde and others name functions in strings: `#[serde(with = "crate::text")]`.
    fn scan_strings(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.scan_strings(group.stream()),
                TokenTree::Literal(literal) => {
                    if let Lit::Str(text) = Lit::new(literal)
                        && let Ok(path) = text.parse::<Path>()
                    {
                        self.mention_path(use_path(&path), text.span().start().line, false);
                    }
                }
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_for_tests(attributes(item)) {
            return;
        }
        if !self.in_block {
            self.define(item);
        }
        visit::visit_item(self, item);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let Some((_, items)) = &item.content else {
            let path = item.attrs.iter().find_map(path_attribute);
            let declared = Declared { parent: self.module, name: name(&item.ident), path };
            self.tree.declared.push(declared);
            return;
        };
        let inline = self.tree.inline(self.module, &name(&item.ident));
        let outside = mem::replace(&mut self.module, inline);
        for item in items {
            self.visit_item(item);
        }
        self.module = outside;
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let path = UsePath { segments: vec![], absolute: item.leading_colon.is_some() };
        self.import(&item.tree, path, !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_block(&mut self, block: &'ast Block) {
        let outside = mem::replace(&mut self.in_block, true);
        visit::visit_block(self, block);
        self.in_block = outside;
    }

    fn visit_path(&mut self, path: &'ast Path) {
        self.mention_path(use_path(path), line(path), false);
        visit::visit_path(self, path);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(function) = &*call.func {
            self.mention_path(use_path(&function.path), line(&function.path), true);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.mention(use_path(&call.path), line(&call.path), MentionKind::Macro);
        self.scan(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.scan(list.tokens.clone());
            self.scan_strings(list.tokens.clone());
        }
    }

    /// `pub(in crate::room)` takes nothing from there.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

fn name(ident: &Ident) -> String {
    ident.unraw().to_string()
}

fn use_path(path: &Path) -> UsePath {
    let segments = path.segments.iter().map(|segment| name(&segment.ident)).collect();
    UsePath { segments, absolute: path.leading_colon.is_some() }
}

fn line(path: &Path) -> usize {
    path.segments.first().map_or(0, |segment| segment.ident.span().start().line)
}

fn is_punct(token: Option<&TokenTree>, wanted: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == wanted)
}

/// Whether a path begins at the identifier `tokens[at]`: not where a field, a method, a lifetime, a metavariable, a path from another
/// crate or the name of a new function stands.
fn begins_path(tokens: &[TokenTree], at: usize) -> bool {
    let before = at.checked_sub(1).map(|before| &tokens[before]);
    let is_crate = matches!(&tokens[at], TokenTree::Ident(ident) if ident == "crate");
    match before {
        Some(TokenTree::Punct(punct)) => match punct.as_char() {
            '$' => is_crate,
            ':' => !is_punct(at.checked_sub(2).map(|before| &tokens[before]), ':'),
            other => !matches!(other, '.' | '\''),
        },
        Some(TokenTree::Ident(before)) => before != "fn",
        _ => true,
    }
}

/// The path that begins at a token, and the place of the token after it.
fn path_at(tokens: &[TokenTree], mut at: usize) -> (Vec<String>, usize) {
    let mut segments = vec![];
    while let Some(TokenTree::Ident(ident)) = tokens.get(at) {
        segments.push(name(ident));
        at += 1;
        if !is_punct(tokens.get(at), ':') || !is_punct(tokens.get(at + 1), ':') {
            break;
        }
        at += 2;
    }
    (segments, at)
}

fn path_attribute(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    let Expr::Lit(value) = &pair.value else { return None };
    let Lit::Str(path) = &value.lit else { return None };
    pair.path.is_ident("path").then(|| LitStr::value(path))
}

/// Whether something is only built for tests or documentation tests.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).any(|attribute| {
        attribute.parse_args::<Meta>().is_ok_and(|condition| implies_test(&condition))
    })
}

fn implies_test(condition: &Meta) -> bool {
    let parts = |list: &syn::MetaList| {
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

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(syn::ItemConst { attrs, .. })
        | Item::Enum(syn::ItemEnum { attrs, .. })
        | Item::ExternCrate(syn::ItemExternCrate { attrs, .. })
        | Item::Fn(syn::ItemFn { attrs, .. })
        | Item::ForeignMod(syn::ItemForeignMod { attrs, .. })
        | Item::Impl(syn::ItemImpl { attrs, .. })
        | Item::Macro(syn::ItemMacro { attrs, .. })
        | Item::Mod(ItemMod { attrs, .. })
        | Item::Static(syn::ItemStatic { attrs, .. })
        | Item::Struct(syn::ItemStruct { attrs, .. })
        | Item::Trait(syn::ItemTrait { attrs, .. })
        | Item::TraitAlias(syn::ItemTraitAlias { attrs, .. })
        | Item::Type(syn::ItemType { attrs, .. })
        | Item::Union(syn::ItemUnion { attrs, .. })
        | Item::Use(ItemUse { attrs, .. }) => attrs,
        _ => &[],
    }
}
