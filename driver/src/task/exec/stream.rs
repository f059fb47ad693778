//! Runs a command for an interactive client, such as `nomad alloc exec`.

use std::{io, sync::Arc, time::Duration};

use runtime::{ExecExit, ExecOptions, ExecProcess, ExecRequest, TerminalSize, plan::ContainerId};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{
    debug_image::DebugImageLease,
    endpoint::{Endpoint, pipe_failed},
    process::{KILLED_WITHIN, ended, null, spawn},
};
use crate::{blocking::blocking, error::TaskError, node::Node};

/// The wait for the terminal's size, which a client sends right after its first message.
const SIZE_WAIT: Duration = Duration::from_millis(200);
/// The size of a terminal if its client sends none.
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// A command for an interactive client.
#[derive(Debug)]
pub struct InteractiveCommand {
    /// Program and arguments.
    pub args: Vec<String>,
    /// The differences from the task's own command.
    pub options: ExecOptions,
    /// The debug image: the command can use its programs.
    pub debug_image: Option<String>,
    /// The command runs on a terminal.
    pub terminal: bool,
}

/// The channels of an interactive client.
#[derive(Debug)]
pub struct InteractiveClient {
    /// The client's input.
    pub input: mpsc::Receiver<ExecInput>,
    /// The terminal's size, once it is known. It has its own channel, so that it reaches a command that reads no
    /// input.
    pub size: watch::Receiver<Option<TerminalSize>>,
    /// The command's output.
    pub output: mpsc::Sender<ExecOutput>,
}

/// Input of an interactive client.
#[derive(Debug, PartialEq, Eq)]
pub enum ExecInput {
    /// Bytes for standard input.
    Stdin(Vec<u8>),
    /// The end of standard input.
    CloseStdin,
}

/// Output of a command.
#[derive(Debug, PartialEq, Eq)]
pub enum ExecOutput {
    /// Bytes of standard output, or of the terminal.
    Stdout(Vec<u8>),
    /// Bytes of standard error.
    Stderr(Vec<u8>),
    /// The end of standard output.
    CloseStdout,
    /// The end of standard error.
    CloseStderr,
    /// The command's end.
    Exited(ExecExit),
}

/// Runs a command. Returns when it has ended and its output was sent, or when the client has gone away.
pub async fn stream(
    node: Arc<Node>,
    container: ContainerId,
    mut command: InteractiveCommand,
    client: InteractiveClient,
) -> Result<(), TaskError> {
    let InteractiveClient { input, mut size, output } = client;
    let lease = match &command.debug_image {
        Some(image) => tokio::select! {
            lease = DebugImageLease::acquire(node.clone(), &container, image) => Some(lease?),
            () = output.closed() => return Ok(()),
        },
        None => None,
    };
    command.options.debug_image = lease.as_ref().map(DebugImageLease::programs);
    let begun = async {
        if command.terminal {
            let size = first_size(&mut size).await;
            CommandIo::on_terminal(node, container, command, size).await
        } else {
            CommandIo::on_pipes(node, container, command).await
        }
    };
    let CommandIo { process, sources, sink } = tokio::select! {
        begun = begun => begun?,
        () = output.closed() => return Ok(()),
    };
    let (finish, finished) = watch::channel(false);
    let mut output_copies = JoinSet::new();
    for source in sources {
        output_copies.spawn(copy_output(source, output.clone(), finished.clone()));
    }
    let mut input_copies = JoinSet::new();
    if sink.is_terminal {
        input_copies.spawn(copy_sizes(sink.clone(), size));
    }
    input_copies.spawn(copy_input(sink, input));
    let client_gone = tokio::select! {
        result = ended(&process) => { result?; false }
        () = output.closed() => true,
    };
    if client_gone {
        process.end();
        // A frozen command does not end; its helper gives up.
        if tokio::time::timeout(KILLED_WITHIN, ended(&process)).await.is_err() {
            return Ok(());
        }
    }
    finish.send_replace(true);
    while output_copies.join_next().await.is_some() {}
    input_copies.shutdown().await;
    let exit = blocking(move || {
        drop(lease);
        Ok(process.wait())
    });
    let exit = exit.await?;
    // A client that has gone away needs no result.
    drop(output.send(ExecOutput::Exited(exit)).await);
    Ok(())
}

async fn first_size(size: &mut watch::Receiver<Option<TerminalSize>>) -> TerminalSize {
    let known = tokio::time::timeout(SIZE_WAIT, size.wait_for(Option::is_some)).await;
    known.ok().and_then(Result::ok).and_then(|size| *size).unwrap_or(DEFAULT_SIZE)
}

