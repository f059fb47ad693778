//! The seeds of the fuzzers (`fuzz/corpus`): small well-formed and hostile inputs, made by the builders of the
//! fixtures.
//!
//! `OCI_RS_WRITE_SEEDS=1 cargo test -p oci-rs-image-store seeds` writes them again.

use std::{collections::BTreeMap, fs, path::Path};

use fixtures::image::{Compression, Entry, Format, Image, Layer, archive, compress, pax_record};
use serde_json::json;

use crate::native::convert;

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

type Seeds = BTreeMap<String, Vec<u8>>;

fn texts(seeds: &mut Seeds, target: &str, texts: &[&str]) {
    for (at, text) in texts.iter().enumerate() {
        seeds.insert(format!("{target}/{at:02}"), text.as_bytes().to_vec());
    }
}

fn layers(seeds: &mut Seeds) {
    let sparse = |entry: Entry| entry.pax("GNU.sparse.size", "9").pax("GNU.sparse.map", "1,2,5,1");
    let cases: [(&str, Vec<Entry>); 10] = [
        ("empty", vec![]),
        ("files", vec![Entry::dir("d"), Entry::file("d/f", "content").mode(0o4755), Entry::hard_link("h", "d/f")]),
        ("links", vec![Entry::symlink("l", "/d"), Entry::file("l/f", "x"), Entry::symlink("f", "../../canary")]),
        ("nodes", vec![Entry::char_device("c", 1, 3), Entry::block_device("b", 8, 1), Entry::fifo("p")]),
        ("whiteouts", vec![Entry::whiteout("a/b"), Entry::opaque("a"), Entry::file("a/b", ""), Entry::whiteout("c")]),
        (
            "pax",
            vec![Entry::file("p", "x").xattr("user.a", "1").pax("uid", "70000").pax("mtime", "-1.5").pax("size", "1")],
        ),
        ("long", vec![Entry::file("n".repeat(120), ""), Entry::symlink("l", "t".repeat(120))]),
        ("sparse", vec![sparse(Entry::file("s", "abc"))]),
        (
            "sparse-1.0",
            vec![
                Entry::file("s", [&b"1\n0\n3\n"[..], &[0; 506], b"abc"].concat())
                    .pax("GNU.sparse.major", "1")
                    .pax("GNU.sparse.minor", "0")
                    .pax("GNU.sparse.realsize", "3"),
            ],
        ),
        (
            "twice",
            vec![
                Entry::dir("a"),
                Entry::file("a/x", ""),
                Entry::symlink("a", "."),
                Entry::dir("a"),
                Entry::file("a", ""),
            ],
        ),
    ];
    for (name, entries) in cases {
        seeds.insert(format!("layer/{name}"), archive(entries));
    }
    let small = archive([Entry::file("f", "x")]);
    seeds.insert("layer/gzip".into(), compress(&small, Compression::Gzip));
    seeds.insert("layer/zstd".into(), compress(&small, Compression::Zstd));
    let pax = [
        pax_record("path", b"a/b"),
        pax_record("SCHILY.xattr.user.x", b"1\n2"),
        pax_record("mtime", b"-1.000000001"),
        pax_record("GNU.sparse.map", b"0,1,5,9"),
        pax_record("GNU.sparse.realsize", b"99"),
        pax_record("size", b"18446744073709551615"),
        pax_record("linkpath", b""),
    ];
    for (at, record) in pax.iter().enumerate() {
        seeds.insert(format!("pax/{at:02}"), record.clone());
    }
    seeds.insert("pax/all".into(), pax.concat());
    // Six bytes are one entry: kind, name, name, form of the link, link, link.
    for (name, bytes) in [
        ("swap", &[6, 0, 0, 2, 0, 0, 3, 0x10, 0, 7, 0, 0, 0, 0x10, 0, 7, 1, 1][..]),
        ("hard", &[0, 0x10, 0, 7, 1, 0, 5, 1, 0, 7, 0x10, 0, 0x89, 2, 0, 3, 0, 0]),
        (
            "link-to-whiteout",
            b"\x39\x00\xf5\xf5\xf5\x20\x01\x00\xff\xff\xff\x7f\x70\x00\x00\x61\xf5\x20\x01\x00\xff\xff\xf5\x00",
        ),
        ("whiteout", &[2, 0, 0, 7, 0, 0, 0, 5, 0, 7, 0, 0, 0, 0x70, 0, 7, 0, 0, 3, 0, 0, 7, 0, 0]),
    ] {
        seeds.insert(format!("entries/{name}"), bytes.to_vec());
    }
}

