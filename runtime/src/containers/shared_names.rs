//! Names by which the containers of a group find each other: lines in each other's /etc/hosts.
//!
//! A plan has the lines that its container gives to the others. A container gets the lines of those that exist when it
//! starts, and of those that start later. The file is rewritten in place, because it is mounted in the container. Other
//! lines of it, for example those that the container added, are kept.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Read},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use rustix::fs::OFlags;
use serde::Deserialize;

use super::runtime::Runtime;
use crate::{
    error::{Context, RuntimeError},
    plan::{ContainerId, ContainerPlan},
    spec::file_source,
    state::{self, PLAN},
};

const HOSTS: &str = "/etc/hosts";
/// The lines around the names.
const BEGIN: &str = "# names of the group's other tasks: begin\n";
const END: &str = "# names of the group's other tasks: end\n";
/// A container can make its file as large as it likes.
const LARGEST: u64 = 1 << 20;

/// The part of a plan that concerns names.
#[derive(Deserialize)]
struct NamedPlan {
    files: Vec<(String, String)>,
    #[serde(default)]
    shared_names: Vec<String>,
}

impl Runtime {
    /// Adds the names of the existing containers whose id begins with `prefix` to the hosts file of a plan; whether
    /// there are any.
    pub fn add_names(&self, plan: &mut ContainerPlan, prefix: &str) -> Result<bool, RuntimeError> {
        let members = self.members(prefix)?;
        let block = block(members.iter().filter(|(id, _)| *id != plan.id));
        let hosts = plan.files.iter_mut().find(|(path, _)| path == HOSTS);
        Ok(match hosts {
            Some((_, text)) if !block.is_empty() => {
                text.push_str(&block);
                true
            }
            _ => false,
        })
    }

    /// Gives each container whose id begins with `prefix` the names of the others. The first error is returned after
    /// all of them.
    pub fn share_names(&self, prefix: &str) -> Result<(), RuntimeError> {
        // The last of several starts at the same time sees all containers.
        let _one_at_a_time = self.inner.names.lock();
        let members = self.members(prefix)?;
        let mut shared = Ok(());
        for (id, plan) in &members {
            let Some(index) = plan.files.iter().position(|(path, _)| path == HOSTS) else { continue };
            let block = block(members.iter().filter(|(other, _)| other != id));
            let path = file_source(&self.task(id).files(), index, HOSTS);
            match rewrite(&path, &block) {
                // It is just being made or removed.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                // A container that has made its file unreadable does not keep the names from the others.
                rewritten => shared = shared.and(rewritten.context(|| format!("writing {}", path.display()))),
            }
        }
        shared
    }

    fn members(&self, prefix: &str) -> Result<Vec<(ContainerId, NamedPlan)>, RuntimeError> {
        let listing = || format!("listing {}", state::tasks(&self.inner.state_dir).display());
        let names = self.inner.containers.names_with_prefix(prefix).context(listing)?;
        let ids = names.iter().filter_map(|name| name.parse::<ContainerId>().ok());
        let named = |id: ContainerId| match self.task(&id).read::<NamedPlan>(PLAN) {
            Ok(plan) => Some((id, plan?)),
            Err(error) => {
                tracing::warn!(container = %id, %error, "its names are unknown to the group's other containers");
                None
            }
        };
        // A container that is just being made or removed has no plan.
        Ok(ids.filter_map(named).collect())
    }
}

/// The names with the lines around them. Empty without names.
fn block<'a>(members: impl Iterator<Item = &'a (ContainerId, NamedPlan)>) -> String {
    let lines: String = members.flat_map(|(_, plan)| &plan.shared_names).map(|line| format!("{line}\n")).collect();
    if lines.is_empty() { lines } else { format!("{BEGIN}{lines}{END}") }
}

/// The text with another block of names.
fn replaced(text: &str, block: &str) -> String {
    let kept = match text.split_once(BEGIN) {
        Some((before, rest)) => before.to_owned() + rest.split_once(END).map_or("", |(_, after)| after),
        None => text.to_owned(),
    };
    let newline = if kept.is_empty() || kept.ends_with('\n') || block.is_empty() { "" } else { "\n" };
    kept + newline + block
}

