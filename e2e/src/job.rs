//! Jobs: files in `e2e/jobs` and `examples`, with values for their variables.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{Context, Failure, Outcome, api::Api};

/// A job file, and the values for its variables.
///
/// A file is plain HCL, and `nomad job run -var …` accepts it too. There is one addition: [`Job::config`] replaces the
/// comment `# @config@`.
#[derive(Debug, Clone)]
pub struct Job {
    /// Absolute, or relative to `e2e/`.
    file: PathBuf,
    variables: String,
    config: String,
    driver: Option<String>,
}

impl Job {
    /// `e2e/jobs/<file>.nomad.hcl`.
    #[must_use]
    pub fn new(file: &str) -> Self {
        Self::in_directory("jobs", file)
    }

    /// `examples/<file>.nomad.hcl`.
    #[must_use]
    pub fn example(file: &str) -> Self {
        Self::in_directory("../examples", file)
    }

    /// A job file outside `e2e/`.
    #[must_use]
    pub fn at(file: &Path) -> Self {
        Self { file: file.to_owned(), variables: String::new(), config: String::new(), driver: None }
    }

    fn in_directory(directory: &str, file: &str) -> Self {
        Self::at(&Path::new(directory).join(format!("{file}.nomad.hcl")))
    }

    /// Lets the tasks with the driver `oci-rs` have another one.
    #[must_use]
    pub fn driver(mut self, name: &str) -> Self {
        self.driver = Some(name.to_owned());
        self
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
        // A JSON value is valid HCL after its interpolation sequences are escaped.
        let literal = value.to_string().replace("${", "$${").replace("%{", "%%{");
        // Writing to a `String` never fails.
        writeln!(self.variables, "{name} = {literal}").ok();
        self
    }

    /// Registers the job under this id. Returns the id of the evaluation.
    ///
    /// # Errors
    /// With Nomad's error.
    pub fn register(&self, api: &Api, home: &Path, id: &str) -> Outcome<String> {
        let path = home.join(&self.file);
        let text = std::fs::read_to_string(&path).context(path.display())?.replace("# @config@", &self.config);
        let text = self.driver.as_ref().map_or_else(|| text.clone(), |driver| with_driver(&text, driver));
        let request = json!({ "JobHCL": text, "Variables": self.variables, "Canonicalize": true });
        let mut job = api.put("/v1/jobs/parse", &request).context(self.file.display())?;
        job["ID"] = Value::from(id);
        job["Name"] = Value::from(id);
        let answer = api.put("/v1/jobs", &json!({ "Job": job })).context(self.file.display())?;
        let evaluation = answer["EvalID"].as_str();
        evaluation.map(str::to_owned).ok_or_else(|| Failure(format!("no evaluation in {answer}")))
    }
}

/// The text with another driver in place of `oci-rs`.
fn with_driver(text: &str, driver: &str) -> String {
    let line = |line: &str| match line.trim_start().starts_with("driver ") {
        true => line.replace("\"oci-rs\"", &format!("\"{driver}\"")),
        false => line.to_owned(),
    };
    text.lines().map(|text| line(text) + "\n").collect()
}
