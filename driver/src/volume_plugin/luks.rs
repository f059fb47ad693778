//! An encrypted volume: the sparse file has a LUKS2 header, and its file system is on a device of dm-crypt.
//!
//! The program cryptsetup writes the header and opens the device. It reads the key from its standard input, so that the
//! key is in no argument, and it gets the file's loop device as a descriptor, so that it can never write to the device
//! of another file. It ends with this process.
//!
//! The device must not outlive the mount. Once the file system is mounted, the kernel is told to remove the device with
//! its last user. A killed call may leave a device without that. Its name says which file it belongs to, so the next
//! call for the volume finds it.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    process::{Command, Output, Stdio},
};

use host::Context;
use runtime::{
    block_device::{Device, end_with_this_thread, remove_mapping},
    file_system::program,
};

use super::{
    error::PluginError,
    place::{Format, Place},
};

const PROGRAM: &str = "cryptsetup";
/// The largest key that cryptsetup reads from a file (cryptsetup(8), "NOTES ON PASSPHRASE PROCESSING").
const LARGEST_KEY: u64 = 8 << 20;
/// The exit status of cryptsetup if no key slot opens with the key.
const WRONG_KEY: i32 = 2;
/// The cost of testing one key: 64 MiB of memory, and about 0.1 seconds. The default measures the processor for
/// seconds, and may need 1 GiB.
const COST: [&str; 4] =
    ["--pbkdf=argon2id", "--pbkdf-memory=65536", "--pbkdf-parallel=1", "--pbkdf-force-iterations=4"];

/// Opens the file with a key, which only root may read. What is checked is the open file.
fn open_key(path: &Path) -> Result<File, PluginError> {
    let name = path.display();
    // Opening a FIFO would wait for its writer.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path);
    let file = opened.context(|| format!("parameter key_file: opening {name}"))?;
    let found = file.metadata().context(|| format!("parameter key_file: looking at {name}"))?;
    let problem = if !found.is_file() {
        "is no file: make one with random bytes (head -c 64 /dev/urandom)"
    } else if found.uid() != 0 || found.mode() & 0o077 != 0 {
        "can be read by others than root: run chown root and chmod 0600"
    } else if found.len() == 0 || found.len() > LARGEST_KEY {
        "has no key: write 1 byte to 8 MiB, at best random ones (head -c 64 /dev/urandom)"
    } else {
        return Ok(file);
    };
    Err(PluginError::new(format!("parameter key_file: {name} {problem}")))
}

/// Writes the header to the device of a new file.
pub fn format(device: &Device, key: Option<&Path>) -> Result<(), PluginError> {
    let key = key.ok_or_else(without_key)?;
    let sectors = format!("--offset={}", Format::LUKS_HEADER / 512);
    let arguments = ["luksFormat", "--type=luks2", "--batch-mode", &sectors].into_iter().chain(COST);
    let output = cryptsetup(arguments, device, None, key)?;
    if output.status.success() { Ok(()) } else { Err(failed("encrypting a volume", &output)) }
}

/// The device with the decrypted content of a file, which has this loop device. It is opened if it does not exist. It
/// stays until [`let_go`].
pub fn open(place: &Place, file: &File, device: &Device, key: Option<&Path>) -> Result<Device, PluginError> {
    if let Some(mapped) = existing(place, file)? {
        return Ok(mapped);
    }
    let key = key.ok_or_else(without_key)?;
    let name = mapping(place, file)?;
    // What a killed call has left without content.
    remove_mapping(&name).context(|| format!("removing the device {name}"))?;
    let output = cryptsetup(["open", "--type=luks2", "--allow-discards"].into_iter(), device, Some(&name), key)?;
    match output.status.code() {
        Some(0) => {}
        Some(WRONG_KEY) => {
            let path = key.display();
            let problem = format!(
                "parameter key_file: {path} is not the key of the volume: give that with which it was \
                                   made"
            );
            return Err(PluginError::new(problem));
        }
        _ => return Err(failed("opening an encrypted volume", &output)),
    }
    existing(place, file)?.ok_or_else(|| PluginError::new(format!("the device {name} of an encrypted volume vanished")))
}

