//! Where the bytes of a layer come from.

use std::{
    fmt,
    ops::{ControlFlow, Range},
    panic::resume_unwind,
    sync::Arc,
    thread::ScopedJoinHandle,
};

/// A place that has the bytes of one layer, for example a registry. Its bytes are not trusted.
///
/// Other kinds of layers (archives with an index) can be sources too: they deliver the bytes of the native image that
/// they would become.
pub trait Source: Send + Sync {
    /// Its name in errors and events, for example a host.
    fn name(&self) -> &str;

    /// Delivers the bytes of a range from first to last, in pieces of any size. Blocks. Ends early, without an error,
    /// if `sink` breaks.
    ///
    /// # Errors
    /// The bytes stopped. Those before were delivered.
    fn read(&self, range: Range<u64>, sink: &mut dyn FnMut(&[u8]) -> ControlFlow<()>) -> Result<(), SourceError>;
}

/// The sources of a layer, in the order in which they are asked.
pub type Sources = Arc<[Arc<dyn Source>]>;

/// Why a source did not deliver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SourceError(pub String);

impl fmt::Debug for dyn Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.name()).finish()
    }
}

/// The result of a thread that asked a source. Its panic goes on here.
pub(crate) fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// A whole range from one source.
pub(crate) fn read_exact(source: &dyn Source, range: &Range<u64>) -> Result<Vec<u8>, SourceError> {
    let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let mut bytes = Vec::with_capacity(length);
    let read = source.read(range.clone(), &mut |piece| {
        let wanted = piece.len().min(length - bytes.len());
        bytes.extend_from_slice(&piece[..wanted]);
        if bytes.len() == length { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match read {
        _ if bytes.len() == length => Ok(bytes),
        Ok(()) => Err(SourceError(format!("it ended after {} of {length} bytes", bytes.len()))),
        Err(error) => Err(error),
    }
}
