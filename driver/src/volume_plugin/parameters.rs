//! The parameters of a volume, from `parameters` in its specification.

use std::{collections::BTreeMap, path::PathBuf};

use image_store::Reference;
use runtime::file_system::FileSystem;

use super::place::is_id;

/// The names of all parameters.
const NAMES: &str = "uid, gid, mode, fs, read_only, encryption, key_file, image, path, from";

/// Checked parameters. What is not given is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The owner of the volume's root directory.
    pub uid: Option<u32>,
    /// Its group.
    pub gid: Option<u32>,
    /// Its mode.
    pub mode: Option<u32>,
    /// The kind of the file system of a volume with a limit.
    pub file_system: Option<FileSystem>,
    /// Whether the volume is read-only once it is filled.
    pub read_only: bool,
    /// The file with the key, if the volume is encrypted.
    pub key_file: Option<PathBuf>,
    /// What a new volume is filled with.
    pub source: Option<Source>,
}

/// The content of a new volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// An image.
    Image {
        /// Its name.
        reference: Reference,
        /// The directory of it that is taken; without one, all of it.
        part: Option<PathBuf>,
    },
    /// The volume with this id.
    Volume(String),
}

impl Parameters {
    /// Reads the JSON object that Nomad makes of `parameters`, whose values are texts. The error names all wrong
    /// parameters. `is_limited`: the volume has a capacity.
    pub fn parse(text: &str, is_limited: bool) -> Result<Self, String> {
        let given: Option<BTreeMap<String, String>> =
            serde_json::from_str(text).map_err(|error| format!("DHV_PARAMETERS is no object of texts: {error}"))?;
        let (mut parameters, mut problems) = (Self::default(), Vec::new());
        let given = given.unwrap_or_default();
        // In the order of the alphabet, so `from` comes before `image`, and `image` before `path`.
        for (name, value) in &given {
            if let Err(problem) = parameters.set(name, value) {
                problems.push(format!("parameter {name}: {problem}"));
            }
        }
        match (given.contains_key("encryption"), given.contains_key("key_file")) {
            (true, false) => problems.push(
                "parameter encryption: give key_file, the absolute path of a file with a key that only root can read"
                    .to_owned(),
            ),
            (false, true) => problems.push("parameter key_file: give encryption = \"luks\"".to_owned()),
            _ => {}
        }
        let is_copy = matches!(parameters.source, Some(Source::Volume(_)));
        if given.contains_key("encryption") && !is_limited && !is_copy {
            let problem = "parameter encryption: a volume without a capacity is a directory of the node's file system: \
                           give capacity_max, or remove encryption";
            problems.push(problem.to_owned());
        }
        if parameters.file_system.is_some() && !is_limited {
            let problem = "parameter fs: a volume without a capacity is a directory of the node's file system: give \
                           capacity_max, or remove fs";
            problems.push(problem.to_owned());
        }
        if problems.is_empty() { Ok(parameters) } else { Err(problems.join("; ")) }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "uid" => self.uid = Some(id(value)?),
            "gid" => self.gid = Some(id(value)?),
            "mode" => self.mode = Some(mode(value)?),
            "fs" => self.file_system = Some(file_system(value)?),
            "read_only" => self.read_only = truth(value)?,
            "from" => {
                if !is_id(value) {
                    let remedy = "write the id of another volume of this plugin on this node";
                    return Err(format!("{value:?} is no id of a volume: {remedy}"));
                }
                self.source = Some(Source::Volume(value.to_owned()));
            }
            "image" => {
                if self.source.is_some() {
                    return Err("a volume is filled from an image or from a volume: remove image or from".to_owned());
                }
                let reference = value.parse().map_err(|error| format!("{error}"))?;
                self.source = Some(Source::Image { reference, part: None });
            }
            "path" => {
                let Some(Source::Image { part, .. }) = &mut self.source else {
                    return Err("it is a directory of an image: give the parameter image, or remove path".to_owned());
                };
                if value.is_empty() || value.contains('\0') {
                    return Err(format!("{value:?} is no path: write a directory of the image, such as \"/srv\""));
                }
                *part = Some(PathBuf::from(value));
            }
            "encryption" if value == "luks" => {}
            "encryption" => return Err(format!("{value:?} is no encryption of this plugin: write \"luks\"")),
            "key_file" => {
                if !value.starts_with('/') || value.contains('\0') {
                    return Err(format!("{value:?} is no absolute path: write that of a file on the node"));
                }
                self.key_file = Some(PathBuf::from(value));
            }
            _ => return Err(format!("there is no such parameter, but {NAMES}")),
        }
        Ok(())
    }
}

fn id(value: &str) -> Result<u32, String> {
    // The largest number means "no change" to the kernel.
    let id = value.parse().ok().filter(|id| *id < u32::MAX);
    id.ok_or_else(|| format!("{value:?} is no id: write a number, such as \"1000\""))
}

