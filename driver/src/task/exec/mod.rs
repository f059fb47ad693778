//! Commands run in a running task: collected to their end for script checks, or streamed for a person.
//!
//! A command ends when its lead process ends; what that wrote is then read to the last byte, but nobody waits for background
//! processes that still hold the pipes. A caller that goes away takes its command with it.

mod channel;
pub mod prefix;
pub mod tools;

use std::{
    io::{self, PipeReader, PipeWriter},
    os::fd::OwnedFd,
    sync::Arc,
    time::Duration,
};

use runtime::{ExecExit, ExecOptions, ExecProcess, ExecRequest, TerminalSize, plan::ContainerId};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, watch},
    time::Instant,
};

use self::channel::{Channel, Tail};
use super::{TaskError, blocking};
use crate::{engine::Engine, sys};

/// How long the size of a terminal is waited for, which a client sends right after the set-up.
const SIZE_WAIT: Duration = Duration::from_millis(200);
/// What a terminal measures when nobody says.
const USUAL_SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// A command for a person.
#[derive(Debug)]
pub struct Wanted {
    /// Program and arguments.
    pub args: Vec<String>,
    /// What is different from the task's own command.
    pub options: ExecOptions,
    /// The image whose programs are to be there.
    pub image: Option<String>,
    /// On a terminal.
    pub terminal: bool,
}

/// A person's client.
#[derive(Debug)]
pub struct Client {
    /// What is typed.
    pub input: mpsc::Receiver<Input>,
    /// The terminal's size, once it is known. Beside the input: a command that does not read must not keep its old size.
    pub size: watch::Receiver<Option<TerminalSize>>,
    /// Where the answers go.
    pub output: mpsc::Sender<Output>,
}

/// What a person's client sends.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// Bytes for standard input.
    Stdin(Vec<u8>),
    /// End of standard input.
    CloseStdin,
}

/// What goes back.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Bytes of standard output, or of the terminal.
    Stdout(Vec<u8>),
    /// Bytes of standard error.
    Stderr(Vec<u8>),
    /// No more standard output.
    CloseStdout,
    /// No more standard error.
    CloseStderr,
    /// The command ended.
    Exited(ExecExit),
}

/// A command's end and the end of its output.
#[derive(Debug)]
pub struct Collected {
    /// The last bytes of standard output and standard error, merged in the order in which they were written.
    pub output: Vec<u8>,
    /// How it ended.
    pub exit: ExecExit,
}

/// Runs a command to its end. One that runs longer than `timeout`, which begins now, is killed with all its descendants and
/// reported as killed.
pub async fn collect(
    engine: Arc<Engine>,
    container: ContainerId,
    args: Vec<String>,
    timeout: Option<Duration>,
) -> Result<Collected, TaskError> {
    // A time that no clock shows never comes.
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let (reader, writer) = io::pipe().map_err(pipe_failed)?;
    let request = ExecRequest {
        args,
        terminal: None,
        stdin: null()?,
        stdout: writer.try_clone().map_err(pipe_failed)?.into(),
        stderr: writer.into(),
        options: ExecOptions { whole_tree: deadline.is_some(), ..ExecOptions::default() },
    };
    let process = spawn(engine, container, request).await?;
    let channel = Channel::new(reader.into())?;
    let mut tail = Tail::default();
    let expired = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    let in_time = tokio::select! {
        result = read_until(&channel, &mut tail, ended(&process)) => result.map(|()| true),
        () = expired => Ok(false),
    }?;
    if !in_time {
        process.kill();
        self::ended(&process).await?;
    }
    let mut left = channel.left();
    while let Some(bytes) = channel.take(&mut left) {
        tail.push(&bytes);
    }
    let exit = blocking(move || Ok(process.wait())).await?;
    if let (false, Some(timeout)) = (in_time, timeout) {
        tail.push(
            format!("\ncommand killed: it ran longer than its timeout of {} s\n", timeout.as_secs_f64()).as_bytes(),
        );
    }
    Ok(Collected { output: tail.0, exit })
}

async fn read_until(
    channel: &Channel,
    tail: &mut Tail,
    end: impl Future<Output = Result<(), TaskError>>,
) -> Result<(), TaskError> {
    tokio::pin!(end);
    let mut open = true;
    loop {
        tokio::select! {
            result = &mut end => return result,
            chunk = channel.read(), if open => {
                open = !chunk.is_empty();
                tail.push(&chunk);
            }
        }
    }
}

/// Runs a command for a person. Returns when it ended and everything was sent, or when the client went away.
pub async fn stream(
    engine: Arc<Engine>,
    container: ContainerId,
    mut wanted: Wanted,
    client: Client,
) -> Result<(), TaskError> {
    let Client { input, mut size, output } = client;
    let lease = match &wanted.image {
        Some(image) => tokio::select! {
            lease = tools::Lease::acquire(engine.clone(), &container, image) => Some(lease?),
            () = output.closed() => return Ok(()),
        },
        None => None,
    };
    wanted.options.tools = lease.as_ref().map(tools::Lease::tools);
    let mut session = if wanted.terminal {
        let known = tokio::time::timeout(SIZE_WAIT, size.wait_for(Option::is_some)).await;
        // Without one, the usual size does until one comes.
        let known = known.ok().and_then(Result::ok).and_then(|size| *size);
        Session::on_terminal(engine, container, wanted, known.unwrap_or(USUAL_SIZE)).await?
    } else {
        Session::on_pipes(engine, container, wanted).await?
    };
    let process = session.process;
    let (finish, finished) = watch::channel(false);
    let mut pumps = tokio::task::JoinSet::new();
    for (channel, wrap, close) in session.sources.drain(..) {
        pumps.spawn(pump(channel, output.clone(), wrap, close, finished.clone()));
    }
    let mut listening = tokio::task::JoinSet::new();
    if session.sink.is_terminal {
        listening.spawn(resize(session.sink.clone(), size));
    }
    listening.spawn(feed(session.sink, input));
    let gone = tokio::select! {
        result = ended(&process) => { result?; false }
        () = output.closed() => true,
    };
    if gone {
        process.end();
        ended(&process).await?;
    }
    finish.send_replace(true);
    while pumps.join_next().await.is_some() {}
    listening.shutdown().await;
    let exit = blocking(move || {
        drop(lease);
        Ok(process.wait())
    });
    let exit = exit.await?;
    // A client that is gone does not want the result.
    drop(output.send(Output::Exited(exit)).await);
    Ok(())
}

