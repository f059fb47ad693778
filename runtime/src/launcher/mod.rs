//! Executing our own binary in another role.
//!
//! It is copied into a sealed memory file once, before the first use: a container that finds our executable through /proc
//! finds a file that nobody can write. The copy has its start-up relocation behind it (`prelink`). Until then the kernel keeps the file that runs from being written, and an upgrade of
//! the plugin puts another file in its place, so it does not matter when the copy is made.
//!
//! Processes are started by a thread that has no descriptors in common with the rest of us. A new process begins with a copy of its
//! starter's table of descriptors and closes all but three of them; ours has several for each task, which would cost a start more with every task.

mod prelink;

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::{fs::FileExt, process::CommandExt},
    },
    path::Path,
    process::{Command, Stdio},
    sync::{Mutex, PoisonError, mpsc},
    thread,
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use serde::{Deserialize, Serialize};

use self::prelink::{ReadAt, prelink};
use crate::{
    packets::{connection, receive, send},
    process::ProcessRef,
    sys,
};

/// The starter's name.
const STARTER: &str = "starter";

/// Starts this program's sealed copy.
#[derive(Debug, Default)]
pub(crate) struct Launcher {
    /// The connection to the starter. When it is closed, the starter ends.
    starter: Mutex<Option<OwnedFd>>,
}

/// What the starter is told: what to start, with its standard input, output and error.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    role: String,
    args: Vec<String>,
}

/// What the starter answers.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Started { pid: i32 },
    Failed { errno: Option<i32>, text: String },
}

impl Launcher {
    /// Makes the copy and the starter now, if they were not yet.
    pub fn prepare(&self) -> io::Result<()> {
        prepared(&mut self.starter.lock().unwrap_or_else(PoisonError::into_inner)).map(drop)
    }

    /// Starts the copy in a role, with an empty environment (but for what a dev build's failpoints were told) and these as
    /// standard input, output and error, and nothing else.
    pub fn spawn(&self, role: &str, args: &[impl AsRef<Path>], stdio: [BorrowedFd<'_>; 3]) -> io::Result<ProcessRef> {
        let text = |arg: &Path| {
            let text = arg.to_str().map(str::to_owned);
            text.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not UTF-8", arg.display())))
        };
        let args = args.iter().map(|arg| text(arg.as_ref())).collect::<io::Result<_>>()?;
        let mut starter = self.starter.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = prepared(&mut starter)?;
        let order = Order { role: role.to_owned(), args };
        let answer = send(connection, &order, &stdio).and_then(|()| receive(connection));
        match answer {
            Ok(Some((Answer::Started { pid }, _))) => ProcessRef::open(pid),
            Ok(Some((Answer::Failed { errno: Some(errno), .. }, _))) => Err(io::Error::from_raw_os_error(errno)),
            Ok(Some((Answer::Failed { text, .. }, _))) => Err(io::Error::other(text)),
            // The next call makes another one.
            Ok(None) => {
                *starter = None;
                Err(io::Error::other("the thread that starts processes has ended"))
            }
            Err(error) => {
                *starter = None;
                Err(error)
            }
        }
    }

    fn copy() -> io::Result<OwnedFd> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Kernels before 6.3 do not know MFD_EXEC, later ones can be set up to refuse a file without it.
        let copy = memfd_create("oci-rs", flags | MemfdFlags::EXEC).or_else(|_| memfd_create("oci-rs", flags))?;
        let mut copy = File::from(copy);
        let original = File::open("/proc/self/exe")?;
        io::copy(&mut &original, &mut copy)?;
        let mut random = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut random)?;
        match prelink(&original, prelink::base(u64::from_ne_bytes(random))) {
            Some(patches) => patches.iter().try_for_each(|patch| copy.write_all_at(&patch.bytes, patch.offset))?,
            None => tracing::debug!("the executable relocates itself: monitors take more memory"),
        }
        seal(&copy)?;
        Ok(copy.into())
    }
}

/// The connection to a starter, which is made if there is none.
fn prepared(starter: &mut Option<OwnedFd>) -> io::Result<BorrowedFd<'_>> {
    if starter.is_none() {
        let program = Launcher::copy()?;
        let (ours, theirs) = connection()?;
        let (tell, told) = mpsc::channel();
        let number = theirs.as_raw_fd();
        thread::Builder::new().name(STARTER.to_owned()).spawn(move || {
            let taken = sys::leave_descriptors(number);
            let failed = tell.send(taken.as_ref().map(drop).map_err(|error| error.to_string())).is_err();
            if let (Ok(connection), false) = (taken, failed) {
                serve(&connection);
            }
        })?;
        // Ours is open until it has made its own of it.
        told.recv().map_err(io::Error::other)?.map_err(io::Error::other)?;
        drop(theirs);
        send(&ours, &(), &[program.as_fd()])?;
        *starter = Some(ours);
    }
    starter.as_ref().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotConnected.into())
}

/// The starter's life: nothing here may use a descriptor that came another way, also not to log.
fn serve(connection: &OwnedFd) {
    let Ok(Some(((), mut program))) = receive(connection) else { return };
    let Some(program) = program.pop() else { return };
    while let Ok(Some((order, stdio))) = receive(connection) {
        let answer = match start(program.as_raw_fd(), order, stdio) {
            Ok(pid) => Answer::Started { pid },
            Err(error) => Answer::Failed { errno: error.raw_os_error(), text: error.to_string() },
        };
        if send(connection, &answer, &[]).is_err() {
            return;
        }
    }
}