/// Nomad passes `true` and `false` without quotation marks as "1" and "0".
fn truth(value: &str) -> Result<bool, String> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(format!("{value:?} is neither \"true\" nor \"false\"")),
    }
}

fn mode(value: &str) -> Result<u32, String> {
    let digits = !value.is_empty() && value.chars().all(|digit| digit.is_digit(8));
    let mode = u32::from_str_radix(value, 8).ok().filter(|mode| digits && *mode <= 0o7777);
    mode.ok_or_else(|| format!("{value:?} is no mode: write octal digits, such as \"0750\""))
}

fn file_system(value: &str) -> Result<FileSystem, String> {
    let known = [FileSystem::Ext4, FileSystem::Xfs];
    let kind = known.into_iter().find(|kind| kind.name() == value);
    kind.ok_or_else(|| format!("{value:?} is no file system that this plugin makes: write \"ext4\" or \"xfs\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_texts_and_may_be_missing() {
        for text in ["null", "{}"] {
            assert_eq!(Parameters::parse(text, false), Ok(Parameters::default()));
        }
        let all = r#"{"uid": "1000", "gid": "0", "mode": "02770", "fs": "xfs", "path": "/srv",
            "image": "r.example/m:1", "read_only": "true", "encryption": "luks", "key_file": "/etc/key"}"#;
        let reference = "r.example/m:1".parse().unwrap();
        let expected = Parameters {
            uid: Some(1000),
            gid: Some(0),
            mode: Some(0o2770),
            file_system: Some(FileSystem::Xfs),
            read_only: true,
            key_file: Some("/etc/key".into()),
            source: Some(Source::Image { reference, part: Some("/srv".into()) }),
        };
        assert_eq!(Parameters::parse(all, true), Ok(expected));
        let id = "4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d01";
        let copy = Parameters { source: Some(Source::Volume(id.to_owned())), ..Parameters::default() };
        for (value, expected) in [("true", true), ("1", true), ("false", false), ("0", false)] {
            let parameters = Parameters::parse(&format!(r#"{{"read_only": "{value}"}}"#), false);
            assert_eq!(parameters.map(|parameters| parameters.read_only), Ok(expected), "{value}");
        }
        let text = format!(r#"{{"from": "{id}", "read_only": "false"}}"#);
        assert_eq!(Parameters::parse(&text, false), Ok(copy));
    }

    #[test]
    fn a_wrong_parameter_is_named_with_a_remedy() {
        for (text, parts) in [
            (r#"{"uid": "root"}"#, &["parameter uid: \"root\"", "write a number"][..]),
            (r#"{"gid": "-1"}"#, &["parameter gid"]),
            (r#"{"uid": "4294967295"}"#, &["parameter uid"]),
            (r#"{"mode": "0x7"}"#, &["parameter mode", "octal"]),
            (r#"{"mode": "+750"}"#, &["parameter mode"]),
            (r#"{"mode": ""}"#, &["parameter mode"]),
            (r#"{"mode": "10000"}"#, &["parameter mode"]),
            (r#"{"fs": "ntfs"}"#, &["parameter fs", "\"ext4\" or \"xfs\""]),
            (r#"{"fs": "ext4"}"#, &["parameter fs", "give capacity_max"]),
            (r#"{"encryption": "luks"}"#, &["parameter encryption: give key_file", "give capacity_max"]),
            (r#"{"encryption": "aes", "key_file": "/k"}"#, &["parameter encryption: \"aes\"", "write \"luks\""]),
            (r#"{"encryption": "luks", "key_file": "k"}"#, &["parameter key_file: \"k\" is no absolute path"]),
            (r#"{"key_file": "/k"}"#, &["parameter key_file: give encryption"]),
            (r#"{"size": "1G", "gid": "x"}"#, &["parameter size: there is no such parameter, but uid", "gid: \"x\""]),
            (r#"{"image": "a b"}"#, &["parameter image: invalid image reference \"a b\""]),
            (r#"{"image": "a", "path": ""}"#, &["parameter path", "write a directory of the image"]),
            (r#"{"from": "../x"}"#, &["parameter from: \"../x\" is no id", "on this node"]),
            (
                r#"{"from": "4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d01", "image": "a"}"#,
                &["parameter image", "remove image or from"],
            ),
            (r#"{"from": "4d9f3c3e-0f0e-4f5c-9a55-4a3c0e6b1d01", "path": "/"}"#, &["parameter path"]),
            (r#"{"read_only": "yes"}"#, &["parameter read_only: \"yes\" is neither"]),
            (r#"{"path": "/srv"}"#, &["parameter path", "give the parameter image"]),
            (r#"{"uid": 7}"#, &["DHV_PARAMETERS"]),
        ] {
            let error = Parameters::parse(text, false).unwrap_err();
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }
}
