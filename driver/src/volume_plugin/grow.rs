//! Growth: a repeated `create` with a larger capacity makes an existing volume larger while it is mounted.
//!
//! A file system of its own becomes larger before the record says so, and a project quota after it. Both can be
//! repeated, so a killed call is mended by the next one with the same capacity. A call with the old capacity leaves a
//! larger file with the old file system, which is harmless.

use super::{
    error::PluginError, expose::Volume, file_system::OwnFileSystem, record::Record, request::Request, storage::Storage,
};

/// Makes a volume as large as a later request wants it, unless it is. `bytes` is its limit. Returns the record and the
/// limit after that.
pub fn grow(request: &Request, record: Record, bytes: u64) -> Result<(Record, u64), PluginError> {
    let (place, wanted) = (&request.place, request.capacity);
    if !record.can_grow() {
        return Ok((record, bytes));
    }
    if let Storage::Quota { bytes: has } = record.storage {
        let Some(bytes) = wanted.growth(record.capacity, has, has) else { return Ok((record, bytes)) };
        let record = Record { capacity: wanted, storage: Storage::Quota { bytes }, ..record };
        record.write(place)?;
        failpoint::at("volume-before-growth");
        let bytes = Volume { place, record: &record, key: None }.expose()?;
        return Ok((record, bytes));
    }
    let Some(format) = record.storage.format() else { return Ok((record, bytes)) };
    let own = OwnFileSystem { place, format, key: None };
    let file = own.open()?;
    let Some(size) = wanted.growth(record.capacity, own.bytes(&file)?, bytes) else { return Ok((record, bytes)) };
    let bytes = own.grow(&file, wanted, size)?;
    let record = Record { capacity: wanted, ..record };
    record.write(place)?;
    Ok((record, bytes))
}
