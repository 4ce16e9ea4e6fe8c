//! The source of a template, where minijinja reads it otherwise than jinja2.

use anyhow::{Result, bail};
use minijinja::Value;
use minijinja::machinery::Span;

/// As jinja2 has line breaks, and without the marks around what the model says, `{% generation %}`, which transformers' trainers use: blocks with variables of
/// their own, with the same blanks around them.
pub(super) fn prepared(template: &str) -> String {
    let template = template.replace("\r\n", "\n").replace('\r', "\n");
    let (mut text, mut rest, mut raw) = (String::new(), &*template, false);
    // Comments and expressions may have the same marks, as texts.
    let ends = [("{%", "%}"), ("{{", "}}"), ("{#", "#}")];
    let next = |rest: &str, raw: bool| {
        let known = if raw { &ends[..1] } else { &ends };
        known.iter().filter_map(|ends| Some((rest.find(ends.0)?, *ends))).min()
    };
    while let Some((at, (open, close))) = next(rest, raw) {
        let (before, inner) = (&rest[..at], &rest[at + open.len()..]);
        let Some((tag, after)) = inner.split_once(close) else { break };
        rest = after;
        if open != "{%" {
            text.extend([before, open, tag, close]);
            continue;
        }
        let name = tag.trim_matches(['-', '+']).trim();
        let changed = match name {
            "generation" if !raw => tag.replace("generation", "with"),
            "endgeneration" if !raw => tag.replace("endgeneration", "endwith"),
            // jinja2 knows no such tag.
            "raw" if !raw && tag.ends_with('+') => tag.replace("raw", "raw+"),
            _ => tag.to_owned(),
        };
        text.extend([before, "{%", &changed, "%}"]);
        // jinja2 keeps the line break after this block, and minijinja takes one.
        if !raw && name == "raw" && after.starts_with('\n') && !tag.ends_with('-') {
            text.push('\n');
        }
        raw = name == "raw" || (raw && name != "endraw");
    }
    text + rest
}

/// Whether no parenthesis closes after this.
pub(super) fn is_bare(source: &str, span: Span) -> bool {
    !source[span.end_offset as usize..].trim_start().starts_with(')')
}

/// minijinja reads some escapes of texts otherwise than Python, and numbers that jinja2 does not read.
pub(super) fn check_literal(source: &str, span: Span, value: &Value) -> Result<()> {
    let literal = &source[span.start_offset as usize..span.end_offset as usize];
    if literal.starts_with(|first: char| first.is_ascii_digit()) {
        let is_zeros = literal.chars().all(|digit| matches!(digit, '0' | '_'));
        let is_octal = literal.len() > 1
            && literal.starts_with('0')
            && literal.chars().all(|digit| digit.is_ascii_digit() || digit == '_');
        let is_apart =
            ["__", "_.", "._", "_e", "_E", "e_", "E_"].iter().any(|apart| literal.contains(apart));
        let is_finite = f64::try_from(value.clone()).is_ok_and(f64::is_finite);
        if is_apart || literal.ends_with(['.', '_']) || (is_octal && !is_zeros) || !is_finite {
            bail!("line {}: the number {literal} is not known", span.start_line);
        }
    }
    let mut characters = literal.chars();
    while literal.starts_with(['"', '\''])
        && let Some(character) = characters.next()
    {
        let escaped = if character == '\\' { characters.next() } else { None };
        if let Some(escaped) =
            escaped.filter(|escaped| "/avNU\n".contains(*escaped) || !escaped.is_ascii())
        {
            bail!(
                "line {}: the escape \\{} is not known",
                span.start_line,
                escaped.escape_default()
            )
        }
    }
    Ok(())
}
