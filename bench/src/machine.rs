//! The machine of a run, and the versions of the programs that are compared.

use std::{fs, process::Command};

use crate::{docker, report::say};

/// Prints the first lines of the report: the machine, and the version of each program that is compared.
pub fn print() {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cpu = read("/proc/cpuinfo");
    let model =
        cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("").trim_matches([':', '\t', ' ']);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    say(&format!("- {}, Linux {}, {cores} processors ({model})", date(), read("/proc/sys/kernel/osrelease")));
    say(&format!("- cgroups {:?}", fixtures::cgroup::mode()));
    let oci_rs = kit::plugin::binary();
    let peers = [
        (oci_rs.to_string_lossy().into_owned(), "--version"),
        (docker::CLIENT.to_owned(), "--version"),
        ("containerd".to_owned(), "--version"),
        ("podman".to_owned(), "--version"),
        ("runc".to_owned(), "--version"),
        ("crun".to_owned(), "--version"),
        ("skopeo".to_owned(), "--version"),
        ("umoci".to_owned(), "--version"),
    ];
    for (program, option) in peers {
        match Command::new(&program).arg(option).output() {
            Ok(output) => {
                say(&format!("- {}", String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or(&program)))
            }
            Err(error) => say(&format!("- {program} is not compared: {error}")),
        }
    }
}

fn date() -> String {
    let output = Command::new("date").args(["--utc", "+%Y-%m-%d %H:%M UTC"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}
