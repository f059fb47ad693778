//! Reading JSON as registries and build tools write it.

use serde::{Deserialize, Deserializer};

/// Reads `null` as the default value, for `#[serde(deserialize_with)]`. Real images contain `null` in many fields.
pub(crate) fn null_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(d: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}
