//! Which file of a package imports what from which: the arrows of the house.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::load::load;
use super::names::{Names, Target};
use super::tree::{FileId, Mention, MentionKind, ModuleId, Tree};

/// A package of the workspace: what to read of it.
pub struct Package {
    pub name: String,
    /// The folder of its sources; a room is what lies directly in it.
    pub source: PathBuf,
    /// The library's name in paths, and its root.
    pub library: Option<(String, PathBuf)>,
    /// The roots of its programs.
    pub programs: Vec<PathBuf>,
}

/// A package's files and what they take from each other.
pub struct Graph {
    pub package: String,
    /// The library's name in paths.
    pub library: Option<String>,
    pub files: Vec<File>,
    /// Between two files of the package, by importing and imported file.
    pub arrows: BTreeMap<(FileId, FileId), Taken>,
    /// From a file to another library of the workspace.
    pub outward: BTreeMap<(FileId, String), Taken>,
}

/// The names that an arrow takes, each with the first line that does.
pub type Taken = BTreeMap<String, usize>;

/// A source file.
pub struct File {
    pub path: PathBuf,
    pub room: String,
    pub lines: usize,
}

impl Graph {
    /// Reads a package. `root` is the folder to which the paths of files are given, `libraries` the names of all libraries of the
    /// workspace.
    pub fn read(package: &Package, root: &Path, libraries: &[String]) -> Result<Self> {
        let library = package.library.as_ref().map(|(name, path)| (name.as_str(), path.as_path()));
        let programs: Vec<&Path> = package.programs.iter().map(PathBuf::as_path).collect();
        let tree = load(library, &programs)?;
        let files = tree.files.iter().map(|file| File {
            path: file.path.strip_prefix(root).unwrap_or(&file.path).to_path_buf(),
            room: room(&package.source, &file.path),
            lines: file.lines,
        });
        let mut graph = Self {
            package: package.name.clone(),
            library: package.library.as_ref().map(|(name, _)| name.clone()),
            files: files.collect(),
            arrows: BTreeMap::new(),
            outward: BTreeMap::new(),
        };
        let names = Names { tree: &tree, libraries };
        for mention in &tree.mentions {
            for target in targets(&names, mention) {
                graph.add(&tree, mention, target);
            }
        }
        Ok(graph)
    }

    fn add(&mut self, tree: &Tree, mention: &Mention, target: Target) {
        let from = tree.modules[mention.module].file;
        let (taken, name) = match target {
            Target::Item { module, name } => {
                let to = tree.modules[module].file;
                if from == to || is_facade(tree, mention, module) {
                    return;
                }
                (self.arrows.entry((from, to)).or_default(), name)
            }
            Target::Crate { library, name } => {
                let name = if name.is_empty() { library.clone() } else { name };
                (self.outward.entry((from, library)).or_default(), name)
            }
            // The module's name alone takes nothing; what is taken out of it is a path of its own.
            Target::Module(_) | Target::Outside => return,
        };
        let line = taken.entry(name).or_insert(mention.line);
        *line = mention.line.min(*line);
    }
}

/// Whether a mention hands on what lies below its module (`mod a; pub use a::Name;`).
///
/// That is no arrow: such a line shows the room's inside at its door and uses nothing of it. Whoever imports the name is counted as
/// importing the file that defines it, and a `mod.rs` that also works with the name is counted for the line that does.
fn is_facade(tree: &Tree, mention: &Mention, defined_in: ModuleId) -> bool {
    matches!(mention.kind, MentionKind::Use { re_export: true, .. })
        && tree.ancestors(defined_in).any(|module| module == mention.module)
}

fn targets(names: &Names, mention: &Mention) -> Vec<Target> {
    let reached = match (mention.kind, mention.path.segments.as_slice()) {
        (MentionKind::Macro, [name]) => names.resolve_macro(mention.module, name),
        _ => names.resolve(mention.module, &mention.path),
    };
    let MentionKind::Use { glob: true, .. } = mention.kind else { return reached };
    let open = |target| match target {
        Target::Module(module) if !is_used(names, mention.module, module) => {
            Target::Item { module, name: "*".to_string() }
        }
        target => target,
    };
    reached.into_iter().map(open).collect()
}

/// Whether `user` mentions a name of `module`. Then those mentions are the arrows of a glob import; without any, a trait is imported for
/// its methods, and the glob itself is the arrow.
fn is_used(names: &Names, user: ModuleId, module: ModuleId) -> bool {
    names
        .tree
        .mentions
        .iter()
        .filter(|mention| mention.module == user && mention.kind == MentionKind::Path)
        .filter_map(|mention| mention.path.segments.first())
        .any(|name| names.shows(module, name))
}

/// The part of a package's sources that a file belongs to: what lies directly in `src`, without `.rs`.
fn room(source: &Path, file: &Path) -> String {
    let inside = file.strip_prefix(source).unwrap_or(file);
    let first = inside.components().next().map(|part| part.as_os_str().to_string_lossy());
    let first = first.unwrap_or_default();
    first.strip_suffix(".rs").unwrap_or(&first).to_string()
}
