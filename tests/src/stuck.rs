//! A file system whose server takes a request and never answers: who looks for a file in it hangs in the kernel, where no signal
//! reaches it. As with a dead network file system, but ended by a word of ours.
//!
//! The server speaks the kernel's FUSE protocol (`linux/fuse.h`), as much of it as leads to the one file.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::mpsc,
    thread::JoinHandle,
    time::Duration,
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::must::Must;

/// The file that hangs.
pub const FILE: &str = "hang";

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
/// The size of `struct fuse_in_header`.
const IN_HEADER: usize = 40;
/// The kernel asks for a buffer of at least this size (FUSE_MIN_READ_BUFFER).
const BUFFER: usize = 1 << 16;

/// The file system, mounted until it is let go of.
#[derive(Debug)]
pub struct Stuck {
    point: PathBuf,
    taken: mpsc::Receiver<()>,
    server: Option<JoinHandle<()>>,
}

impl Stuck {
    /// Mounts it on a directory, which is made; `None` where the kernel has no FUSE.
    pub fn mount(point: &Path) -> Option<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse").ok()?;
        fs::create_dir_all(point).must("a mount point");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let options = std::ffi::CString::new(options).must("options without NUL");
        mount("stuck", point, "fuse", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str()).must("mount FUSE");
        let (tell, taken) = mpsc::channel();
        let server = std::thread::spawn(move || serve(device, &tell));
        Some(Self { point: point.to_owned(), taken, server: Some(server) })
    }

    /// Waits until somebody hangs.
    pub fn is_taken(&self, limit: Duration) -> bool {
        self.taken.recv_timeout(limit).is_ok()
    }

    /// Ends it, also where a container still has it mounted: whoever hangs goes on with an error.
    pub fn let_go(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Forced, the connection ends before the mount does.
        unmount(&self.point, UnmountFlags::FORCE | UnmountFlags::DETACH).ok();
        self.server.take().map(JoinHandle::join);
    }
}

impl Drop for Stuck {
    fn drop(&mut self) {
        self.end();
    }
}

/// Answers until the connection ends.
fn serve(mut device: File, taken: &mpsc::Sender<()>) {
    let mut buffer = vec![0; BUFFER];
    while let Ok(length) = device.read(&mut buffer) {
        let Some(request) = buffer.get(..length).filter(|request| request.len() >= IN_HEADER) else { return };
        let number = |at: usize| u32::from_ne_bytes([request[at], request[at + 1], request[at + 2], request[at + 3]]);
        let body = match number(4) {
            FORGET | BATCH_FORGET | INTERRUPT => continue,
            INIT => Ok(init()),
            GETATTR => Ok(root()),
            LOOKUP if request[IN_HEADER..].strip_suffix(&[0]) == Some(FILE.as_bytes()) => {
                // Nobody may be waiting for it any more.
                taken.send(()).ok();
                continue;
            }
            LOOKUP => Err(rustix::io::Errno::NOENT),
            _ => Err(rustix::io::Errno::NOSYS),
        };
        let (error, body) = match body {
            Ok(body) => (0, body),
            Err(error) => (-error.raw_os_error(), Vec::new()),
        };
        // `struct fuse_out_header`: length, error, the request's own number.
        let mut answer = ((16 + body.len()) as u32).to_ne_bytes().to_vec();
        answer.extend(error.to_ne_bytes());
        answer.extend(&request[8..16]);
        answer.extend(body);
        if device.write_all(&answer).is_err() {
            return;
        }
    }
}

/// `struct fuse_init_out`: version 7.31, nothing optional, writes of a page.
fn init() -> Vec<u8> {
    let mut body: Vec<u8> = [7u32, 31, 0, 0, 0, 4096, 1, 0].iter().flat_map(|field| field.to_ne_bytes()).collect();
    body.resize(64, 0);
    body
}

/// `struct fuse_attr_out` of the only directory: mode and number of links, the rest nothing.
fn root() -> Vec<u8> {
    let mut body = vec![0; 104];
    body[16] = 1;
    body[76..80].copy_from_slice(&0o40_755u32.to_ne_bytes());
    body[80] = 2;
    body
}
