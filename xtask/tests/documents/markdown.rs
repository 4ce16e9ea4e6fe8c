//! The repository's Markdown files, and what is in one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use markdown::ParseOptions;
use markdown::mdast::Node;

/// The repository's root.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies in the repository").to_owned()
}

/// The text of a file of the repository.
pub fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every Markdown file that git has or would take, from the root.
pub fn files() -> Vec<PathBuf> {
    let arguments = ["ls-files", "--cached", "--others", "--exclude-standard", "*.md"];
    let listed = Command::new("git").args(arguments).current_dir(root()).output().expect("git");
    let listed = String::from_utf8(listed.stdout).expect("names in UTF-8");
    let files: Vec<_> =
        listed.lines().map(PathBuf::from).filter(|file| root().join(file).exists()).collect();
    assert!(files.len() > 5, "{files:?}");
    files
}

/// What links lead to and come from.
#[derive(Debug, Default, PartialEq)]
pub struct Document {
    /// The targets of links and pictures.
    pub links: Vec<String>,
    /// The anchors of headings, as GitHub makes them.
    pub anchors: Vec<String>,
}

/// The links and anchors of a text.
pub fn parse(text: &str) -> Document {
    let mut document = Document::default();
    let tree = markdown::to_mdast(text, &ParseOptions::gfm()).expect("any text is Markdown");
    document.take(&tree);
    document
}

impl Document {
    fn take(&mut self, node: &Node) {
        match node {
            Node::Link(link) => self.links.push(link.url.clone()),
            Node::Image(image) => self.links.push(image.url.clone()),
            Node::Definition(definition) => self.links.push(definition.url.clone()),
            Node::Heading(_) => self.anchors.push(self.anchor(&node.to_string())),
            _ => {}
        }
        node.children().into_iter().flatten().for_each(|child| self.take(child));
    }

    /// In lower case, hyphens for spaces, without punctuation; numbered where it is there already.
    fn anchor(&self, title: &str) -> String {
        let is_kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        let anchor: String = title.to_lowercase().chars().filter(is_kept).collect();
        let anchor = anchor.replace(' ', "-");
        let mut numbered = (1..).map(|n| format!("{anchor}-{n}"));
        let is_new = |anchor: &String| !self.anchors.contains(anchor);
        if is_new(&anchor) { anchor } else { numbered.find(is_new).expect("numbers do not end") }
    }
}
