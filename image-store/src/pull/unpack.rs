//! Unpacking one layer on its own thread, and its commit after both digests were verified.

use std::{fs::File, io, os::fd::OwnedFd, path::Path, sync::Arc};

use layer::{
    Digest, Limits, Output, UnpackError, Unpacked,
    stream::{BlobReader, Piece},
};
use tokio::sync::{mpsc, oneshot};

use super::puller::Puller;
use crate::{
    blocking::blocking,
    error::{PullError, StoreError},
    native::NativeLayer,
    store::{LayerFormat, LayerRecord, Staged},
};

/// Layers of at least this compressed size are inflated and written on two threads.
const TWO_THREADS_BYTES: u64 = 16 << 20;
/// Pieces that may wait between the source and the unpacker.
const WAITING_PIECES: usize = 8;

/// The result of the unpacking thread.
type ThreadResult = Result<(Unpacked, Staged), UnpackError>;

/// Where the bytes of a layer go.
enum Target {
    /// They are unpacked.
    Unpacked(Output),
    /// They are the layer.
    Native((File, OwnedFd), NativeLayer),
}

/// Copies a native image and checks it.
fn receive(
    blob: BlobReader,
    (file, directory): (File, OwnedFd),
    native: &NativeLayer,
    limits: &Limits,
) -> Result<Unpacked, UnpackError> {
    let mut root = [0; 32];
    // The digest is one of SHA-256.
    hex::decode_to_slice(native.hash_root.hex(), &mut root).unwrap_or_default();
    layer::receive(blob, (file, &directory), (native.metadata, &root), limits)
}

/// A thread that unpacks one layer.
pub(super) struct Unpacker {
    /// Where the bytes of the blob go, from first to last, then [`Piece::End`].
    pub(super) pieces: mpsc::Sender<Piece>,
    result: UnpackerResult,
}

/// The result of an unpacking thread.
pub(super) struct UnpackerResult {
    layer: LayerRecord,
    fs: std::path::PathBuf,
    done: oneshot::Receiver<ThreadResult>,
}

impl Unpacker {
    pub(super) fn spawn(puller: &Puller, layer: &LayerRecord, staged: Staged) -> Result<Self, StoreError> {
        let (pieces, receiver) = mpsc::channel(WAITING_PIECES);
        let fs = staged.fs();
        let format = puller.local.format();
        let target = match layer.native.clone() {
            Some(_) if format == LayerFormat::Directory => {
                let problem = io::Error::other("this node stores layers in directories, and the layer is an image");
                return Err(StoreError::io("making", fs)(problem));
            }
            Some(native) => Target::Native(staged.native_output()?, native),
            None => Target::Unpacked(staged.output(format, &puller.memory)?),
        };
        let blob = BlobReader::new(receiver, layer.blob.algorithm());
        let (algorithm, two_threads) = (layer.diff_id.algorithm(), layer.size >= TWO_THREADS_BYTES);
        let limits = puller.layer_limits();
        let (report, done) = oneshot::channel();
        std::thread::Builder::new()
            .name("unpack".into())
            .spawn(move || {
                // After a failure, and when no receiver is left, `staged` removes itself here.
                let result = match target {
                    Target::Unpacked(output) => layer::unpack(blob, output, algorithm, two_threads, &limits),
                    Target::Native(output, native) => receive(blob, output, &native, &limits),
                };
                drop(report.send(result.map(|unpacked| (unpacked, staged))));
            })
            .map_err(StoreError::io("starting a thread for", fs.clone()))?;
        Ok(Self { pieces, result: UnpackerResult { layer: layer.clone(), fs, done } })
    }

    /// Separates the input, which ends when it is dropped, from the result.
    pub(super) fn split(self) -> (mpsc::Sender<Piece>, UnpackerResult) {
        (self.pieces, self.result)
    }
}

impl UnpackerResult {
    /// Waits for the thread, and combines its result with the result of the source.
    pub(super) async fn join(self, streamed: Result<(), PullError>) -> Result<(Staged, Unpacked), PullError> {
        let Self { layer, fs, done } = self;
        let problem = |problem: &str| PullError::Layer { layer: layer.blob.clone(), problem: problem.into() };
        let result = done.await.map_err(|_| problem("the unpacking thread died"))?;
        match (result, streamed) {
            (Ok((unpacked, staged)), Ok(())) => Ok((staged, unpacked)),
            // The unpacker stops when the source does, and the other way round: the cause is the error of the other
            // side.
            (Err(UnpackError::Aborted) | Ok(_), Err(error)) => Err(error),
            (Err(UnpackError::Aborted), Ok(())) => Err(problem("its stream was cut short")),
            (Err(error), _) => Err(unpack_error(&layer, &fs, error)),
        }
    }
}

/// Verifies a layer and moves it to its place.
pub(super) async fn commit(
    puller: &Puller,
    layer: &LayerRecord,
    staged: Staged,
    unpacked: Unpacked,
) -> Result<(), PullError> {
    if let Err(error) = verify(layer, &unpacked) {
        // Many files may have to be removed, which must not block an async thread.
        blocking(move || {
            drop(staged);
            Ok(())
        })
        .await?;
        return Err(error);
    }
    let local = Arc::clone(&puller.local);
    Ok(blocking(move || local.commit_layer(&staged, &unpacked)).await?)
}

/// Checks both digests of a layer, before any process can see it.
fn verify(layer: &LayerRecord, unpacked: &Unpacked) -> Result<(), PullError> {
    let check = |what: &str, expected: &Digest, actual: &Digest| {
        if expected == actual {
            return Ok(());
        }
        let what = format!("layer {}: {what}", layer.blob);
        Err(PullError::DigestMismatch { what, expected: expected.clone(), actual: actual.clone() })
    };
    check("the blob", &layer.blob, &unpacked.blob)?;
    check("its unpacked bytes (diff id)", &layer.diff_id, &unpacked.diff_id)
}

fn unpack_error(layer: &LayerRecord, fs: &Path, error: UnpackError) -> PullError {
    match error {
        UnpackError::Refused { entry, problem } => {
            let problem = match entry {
                Some(entry) => format!("entry \"{entry}\": {problem}"),
                None => problem,
            };
            PullError::Layer { layer: layer.blob.clone(), problem }
        }
        UnpackError::Disk { entry, action, source } => {
            StoreError::io(action, fs.join(entry.trim_start_matches('/')))(source).into()
        }
        UnpackError::Aborted => {
            PullError::Layer { layer: layer.blob.clone(), problem: "unpacking was cancelled".into() }
        }
    }
}
