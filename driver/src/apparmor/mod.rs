//! The AppArmor profile of tasks that name none.
//!
//! The driver has a profile of its own ([`profile`]). `apparmor_parser` compiles it and loads it into the kernel when
//! the node is opened, and again when another program has removed it. Without that program the profile must be in the
//! kernel already: the kernel takes only compiled profiles, in a format that depends on its features.
//!
//! The kernel is asked once whether it uses AppArmor. Without AppArmor, all calls return at once.

mod profile;

use std::{
    fs,
    path::Path,
    process::Command,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use host::program;

pub use self::profile::NAME;
use crate::config::DefaultProfile;

/// The parser may take this long. While it works, the node is not open.
const PATIENCE: Duration = Duration::from_secs(60);

/// The places of the parser. The agent's PATH need not contain them.
const PARSERS: [&str; 4] = [
    "/usr/sbin/apparmor_parser",
    "/sbin/apparmor_parser",
    "/usr/bin/apparmor_parser",
    "/usr/local/sbin/apparmor_parser",
];

/// The kernel's list of loaded profiles, one `name (mode)` per line.
const LOADED: &str = "/sys/kernel/security/apparmor/profiles";

/// This process's profile. The first file exists since Linux 5.8.
const OWN: [&str; 2] = ["/proc/self/attr/apparmor/current", "/proc/self/attr/current"];

/// The default profile on this node.
#[derive(Debug)]
pub struct AppArmor {
    used: bool,
    choice: DefaultProfile,
    state: Mutex<Finding>,
}

/// What is known of the default profile.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Finding {
    /// The profile of tasks that name none.
    pub profile: Option<String>,
    /// Why it is not in the kernel.
    pub problem: Option<String>,
}

impl AppArmor {
    /// Loads the driver's profile if the operator's choice is to use it. Blocks.
    pub fn open(choice: &DefaultProfile) -> Self {
        let opened = Self { used: is_used(), choice: choice.clone(), state: Mutex::default() };
        // Also if a profile of that name is loaded: it can be that of an older version.
        let finding = if opened.used && opened.loads_own() { opened.store(load()) } else { opened.check() };
        if let Some(problem) = finding.problem {
            tracing::warn!(problem, "the default AppArmor profile cannot be used");
        }
        opened
    }

    /// Whether the kernel uses AppArmor.
    pub fn is_used(&self) -> bool {
        self.used
    }

    /// The profile of tasks that name none.
    pub fn default_profile(&self) -> Option<String> {
        if self.used { self.state.lock().unwrap_or_else(PoisonError::into_inner).profile.clone() } else { None }
    }

    /// Looks whether the profile is still in the kernel, and loads the driver's own one again if it is not. Blocks.
    pub fn check(&self) -> Finding {
        if !self.used || self.choice == DefaultProfile::Unconfined {
            return Finding::default();
        }
        let wanted = wanted(&self.choice).unwrap_or_default();
        let loaded = match fs::read_to_string(LOADED) {
            Ok(list) if names(&list, &wanted) => Ok(()),
            Ok(_) if self.loads_own() => load(),
            Ok(_) => Err(format!("AppArmor profile {wanted:?} is not loaded on this node")),
            // Without the list, the start of a task tells.
            Err(_) if !self.loads_own() => Ok(()),
            Err(error) => {
                // It says nothing about the profile, so tasks do not lose it: a start fails where it is gone.
                tracing::debug!(%error, "{LOADED} cannot be read");
                return self.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
            }
        };
        self.store(loaded)
    }

    fn loads_own(&self) -> bool {
        wanted(&self.choice).as_deref() == Some(NAME)
    }

    fn store(&self, loaded: Result<(), String>) -> Finding {
        let finding = judge(&self.choice, loaded);
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&finding);
        finding
    }
}

/// What a plugin with this choice would find. Loads nothing.
pub fn look(choice: &DefaultProfile) -> Finding {
    let Some(wanted) = wanted(choice).filter(|_| is_used()) else { return Finding::default() };
    let loaded = match fs::read_to_string(LOADED) {
        Ok(list) if !names(&list, &wanted) => {
            let own = wanted == NAME;
            let can_load = PARSERS.into_iter().any(|parser| Path::new(parser).exists());
            match (own, can_load) {
                (true, true) => Ok(()),
                (true, false) => Err("apparmor_parser is not installed".to_owned()),
                (false, _) => Err(format!("AppArmor profile {wanted:?} is not loaded on this node")),
            }
        }
        _ => Ok(()),
    };
    judge(choice, loaded)
}