/// A started command with the plugin's ends of its descriptors.
struct CommandIo {
    process: ExecProcess,
    sources: Vec<OutputSource>,
    sink: Arc<Endpoint>,
}

/// A descriptor that yields output.
struct OutputSource {
    endpoint: Arc<Endpoint>,
    /// Makes the message for a chunk.
    chunk: fn(Vec<u8>) -> ExecOutput,
    /// The message at the end.
    close: ExecOutput,
}

impl CommandIo {
    async fn on_pipes(node: Arc<Node>, container: ContainerId, command: InteractiveCommand) -> Result<Self, TaskError> {
        let ((stdin, our_stdin), (our_stdout, stdout), (our_stderr, stderr)) =
            (io::pipe().map_err(pipe_failed)?, io::pipe().map_err(pipe_failed)?, io::pipe().map_err(pipe_failed)?);
        let request = ExecRequest {
            args: command.args,
            terminal: None,
            stdin: stdin.into(),
            stdout: stdout.into(),
            stderr: stderr.into(),
            options: command.options,
        };
        let process = spawn(node, container, request).await?;
        let stdout = Endpoint::new(our_stdout)?;
        let stderr = Endpoint::new(our_stderr)?;
        Ok(Self {
            process,
            sources: vec![
                OutputSource { endpoint: Arc::new(stdout), chunk: ExecOutput::Stdout, close: ExecOutput::CloseStdout },
                OutputSource { endpoint: Arc::new(stderr), chunk: ExecOutput::Stderr, close: ExecOutput::CloseStderr },
            ],
            sink: Arc::new(Endpoint::new(our_stdin)?),
        })
    }

    async fn on_terminal(
        node: Arc<Node>,
        container: ContainerId,
        command: InteractiveCommand,
        size: TerminalSize,
    ) -> Result<Self, TaskError> {
        let request = ExecRequest {
            args: command.args,
            terminal: Some(size),
            stdin: null()?,
            stdout: null()?,
            stderr: null()?,
            options: command.options,
        };
        let mut process = spawn(node, container, request).await?;
        let master = process.terminal.take();
        let master = master.ok_or_else(|| TaskError::Internal("exec: the helper sent no terminal".to_owned()))?;
        let terminal = Arc::new(Endpoint::new(master)?);
        let source =
            OutputSource { endpoint: terminal.clone(), chunk: ExecOutput::Stdout, close: ExecOutput::CloseStdout };
        Ok(Self { process, sources: vec![source], sink: terminal })
    }
}

/// Sends output until its end, or until the command has ended and the descriptor is empty.
async fn copy_output(source: OutputSource, output: mpsc::Sender<ExecOutput>, mut finished: watch::Receiver<bool>) {
    let OutputSource { endpoint, chunk: message, close } = source;
    loop {
        let chunk = tokio::select! {
            chunk = endpoint.read() => chunk,
            () = async { drop(finished.wait_for(|done| *done).await) } => break,
        };
        if chunk.is_empty() || output.send(message(chunk)).await.is_err() {
            break;
        }
    }
    let mut unread = endpoint.unread();
    while let Some(chunk) = endpoint.read_available(&mut unread) {
        if output.send(message(chunk)).await.is_err() {
            return;
        }
    }
    // A client that has gone away needs no end of output.
    drop(output.send(close).await);
}

/// Passes a client's input to the command. A command that closed its input is not an error.
async fn copy_input(sink: Arc<Endpoint>, mut input: mpsc::Receiver<ExecInput>) {
    let mut sink = Some(sink);
    while let Some(message) = input.recv().await {
        let Some(endpoint) = &sink else { continue };
        match message {
            ExecInput::Stdin(bytes) => {
                if endpoint.write_all(&bytes).await.is_err() {
                    sink = None;
                }
            }
            // A terminal has one descriptor for both directions. It stays open; the client itself sends ^D.
            ExecInput::CloseStdin if endpoint.is_terminal => {}
            ExecInput::CloseStdin => sink = None,
        }
    }
}

/// Gives the terminal each new size, until the client goes away.
async fn copy_sizes(terminal: Arc<Endpoint>, mut size: watch::Receiver<Option<TerminalSize>>) {
    loop {
        if let Some(size) = *size.borrow_and_update() {
            terminal.resize(size);
        }
        if size.changed().await.is_err() {
            return;
        }
    }
}
