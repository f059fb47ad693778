//! The seccomp profile that `security_opt` names, read from the host.
//!
//! The operator allowed a literal path, so no link is followed. The operator trusts only root's content, so a file
//! that another user could have changed is refused.

use std::{fs::File, io::Read, path::Path};

use runtime::plan::SeccompProfile;
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2},
    io::Errno,
};

use crate::error::TaskError;

/// The largest accepted profile, in bytes. Docker's own profile has 20 KiB.
const LARGEST: u64 = 1 << 20;

/// Reads and checks a profile. Blocks on the file system.
pub fn read(path: &Path) -> Result<SeccompProfile, TaskError> {
    let refused =
        |problem: String| TaskError::Invalid(format!("option security_opt: seccomp profile {path:?} {problem}"));
    // NONBLOCK: a FIFO must not block here. It is refused below.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).map_err(|error| match error {
        Errno::NOENT => refused("does not exist on this node".to_owned()),
        Errno::LOOP => refused("leads over a link: name the file itself".to_owned()),
        error => refused(format!("cannot be opened: {error}")),
    })?;
    let stat = fstat(&file).map_err(|error| refused(format!("cannot be looked at: {error}")))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(refused("is not a regular file".to_owned()));
    }
    if stat.st_uid != 0 || stat.st_mode & 0o022 != 0 {
        return Err(refused("can be changed by others than root: give it to root, with mode 0644".to_owned()));
    }
    let mut text = Vec::new();
    let read = File::from(file).take(LARGEST + 1).read_to_end(&mut text);
    read.map_err(|error| refused(format!("cannot be read: {error}")))?;
    if text.len() as u64 > LARGEST {
        return Err(refused(format!("is larger than {} KiB", LARGEST >> 10)));
    }
    SeccompProfile::from_json(&text).map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{PermissionsExt, symlink},
        path::Path,
    };

    use super::{LARGEST, read};

    const PROFILE: &str = r#"{ "defaultAction": "SCMP_ACT_ALLOW" }"#;

    fn refusal(path: &Path) -> String {
        let text = read(path).map(drop).expect_err("refused").to_string();
        assert!(text.starts_with("option security_opt: seccomp profile "), "{text}");
        text
    }

    #[test]
    fn only_a_regular_file_of_root_without_links_is_read() {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let base = directory.path().canonicalize().unwrap();
        let at = |name: &str| base.join(name);
        let write = |name: &str, text: &[u8], mode: u32| {
            fs::write(at(name), text).unwrap();
            fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
        };
        write("good.json", PROFILE.as_bytes(), 0o644);
        read(&at("good.json")).unwrap();
        write("open.json", PROFILE.as_bytes(), 0o664);
        write("theirs.json", PROFILE.as_bytes(), 0o644);
        std::os::unix::fs::chown(at("theirs.json"), Some(1000), Some(1000)).unwrap();
        write("text.json", b"no", 0o600);
        write("large.json", &vec![b' '; LARGEST as usize + 1], 0o600);
        symlink("good.json", at("link.json")).unwrap();
        fs::create_dir(at("directory")).unwrap();
        symlink("directory", at("way")).unwrap();
        fs::rename(at("open.json"), at("directory/open.json")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
        for (name, problem) in [
            ("none.json", "does not exist on this node"),
            ("directory/open.json", "can be changed by others than root"),
            ("theirs.json", "can be changed by others than root"),
            ("text.json", "is not of docker's format"),
            ("large.json", "is larger than 1024 KiB"),
            ("link.json", "leads over a link"),
            ("way/open.json", "leads over a link"),
            ("directory", "is not a regular file"),
            ("fifo", "is not a regular file"),
        ] {
            let text = refusal(&at(name));
            assert!(text.contains(problem), "{name}: {text}");
        }
    }
}
