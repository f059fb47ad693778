//! The list of Nomad's versions and features agrees with the documentation and with the modules that build them.

use std::{collections::BTreeSet, fs, path::Path};

use e2e::{
    Outcome,
    versions::{FEATURES, SUPPORTED, documentation},
};

use crate::{Case, Env, Needs::SharedAgent};

pub const CASES: &[Case] = &[("versions_are_documented", SharedAgent, are_documented)];

/// The lines of the documentation between which the generated table is.
const BEGIN: &str = "<!-- generated from e2e/src/versions.rs -->\n";
const END: &str = "<!-- end of the generated table -->\n";

fn are_documented(_: &Env) -> Outcome {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let modules = fs::read_dir(home.join("tools"))?.flatten();
    let modules = modules.filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("nomad-")?.to_owned()));
    let supported = SUPPORTED.map(|version| version.to_string());
    assert_eq!(modules.collect::<BTreeSet<_>>(), supported.clone().into());
    let script = fs::read_to_string(home.join("../scripts/lib.sh"))?;
    let line = format!("NOMAD_VERSIONS=\"{}\"\n", supported.join(" "));
    assert!(script.contains(&line), "scripts/lib.sh lacks {line}");
    // A feature that all versions have does not belong into the list.
    assert!(FEATURES.iter().all(|feature| SUPPORTED.iter().any(|version| !version.has(feature))));

    let file = home.join("../docs/nomad-versions.md");
    let text = fs::read_to_string(&file)?;
    let (head, rest) = text.split_once(BEGIN).ok_or("docs/nomad-versions.md has no table")?;
    let (_, tail) = rest.split_once(END).ok_or("docs/nomad-versions.md has no end of the table")?;
    let expected = [head, BEGIN, &documentation(), END, tail].concat();
    if std::env::var_os("OCI_RS_WRITE_DOCS").is_some() {
        fs::write(&file, &expected)?;
    }
    assert!(text == expected, "docs/nomad-versions.md is not current: OCI_RS_WRITE_DOCS=1 rewrites it");
    Ok(())
}
