//! Jobs from files and standard input.
//!
//! Only Nomad reads HCL. A file in HCL is converted by an installed `nomad`, which contacts no agent for that.

use std::{
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value as Json;

use super::failure::Failure;
use crate::nomad::job;

/// The file name of standard input.
const STDIN: &str = "-";

/// Variables of files in HCL, as for `nomad job run`.
pub struct Variables<'a> {
    /// `NAME=VALUE`
    pub values: &'a [String],
    /// Files with variables.
    pub files: &'a [PathBuf],
}

/// The jobs in files, each with the name of its file.
pub fn read_all(files: &[PathBuf], variables: &Variables) -> Result<Vec<(String, Json)>, Failure> {
    let mut all = Vec::new();
    for file in files {
        let failed = |problem: String| Failure::Failed(format!("{}: {problem}", file.display()));
        let bytes = read(file).map_err(|error| failed(error.to_string()))?;
        let json = if is_json(&bytes) { bytes } else { from_hcl(file, &bytes, variables).map_err(failed)? };
        let named = |job| (file.display().to_string(), job);
        all.extend(jobs(&json).map_err(failed)?.into_iter().map(named));
    }
    Ok(all)
}

fn read(file: &Path) -> std::io::Result<Vec<u8>> {
    if file.as_os_str() != STDIN {
        return fs::read(file);
    }
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn is_json(bytes: &[u8]) -> bool {
    matches!(bytes.trim_ascii_start().first(), Some(b'{' | b'['))
}

/// The jobs of a document: a job, a list of jobs, or a request for the API, which has a job in `Job`.
fn jobs(bytes: &[u8]) -> Result<Vec<Json>, String> {
    let document: Json = serde_json::from_slice(bytes).map_err(|error| format!("is not JSON: {error}"))?;
    let all = match document {
        Json::Array(items) => items,
        single => vec![single],
    };
    let job = |mut json: Json| {
        let job = if json["Job"].is_object() { json["Job"].take() } else { json };
        let problem = "is not a job as Nomad's API has it; `nomad job run -output FILE` prints it in that form";
        if job::is_job(&job) { Ok(job) } else { Err(problem.to_owned()) }
    };
    all.into_iter().map(job).collect()
}

/// The JSON of a file in HCL.
fn from_hcl(file: &Path, bytes: &[u8], variables: &Variables) -> Result<Vec<u8>, String> {
    let mut command = Command::new("nomad");
    command.args(["job", "run", "-output"]);
    command.args(variables.values.iter().flat_map(|value| ["-var", value]));
    for file in variables.files {
        command.arg("-var-file").arg(file);
    }
    // The file's own path, because its functions may name other files relative to it.
    command.arg(file).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let missing = |error| format!("is HCL, which only Nomad reads, and `nomad` cannot be executed: {error}");
    let mut child = command.spawn().map_err(missing)?;
    let written = match child.stdin.take() {
        Some(mut stdin) if file.as_os_str() == STDIN => stdin.write_all(bytes),
        _ => Ok(()),
    };
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("`nomad job run -output`: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    written.map_err(|error| error.to_string())?;
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{is_json, jobs};

    #[test]
    fn jobs_are_found_in_every_form() {
        let job = json!({ "ID": "a", "TaskGroups": [] });
        for (document, number) in [
            (job.clone(), 1),
            (json!({ "Job": job }), 1),
            (json!([job, { "Job": job, "EvalPriority": 0 }]), 2),
            (json!([]), 0),
        ] {
            assert_eq!(jobs(document.to_string().as_bytes()).unwrap(), vec![job.clone(); number]);
        }
    }

    #[test]
    fn other_documents_are_refused() {
        for text in ["{", "{}", r#"{"job": {"a": {}}}"#, r#"[{"ID": "a"}]"#, "3"] {
            assert!(jobs(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn json_is_told_from_hcl() {
        assert!(is_json(b" \n{}") && is_json(b"[]"));
        assert!(!is_json(b"job \"a\" {}") && !is_json(b"# {}\n") && !is_json(b""));
    }
}
