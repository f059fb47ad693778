//! Carries a verdict out, under the exclusive store lock.

use rustix::fs::{AtFlags, Mode, Uid};

use super::{
    super::{
        layout::{self, Layout},
        trash,
    },
    judge::{Repair, Verdict},
    report::{Finding, Outcome},
};
use crate::{error::StoreError, files};

/// Turns a verdict into a finding. With `repair`, carries out the repair if there is one.
pub(super) fn settle(layout: &Layout, verdict: Verdict, repair: bool) -> Finding {
    let outcome = match (verdict.repair, describe(&verdict)) {
        (Repair::Manual(what), _) => Outcome::Manual(what),
        (_, what) if !repair => Outcome::Repairable(what),
        (_, what) => match carry_out(layout, &verdict) {
            Ok(()) => Outcome::Repaired(what),
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
    match verdict.repair {
        Repair::WriteVersion => "write it",
        Repair::MakeDirectory => "make it",
        Repair::CloseDirectory => "close it to all other users",
        Repair::Discard | Repair::Remove if verdict.images.is_empty() => "remove it",
        Repair::Discard | Repair::Remove => "remove it and forget the image, so that the next pull fetches it",
        Repair::Manual(what) => what,
    }
}

fn carry_out(layout: &Layout, verdict: &Verdict) -> Result<(), StoreError> {
    let path = layout.root().join(&verdict.path);
    // Remove the records first, so that no other process uses the images.
    for image in &verdict.forget {
        files::remove_file(&layout.root().join(image))?;
    }
    failpoint::at("fsck-before-repair");
    match verdict.repair {
        Repair::WriteVersion => layout.write_version(),
        Repair::MakeDirectory => layout::make_directory(&path),
        Repair::CloseDirectory => {
            let directory = layout::open_directory(&path)?;
            let own = Uid::from_raw(rustix::process::geteuid().as_raw());
            rustix::fs::chownat(&directory, c"", Some(own), None, AtFlags::EMPTY_PATH)
                .and_then(|()| rustix::fs::fchmod(&directory, Mode::from_raw_mode(0o700)))
                .map_err(StoreError::io("closing to others", path))
        }
        Repair::Discard => trash::discard(layout, &path),
        Repair::Remove => files::remove_file(&path),
        Repair::Manual(_) => Ok(()),
    }
}
