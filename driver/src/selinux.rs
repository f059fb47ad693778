//! SELinux on this node: the labels that its policy has for containers.
//!
//! The kernel and the policy are asked once, when the node is opened. Without SELinux nothing else is read.

use std::{fs, io, path::Path};

use crate::plan::ContainerLabels;

/// The file system of SELinux. It exists on kernels that use it.
const FILE_SYSTEM: &str = "/sys/fs/selinux";

/// The node's configuration, which names the policy.
const CONFIGURATION: &str = "/etc/selinux";

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finding {
    /// The kernel uses SELinux.
    pub used: bool,
    /// The labels of containers.
    pub labels: Option<ContainerLabels>,
    /// Why there are none although the kernel uses SELinux and the operator wants labels.
    pub problem: Option<String>,
}

/// Finds the labels of containers. Blocks.
pub fn find(enabled: bool) -> Finding {
    let used = Path::new(FILE_SYSTEM).join("enforce").exists();
    if !enabled || !used {
        return Finding { used, ..Finding::default() };
    }
    match labels() {
        Ok(labels) => Finding { used, labels: Some(labels), problem: None },
        Err(problem) => Finding { used, ..Finding::default() }.without_labels(problem),
    }
}

impl Finding {
    /// Tasks get no labels, for this reason.
    pub fn without_labels(self, problem: String) -> Self {
        tracing::warn!(problem, "tasks run without SELinux labels");
        Self { labels: None, problem: Some(problem), ..self }
    }
}

fn labels() -> Result<ContainerLabels, String> {
    let policy = fs::read_to_string(Path::new(CONFIGURATION).join("config")).unwrap_or_default();
    let policy = setting(&policy, "SELINUXTYPE").unwrap_or("targeted").to_owned();
    let path = Path::new(CONFIGURATION).join(policy).join("contexts/lxc_contexts");
    let missing = |error: &dyn std::fmt::Display| {
        format!("{}: {error}; the package `container-selinux` has the policy for containers", path.display())
    };
    let contexts = fs::read_to_string(&path).map_err(|error| missing(&error))?;
    let labels = parse(&contexts).ok_or_else(|| missing(&"it names no labels for `process` and `file`"))?;
    let levels = fs::read_to_string(Path::new(FILE_SYSTEM).join("mls")).is_ok_and(|text| text.trim() == "1");
    let labels = ContainerLabels { categories: levels && labels.categories, ..labels };
    let pair = if labels.categories { ":c0,c1023" } else { "" };
    for label in [&labels.process, &labels.file] {
        check(&format!("{label}{pair}")).map_err(|error| format!("the policy has no label {label}{pair}: {error}"))?;
    }
    Ok(labels)
}

/// Asks the kernel whether its policy has a label.
fn check(label: &str) -> io::Result<()> {
    fs::write(Path::new(FILE_SYSTEM).join("context"), label)
}

/// The labels in a file `lxc_contexts`.
fn parse(contexts: &str) -> Option<ContainerLabels> {
    let label = |name: &str| setting(contexts, name).map(str::to_owned).filter(|label| label.matches(':').count() >= 2);
    let (process, file) = (label("process")?, label("file")?);
    // The third colon begins the level, the fourth one its categories.
    let categories = [&process, &file].iter().all(|label| label.matches(':').count() == 3);
    Some(ContainerLabels { process, file, categories })
}

/// The value of `name=value` or `name = "value"`.
fn setting<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let mut values = lines.filter_map(|line| line.split_once('=')).filter(|(key, _)| key.trim() == name);
    values.next().map(|(_, value)| value.trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_labels_are_those_of_the_policy() {
        let contexts = "# comment\nprocess = \"system_u:system_r:container_t:s0\"\n\
                        content = \"u:object_r:virt_var_lib_t:s0\"\nfile = \"system_u:object_r:container_file_t:s0\"\n";
        let labels = parse(contexts).expect("labels");
        assert_eq!(labels.process, "system_u:system_r:container_t:s0");
        assert_eq!(labels.file, "system_u:object_r:container_file_t:s0");
        assert!(labels.categories);
        for (text, expected) in [
            ("process=u:r:t:s0\nfile=u:r:t:s0\n", Some(true)),
            ("process=u:r:t\nfile=u:r:t\n", Some(false)),
            ("process=u:r:t:s0:c1\nfile=u:r:t:s0\n", Some(false)),
            ("process=u:r:t:s0\n", None),
            ("process=t\nfile=u:r:t:s0\n", None),
            ("", None),
        ] {
            assert_eq!(parse(text).map(|labels| labels.categories), expected, "{text}");
        }
        assert_eq!(setting("SELINUX=permissive\nSELINUXTYPE=default\n", "SELINUXTYPE"), Some("default"));
    }
}