fn images(seeds: &mut Seeds) {
    for format in [Format::Oci, Format::Docker] {
        let run = json!({
            "Cmd": ["a"], "Entrypoint": null, "Env": ["A=1", "B"],
            "User": "1:2", "WorkingDir": "/", "StopSignal": "TERM",
            "Volumes": {"/v": {}}, "Labels": {"a": null}, "ExposedPorts": {"80/tcp": {}},
        });
        let built = Image::new().format(format).layer(Layer::of([Entry::file("f", "x")])).run(run).build();
        let name = format!("{format:?}").to_lowercase();
        seeds.insert(format!("documents/{name}-manifest"), built.top().bytes.clone());
        seeds.insert(format!("documents/{name}-config"), built.blobs[1].1.clone());
        let index = fixtures::image::Built::index(std::slice::from_ref(&built), true);
        seeds.insert(format!("documents/{name}-index"), index.top().bytes.clone());
        let names = ["docker.io/team/app:1"];
        seeds.insert(format!("archive/{name}-saved"), archive(built.saved(&names)));
        seeds.insert(format!("archive/{name}-layout"), archive(built.saved_as_layout(names[0])));
        let saved = archive(built.saved(&names));
        seeds.insert(format!("archive/{name}-gzip"), compress(&saved, Compression::Gzip));
    }
    seeds.insert("documents/schema1".into(), br#"{"schemaVersion":1,"fsLayers":[]}"#.to_vec());
    seeds.insert(
        "archive/links".into(),
        archive([Entry::symlink("manifest.json", "a"), Entry::hard_link("a", "b"), Entry::file("b", "[]")]),
    );
}

fn native_images(seeds: &mut Seeds) {
    let marked = [Entry::whiteout("a/b"), Entry::opaque("a"), Entry::file("a/c", ""), Entry::opaque(".")];
    let files = [
        Entry::dir("d").mode(0o1777),
        Entry::file("d/f", "content").xattr("user.a", "1"),
        Entry::hard_link("h", "d/f"),
        Entry::symlink("l", "t".repeat(3000)),
        Entry::char_device("c", 1, 3),
    ];
    for (name, entries) in [("marks", marked.to_vec()), ("files", files.to_vec()), ("empty", Vec::new())] {
        let (mut image, converted) = convert(&archive(entries));
        image.truncate(converted.parts.metadata as usize);
        seeds.insert(format!("native/{name}"), image);
    }
}

fn seeds() -> Seeds {
    let mut seeds = Seeds::new();
    layers(&mut seeds);
    native_images(&mut seeds);
    images(&mut seeds);
    let pinned = format!("host.example:5000/a/b_c--d:v1@{DIGEST}");
    texts(
        &mut seeds,
        "reference",
        &[
            "nginx",
            "team/app:1",
            "https://docker.io/a",
            "[::1]:5000/a",
            "localhost/a.b__c:T-_",
            &pinned,
            "a@sha512:",
            "A/b",
        ],
    );
    texts(
        &mut seeds,
        "challenge",
        &[
            r#"Bearer realm="https://auth.example/token",service="s",scope="repository:a/b:pull,push""#,
            r#"Basic realm="a, b", BEARER Realm = "https://a.example/t" , service=plain"#,
            r#"Bearer realm=https://a.example/t?x=1"#,
            r#"Bearer realm="\"//169.254.169.254/""#,
            r#"Negotiate, Bearer realm="//[::ffff:10.0.0.1]/""#,
        ],
    );
    texts(
        &mut seeds,
        "docker_config",
        &[
            concat!(
                r#"{"auths":{"https://index.docker.io/v1/":{"auth":"am9lOnBhc3M6d29yZA=="},"#,
                r#""registry.example":{"username":"u","password":"p"}}}"#,
            ),
            concat!(
                r#"{"auths":{"registry.example/team":{"identitytoken":"t"},"#,
                r#""registry.example:5000":{"registrytoken":"r"}},"credsStore":"pass"}"#,
            ),
            r#"{"auths":null,"credHelpers":{"docker.io":"hub","registry.example":""},"credsStore":null}"#,
        ],
    );
    seeds
}

#[test]
fn seeds_are_what_the_builders_make() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("fuzz/corpus");
    let seeds = seeds();
    assert!(seeds.values().map(Vec::len).sum::<usize>() < 300 << 10, "they travel with the sources");
    for (name, bytes) in &seeds {
        let path = corpus.join(name);
        if std::env::var_os("OCI_RS_WRITE_SEEDS").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
        }
        let found = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // Compressed bytes may differ between versions of the compressor.
        let compressed = ["gzip", "zstd"].iter().any(|word| name.contains(word));
        assert!(compressed || found == *bytes, "{name} differs from its source");
    }
    let targets: Vec<_> = fs::read_dir(corpus.parent().unwrap().join("targets")).unwrap().collect();
    for target in targets {
        let name = target.unwrap().path().file_stem().unwrap().to_owned();
        assert!(corpus.join(&name).is_dir(), "{name:?} has no seeds");
    }
}
