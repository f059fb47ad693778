//! Jobs: files in `e2e/jobs`, with values for their variables.

use std::{fmt::Write as _, path::Path};

use serde_json::{Value, json};

use crate::{Context, Failure, Outcome, api::Api};

/// A job file and what is filled in.
///
/// Files are plain HCL that `nomad job run -var …` takes as well. The one addition: a comment line `# @config@` is replaced by
/// what [`Job::config`] was given.
#[derive(Debug, Clone)]
pub struct Job {
    file: String,
    variables: String,
    config: String,
}

impl Job {
    /// `e2e/jobs/<file>.nomad.hcl`.
    #[must_use]
    pub fn new(file: &str) -> Self {
        Self { file: file.to_owned(), variables: String::new(), config: String::new() }
    }

    /// Gives a variable a string.
    #[must_use]
    pub fn var(self, name: &str, value: &str) -> Self {
        self.set(name, &Value::from(value))
    }

    /// Gives a variable a list of strings.
    #[must_use]
    pub fn list(self, name: &str, values: &[&str]) -> Self {
        self.set(name, &Value::from(values))
    }

    /// Gives a variable a number.
    #[must_use]
    pub fn number(self, name: &str, value: i64) -> Self {
        self.set(name, &Value::from(value))
    }

    /// Adds lines to the task's `config` block.
    #[must_use]
    pub fn config(mut self, lines: &str) -> Self {
        self.config.push_str(lines);
        self.config.push('\n');
        self
    }

    fn set(mut self, name: &str, value: &Value) -> Self {
        // JSON strings, lists and numbers are HCL too, once HCL's interpolation is switched off.
        let literal = value.to_string().replace("${", "$${").replace("%{", "%%{");
        // Writing to a String cannot fail.
        writeln!(self.variables, "{name} = {literal}").ok();
        self
    }

    /// Registers the job under the id `id`; the answer is the evaluation's id.
    ///
    /// # Errors
    /// With Nomad's own words.
    pub fn register(&self, api: &Api, home: &Path, id: &str) -> Outcome<String> {
        let path = home.join("jobs").join(format!("{}.nomad.hcl", self.file));
        let text = std::fs::read_to_string(&path).context(path.display())?.replace("# @config@", &self.config);
        let request = json!({ "JobHCL": text, "Variables": self.variables, "Canonicalize": true });
        let mut job = api.put("/v1/jobs/parse", &request).context(&self.file)?;
        job["ID"] = Value::from(id);
        job["Name"] = Value::from(id);
        let answer = api.put("/v1/jobs", &json!({ "Job": job })).context(&self.file)?;
        let evaluation = answer["EvalID"].as_str();
        evaluation.map(str::to_owned).ok_or_else(|| Failure(format!("no evaluation in {answer}")))
    }
}
