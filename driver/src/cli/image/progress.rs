//! The progress of a pull on standard error: one bar for each layer on a terminal, otherwise a line now and then.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use image_store::{Digest, Progress, PullEvent, Silent};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::{
    format,
    output::{self, Output},
};

/// The time between two lines without a terminal.
const PAUSE: Duration = Duration::from_secs(10);

/// What the command shows.
pub fn of(output: &Output) -> Arc<dyn Progress> {
    match (output.json, io::stderr().is_terminal()) {
        (true, _) => Arc::new(Silent),
        (false, true) => Arc::new(Bars::new()),
        (false, false) => Arc::new(Lines::default()),
    }
}

/// Bars on a terminal. They disappear when the pull ends, also when it fails or is interrupted.
struct Bars {
    all: MultiProgress,
    bars: Mutex<BTreeMap<Digest, ProgressBar>>,
}

impl Bars {
    fn new() -> Self {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
        Self { all, bars: Mutex::default() }
    }

    fn advance(&self, layer: &Digest, done: u64, total: u64) {
        let mut bars = self.bars.lock().unwrap_or_else(PoisonError::into_inner);
        let bar = bars.entry(layer.clone()).or_insert_with(|| {
            let bar = self.all.add(ProgressBar::new(total).with_style(style()));
            bar.set_prefix(format::short_digest(layer.as_str()).to_owned());
            bar
        });
        bar.set_position(done);
        bar.set_message(format!("{} of {}", format::size(done), format::size(total)));
    }

    fn done(&self, layer: &Digest) {
        let bars = self.bars.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = bars.get(layer) {
            bar.finish_with_message("done");
        }
    }
}

impl Bars {
    /// Replaces the bars by a line. Others follow.
    fn restart(&self, line: &str) {
        self.bars.lock().unwrap_or_else(PoisonError::into_inner).clear();
        // A terminal that is gone shows nothing.
        drop(self.all.clear());
        drop(self.all.println(line));
    }
}

/// The line for a native image that is refused.
fn refused(problem: &str) -> String {
    format!("the native image is refused, its original is used: {problem}")
}

impl Drop for Bars {
    fn drop(&mut self) {
        // A terminal that is gone needs no cleaning.
        drop(self.all.clear());
    }
}

fn style() -> ProgressStyle {
    // A wrong template is a fault of this text; the default shows bars too.
    ProgressStyle::with_template("{prefix}  [{bar:24}]  {msg}")
        .map_or_else(|_| ProgressStyle::default_bar(), |style| style.progress_chars("=> "))
}

impl Progress for Bars {
    fn report(&self, event: PullEvent) {
        match event {
            PullEvent::LayerAdvanced { layer, bytes_done, bytes_total } => {
                self.advance(&layer, bytes_done, bytes_total);
            }
            PullEvent::LayerDone { layer } => self.done(&layer),
            PullEvent::NativeRefused { problem } => self.restart(&refused(&problem)),
            _ => {}
        }
    }
}

/// Lines.
#[derive(Default)]
struct Lines {
    last: Mutex<Option<Instant>>,
}

impl Lines {
    /// The line for an event, if there is one now.
    fn line(&self, event: &PullEvent, now: Instant) -> Option<String> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let line = match event {
            PullEvent::Resolved { bytes_total, layers, .. } if *layers > 0 => {
                format!("downloading {layers} layers, {}", format::size(*bytes_total))
            }
            PullEvent::NativeRefused { problem } => refused(problem),
            PullEvent::Advanced { bytes_done, bytes_total, layers_done, layers }
                if last.is_none_or(|last| now.saturating_duration_since(last) >= PAUSE) =>
            {
                let (done, total) = (format::size(*bytes_done), format::size(*bytes_total));
                format!("{done} of {total}, {layers_done} of {layers} layers")
            }
            _ => return None,
        };
        *last = Some(now);
        Some(line)
    }
}

impl Progress for Lines {
    fn report(&self, event: PullEvent) {
        if let Some(line) = self.line(&event, Instant::now()) {
            output::note(line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_terminal_there_is_a_line_now_and_then() {
        let lines = Lines::default();
        let begin = Instant::now();
        let advanced = |bytes_done| PullEvent::Advanced { bytes_done, bytes_total: 4096, layers_done: 1, layers: 2 };
        let resolved = |layers| PullEvent::Resolved { digest: Digest::sha256(b"x"), bytes_total: 4096, layers };
        let line = |event: &PullEvent, seconds| lines.line(event, begin + Duration::from_secs(seconds));
        assert_eq!(line(&resolved(0), 0), None, "nothing is downloaded");
        assert_eq!(line(&resolved(2), 0).as_deref(), Some("downloading 2 layers, 4.0 KiB"));
        for seconds in 0..10 {
            assert_eq!(line(&advanced(seconds), seconds), None);
        }
        assert_eq!(line(&advanced(2048), 10).as_deref(), Some("2.0 KiB of 4.0 KiB, 1 of 2 layers"));
        assert_eq!((line(&advanced(2049), 19), line(&advanced(2050), 20).is_some()), (None, true));
    }
}
