//! Small limits, so that few bytes reach them, and the rule for error texts.

/// The limits of the image store.
pub(crate) fn store_limits() -> image_store::Limits {
    let layer::Limits { layer_bytes, ratio_grace, entries, xattr_total_bytes, .. } = layer_limits();
    image_store::Limits {
        layer_bytes,
        ratio_grace,
        entries,
        xattr_total_bytes,
        document_bytes: 64 << 10,
        ..image_store::Limits::default()
    }
}

/// The limits of one layer.
pub(crate) fn layer_limits() -> layer::Limits {
    layer::Limits {
        layer_bytes: 4 << 20,
        ratio_grace: 1 << 20,
        entries: 500,
        xattr_total_bytes: 64 << 10,
        ..layer::Limits::default()
    }
}

/// Error texts reach logs, so they must not hold control characters.
pub(crate) fn assert_loggable(text: &str) {
    assert!(!text.contains(char::is_control), "{text:?}");
}
