//! go-plugin's handshake: the cookie that proves that Nomad started us, and the line that tells it where we listen.

use std::{
    env, fs, io,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tokio::net::UnixListener;

const COOKIE_NAME: &str = "NOMAD_PLUGIN_MAGIC_COOKIE";
const COOKIE_VALUE: &str = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255";

/// What the names of our sockets begin with.
pub const SOCKET_PREFIX: &str = "plugin-oci-rs-";

/// go-plugin's own protocol, which has had one version so far.
const CORE_PROTOCOL: u32 = 1;
/// The version of Nomad's plugin protocol, the only one that any Nomad since 0.9 offers.
const NOMAD_PROTOCOL: u32 = 2;

/// Whether Nomad started this process, which it proves by a cookie in the environment.
pub fn launched_by_nomad() -> bool {
    env::var(COOKIE_NAME).is_ok_and(|value| value == COOKIE_VALUE)
}

/// The socket's file; removed when the plugin ends in order.
pub struct SocketFile(PathBuf);

impl SocketFile {
    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::debug!(%error, "plugin socket not removed");
        }
    }
}

/// Binds the plugin's socket, readable by root alone.
pub fn listen() -> io::Result<(UnixListener, SocketFile)> {
    let directory = env::var_os("PLUGIN_UNIX_SOCKET_DIR").map_or_else(env::temp_dir, PathBuf::from);
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let path = directory.join(format!("{SOCKET_PREFIX}{}", random.trim()));
    let listener = UnixListener::bind(&path)?;
    let socket = SocketFile(path);
    fs::set_permissions(socket.path(), fs::Permissions::from_mode(0o700))?;
    Ok((listener, socket))
}

/// Prints the handshake line, then turns standard output into /dev/null: the host reads only lines of at most 64 KiB there and
/// stops draining after a longer one, so nothing else may ever go to it.
pub fn announce(socket: &Path) -> io::Result<()> {
    let line = line(&socket.to_string_lossy(), env::var_os("PLUGIN_MULTIPLEX_GRPC").is_some());
    let mut stdout = io::stdout().lock();
    stdout.write_all(line.as_bytes())?;
    stdout.flush()?;
    drop(stdout);
    let null = fs::OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

/// `CORE|APP|NETWORK|ADDRESS|PROTOCOL|CERTIFICATE[|MULTIPLEX]`; the last field only for a host that asked for it.
fn line(address: &str, multiplex_offered: bool) -> String {
    let multiplex = if multiplex_offered { "|false" } else { "" };
    format!("{CORE_PROTOCOL}|{NOMAD_PROTOCOL}|unix|{address}|grpc|{multiplex}\n")
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn handshake_line_has_the_fields_go_plugin_expects() {
        assert_eq!(line("/tmp/plugin1", false), "1|2|unix|/tmp/plugin1|grpc|\n");
        assert_eq!(line("/tmp/plugin1", true), "1|2|unix|/tmp/plugin1|grpc||false\n");
    }
}
