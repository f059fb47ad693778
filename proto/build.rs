//! Compiles the `.proto` files without `protoc` (protox is a compiler written in Rust).

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(
        [
            "nomad/base.proto",
            "nomad/device.proto",
            "nomad/driver.proto",
            "nomad/hclspec.proto",
            "nomad/structs.proto",
            "plugin/go_plugin.proto",
        ],
        ["proto"],
    )?;
    tonic_prost_build::configure().compile_fds(files)?;
    Ok(())
}
