//! Removes the sockets of killed plugins. The kernel leaves their files behind.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::Path,
    time::{Duration, SystemTime},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, retry_on_intr},
    net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with},
    process::geteuid,
    time::Timespec,
};

use super::handshake::{LISTENING_SUFFIX, SOCKET_PREFIX};

/// A younger socket without the suffix may be bound but not listening yet.
const GRACE: Duration = Duration::from_secs(60);
/// The begin of an HTTP/2 connection (RFC 9113, section 3.4). A server answers with its settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

/// Removes sockets with the driver's prefix, owned by this user, without a listener. A socket without the suffix must
/// be older than a minute. Failures are logged.
pub fn dead_sockets(directory: &Path) {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => {
            return tracing::debug!(directory = %directory.display(), %error, "dead plugin sockets not looked for");
        }
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.to_str().is_some_and(|name| name.starts_with(SOCKET_PREFIX)) {
            continue;
        }
        let path = entry.path();
        match is_dead(&path).and_then(|dead| if dead { fs::remove_file(&path).map(|()| true) } else { Ok(false) }) {
            Ok(true) => tracing::debug!(socket = %path.display(), "removed the socket of a plugin that was killed"),
            Ok(false) => {}
            Err(error) => tracing::debug!(socket = %path.display(), %error, "dead plugin socket not removed"),
        }
    }
}

fn is_dead(path: &Path) -> io::Result<bool> {
    let metadata = fs::symlink_metadata(path)?;
    let age = SystemTime::now().duration_since(metadata.modified()?).unwrap_or_default();
    let has_listened = path.to_str().is_some_and(|path| path.ends_with(LISTENING_SUFFIX));
    let owned = metadata.file_type().is_socket() && metadata.uid() == geteuid().as_raw();
    if !owned || !has_listened && age < GRACE {
        return Ok(false);
    }
    Ok(matches!(probe(path)?, Err(Errno::CONNREFUSED)))
}

/// Whether no process accepts connections on a socket, or it is gone.
pub fn refuses(path: &Path) -> bool {
    is_refusal(&probe(path))
}

fn is_refusal(probed: &io::Result<Result<OwnedFd, Errno>>) -> bool {
    matches!(probed, Ok(Err(Errno::CONNREFUSED | Errno::NOENT)))
}

/// Whether a plugin's socket refuses connections or is gone, or the plugin sends nothing within `limit`.
pub fn is_deaf(path: &Path, limit: Duration) -> bool {
    match probe(path) {
        Ok(Ok(connection)) => answers(&connection, limit).is_ok_and(|answers| !answers),
        other => is_refusal(&other),
    }
}

/// Whether the server on a connection sends anything within `limit`.
fn answers(connection: &OwnedFd, limit: Duration) -> io::Result<bool> {
    send(connection, PREFACE, SendFlags::NOSIGNAL)?;
    let limit = Timespec::try_from(limit).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut events = [PollFd::new(connection, PollFlags::IN)];
    Ok(retry_on_intr(|| poll(&mut events, Some(&limit)))? > 0)
}

/// Connects to a socket. Never waits, also for a plugin that is too busy to accept.
fn probe(path: &Path) -> io::Result<Result<OwnedFd, Errno>> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(connect(&probe, &SocketAddrUnix::new(path)?).map(|()| probe))
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        io::{Read, Write},
        os::unix::net::UnixListener,
        path::PathBuf,
        time::{Duration, SystemTime},
    };

    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

    use super::{PREFACE, dead_sockets, is_deaf};

    fn make_old(path: &PathBuf) {
        let then = SystemTime::now() - Duration::from_secs(120);
        let seconds = then.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let time = Timespec { tv_sec: seconds.try_into().unwrap(), tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }

    #[test]
    fn only_sockets_of_the_driver_without_a_listener_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let dead = |name: &str| {
            drop(UnixListener::bind(at(name)).unwrap());
            at(name)
        };
        let living = UnixListener::bind(at("plugin-oci-rs-living")).unwrap();
        let young = UnixListener::bind(at("plugin-oci-rs-living.sock")).unwrap();
        File::create(at("plugin-oci-rs-file")).unwrap();
        std::os::unix::fs::symlink(dead("target"), at("plugin-oci-rs-link")).unwrap();
        for path in [dead("plugin-oci-rs-dead"), dead("plugin-other-dead")] {
            make_old(&path);
        }
        for name in ["plugin-oci-rs-living", "plugin-oci-rs-file", "plugin-oci-rs-link", "target"] {
            make_old(&at(name));
        }
        dead("plugin-oci-rs-young");
        dead("plugin-oci-rs-dead.sock");
        dead("plugin-other-young.sock");
        dead_sockets(directory.path());
        let mut left: Vec<_> = fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let expected = ["file", "link", "living", "living.sock", "young"].map(|name| format!("plugin-oci-rs-{name}"));
        let others = ["plugin-other-dead", "plugin-other-young.sock", "target"].map(str::to_owned);
        assert_eq!(left, [&expected[..], &others].concat());
        drop((living, young));
    }

    #[test]
    fn a_plugin_is_deaf_if_it_sends_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(50));
        assert!(is_deaf(&path, long), "there is no socket");
        let listener = UnixListener::bind(&path).unwrap();
        assert!(is_deaf(&path, short), "the kernel accepts the connection, and no process reads from it");
        let plugin = std::thread::spawn(move || {
            // The first connection is that of the probe above, which is closed.
            listener.accept().unwrap();
            let mut connection = listener.accept().unwrap().0;
            let mut received = vec![0; PREFACE.len()];
            connection.read_exact(&mut received).unwrap();
            connection.write_all(b"settings").unwrap();
            received
        });
        assert!(!is_deaf(&path, long));
        assert_eq!(plugin.join().unwrap(), PREFACE);
        assert!(is_deaf(&path, long), "the listener is gone");
    }
}
