//! Which file of a package imports what from which: the arrows of the house.
//!
//! An arrow leads to the file that defines a name. Where another one hands the name on (`pub use`), and does not lie above the defining
//! one, an arrow leads there, too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::names::{Names, Target};
use super::source::{Kind, Mention, Source};

/// A package of the workspace: what to read of it.
pub struct Package {
    pub name: String,
    /// The folder of its sources; a room is what lies directly in it.
    pub source: PathBuf,
    /// The library's name in paths, and its root.
    pub library: Option<(String, PathBuf)>,
    /// The roots of its programs.
    pub programs: Vec<PathBuf>,
    /// The packages of the workspace that it is built with.
    pub imports: BTreeSet<String>,
}

/// A package's files and what they take from each other.
pub struct Graph {
    pub package: String,
    /// The packages of the workspace that it is built with.
    pub imports: BTreeSet<String>,
    pub files: Vec<File>,
    /// Between two files of the package, by importing and imported file.
    pub arrows: BTreeMap<(usize, usize), Taken>,
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
    /// Reads a package. `root` is the folder to which the paths of files are given.
    pub fn read(package: Package, root: &Path) -> Result<Self> {
        let source = Source::read(package.library.as_ref(), &package.programs)?;
        let files = source.files.iter().map(|(path, lines)| File {
            path: path.strip_prefix(root).unwrap_or(path).to_path_buf(),
            room: room(&package.source, path),
            lines: *lines,
        });
        let mut graph = Self {
            files: files.collect(),
            package: package.name,
            imports: package.imports,
            arrows: BTreeMap::new(),
        };
        let names = Names(&source);
        for mention in &source.mentions {
            for target in names.resolve(mention) {
                graph.add(&source, mention, target);
            }
        }
        Ok(graph)
    }

    fn add(&mut self, source: &Source, mention: &Mention, target: Target) {
        let from = source.modules[mention.module].file;
        // A module's name alone takes nothing; what is taken out of it is a path of its own.
        let Target::Item { module, name } = target else { return };
        let to = source.modules[module].file;
        if from != to && !is_facade(source, mention, module) {
            let taken = self.arrows.entry((from, to)).or_default();
            let line = taken.entry(name).or_insert(mention.line);
            *line = mention.line.min(*line);
        }
    }
}

/// Whether a mention hands on what lies below its module (`mod a; pub use a::Name;`).
///
/// That is no arrow: such a line shows the room's inside at its door and uses nothing of it. Whoever imports the name is counted as
/// importing the file that defines it, and a `mod.rs` that also works with the name is counted for the line that does.
fn is_facade(source: &Source, mention: &Mention, defined_in: usize) -> bool {
    mention.kind == Kind::ReExport
        && source.ancestors(defined_in).any(|module| module == mention.module)
}

/// The part of a package's sources that a file belongs to: what lies directly in `src`, without `.rs`.
fn room(source: &Path, file: &Path) -> String {
    let inside = file.strip_prefix(source).unwrap_or(file);
    let first = inside.components().next().map(|part| part.as_os_str().to_string_lossy());
    let first = first.unwrap_or_default();
    first.strip_suffix(".rs").unwrap_or(&first).to_string()
}
