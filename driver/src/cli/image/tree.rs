//! `image tree`: the layers of all images, and which images share them.

use image_store::ImageUsage;
use serde_json::{Value, json};

use crate::cli::{
    failure::Failure,
    format,
    output::{Output, printable},
};

/// A layer on top of others, and what is on top of it.
#[derive(Debug, Default)]
struct Branch {
    diff_id: String,
    bytes: Option<u64>,
    /// The images whose last layer this is.
    images: Vec<String>,
    above: Vec<Branch>,
}

/// Runs the command.
pub fn run(images: &[ImageUsage], output: &Output) -> Result<(), Failure> {
    let roots = branches(images);
    if output.json {
        return Ok(output.value(&roots.iter().flat_map(flat).collect())?);
    }
    Ok(roots.iter().try_for_each(|root| lines(root).iter().try_for_each(|line| output.line(line)))?)
}

/// The branches that begin at the bottom.
fn branches(images: &[ImageUsage]) -> Vec<Branch> {
    let mut root = Branch::default();
    for image in images {
        let mut at = &mut root;
        for (layer, bytes) in image.record.layers.iter().zip(&image.layer_bytes) {
            let known = at.above.iter().position(|branch| branch.diff_id == layer.diff_id.as_str());
            let index = known.unwrap_or_else(|| {
                let diff_id = layer.diff_id.to_string();
                at.above.push(Branch { diff_id, bytes: *bytes, ..Branch::default() });
                at.above.len() - 1
            });
            at = &mut at.above[index];
        }
        at.images.push(image.record.reference.to_string());
    }
    root.above
}

/// The lines of a tree. No function calls itself: an image can have any number of layers.
fn lines(root: &Branch) -> Vec<String> {
    let mut lines = Vec::new();
    let mut waiting = vec![(root, String::new(), String::new())];
    while let Some((branch, first, rest)) = waiting.pop() {
        let size = branch.bytes.map_or_else(|| "missing".to_owned(), format::size);
        let images = if branch.images.is_empty() { String::new() } else { format!("  {}", branch.images.join(", ")) };
        lines.push(format!("{first}{}  {size}{}", format::short_digest(&branch.diff_id), printable(&images)));
        // A chain without a fork stays in its column.
        let forks = branch.above.len() > 1;
        for (index, above) in branch.above.iter().enumerate().rev() {
            let (first, below) = match (forks, index + 1 == branch.above.len()) {
                (false, _) => ("", ""),
                (true, false) => ("├─ ", "│  "),
                (true, true) => ("└─ ", "   "),
            };
            waiting.push((above, format!("{rest}{first}"), format!("{rest}{below}")));
        }
    }
    lines
}

/// The layers of a tree as JSON, each after the one below it.
fn flat(root: &Branch) -> Vec<Value> {
    let mut all = Vec::new();
    let mut waiting = vec![(root, None)];
    while let Some((branch, parent)) = waiting.pop() {
        all.push(json!({
            "layer": branch.diff_id, "parent": parent, "bytes": branch.bytes, "images": branch.images,
        }));
        waiting.extend(branch.above.iter().rev().map(|above| (above, Some(&branch.diff_id))));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::{Branch, lines};

    fn branch(diff_id: &str, images: &[&str], above: Vec<Branch>) -> Branch {
        let images = images.iter().map(|name| (*name).to_owned()).collect();
        Branch { diff_id: diff_id.to_owned(), bytes: Some(1), images, above }
    }

    #[test]
    fn shared_layers_are_printed_once() {
        let tree = branch(
            "base",
            &[],
            vec![branch("one", &["a:1"], vec![branch("two", &["a:2"], vec![])]), branch("other", &["b"], vec![])],
        );
        assert_eq!(lines(&tree), ["base  1 B", "├─ one  1 B  a:1", "│  two  1 B  a:2", "└─ other  1 B  b"]);
    }
}
