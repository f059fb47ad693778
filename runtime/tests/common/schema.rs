//! The runtime specification's own JSON schema (`tests/oci-schema`), by which a spec is judged.

use std::path::Path;

use serde_json::Value as Json;

thread_local! {
    /// Read once: it is in a dozen files.
    static SCHEMA: (boon::Schemas, boon::SchemaIndex) = {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oci-schema/config-schema.json");
        let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
        // The files do not all say so.
        compiler.set_default_draft(boon::Draft::V4);
        let index = compiler.compile(&path.to_string_lossy(), &mut schemas);
        let index = index.unwrap_or_else(|error| panic!("the schema: {error:#}"));
        (schemas, index)
    };
}

/// Panics with the reasons when a spec is not of the schema.
pub fn assert_valid(spec: &Json) {
    SCHEMA.with(|(schemas, index)| {
        if let Err(error) = schemas.validate(spec, *index) {
            panic!("{error:#}\n{spec:#}");
        }
    });
}
