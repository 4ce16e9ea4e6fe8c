//! Text that came from elsewhere, in messages.

/// Text of a file as a message holds it: on one line, what cannot be printed escaped as in Rust (`\u{1b}`), and at most `length` characters of
/// the text, the first and the last ones with `…` between them.
pub fn shown(text: &str, length: usize) -> String {
    let count = text.chars().count();
    let (start, end) = match count <= length {
        true => (count, 0),
        false => (length - length / 3, length / 3),
    };
    let mut shown = String::new();
    for (place, c) in text.chars().enumerate() {
        match c {
            _ if (start..count - end).contains(&place) => {
                if place == start {
                    shown.push('…');
                }
            }
            // Quotes and backslashes are printable.
            '"' | '\'' | '\\' => shown.push(c),
            c => shown.extend(c.escape_debug()),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(
            shown("a\u{1b}[31mb\n\t\u{202e}c\u{7f}", 40),
            "a\\u{1b}[31mb\\n\\t\\u{202e}c\\u{7f}"
        );
        assert_eq!(shown("block.0 \"größe\" 'x' C:\\ × 目", 40), "block.0 \"größe\" 'x' C:\\ × 目");
    }

    #[test]
    fn long_texts_keep_both_ends() {
        assert_eq!(shown("abcdefghi", 9), "abcdefghi");
        assert_eq!(shown("abcdefghij", 9), "abcdef…hij");
        assert_eq!(shown(&"ä".repeat(1 << 20), 80).chars().count(), 81);
    }
}