/// Replaces the block of names in a file.
fn rewrite(path: &Path, block: &str) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(path)?;
    let mut text = String::new();
    if file.metadata()?.len() > LARGEST || read(&file, &mut text).is_err() {
        return Err(io::Error::other("the container has made it unreadable"));
    }
    let new = replaced(&text, block);
    if new != text {
        // A reader in between finds the names twice at most.
        file.write_all_at(new.as_bytes(), 0)?;
        file.set_len(new.len() as u64)?;
    }
    Ok(())
}

fn read(file: &File, text: &mut String) -> io::Result<usize> {
    file.take(LARGEST).read_to_string(text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::{BEGIN, END, HOSTS, Runtime, replaced, rewrite};
    use crate::{plan::ContainerId, spec::file_source, state::PLAN};

    #[test]
    fn a_spoiled_container_keeps_no_names_from_the_others() {
        let directory = tempfile::tempdir().expect("a directory");
        let at = |name: &str| directory.path().join(name);
        let runtime = Runtime::open(&at("state"), &at("data")).expect("a runtime");
        let hosts = |name: &str| {
            let id: ContainerId = format!("alloc.{name}.1").parse().expect("an id");
            let task = runtime.task(&id);
            fs::create_dir_all(task.files()).expect("a directory");
            let plan = json!({"files": [[HOSTS, ""]], "shared_names": [format!("192.0.2.1\t{name}")]});
            task.commit(PLAN, &plan).expect("a plan");
            let path = file_source(&task.files(), 0, HOSTS);
            fs::write(&path, "").expect("written");
            (task.file(PLAN), path)
        };
        let [bad, first, last] = ["a", "b", "d"].map(|name| hosts(name).1);
        fs::write(&bad, b"\xff").expect("written");
        fs::write(hosts("c").0, "{").expect("written");
        let error = runtime.share_names("alloc.").expect_err("the bad file");
        assert!(error.to_string().contains("alloc.a.1"), "{error}");
        let text = |path| fs::read_to_string(path).expect("read");
        assert_eq!(text(&first), format!("{BEGIN}192.0.2.1\ta\n192.0.2.1\td\n{END}"));
        assert_eq!(text(&last), format!("{BEGIN}192.0.2.1\ta\n192.0.2.1\tb\n{END}"));
    }

    #[test]
    fn the_block_is_replaced_and_other_lines_are_kept() {
        let block = |lines: &str| format!("{BEGIN}{lines}{END}");
        let (one, two) = (block("10.0.0.2\tdb\n"), block("10.0.0.3\tdb\n"));
        for (text, new, expected) in [
            ("127.0.0.1\tlocalhost\n".to_owned(), &one, format!("127.0.0.1\tlocalhost\n{one}")),
            ("a".to_owned(), &one, format!("a\n{one}")),
            (format!("a\n{one}b\n"), &two, format!("a\nb\n{two}")),
            (format!("a\n{one}"), &String::new(), "a\n".to_owned()),
            // The container has removed the end.
            (format!("a\n{BEGIN}x"), &two, format!("a\n{two}")),
            (String::new(), &one, one.clone()),
        ] {
            assert_eq!(replaced(&text, new), expected, "{text}");
            assert_eq!(replaced(&expected, new), expected, "idempotent");
        }
    }

    #[test]
    fn the_file_stays_the_same_file() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("hosts");
        fs::write(&path, format!("{BEGIN}a long line of names\n{END}b\n")).expect("written");
        let before = fs::metadata(&path).expect("there").ino();
        rewrite(&path, "").expect("rewritten");
        assert_eq!(fs::read_to_string(&path).expect("read"), "b\n");
        assert_eq!(fs::metadata(&path).expect("there").ino(), before);
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert!(rewrite(&link, "x").is_err(), "no link is followed");
        fs::write(&path, vec![b'x'; 2 << 20]).expect("written");
        assert!(rewrite(&path, "x").is_err(), "a huge file is not read");
    }
}
