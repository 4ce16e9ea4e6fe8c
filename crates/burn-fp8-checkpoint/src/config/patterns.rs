//! Lists of layers in configurations: names, and expressions for names.

use std::collections::HashSet;

use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

use super::node::Node;
use crate::error::CheckpointError;
use crate::text;

/// The most expressions of a list. Published models have a handful.
const MAX_EXPRESSIONS: usize = 256;

/// The longest expression in bytes: what is parsed takes memory in proportion.
const MAX_LENGTH: usize = 1024;

/// The most memory of a compiled expression, and of all of a list, in bytes: they bound what is done for each byte of a name.
const MAX_COMPILED: [usize; 2] = [1 << 16, 1 << 18];

/// How a method means its lists.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// compressed-tensors: whole names, and `re:` before an expression that a name begins with, as Python's `re.match`.
    Regexes,
    /// ModelOpt: names with `*` for any text; what lies below a named module is in it, too.
    Wildcards,
    /// `fp8`: names of modules, the first or the last parts of a layer's name: `lm_head`, `gate`, `model.layers.0`.
    Parts,
}

/// A list of layers.
#[derive(Debug, Default)]
pub(crate) struct Patterns {
    exact: HashSet<String>,
    expressions: Option<RegexSet>,
    parts: bool,
}

impl Patterns {
    /// Reads a list. Expressions that cannot be read, such as those that look ahead, match nothing and add to `warnings`.
    pub(super) fn read(
        node: &Node<'_>,
        dialect: Dialect,
        warnings: &mut Vec<String>,
    ) -> Result<Self, CheckpointError> {
        let mut patterns = Self { parts: dialect != Dialect::Regexes, ..Self::default() };
        let (mut expressions, mut unread) = (vec![], vec![]);
        for pattern in node.texts()? {
            let expression = match dialect {
                Dialect::Regexes => pattern.strip_prefix("re:").map(|e| format!("^(?:{e})")),
                Dialect::Wildcards if pattern.contains('*') => {
                    Some(format!("^(?:{})$", regex::escape(pattern).replace("\\*", ".*")))
                }
                Dialect::Wildcards | Dialect::Parts => None,
            };
            match expression {
                None => drop(patterns.exact.insert(pattern.to_owned())),
                Some(expression) if expressions.len() + unread.len() < MAX_EXPRESSIONS => {
                    match compiled(&expression) {
                        Some(_) => expressions.push(expression),
                        None => unread.push(pattern),
                    }
                }
                Some(_) => {
                    let expected = format!("at most {MAX_EXPRESSIONS} expressions");
                    return Err(node.error(expected));
                }
            }
        }
        if !unread.is_empty() {
            let unread = text::some_names(unread);
            warnings.push(
                node.warning(&format!("expressions that this reader cannot match: {unread}")),
            );
        }
        let set = RegexSetBuilder::new(&expressions).size_limit(MAX_COMPILED[1]).build();
        let set = set.map_err(|_| node.error("expressions that need less memory to match"))?;
        patterns.expressions = (!expressions.is_empty()).then_some(set);
        Ok(patterns)
    }

    /// Whether the list has the name itself, or for some methods the first or last parts of it.
    pub(super) fn names(&self, layer: &str) -> bool {
        if self.exact.contains(layer) {
            return true;
        }
        let mut dots = layer.match_indices('.').map(|(place, _)| place);
        self.parts
            && dots.any(|dot| {
                self.exact.contains(&layer[..dot]) || self.exact.contains(&layer[dot + 1..])
            })
    }

    /// Whether an expression of the list matches the name.
    pub(super) fn matches(&self, layer: &str) -> bool {
        self.expressions.as_ref().is_some_and(|expressions| expressions.is_match(layer))
    }

    /// Whether the list has this name, of a layer or of a class.
    pub(super) fn has(&self, name: &str) -> bool {
        self.exact.contains(name)
    }
}

fn compiled(expression: &str) -> Option<Regex> {
    if expression.len() > MAX_LENGTH {
        return None;
    }
    RegexBuilder::new(expression).size_limit(MAX_COMPILED[0]).build().ok()
}
