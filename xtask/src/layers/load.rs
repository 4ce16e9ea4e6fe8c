//! Finds the files of a package by its `mod` declarations and reads each into the tree.

use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};
use syn::visit::Visit;

use super::reader::Reader;
use super::tree::{Binding, Declared, File, Module, ModuleId, Tree};

/// Reads all modules of a library, if there is one, and of programs. The library comes with its name in paths.
pub fn load(library: Option<(&str, &Path)>, programs: &[&Path]) -> Result<Tree> {
    let mut tree = Tree::default();
    if let Some((name, root)) = library {
        let root = read(&mut tree, root, None, folder(root))?;
        tree.library = Some((name.to_string(), root));
    }
    for root in programs {
        read(&mut tree, root, None, folder(root))?;
    }
    while let Some(declared) = tree.declared.pop() {
        let (path, children) = find(&tree, &declared)?;
        let module = read(&mut tree, &path, Some(declared.parent), children)?;
        tree.bind(declared.parent, &declared.name, Binding::Module(module));
    }
    Ok(tree)
}

/// Reads a module from its file. `children` is the folder in which files of its child modules lie.
fn read(
    tree: &mut Tree,
    path: &Path,
    parent: Option<ModuleId>,
    children: PathBuf,
) -> Result<ModuleId> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the module {}", path.display()))?;
    let syntax =
        syn::parse_file(&text).with_context(|| format!("cannot parse {}", path.display()))?;
    // A file may be a module of two programs: it is still one file.
    let file = match tree.files.iter().position(|file| file.path == path) {
        Some(file) => file,
        None => {
            tree.files.push(File { path: path.to_path_buf(), lines: text.lines().count() });
            tree.files.len() - 1
        }
    };
    let module = tree.add_module(file, parent, children);
    Reader::new(tree, module).visit_file(&syntax);
    Ok(module)
}

/// Where a declared module lies, and the folder in which files of its child modules lie.
fn find(tree: &Tree, declared: &Declared) -> Result<(PathBuf, PathBuf)> {
    let Module { file, parent, children, .. } = &tree.modules[declared.parent];
    let declaring = &tree.files[*file].path;
    if let Some(path) = &declared.path {
        // It begins at the folder of the file, or inside `mod inline { … }` at the folder of that module.
        let is_inline = parent.is_some_and(|parent| tree.modules[parent].file == *file);
        let base = if is_inline { children.clone() } else { folder(declaring) };
        let path = normal(&base.join(path));
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

fn folder(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("")).to_path_buf()
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}