/// Whether the kernel uses AppArmor.
pub fn is_used() -> bool {
    fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.trim() == "Y")
}

/// The profile that tasks without a choice of their own should have.
fn wanted(choice: &DefaultProfile) -> Option<String> {
    match choice {
        DefaultProfile::Unconfined => None,
        DefaultProfile::Automatic => Some(NAME.to_owned()),
        DefaultProfile::Required(name) => Some(name.clone()),
    }
}

/// The consequence of loading the profile. Tasks run without a profile only if the operator did not ask for one.
fn judge(choice: &DefaultProfile, loaded: Result<(), String>) -> Finding {
    match (choice, loaded) {
        (_, Ok(())) => Finding { profile: wanted(choice), problem: None },
        (DefaultProfile::Automatic, Err(problem)) => Finding { profile: None, problem: Some(problem) },
        (_, Err(problem)) => Finding { profile: wanted(choice), problem: Some(problem) },
    }
}

/// Whether the kernel's list has a profile.
fn names(list: &str, profile: &str) -> bool {
    list.lines().any(|line| line.rsplit_once(" (").is_some_and(|(name, _)| name == profile))
}

/// Loads the driver's profile in place of an older version of it.
fn load() -> Result<(), String> {
    let own = OWN.iter().find_map(|file| fs::read_to_string(file).ok()).unwrap_or_default();
    let text = profile::text(&profile::own_profiles(&own));
    let Some(parser) = PARSERS.into_iter().find(|parser| Path::new(parser).exists()) else {
        // An operator can load it at boot.
        let list = fs::read_to_string(LOADED).unwrap_or_default();
        return if names(&list, NAME) { Ok(()) } else { Err("apparmor_parser is not installed".to_owned()) };
    };
    let failed =
        |problem: &dyn std::fmt::Display| format!("loading AppArmor profile {NAME:?} with {parser}: {problem}");
    parse(parser, &text, PATIENCE).map_err(|error| failed(&error))
}

/// Lets the parser load the text. An error is what the parser says.
fn parse(parser: &str, text: &str, limit: Duration) -> Result<(), String> {
    let mut command = Command::new(parser);
    // The cache of compiled profiles belongs to the distribution.
    command.args(["--replace", "--skip-cache"]);
    match program::run(command, text.as_bytes(), None, limit)? {
        (status, _) if status.success() => Ok(()),
        (_, output) => Err(output.trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_run_without_a_profile_only_if_the_operator_asked_for_none() {
        let missing = || Err("missing".to_owned());
        let web = DefaultProfile::Required("web".to_owned());
        for (choice, loaded, profile, problem) in [
            (DefaultProfile::Unconfined, Ok(()), None, None),
            (DefaultProfile::Automatic, Ok(()), Some(NAME), None),
            (DefaultProfile::Automatic, missing(), None, Some("missing")),
            (web.clone(), Ok(()), Some("web"), None),
            (web, missing(), Some("web"), Some("missing")),
        ] {
            let finding = judge(&choice, loaded);
            assert_eq!((finding.profile.as_deref(), finding.problem.as_deref()), (profile, problem), "{choice:?}");
        }
    }

    #[test]
    fn the_kernels_list_names_whole_profiles() {
        let list = "docker-default (enforce)\n/usr/bin/man (complain)\na b (enforce)\n";
        for (profile, expected) in
            [("docker-default", true), ("docker", false), ("/usr/bin/man", true), ("a b", true), ("", false)]
        {
            assert_eq!(names(list, profile), expected, "{profile}");
        }
    }

    #[test]
    fn a_parser_that_fails_is_quoted() {
        let errors = parse("/bin/cat", "x", PATIENCE).expect_err("no such option");
        assert!(errors.contains("replace"), "{errors}");
        assert!(parse("/nonexistent", "x", PATIENCE).is_err());
    }

    #[test]
    fn a_parser_that_hangs_is_killed() {
        let directory = tempfile::tempdir().expect("a directory");
        let parser = directory.path().join("parser");
        // Written by another process: a test beside this one may fork while the script is open for writing here.
        let write = "printf '#!/bin/sh\\nexec sleep 1000\\n' > \"$1\" && chmod +x \"$1\"";
        let status = Command::new("sh").args(["-c", write, "sh"]).arg(&parser).status();
        assert!(status.expect("a shell").success());
        let errors = parse(&parser.display().to_string(), "x", Duration::from_millis(50)).expect_err("it is killed");
        assert!(errors.contains("was killed"), "{errors}");
    }
}
