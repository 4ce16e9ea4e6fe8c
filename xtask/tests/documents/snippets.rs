//! Code blocks are whole as a reader sees them: GitHub and crates.io show the lines that rustdoc hides.

use markdown::ParseOptions;
use markdown::mdast::Node;

use crate::markdown::{files, read};

/// The lines of Rust blocks that rustdoc hides, and how many blocks there are.
fn hidden_lines(text: &str) -> (Vec<String>, usize) {
    let tree = markdown::to_mdast(text, &ParseOptions::gfm()).expect("any text is Markdown");
    let (mut hidden, mut blocks) = (vec![], 0);
    let mut next = vec![&tree];
    while let Some(node) = next.pop() {
        next.extend(node.children().into_iter().flatten());
        let Node::Code(code) = node else { continue };
        if code.lang.as_deref().is_some_and(|language| language.starts_with("rust")) {
            blocks += 1;
            let is_hidden = |line: &&str| line.trim() == "#" || line.trim().starts_with("# ");
            hidden.extend(code.value.lines().filter(is_hidden).map(String::from));
        }
    }
    (hidden, blocks)
}

#[test]
fn no_line_of_a_snippet_is_hidden() {
    let (mut all, mut faults) = (0, vec![]);
    for file in files() {
        let (hidden, blocks) = hidden_lines(&read(&file));
        all += blocks;
        faults.extend(hidden.iter().map(|line| format!("{}: {line}", file.display())));
    }
    assert!(all > 20, "{all} blocks");
    assert!(faults.is_empty(), "write these snippets whole:\n{}", faults.join("\n"));
}

#[test]
fn hidden_lines_are_found() {
    let text = "```rust,no_run\n# use a::b;\n#[test]\nlet c = 1; # no\n    # hidden\n#\n```\n\n```sh\n# a comment\n```\n";
    let expected = ["# use a::b;", "    # hidden", "#"].map(String::from);
    assert_eq!(hidden_lines(text), (expected.into(), 1));
}
