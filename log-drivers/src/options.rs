//! The options of a log driver as checked values, before the container is known.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use crate::{
    address::Address,
    attributes::Attributes,
    delivery::{ContainerFacts, Delivery, Destination, Mode},
    error::OptionError,
    fluentd::{self, Fluentd},
    gelf::{self, Gelf},
    journald::{self, Journald},
    syslog::{self, Syslog},
    template::Template,
    values,
};

/// The names of the drivers.
pub const DRIVERS: [&str; 4] = ["syslog", "journald", "gelf", "fluentd"];

/// The options that every driver has.
const COMMON: [&str; 3] = ["mode", "max-buffer-size", "tag"];
/// Docker's options for the copy that `docker logs` reads. They have no meaning where Nomad collects the output.
const CACHE: [&str; 4] = ["cache-disabled", "cache-max-size", "cache-max-file", "cache-compress"];
/// Docker's default of `max-buffer-size`.
const MAX_BUFFER_SIZE: u64 = 1_000_000;
const DEFAULT_TAG: &str = "{{.ID}}";

/// A socket or another file of the node that the delivery opens with the rights of root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFile {
    /// The option that names it.
    pub option: &'static str,
    /// Its path.
    pub path: PathBuf,
    /// Docker has the option too.
    pub is_dockers: bool,
}

impl NodeFile {
    fn new(option: &'static str, path: &Path) -> Self {
        Self { option, path: path.to_owned(), is_dockers: true }
    }

    /// Whether the path is only a detour to another one.
    pub fn has_parent_component(&self) -> bool {
        self.path.components().any(|component| component == Component::ParentDir)
    }
}

/// The checked options of one log driver.
#[derive(Debug, Clone, PartialEq)]
pub struct LogOptions {
    mode: Mode,
    /// Without what follows from the container.
    destination: Destination,
    tag: Template,
    attributes: Attributes,
}

impl LogOptions {
    /// Checks the options of the driver `name`. `None` if it is none of [`DRIVERS`].
    pub fn read(name: &str, options: &BTreeMap<String, String>) -> Option<Result<Self, Vec<OptionError>>> {
        let mut errors = Vec::new();
        let (own, destination): (&[&str], _) = match name {
            "syslog" => (&syslog::OPTIONS, Destination::Syslog(Syslog::read(options, &mut errors))),
            "gelf" => (&gelf::OPTIONS, Destination::Gelf(Gelf::read(options, &mut errors))),
            "fluentd" => (&fluentd::OPTIONS, Destination::Fluentd(Fluentd::read(options, &mut errors))),
            "journald" => (&journald::OPTIONS, Destination::Journald(Journald::read(options, &mut errors))),
            _ => return None,
        };
        let known: Vec<&str> = own.iter().copied().chain(COMMON).chain(Attributes::OPTIONS).collect();
        let is_known = |option: &str| known.contains(&option) || CACHE.contains(&option);
        for unknown in options.keys().filter(|option| !is_known(option)) {
            let remedy = format!("remove it; the driver's options are {}", known.join(", "));
            errors.push(OptionError::new(unknown, format!("is no option of the log driver {name}"), remedy));
        }
        let read = Self {
            mode: mode(options, &mut errors),
            destination,
            tag: tag(options, &mut errors),
            attributes: Attributes::read(options, &mut errors),
        };
        Some(if errors.is_empty() { Ok(read) } else { Err(errors) })
    }

