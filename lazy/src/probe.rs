//! Whether this kernel announces reads of files in a directory, tried out.

use std::{
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::Path,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use layer::SampleImage;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::{Mode, OFlags},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
        fsopen,
    },
};

use crate::{
    error::{LazyError, at},
    event,
    slots::{Slots, Wait},
    sys::{self, Verdict},
};

/// The file of the trial.
const NAME: &str = "lazy-probe.erofs";
const EVENTS: &str = "lazy-probe.events";
/// Far more than any step of the trial takes.
const PATIENCE: Duration = Duration::from_secs(10);
/// What the file contains when it is read.
const DATA: [u8; 4096] = [0x5a; 4096];

/// Mounts a small image from a file in `directory`, reads data that is not there, and supplies it when the kernel asks.
/// The trial must not run twice at the same time in one directory.
///
/// # Errors
/// The kernel or the file system lacks something.
pub fn probe(directory: &Path) -> Result<(), LazyError> {
    let (path, events) = (directory.join(NAME), directory.join(EVENTS));
    let result = try_out(&path, &events);
    for path in [&path, &events] {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at("removing", path)(error)),
            _ => {}
        }
    }
    result
}

fn try_out(path: &Path, events: &Path) -> Result<(), LazyError> {
    let lacks = |what: &'static str| move |error| LazyError::Unsupported { problem: format!("{what}: {error}") };
    let group = sys::new_group().map_err(lacks("the kernel does not announce reads"))?;
    let mut slots = Slots::open(events, Wait::No)?;
    slots.clear();
    let image = SampleImage::with_file().map_err(at("making", path))?;
    std::fs::write(path, image).map_err(at("writing", path))?;
    let file = File::open(path).map_err(at("opening", path))?;
    sys::mark(group.as_fd(), file.as_fd(), true).map_err(lacks("the file system does not announce reads"))?;
    let root = mount(path).map_err(lacks("the kernel does not mount an image from a file"))?;
    let done = eventfd(0, EventfdFlags::CLOEXEC).map_err(|error| at("making an eventfd for", path)(error.into()))?;
    let ended = done.try_clone().map_err(at("duplicating an eventfd for", path))?;
    let (tell, told) = mpsc::channel();
    let reader = move || {
        drop(tell.send(read(&root)));
        sys::wake(ended);
    };
    let spawned = thread::Builder::new().name("lazy-probe".to_owned()).spawn(reader);
    spawned.map_err(at("starting a thread for", path))?;
    let lacks_event = |problem: &str| LazyError::Unsupported { problem: problem.to_owned() };
    let mut sources = [PollFd::new(&group, PollFlags::IN), PollFd::new(&done, PollFlags::IN)];
    let timeout = Timespec::try_from(PATIENCE).ok();
    poll(&mut sources, timeout.as_ref()).map_err(|error| at("polling", events)(error.into()))?;
    let Some((_, event)) = slots.read(group.as_fd()).map_err(at("reading", events))? else {
        return Err(lacks_event(match told.try_recv() {
            Ok(Ok(_)) => "reads through a mount are not announced",
            Ok(Err(_)) => "a file of a mounted image cannot be read",
            Err(_) => "a read was not announced in time",
        }));
    };
    let writer: File = sys::event_descriptor(event.number).into();
    let expected = event::Announced { number: event.number, range: SampleImage::DATA..SampleImage::DATA + 4096 };
    // The write goes through the event's descriptor, so it is not announced.
    let written = writer.write_all_at(&DATA, SampleImage::DATA);
    sys::answer(group.as_fd(), event.number, Verdict::Allow).map_err(at("answering", events))?;
    written.map_err(at("writing", path))?;
    match told.recv_timeout(PATIENCE) {
        Ok(Ok(read)) if read == DATA && event == expected => Ok(()),
        Ok(Ok(_)) if event != expected => Err(lacks_event("the range of a read is not announced")),
        Ok(Ok(_)) => Err(lacks_event("a read did not see what was written before its answer")),
        Ok(Err(error)) => Err(at("reading", path)(error)),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            Err(lacks_event("a read did not go on after its answer"))
        }
    }
}

/// Reads the only file of the image.
fn read(root: &OwnedFd) -> io::Result<[u8; 4096]> {
    let file = rustix::fs::openat(root, "file", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = [0; 4096];
    File::from(file).read_exact(&mut bytes)?;
    Ok(bytes)
}

fn mount(image: &Path) -> io::Result<OwnedFd> {
    let context = fsopen("erofs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", image)?;
    fsconfig_set_flag(&context, "ro")?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_RDONLY)?)
}
