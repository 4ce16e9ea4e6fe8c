//! Lists of layers in configurations: names, and expressions for names.

use std::collections::HashSet;

use regex::{RegexBuilder, RegexSet, RegexSetBuilder};

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
    names: HashSet<String>,
    expressions: RegexSet,
    /// The expressions as the configuration has them.
    sources: Vec<String>,
    parts: bool,
}

impl Patterns {
    /// Reads the list of a key, if there is one.
    pub(super) fn of(
        list: Option<Node<'_>>,
        dialect: Dialect,
        warnings: &mut Vec<String>,
    ) -> Result<Self, CheckpointError> {
        let Some(list) = list else { return Ok(Self::default()) };
        let (patterns, unread) = Self::new(&list, &list.texts()?, dialect)?;
        warnings.extend(unread.map(|unread| list.warning(&unread)));
        Ok(patterns)
    }

    /// Makes the list of these texts, which come from `node`. Expressions that cannot be read, such as those that look ahead, match nothing; the message
    /// beside the list names them.
    pub(super) fn new(
        node: &Node<'_>,
        texts: &[&str],
        dialect: Dialect,
    ) -> Result<(Self, Option<String>), CheckpointError> {
        let mut patterns = Self { parts: dialect != Dialect::Regexes, ..Self::default() };
        let (mut expressions, mut unread) = (vec![], vec![]);
        for text in texts {
            let expression = match dialect {
                Dialect::Regexes => match text.strip_prefix("re:") {
                    Some(expression) => Some(format!("^(?:{expression})")),
                    // The library sorts it as if it were one.
                    None => text.contains("re:").then(|| format!("^{}$", regex::escape(text))),
                },
                Dialect::Wildcards if text.contains('*') => {
                    Some(format!("^(?:{})$", regex::escape(text).replace("\\*", ".*")))
                }
                Dialect::Wildcards | Dialect::Parts => None,
            };
            match expression {
                None => drop(patterns.names.insert(text.to_string())),
                Some(_) if expressions.len() + unread.len() == MAX_EXPRESSIONS => {
                    return Err(node.error(format!("at most {MAX_EXPRESSIONS} expressions")));
                }
                Some(expression) if is_readable(&expression) => {
                    expressions.push(expression);
                    patterns.sources.push(text.to_string());
                }
                Some(_) => unread.push(*text),
            }
        }
        let set = RegexSetBuilder::new(&expressions).size_limit(MAX_COMPILED[1]).build();
        let needs_less = |_| node.error("expressions that need less memory to match");
        patterns.expressions = set.map_err(needs_less)?;
        let unread = (!unread.is_empty()).then(|| {
            format!("expressions that this reader cannot match: {}", text::some_names(unread))
        });
        Ok((patterns, unread))
    }

    /// What the list has for a layer: its name, for some methods also the first or last parts of it, or the first expression that matches.
    pub(super) fn first<'a>(&'a self, layer: &'a str) -> Option<&'a str> {
        let mut dots = layer.match_indices('.').map(|(place, _)| place);
        let has = |name: &str| self.names.contains(name);
        if has(layer) || self.parts && dots.any(|dot| has(&layer[..dot]) || has(&layer[dot + 1..]))
        {
            return Some(layer);
        }
        let first = self.expressions.matches(layer).iter().next()?;
        Some(&self.sources[first])
    }
}

fn is_readable(expression: &str) -> bool {
    expression.len() <= MAX_LENGTH
        && RegexBuilder::new(expression).size_limit(MAX_COMPILED[0]).build().is_ok()
}