    /// The name of the driver.
    pub fn driver(&self) -> &'static str {
        match self.destination {
            Destination::Syslog(_) => "syslog",
            Destination::Gelf(_) => "gelf",
            Destination::Fluentd(_) => "fluentd",
            Destination::Journald(_) => "journald",
        }
    }

    /// The files of the node that the options name, without those that the drivers use by default.
    pub fn node_files(&self) -> Vec<NodeFile> {
        let socket = |option, address: &Address| match address {
            Address::Unix(path) | Address::Unixgram(path) => Some(NodeFile::new(option, path)),
            Address::Udp(_) | Address::Tcp(_) | Address::Tls(_) => None,
        };
        match &self.destination {
            Destination::Syslog(syslog) => {
                let address = syslog.address.as_ref().and_then(|address| socket("syslog-address", address));
                let tls = [
                    ("syslog-tls-ca-cert", &syslog.tls.authorities),
                    ("syslog-tls-cert", &syslog.tls.certificate),
                    ("syslog-tls-key", &syslog.tls.key),
                ];
                let tls = tls.into_iter().filter_map(|(option, path)| Some(NodeFile::new(option, path.as_deref()?)));
                address.into_iter().chain(tls).collect()
            }
            Destination::Fluentd(fluentd) => socket("fluentd-address", &fluentd.address).into_iter().collect(),
            Destination::Journald(journald) if !journald.is_default_socket() => {
                vec![NodeFile { is_dockers: false, ..NodeFile::new("journald-socket", &journald.socket) }]
            }
            Destination::Journald(_) | Destination::Gelf(_) => Vec::new(),
        }
    }

    /// The delivery of the output of one container.
    pub fn delivery(&self, container: &ContainerFacts) -> Result<Delivery, OptionError> {
        let extra = self.attributes.select(container);
        let tag = self.tag.render(container, &extra).map_err(wrong_tag)?;
        let hostname = container.hostname.clone();
        let destination = match self.destination.clone() {
            Destination::Syslog(syslog) => {
                Destination::Syslog(Syslog { tag: syslog::header_field(&tag), hostname, ..syslog })
            }
            Destination::Gelf(gelf) => {
                Destination::Gelf(Gelf { hostname, extra: gelf_fields(container, tag, extra), ..gelf })
            }
            Destination::Fluentd(fluentd) => {
                let own = [("container_id", container.id.clone()), ("container_name", format!("/{}", container.name))];
                let mut record: BTreeMap<String, String> =
                    own.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
                record.extend(extra);
                Destination::Fluentd(Fluentd { tag, record, ..fluentd })
            }
            Destination::Journald(journald) => {
                Destination::Journald(Journald { fields: journal_fields(container, tag, extra), ..journald })
            }
        };
        let mode = match (&destination, self.mode) {
            (Destination::Fluentd(fluentd), Mode::Blocking) if fluentd.asynchronous => {
                Mode::NonBlocking { max_buffer_size: fluentd.buffer_limit }
            }
            (_, mode) => mode,
        };
        Ok(Delivery { mode, destination })
    }
}

/// The fields of a GELF message that tell of the container. A label or variable of the same name overrides.
fn gelf_fields(container: &ContainerFacts, tag: String, extra: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let own = [
        ("_container_id", container.id.clone()),
        ("_container_name", container.name.clone()),
        ("_image_id", container.image_id.clone()),
        ("_image_name", container.image_name.clone()),
        ("_command", container.command.join(" ")),
        ("_tag", tag),
    ];
    let mut fields: BTreeMap<String, String> = own.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    let named = |name: String| if name.starts_with('_') { name } else { format!("_{name}") };
    fields.extend(extra.into_iter().map(|(name, value)| (named(name), value)));
    fields
}

/// The fields of a journal entry that tell of the container.
fn journal_fields(
    container: &ContainerFacts,
    tag: String,
    extra: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let own = [
        ("CONTAINER_ID", container.id.chars().take(12).collect()),
        ("CONTAINER_ID_FULL", container.id.clone()),
        ("CONTAINER_NAME", container.name.clone()),
        ("CONTAINER_TAG", tag.clone()),
        ("IMAGE_NAME", container.image_name.clone()),
        ("SYSLOG_IDENTIFIER", tag),
    ];
    let mut fields: BTreeMap<String, String> = own.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
    fields.extend(extra.into_iter().filter_map(|(name, value)| Some((journald::field_name(&name)?, value))));
    fields
}

fn mode(options: &BTreeMap<String, String>, errors: &mut Vec<OptionError>) -> Mode {
    let blocking = match options.get("mode").map(String::as_str) {
        None | Some("" | "blocking") => true,
        Some("non-blocking") => false,
        Some(other) => {
            let remedy = "write blocking or non-blocking";
            errors.push(OptionError::new("mode", format!("{other:?} is no mode"), remedy));
            return Mode::Blocking;
        }
    };
    let Some(limit) = options.get("max-buffer-size") else {
        return if blocking { Mode::Blocking } else { Mode::NonBlocking { max_buffer_size: MAX_BUFFER_SIZE } };
    };
    if blocking {
        let remedy = "add mode = \"non-blocking\", or remove it";
        errors.push(OptionError::new("max-buffer-size", "needs the mode non-blocking", remedy));
        return Mode::Blocking;
    }
    Mode::NonBlocking { max_buffer_size: values::buffer("max-buffer-size", limit, MAX_BUFFER_SIZE, errors) }
}

