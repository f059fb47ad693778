//! What killed calls for other volumes have left.
//!
//! Nomad gives a volume its id with the first `create`. If that is killed, no later call has the id. So the next call
//! that makes a volume removes what belongs to no complete volume. A volume that cannot be judged is reported and left
//! as it is.

use super::{content::Deadline, delete, error::PluginError, log::tell, place::Place, record::Record};

/// Removes the remains of calls that do not run any more. Volumes whose lock is held are left alone. A problem with one
/// volume is told to the operator, and ends neither the sweep nor the call. After half of the call's time the rest is
/// left to the next call.
pub fn sweep(place: &Place, deadline: Deadline) {
    let others = place.others().unwrap_or_else(|error| {
        tell(&format!("what killed calls have left is not removed: {error}"));
        Vec::new()
    });
    for other in others {
        if deadline.is_half_over() {
            return tell("what killed calls have left is removed by the next call, because it takes long");
        }
        if let Err(error) = sweep_one(&other) {
            tell(&format!("volume {} was passed over: {error}", other.id()));
        }
    }
}

fn sweep_one(other: &Place) -> Result<(), PluginError> {
    if Record::read(other)?.is_some() {
        return Ok(());
    }
    let Some(_lock) = other.lock_now()? else { return Ok(()) };
    // The volume may be complete since then.
    if Record::read(other)?.is_some() {
        return Ok(());
    }
    delete::complete(other)?;
    other.check_not_lost()?;
    delete::content(other)?;
    delete::forget(other)
}
