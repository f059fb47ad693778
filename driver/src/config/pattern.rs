//! Patterns with `*` in the operator's lists.

/// Whether a text matches a pattern. `*` matches any characters, including `/`.
pub fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, tail)) = pattern.split_once('*') else { return pattern == text };
    let Some(rest) = text.strip_prefix(head) else { return false };
    (0..=rest.len()).any(|skipped| rest.get(skipped..).is_some_and(|rest| matches(tail, rest)))
}

/// Whether a text matches at least one pattern.
pub fn any_matches(patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, text))
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn star_matches_any_characters() {
        for (pattern, text, expected) in [
            ("job_name", "job_name", true),
            ("job_name", "job_id", false),
            ("job*", "job_id", true),
            ("*", "anything", true),
            ("*_name", "node_name", true),
            ("n*e_n*e", "node_name", true),
            ("*_name", "node_id", false),
            ("seccomp=/etc/*.json", "seccomp=/etc/a/b.json", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }
}