type Source = (Arc<Channel>, fn(Vec<u8>) -> Output, Output);

/// A command with our ends of its descriptors.
struct Session {
    process: ExecProcess,
    sources: Vec<Source>,
    sink: Arc<Channel>,
}

impl Session {
    async fn on_pipes(engine: Arc<Engine>, container: ContainerId, wanted: Wanted) -> Result<Self, TaskError> {
        let ((stdin, our_stdin), (our_stdout, stdout), (our_stderr, stderr)) =
            (io::pipe().map_err(pipe_failed)?, io::pipe().map_err(pipe_failed)?, io::pipe().map_err(pipe_failed)?);
        let request = ExecRequest {
            args: wanted.args,
            terminal: None,
            stdin: stdin.into(),
            stdout: stdout.into(),
            stderr: stderr.into(),
            options: wanted.options,
        };
        let process = spawn(engine, container, request).await?;
        let source = |reader: PipeReader| Channel::new(reader.into()).map(Arc::new);
        let sink = |writer: PipeWriter| Channel::new(writer.into()).map(Arc::new);
        Ok(Self {
            process,
            sources: vec![
                (source(our_stdout)?, Output::Stdout, Output::CloseStdout),
                (source(our_stderr)?, Output::Stderr, Output::CloseStderr),
            ],
            sink: sink(our_stdin)?,
        })
    }

    async fn on_terminal(
        engine: Arc<Engine>,
        container: ContainerId,
        wanted: Wanted,
        size: TerminalSize,
    ) -> Result<Self, TaskError> {
        let request = ExecRequest {
            args: wanted.args,
            terminal: Some(size),
            stdin: null()?,
            stdout: null()?,
            stderr: null()?,
            options: wanted.options,
        };
        let mut process = spawn(engine, container, request).await?;
        let master = process.terminal.take();
        let master = master.ok_or_else(|| TaskError::Internal("exec: the helper sent no terminal".to_owned()))?;
        let channel = Arc::new(Channel::new(master)?);
        Ok(Self { process, sources: vec![(channel.clone(), Output::Stdout, Output::CloseStdout)], sink: channel })
    }
}

async fn spawn(engine: Arc<Engine>, container: ContainerId, request: ExecRequest) -> Result<ExecProcess, TaskError> {
    if request.args.is_empty() {
        return Err(TaskError::Invalid("exec: the command is empty".to_owned()));
    }
    blocking(move || Ok(engine.runtime.exec(&container, request)?)).await
}

async fn ended(process: &ExecProcess) -> Result<(), TaskError> {
    let watch =
        || -> io::Result<AsyncFd<OwnedFd>> { sys::watch(process.exit_fd().try_clone_to_owned()?, Interest::READABLE) };
    let watched = watch().map_err(pipe_failed)?;
    watched.readable().await.map(drop).map_err(pipe_failed)
}

/// Sends what a descriptor yields until it ends, or until the command has ended and the descriptor is empty.
async fn pump(
    channel: Arc<Channel>,
    output: mpsc::Sender<Output>,
    wrap: fn(Vec<u8>) -> Output,
    close: Output,
    mut finished: watch::Receiver<bool>,
) {
    loop {
        let chunk = tokio::select! {
            chunk = channel.read() => chunk,
            () = async { drop(finished.wait_for(|done| *done).await) } => break,
        };
        if chunk.is_empty() || output.send(wrap(chunk)).await.is_err() {
            break;
        }
    }
    let mut left = channel.left();
    while let Some(chunk) = channel.take(&mut left) {
        if output.send(wrap(chunk)).await.is_err() {
            return;
        }
    }
    // The receiver went away: nobody is left to be told.
    drop(output.send(close).await);
}

/// Hands a client's input to the command. A command that closed its input is not an error.
async fn feed(sink: Arc<Channel>, mut input: mpsc::Receiver<Input>) {
    let mut sink = Some(sink);
    while let Some(message) = input.recv().await {
        let Some(channel) = &sink else { continue };
        match message {
            Input::Stdin(bytes) => {
                if channel.write_all(&bytes).await.is_err() {
                    sink = None;
                }
            }
            // A terminal has one descriptor for both ways: it stays open, and the client sends ^D itself.
            Input::CloseStdin if channel.is_terminal => {}
            Input::CloseStdin => sink = None,
        }
    }
}

/// Gives the terminal each new size. The kernel tells the command.
async fn resize(terminal: Arc<Channel>, mut size: watch::Receiver<Option<TerminalSize>>) {
    loop {
        if let Some(size) = *size.borrow_and_update() {
            terminal.resize(size);
        }
        // Without a client there are no more sizes.
        if size.changed().await.is_err() {
            return;
        }
    }
}

fn null() -> Result<OwnedFd, TaskError> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    null.map(OwnedFd::from).map_err(|error| TaskError::Internal(format!("/dev/null: {error}")))
}

fn pipe_failed(error: io::Error) -> TaskError {
    TaskError::Internal(format!("exec: {error}"))
}
