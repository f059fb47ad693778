//! `${…}` in texts of a job.

use std::collections::BTreeMap;

/// The text with its variables replaced, or the unknown ones.
pub fn interpolate(text: &str, known: &BTreeMap<String, String>) -> Result<String, Vec<String>> {
    let (mut result, mut unknown, mut rest) = (String::new(), Vec::new(), text);
    while let Some(start) = rest.find("${") {
        if rest[..start].ends_with('$') {
            // `$${` stands for `${`.
            result.push_str(&rest[..start]);
            result.push('{');
            rest = &rest[start + 2..];
            continue;
        }
        let Some(length) = end_of_expression(&rest[start + 2..]) else { break };
        let expression = &rest[start + 2..start + 2 + length];
        result.push_str(&rest[..start]);
        match known.get(variable(expression)) {
            Some(value) => result.push_str(value),
            None => unknown.push(format!("${{{expression}}}")),
        }
        rest = &rest[start + length + 3..];
    }
    result.push_str(rest);
    if rest.contains("%{") {
        unknown.push(rest.to_owned());
    }
    if unknown.is_empty() { Ok(result) } else { Err(unknown) }
}

/// The position of the brace that closes an expression.
fn end_of_expression(text: &str) -> Option<usize> {
    let (mut depth, mut quoted) = (0_usize, false);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            b'{' if !quoted => depth += 1,
            b'}' if !quoted && depth == 0 => return Some(index),
            b'}' if !quoted => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The name of the variable in an expression: `NAME` or `env["NAME"]`.
fn variable(expression: &str) -> &str {
    let expression = expression.trim();
    let quoted = expression.strip_prefix("env[\"").and_then(|rest| rest.strip_suffix("\"]"));
    quoted.unwrap_or(expression)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::interpolate;

    #[test]
    fn variables_are_replaced_or_named() {
        let known = BTreeMap::from([("NOMAD_TASK_DIR", "/local"), ("A", "1")]);
        let known = known.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        for (text, expected) in [
            ("plain", Ok("plain".to_owned())),
            ("${NOMAD_TASK_DIR}/x:${ A }", Ok("/local/x:1".to_owned())),
            ("${env[\"A\"]}", Ok("1".to_owned())),
            ("$${A} $5", Ok("${A} $5".to_owned())),
            ("${A}${meta.disk}${upper(\"}\")}", Err(vec!["${meta.disk}".to_owned(), "${upper(\"}\")}".to_owned()])),
            ("${open", Ok("${open".to_owned())),
            ("%{ if true }a%{ endif }", Err(vec!["%{ if true }a%{ endif }".to_owned()])),
        ] {
            assert_eq!(interpolate(text, &known), expected, "{text}");
        }
    }
}
