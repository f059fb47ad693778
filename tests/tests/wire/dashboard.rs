//! The expressions of the dashboard for Grafana: Prometheus can read them.

use std::{fs, path::Path, process::Command};

use fixtures::{must::Must, program};
use serde_json::{Value as Json, json};

/// All texts of a document in fields of this name.
fn texts<'a>(value: &'a Json, name: &str, found: &mut Vec<&'a str>) {
    match value {
        Json::Array(items) => items.iter().for_each(|item| texts(item, name, found)),
        Json::Object(fields) => {
            found.extend(fields.get(name).and_then(Json::as_str));
            fields.values().for_each(|field| texts(field, name, found));
        }
        _ => {}
    }
}

/// An expression with values in place of Grafana's variables.
fn filled_in(expression: &str) -> String {
    let expression = expression.replace("$__rate_interval", "5m");
    let mut parts = expression.split('$');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric() || letter == '_');
        filled += &format!("value{rest}");
    }
    filled
}

#[test]
fn prometheus_reads_all_expressions_of_the_dashboard() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/observability/dashboard.json");
    let dashboard: Json = serde_json::from_slice(&fs::read(path).must("the dashboard")).must("JSON");
    let mut expressions = Vec::new();
    texts(&dashboard, "expr", &mut expressions);
    assert!(expressions.len() > 30, "only {expressions:?}");
    let Some(promtool) = program::find("promtool") else { return };
    let rule = |(number, expression): (usize, &&str)| {
        let name = format!("dashboard:expression_{number}");
        json!({"record": name, "expr": filled_in(expression)})
    };
    let rules: Vec<Json> = expressions.iter().enumerate().map(rule).collect();
    let directory = tempfile::tempdir().must("a directory");
    // JSON is YAML.
    let file = directory.path().join("rules.yml");
    fs::write(&file, json!({"groups": [{"name": "dashboard", "rules": rules}]}).to_string()).must("the rules");
    let said = Command::new(promtool).args(["check", "rules"]).arg(&file).output().must("start promtool");
    let text = String::from_utf8_lossy(&said.stdout).into_owned() + &String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success() && text.contains(&format!("{} rules found", rules.len())), "{text}");
}

#[test]
fn variables_are_filled_in() {
    let expression = "rate(a{instance=~\"$instance\",job=~\"$nomad_job\"}[$__rate_interval])";
    assert_eq!(filled_in(expression), "rate(a{instance=~\"value\",job=~\"value\"}[5m])");
}