fn start(program: RawFd, order: Order, stdio: Vec<OwnedFd>) -> io::Result<i32> {
    let [stdin, stdout, stderr] = <[OwnedFd; 3]>::try_from(stdio).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(format!("/proc/self/fd/{program}"));
    command.arg0("oci-rs").arg(order.role).args(order.args).env_clear();
    if cfg!(debug_assertions) {
        let told = |name| std::env::var_os(name).map(|value: OsString| (name, value));
        command.envs([failpoint::VARIABLE, failpoint::TRACE].into_iter().filter_map(told));
    }
    let child = command.stdin(Stdio::from(stdin)).stdout(Stdio::from(stdout)).stderr(Stdio::from(stderr)).spawn()?;
    Ok(child.id() as i32)
}

/// Nobody writes to a memory file from now on (memfd_create(2), fcntl(2)).
///
/// `FUTURE_WRITE` and not `WRITE`: they differ in mappings made before, of which there are none, and `WRITE` is refused with EBUSY while
/// the kernel has a page in hand, as it may at any moment when it looks for memory to reclaim.
fn seal(file: &File) -> io::Result<()> {
    Ok(fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?)
}

impl ReadAt for File {
    fn part(&self, offset: u64, length: usize) -> Option<Vec<u8>> {
        // A length that a broken file claims must not become memory.
        let end = offset.checked_add(u64::try_from(length).ok()?)?;
        if end > self.metadata().ok()?.len() {
            return None;
        }
        let mut bytes = vec![0; length];
        self.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, ffi::OsStr, fs, io::Write, os::unix::ffi::OsStrExt};

    use rustix::{
        fs::fcntl_get_seals,
        io::Errno,
        pipe::{SpliceFlags, pipe, splice},
    };

    use super::*;

    #[test]
    fn a_file_is_sealed_while_the_kernel_holds_a_page_of_it() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create("test", flags).expect("a file"));
        file.write_all(&[7; 8192]).expect("written");
        let (_reader, writer) = pipe().expect("a pipe");
        // What was spliced is the file's page itself.
        let spliced = splice(&file, Some(&mut 0), &writer, None, 4096, SpliceFlags::empty()).expect("spliced");
        assert_eq!(spliced, 4096);
        assert_eq!(fcntl_add_seals(&file, SealFlags::WRITE), Err(Errno::BUSY), "the page is held");

        seal(&file).expect("sealed");
        let again = File::options().read(true).write(true).open(format!("/proc/self/fd/{}", file.as_raw_fd()));
        for file in [&file, &again.expect("opened")] {
            let refused = |result: io::Result<()>| {
                assert_eq!(result.map_err(|error| error.kind()), Err(io::ErrorKind::PermissionDenied))
            };
            refused(file.write_all_at(b"x", 0));
            refused(file.set_len(0));
            refused(file.set_len(1 << 20));
            assert!(fcntl_get_seals(file).expect("seals").contains(SealFlags::SEAL));
        }
    }

    /// The descriptors of the thread of that name.
    fn descriptors(name: &str) -> BTreeSet<i32> {
        let threads = fs::read_dir("/proc/self/task").expect("threads").map(|entry| entry.expect("a thread").path());
        let is_it = |thread: &std::path::PathBuf| {
            fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        let mut found = threads.filter(is_it);
        let thread = found.next().expect("the thread");
        assert_eq!(found.next(), None, "one such thread");
        let names = fs::read_dir(thread.join("fd")).expect("descriptors").map(|entry| entry.expect("one").file_name());
        names.map(|name| name.to_string_lossy().parse().expect("a number")).collect()
    }

    #[test]
    fn processes_are_started_by_a_thread_without_descriptors_of_ours() {
        let many: Vec<File> = (0..100).map(|_| File::open("/dev/null").expect("a file")).collect();
        let launcher = Launcher::default();
        let null = File::options().read(true).write(true).open("/dev/null").expect("a file");
        for _ in 0..2 {
            let (reader, writer) = pipe().expect("a pipe");
            // The copy is this test program: it says which tests it has.
            let stdio = [null.as_fd(), writer.as_fd(), null.as_fd()];
            let process = launcher.spawn("--list", &["--format=terse"], stdio).expect("a process");
            drop(writer);
            let said = io::read_to_string(File::from(reader)).expect("its output");
            assert!(said.contains("processes_are_started_by_a_thread_without_descriptors_of_ours"), "{said}");
            assert!(process.wait_for(None).expect("its end"));
            process.reap().expect("it is our child");
            // Standard input, output and error, the connection, and the program.
            let own = descriptors(STARTER);
            assert_eq!(own.len(), 5, "{own:?}");
        }
        drop(many);

        // Whoever asks for the impossible harms nobody else.
        let stdio = || [null.as_fd(), null.as_fd(), null.as_fd()];
        let strange = OsStr::from_bytes(b"/\xff");
        let refused = launcher.spawn("--list", &[strange], stdio()).expect_err("no text");
        assert!(refused.to_string().contains("not UTF-8"), "{refused}");
        let long = "x".repeat(100_000);
        launcher.spawn("--list", &[long.as_str()], stdio()).expect_err("too long");
        let process = launcher.spawn("--list", &["--format=terse"], stdio()).expect("a process");
        assert!(process.wait_for(None).expect("its end"));
        process.reap().expect("it is our child");
    }
}
