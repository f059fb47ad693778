//! The programs that the tests need.

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::{Failure, Outcome, Version, versions::SUPPORTED};

const CONSUL: &str = "consul-1.22.2";
const ENVOY: &str = "envoy-1.36.4";
const DIRECTORIES: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
const PROGRAMS: [&str; 8] = ["docker-registry", "skopeo", "iptables", "ip", "busybox", "script", "setsid", "timeout"];

/// The paths of the programs.
#[derive(Debug, Clone)]
pub struct Tools {
    /// The `nomad` executable.
    pub nomad: PathBuf,
    /// The version of this Nomad.
    pub version: Version,
    /// The `consul` executable. Only some cases need it.
    pub consul: PathBuf,
    /// The `envoy` executable. `scripts/image.sh` makes an image of it for the cases with Consul.
    pub envoy: PathBuf,
    /// The driver under test.
    pub driver: PathBuf,
    /// The directory with the CNI plugins.
    pub cni: PathBuf,
    /// `e2e/` in the checkout.
    pub home: PathBuf,
}

impl Tools {
    /// Finds all programs.
    ///
    /// # Errors
    /// Names each missing program and how to install it.
    pub fn find() -> Outcome<Self> {
        let home = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let [.., newest] = SUPPORTED;
        let mut tools = Self {
            nomad: env::var_os("OCI_RS_NOMAD").map_or_else(|| cached(&format!("nomad-{newest}")), PathBuf::from),
            version: newest,
            consul: env::var_os("OCI_RS_CONSUL").map_or_else(|| cached(CONSUL), PathBuf::from),
            envoy: env::var_os("OCI_RS_ENVOY").map_or_else(|| cached(ENVOY), PathBuf::from),
            driver: env::var_os("OCI_RS_BIN").map_or_else(built_driver, PathBuf::from),
            cni: env::var_os("CNI_PATH").map_or_else(|| PathBuf::from("/usr/lib/cni"), PathBuf::from),
            home,
        };
        let mut missing = Vec::new();
        if !rustix::process::geteuid().is_root() {
            missing.push("root: Nomad clients and containers need it".to_owned());
        }
        for program in PROGRAMS {
            if !DIRECTORIES.iter().any(|directory| Path::new(directory).join(program).exists()) {
                missing.push(program.to_owned());
            }
        }
        for path in [&tools.nomad, &tools.driver, &tools.cni.join("bridge")] {
            if !path.exists() {
                missing.push(path.display().to_string());
            }
        }
        if missing.is_empty() {
            tools.version = Version::of(&tools.nomad)?;
            return Ok(tools);
        }
        Err(Failure(format!(
            "missing: {} (scripts/setup.sh installs tools, `cargo build -p oci-rs` makes the driver)",
            missing.join(", ")
        )))
    }

    /// The missing programs for the cases with Consul, and how to install them; `None` if all exist.
    #[must_use]
    pub fn missing_for_consul(&self) -> Option<String> {
        let missing: Vec<String> = [&self.consul, &self.envoy]
            .into_iter()
            .filter(|path| !path.exists())
            .map(|path| path.display().to_string())
            .collect();
        (!missing.is_empty()).then(|| format!("missing: {} (scripts/setup.sh installs tools)", missing.join(", ")))
    }
}

/// Whether a missing tool is an error instead of a reason to skip.
#[must_use]
pub fn required() -> bool {
    env::var_os("OCI_RS_E2E").is_some_and(|value| value == "1")
}

/// A file in the cache directory of `scripts/setup.sh`.
fn cached(name: &str) -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env::var_os("HOME").unwrap_or_default()).join(".cache"));
    cache.join("oci-rs/tools").join(name)
}

/// The driver of the same build as this test: `target/…/debug/deps/nomad-xyz` → `target/…/debug/oci-rs`.
fn built_driver() -> PathBuf {
    let exe = env::current_exe().unwrap_or_default();
    exe.ancestors().nth(2).unwrap_or(Path::new("")).join("oci-rs")
}