/// The template of the tag. It is tried out with a container without properties, so that all its names are checked.
fn tag(options: &BTreeMap<String, String>, errors: &mut Vec<OptionError>) -> Template {
    let text = options.get("tag").map(String::as_str).filter(|text| !text.is_empty()).unwrap_or(DEFAULT_TAG);
    let parsed = Template::parse(text);
    if let Ok(template) = &parsed
        && let Err(problem) = template.render(&ContainerFacts::default(), &BTreeMap::new())
        // Which items a list has, depends on the container.
        && !problem.contains("an item")
    {
        errors.push(wrong_tag(problem));
    }
    parsed.unwrap_or_else(|problem| {
        errors.push(wrong_tag(problem));
        Template::default()
    })
}

fn wrong_tag(problem: String) -> OptionError {
    let remedy = "write text with fields as in \"{{.Name}}/{{.ID}}\"; the functions json, split, join, title, lower, \
                  upper, pad, truncate, index, len and print may be used";
    OptionError::new("tag", problem, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &[(&str, &str)]) -> Result<LogOptions, String> {
        let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        LogOptions::read("syslog", &options).expect("a driver").map_err(|errors| {
            let shown: Vec<String> =
                errors.iter().map(|error| format!("{}: {}", error.option, error.problem)).collect();
            shown.join("; ")
        })
    }

    #[test]
    fn modes_are_dockers() {
        let mode = |options: &[(&str, &str)]| read(options).map(|options| options.mode);
        assert_eq!(mode(&[]), Ok(Mode::Blocking));
        assert_eq!(mode(&[("mode", "blocking")]), Ok(Mode::Blocking));
        let buffered = |max_buffer_size| Ok(Mode::NonBlocking { max_buffer_size });
        assert_eq!(mode(&[("mode", "non-blocking")]), buffered(1_000_000));
        assert_eq!(mode(&[("mode", "non-blocking"), ("max-buffer-size", "4m")]), buffered(4 << 20));
        assert_eq!(mode(&[("mode", "non-blocking"), ("max-buffer-size", "64m")]), buffered(64 << 20));
        let large = mode(&[("mode", "non-blocking"), ("max-buffer-size", "9p")]);
        assert_eq!(large, Err("max-buffer-size: \"9p\" is more than 64 MiB".to_owned()));
        for (options, expected) in [
            (&[("mode", "x")][..], "mode: \"x\" is no mode"),
            (&[("max-buffer-size", "1m")], "max-buffer-size: needs the mode non-blocking"),
            (&[("mode", "non-blocking"), ("max-buffer-size", "x")], "max-buffer-size: \"x\" is no size"),
        ] {
            assert_eq!(mode(options), Err(expected.to_owned()));
        }
    }

    #[test]
    fn all_errors_are_found_at_once() {
        let error = read(&[("nope", "1"), ("tag", "{{.Nope}}"), ("syslog-facility", "x"), ("env-regex", "(")]);
        let error = error.expect_err("wrong");
        for part in ["nope: is no option", "tag: names .Nope", "syslog-facility:", "env-regex:"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert!(LogOptions::read("splunk", &BTreeMap::new()).is_none());
        assert!(read(&[("cache-disabled", "true"), ("cache-max-size", "20m")]).is_ok(), "docker's copy");
        assert!(read(&[("tag", "{{index .ContainerArgs 0}}")]).is_ok(), "it depends on the container");
    }

    #[test]
    fn files_of_the_node_are_named_by_their_options() {
        for (driver, options, expected) in [
            ("syslog", &[][..], &[][..]),
            ("syslog", &[("syslog-address", "udp://h:1")], &[]),
            ("syslog", &[("syslog-address", "unixgram:///dev/log")], &["syslog-address=/dev/log"]),
            (
                "syslog",
                &[("syslog-tls-ca-cert", "/ca"), ("syslog-tls-cert", "/c"), ("syslog-tls-key", "/k")],
                &["syslog-tls-ca-cert=/ca", "syslog-tls-cert=/c", "syslog-tls-key=/k"],
            ),
            ("gelf", &[("gelf-address", "udp://h:1")], &[]),
            ("fluentd", &[], &[]),
            ("fluentd", &[("fluentd-address", "unix:///run/f")], &["fluentd-address=/run/f"]),
            ("journald", &[], &[]),
            ("journald", &[("journald-socket", "/run/systemd/journal/socket")], &[]),
            ("journald", &[("journald-socket", "/run/j")], &["journald-socket=/run/j, not docker's"]),
        ] {
            let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let options = LogOptions::read(driver, &options).expect("a driver").expect("options");
            let shown = |file: NodeFile| {
                let whose = if file.is_dockers { "" } else { ", not docker's" };
                format!("{}={}{whose}", file.option, file.path.display())
            };
            assert_eq!(options.driver(), driver);
            assert_eq!(options.node_files().into_iter().map(shown).collect::<Vec<_>>(), expected, "{driver}");
        }
        let file = |path: &str| NodeFile::new("syslog-address", Path::new(path)).has_parent_component();
        assert!(file("/dev/../run/docker.sock") && !file("/dev/log..") && !file("/dev/./log"));
    }

    #[test]
    fn the_tag_is_that_of_the_container() {
        let container =
            ContainerFacts { id: "0123456789abcdef".into(), name: "web-1".into(), ..ContainerFacts::default() };
        let tag = |options: &[(&str, &str)]| match read(options)
            .expect("options")
            .delivery(&container)
            .expect("a delivery")
            .destination
        {
            Destination::Syslog(syslog) => syslog.tag,
            other => panic!("{other}"),
        };
        assert_eq!(tag(&[]), "0123456789ab");
        assert_eq!(tag(&[("tag", "{{.Name}}/{{.FullID}}")]), "web-1/0123456789abcdef");
        assert_eq!(tag(&[("tag", "a\nb\0{{\"\\t\u{85}\"}}")]), "a_b___", "no control character in a header");
    }

    /// As in what dockerd sends.
    #[test]
    fn each_driver_tells_of_the_container_in_its_own_fields() {
        let container = ContainerFacts {
            id: "0123456789abcdef".into(),
            name: "web-1".into(),
            image_id: "sha256:1".into(),
            image_name: "nginx".into(),
            command: vec!["serve".into(), "-v".into()],
            env: vec![("COLOR".into(), "red".into())],
            labels: BTreeMap::from([("com.team".to_owned(), "blue".to_owned())]),
            hostname: "node".into(),
        };
        let deliver = |driver: &str, options: &[(&str, &str)]| {
            let common = [("labels", "com.team"), ("env", "COLOR"), ("tag", "t")];
            let all = [options, &common].concat();
            let all = all.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            let options = LogOptions::read(driver, &all).expect("a driver").expect("options");
            options.delivery(&container).expect("a delivery")
        };
        let pairs = |fields: &BTreeMap<String, String>| -> Vec<String> {
            fields.iter().map(|(name, value)| format!("{name}={value}")).collect()
        };
        let Destination::Gelf(gelf) = deliver("gelf", &[("gelf-address", "udp://h:1")]).destination else {
            panic!("gelf")
        };
        assert_eq!(
            pairs(&gelf.extra),
            [
                "_COLOR=red",
                "_com.team=blue",
                "_command=serve -v",
                "_container_id=0123456789abcdef",
                "_container_name=web-1",
                "_image_id=sha256:1",
                "_image_name=nginx",
                "_tag=t"
            ]
        );
        let asynchronous = deliver("fluentd", &[("fluentd-async", "true"), ("fluentd-buffer-limit", "2k")]);
        assert_eq!(asynchronous.mode, Mode::NonBlocking { max_buffer_size: 2048 });
        let Destination::Fluentd(fluentd) = asynchronous.destination else { panic!("fluentd") };
        let record = ["COLOR=red", "com.team=blue", "container_id=0123456789abcdef", "container_name=/web-1"];
        assert_eq!((pairs(&fluentd.record), fluentd.tag.as_str()), (record.map(str::to_owned).to_vec(), "t"));
        let Destination::Journald(journald) = deliver("journald", &[]).destination else { panic!("journald") };
        assert_eq!(
            pairs(&journald.fields),
            [
                "COLOR=red",
                "COM_TEAM=blue",
                "CONTAINER_ID=0123456789ab",
                "CONTAINER_ID_FULL=0123456789abcdef",
                "CONTAINER_NAME=web-1",
                "CONTAINER_TAG=t",
                "IMAGE_NAME=nginx",
                "SYSLOG_IDENTIFIER=t"
            ]
        );
    }
}
