//! Carries a verdict out, under the store's lock held alone.

use rustix::fs::{AtFlags, Mode, Uid};

use super::{
    super::{
        layer,
        layout::{self, Layout},
        record,
    },
    Finding, Outcome,
    judge::{Mend, Verdict},
};
use crate::error::StoreError;

/// Turns a verdict into a finding, and mends it if that is wanted and can be done.
pub(super) fn settle(layout: &Layout, verdict: Verdict, repair: bool) -> Finding {
    let outcome = match (verdict.mend, describe(&verdict)) {
        (Mend::Manual(what), _) => Outcome::Manual(what),
        (_, what) if !repair => Outcome::Mendable(what),
        (_, what) => match mend(layout, &verdict) {
            Ok(()) => Outcome::Mended(what),
            Err(error) => Outcome::Failed(error.to_string()),
        },
    };
    Finding {
        kind: verdict.kind,
        severity: verdict.kind.severity(),
        path: layout.root().join(&verdict.path),
        problem: verdict.problem,
        images: verdict.images,
        held_by: verdict.held_by,
        outcome,
    }
}

fn describe(verdict: &Verdict) -> &'static str {
    match verdict.mend {
        Mend::WriteVersion => "write it",
        Mend::MakeDirectory => "make it",
        Mend::CloseDirectory => "close it to everybody else",
        Mend::Discard | Mend::Remove if verdict.images.is_empty() => "remove it",
        Mend::Discard | Mend::Remove => "remove it and forget the image, so that the next pull fetches it",
        Mend::Manual(what) => what,
    }
}

fn mend(layout: &Layout, verdict: &Verdict) -> Result<(), StoreError> {
    let path = layout.root().join(&verdict.path);
    // First of all nobody may believe that it is there.
    for image in &verdict.forget {
        record::remove_file(&layout.root().join(image))?;
    }
    failpoint::at("fsck-before-mend");
    match verdict.mend {
        Mend::WriteVersion => layout.write_version(),
        Mend::MakeDirectory => layout::make_directory(&path),
        Mend::CloseDirectory => {
            let directory = layout::open_directory(&path)?;
            let us = Uid::from_raw(rustix::process::geteuid().as_raw());
            rustix::fs::chownat(&directory, c"", Some(us), None, AtFlags::EMPTY_PATH)
                .and_then(|()| rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o700)))
                .map_err(StoreError::io("closing to others", path))
        }
        Mend::Discard => layer::to_trash(layout, &path),
        Mend::Remove => record::remove_file(&path),
        Mend::Manual(_) => Ok(()),
    }
}