/// The device with the decrypted content of a file, if it exists.
pub fn existing(place: &Place, file: &File) -> Result<Option<Device>, PluginError> {
    let name = mapping(place, file)?;
    Ok(Device::mapped(&name).context(|| format!("looking for the device {name}"))?)
}

/// Tells the kernel to remove the device of a file when it has no user any more, which may be now.
pub fn let_go(place: &Place, file: &File) -> Result<(), PluginError> {
    let name = mapping(place, file)?;
    let action = || format!("removing the device {name}");
    remove_mapping(&name).context(action)?;
    // Without udev, cryptsetup makes this name, which has no use.
    match fs::remove_file(Path::new("/dev/mapper").join(&name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error).context(action)?,
        _ => Ok(()),
    }
}

/// The name of the device of a file. A file keeps its number as long as the device has it.
fn mapping(place: &Place, file: &File) -> Result<String, PluginError> {
    let found = file.metadata().context(|| format!("looking at the file of volume {}", place.id()))?;
    Ok(format!("oci-rs-{}-{:x}-{:x}", place.id(), found.dev(), found.ino()))
}

fn without_key() -> PluginError {
    PluginError::new("parameters encryption, key_file: the volume is encrypted: give both, as when it was made")
}

/// Runs cryptsetup for a device.
fn cryptsetup<'a>(
    arguments: impl Iterator<Item = &'a str>,
    device: &Device,
    name: Option<&str>,
    key: &Path,
) -> Result<Output, PluginError> {
    let program = program(PROGRAM).ok_or_else(|| {
        PluginError::new(
            "parameter encryption: this node lacks the program cryptsetup: install cryptsetup-bin on the node, or \
             remove encryption",
        )
    })?;
    let action = || format!("starting {}", program.display());
    let inherited = device.inherited().context(action)?;
    let mut command = Command::new(&program);
    command.args(arguments).arg("--key-file=-").arg("--").arg(inherited.path()).args(name);
    // Without the variable, the program would wait for udev, which may be stopped.
    command.env_clear().env("DM_DISABLE_UDEV", "1").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").current_dir("/");
    command.stdin(open_key(key)?).stdout(Stdio::null()).stderr(Stdio::piped());
    end_with_this_thread(&mut command);
    Ok(command.output().context(action)?)
}

fn failed(action: &str, output: &Output) -> PluginError {
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let has_mapper = fs::read_to_string("/proc/misc").is_ok_and(|list| list.contains("device-mapper"));
    let remedy =
        if has_mapper { "" } else { "; this kernel has no device mapper: load dm-crypt, or remove encryption" };
    PluginError::new(format!("parameter encryption: {action}: cryptsetup: {}: {said}{remedy}", output.status))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    #[test]
    fn a_key_is_a_file_that_only_root_can_read() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let refusal = |path: &Path| open_key(path).unwrap_err().to_string();
        assert!(refusal(&path).contains("parameter key_file: opening"));
        assert!(refusal(directory.path()).contains("is no file"));
        fs::write(&path, "secret").unwrap();
        for (mode, owner, problem) in [
            (0o640, 0, Some("chmod 0600")),
            (0o604, 0, Some("chmod 0600")),
            (0o600, 1000, Some("chown root")),
            (0o600, 0, None),
            (0o400, 0, None),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            chown(&path, Some(owner), None).unwrap();
            match problem {
                None => drop(open_key(&path).unwrap()),
                Some(problem) => {
                    let text = refusal(&path);
                    assert!(text.contains(problem) && !text.contains("secret"), "{text}");
                }
            }
        }
        fs::write(&path, "").unwrap();
        assert!(refusal(&path).contains("has no key"));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            directory.path().join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(refusal(&directory.path().join("fifo")).contains("is no file"));
    }
}
