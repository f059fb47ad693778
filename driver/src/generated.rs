//! Documents that tests compare with the code.
//!
//! Some parts of them are generated. Such a part stands between two comments, which name it. A test fails if its part
//! is out of date. With `OCI_RS_WRITE_DOCS=1` it writes the document instead.

use std::{env, fs, path::Path};

/// The widest line of a document.
const COLUMNS: usize = 120;

/// Compares parts of a document in `docs` with their texts, or writes them. A part is given by its name.
#[track_caller]
pub fn check(document: &str, parts: &[(&str, String)]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(document);
    let written = fs::read_to_string(&path).unwrap();
    let mut expected = written.clone();
    for (name, text) in parts {
        let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->"));
        let from = expected.find(&begin).unwrap() + begin.len();
        let to = expected.find(&end).unwrap();
        expected.replace_range(from..to, text);
    }
    if env::var_os("OCI_RS_WRITE_DOCS").is_some() {
        fs::write(&path, &expected).unwrap();
        return;
    }
    assert!(written == expected, "docs/{document} is out of date: run this test with OCI_RS_WRITE_DOCS=1");
}

/// The blocks of code in this language in the README and in `docs`, each with the name of its document.
pub fn blocks(language: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut documents = vec![root.join("README.md")];
    documents.extend(fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    let (begin, mut found) = (format!("```{language}\n"), Vec::new());
    for path in documents.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = fs::read_to_string(path).unwrap();
        let blocks = text.split(&begin).skip(1).filter_map(|rest| rest.split("```").next());
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        found.extend(blocks.map(|block| (name.to_string(), block.to_owned())));
    }
    found
}

/// The text in lines of at most 120 characters. All but the first begin with `indent`.
pub fn wrapped(indent: &str, text: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split_whitespace() {
        if !line.trim().is_empty() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push_str(&(line + "\n"));
            line = format!("{indent}{word}");
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines + &line + "\n"
}
