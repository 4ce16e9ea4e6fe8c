//! The modules of a crate: where their `mod` declarations put them, what they define and import, and which paths they mention.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Place of a module in [`Tree::modules`].
pub type ModuleId = usize;
/// Place of a file in [`Tree::files`].
pub type FileId = usize;

/// What the source files of one package say.
#[derive(Default)]
pub struct Tree {
    /// The name by which other crates, and the package's own programs, know the library; its root.
    pub library: Option<(String, ModuleId)>,
    pub files: Vec<File>,
    pub modules: Vec<Module>,
    pub mentions: Vec<Mention>,
    /// Modules that lie in files which have not been read yet.
    pub declared: Vec<Declared>,
}

/// `mod name;` in the module `parent`.
pub struct Declared {
    pub parent: ModuleId,
    pub name: String,
    /// The value of its attribute `#[path]`.
    pub path: Option<String>,
}

pub struct File {
    pub path: PathBuf,
    pub lines: usize,
}

pub struct Module {
    pub file: FileId,
    pub parent: Option<ModuleId>,
    /// All that a name may stand for: a name has several meanings in different namespaces and under different `cfg`.
    pub names: BTreeMap<String, Vec<Binding>>,
    /// What is imported with `*`.
    pub globs: Vec<UsePath>,
    /// The folder in which files of child modules lie.
    pub children: PathBuf,
}

pub enum Binding {
    Module(ModuleId),
    /// Something that is no module, and the module that defines it: another one for an exported macro in the root.
    Item(ModuleId),
    Import(UsePath),
}

/// The segments of a path.
#[derive(Clone, Debug)]
pub struct UsePath {
    pub segments: Vec<String>,
    /// Whether it begins with `::`, so with a crate.
    pub absolute: bool,
}

/// A path in the source.
pub struct Mention {
    pub module: ModuleId,
    pub path: UsePath,
    pub line: usize,
    pub kind: MentionKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MentionKind {
    /// `use a::b;`, or `use a::*;`; with any visibility of its own it hands the name on.
    Use { re_export: bool, glob: bool },
    /// In a type, an expression, a pattern, a bound, or the tokens of a macro.
    Path,
    /// The name of a macro that is invoked: it may come from a module further up, by textual scope.
    Macro,
}

impl Tree {
    /// Adds a module without names.
    pub fn add_module(
        &mut self,
        file: FileId,
        parent: Option<ModuleId>,
        children: PathBuf,
    ) -> ModuleId {
        let (names, globs) = (BTreeMap::new(), vec![]);
        self.modules.push(Module { file, parent, names, globs, children });
        self.modules.len() - 1
    }

    /// The module `mod name { … }` in `parent`. Two of one name, under different `cfg`, are taken as one.
    pub fn inline(&mut self, parent: ModuleId, name: &str) -> ModuleId {
        let file = self.modules[parent].file;
        let known = self.modules[parent].names.get(name).into_iter().flatten();
        for binding in known {
            if let Binding::Module(module) = binding
                && self.modules[*module].file == file
            {
                return *module;
            }
        }
        let children = self.modules[parent].children.join(name);
        let module = self.add_module(file, Some(parent), children);
        self.bind(parent, name, Binding::Module(module));
        module
    }

    pub fn bind(&mut self, module: ModuleId, name: &str, binding: Binding) {
        self.modules[module].names.entry(name.to_string()).or_default().push(binding);
    }

    /// The root of the crate that a module belongs to.
    pub fn root(&self, module: ModuleId) -> ModuleId {
        self.ancestors(module).last().unwrap_or(module)
    }

    /// The module itself, its parent, and so on up to the root.
    pub fn ancestors(&self, module: ModuleId) -> impl Iterator<Item = ModuleId> {
        std::iter::successors(Some(module), |module| self.modules[*module].parent)
    }
}
