//! go-plugin's handshake: the cookie by which Nomad identifies itself, and the line with the plugin's address.

use std::{
    env, fs, io,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use tokio::net::UnixListener;

/// The variable of the cookie.
pub const COOKIE_NAME: &str = "NOMAD_PLUGIN_MAGIC_COOKIE";
const COOKIE_VALUE: &str = "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255";

/// The prefix of the names of the driver's sockets.
pub const SOCKET_PREFIX: &str = "plugin-oci-rs-";
/// The suffix of a socket's name from the time when it accepts connections. Version 0.1.0 used none.
pub const LISTENING_SUFFIX: &str = ".sock";

/// The version of go-plugin's own protocol. There is no other.
const CORE_PROTOCOL: u32 = 1;
/// The version of Nomad's plugin protocol. Nomad since 0.9 offers no other.
const NOMAD_PROTOCOL: u32 = 2;

/// Whether Nomad started this process: the environment contains its cookie.
pub fn launched_by_nomad() -> bool {
    env::var(COOKIE_NAME).is_ok_and(|value| value == COOKIE_VALUE)
}

/// The socket's file. Dropped, it is removed.
pub struct SocketFile(PathBuf);

impl SocketFile {
    /// The socket's path.
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

/// Binds the plugin's socket. Only root can connect. The socket gets its final name when it listens already: a socket
/// with that name that refuses a connection is dead.
pub fn listen() -> io::Result<(UnixListener, SocketFile)> {
    let directory = env::var_os("PLUGIN_UNIX_SOCKET_DIR").map_or_else(env::temp_dir, PathBuf::from);
    let random = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
    let name = format!("{SOCKET_PREFIX}{}", random.trim());
    let mut socket = SocketFile(directory.join(&name));
    let listener = UnixListener::bind(socket.path())?;
    fs::set_permissions(socket.path(), fs::Permissions::from_mode(0o700))?;
    let path = directory.join(name + LISTENING_SUFFIX);
    fs::rename(socket.path(), &path)?;
    socket.0 = path;
    Ok((listener, socket))
}

/// Prints the handshake line, then replaces standard output by /dev/null. The agent reads only lines of at most 64
/// KiB there, and stops reading after a longer one, so no other output may go there.
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

/// `CORE|APP|NETWORK|ADDRESS|PROTOCOL|CERTIFICATE[|MULTIPLEX]`; the last field only for an agent that asked for it.
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
