//! What the Markdown files say is so: their links lead somewhere, and their figures are those of the JSON beside them.

mod figures;
mod links;
mod markdown;
mod readme;
mod snippets;
