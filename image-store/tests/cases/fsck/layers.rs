//! Layers whose files are not the unpacked ones.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown, symlink},
    path::Path,
};

use fixtures::image::digest;
use image_store::FindingKind;

use super::{base, broken, broken_on, edit};
use crate::common::Bench;

fn settled(path: &Path, change: impl FnOnce()) {
    let time = fs::symlink_metadata(path).unwrap().modified().unwrap();
    change();
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_without_a_record() {
    let finding = broken(FindingKind::LayerUnrecorded, |good| {
        let layer = good.only("layers");
        fs::remove_file(layer.join("meta.json")).unwrap();
        layer
    })
    .await;
    assert_eq!(finding.images.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_with_a_torn_record() {
    broken(FindingKind::LayerRecordUnreadable, |good| {
        let layer = good.only("layers");
        fs::write(layer.join("meta.json"), "{ \"diff_id\": ").unwrap();
        layer
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_with_the_record_of_another() {
    broken(FindingKind::LayerRecordOfAnother, |good| {
        let layer = good.only("layers");
        edit(&layer.join("meta.json"), |meta| meta["diff_id"] = digest(b"another").into());
        layer
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_of_another_boot_that_was_not_synced() {
    broken(FindingKind::LayerTorn, |good| {
        let layer = good.only("layers");
        edit(&layer.join("meta.json"), |meta| {
            meta["boot_id"] = "another".into();
            meta["synced"] = false.into();
        });
        layer
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_without_files() {
    broken(FindingKind::LayerEmptied, |good| {
        let layer = good.only("layers");
        fs::remove_dir_all(layer.join("fs")).unwrap();
        layer
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_with_a_missing_file() {
    let finding = broken(FindingKind::LayerChanged, |good| {
        let layer = base(good);
        settled(&layer.join("fs/etc"), || fs::remove_file(layer.join("fs/etc/marker")).unwrap());
        layer
    })
    .await;
    assert!(finding.problem.contains("5 entries instead of 6") || finding.problem.contains("entries"), "{finding:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_with_a_file_too_many() {
    broken(FindingKind::LayerChanged, |good| {
        let layer = base(good);
        settled(&layer.join("fs/etc"), || fs::write(layer.join("fs/etc/backdoor"), "x").unwrap());
        layer
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_with_a_file_of_another_size() {
    let finding = broken(FindingKind::LayerChanged, |good| {
        let layer = base(good);
        let marker = layer.join("fs/etc/marker");
        settled(&marker, || fs::write(&marker, "longer than before").unwrap());
        layer
    })
    .await;
    assert!(finding.problem.contains("bytes instead of"), "{finding:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_with_a_file_that_was_written_to() {
    broken(FindingKind::LayerChanged, |good| {
        let layer = base(good);
        fs::write(layer.join("fs/etc/marker"), "esab").unwrap();
        layer
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_with_another_mode_owner_or_attribute() {
    let changes: [fn(&Path); 4] = [
        |marker| fs::set_permissions(marker, PermissionsExt::from_mode(0o4755)).unwrap(),
        |marker| chown(marker, Some(1), None).unwrap(),
        |marker| {
            let nothing = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(
                marker,
                "security.capability",
                &[1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                nothing,
            )
            .unwrap();
        },
        |marker| {
            let link = marker.with_file_name("link");
            settled(marker.parent().unwrap(), || {
                fs::remove_file(&link).unwrap();
                symlink("/etc/shadow", &link).unwrap();
            });
        },
    ];
    for change in changes {
        broken(FindingKind::LayerChanged, |good| {
            let layer = base(good);
            change(&layer.join("fs/etc/marker"));
            layer
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_image_with_another_name_in_it() {
    let Some(bench) = Bench::in_images() else { return };
    let finding = broken_on(bench, FindingKind::LayerChanged, |good| {
        let layer = base(good);
        let image = layer.join("fs.erofs");
        let mut bytes = fs::read(&image).unwrap();
        let name = bytes.windows(6).rposition(|part| part == b"marker").unwrap();
        bytes[name] = b'n';
        fs::write(image, bytes).unwrap();
        layer
    });
    assert!(finding.await.problem.contains("names"));
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_image_cut_short() {
    let Some(bench) = Bench::in_images() else { return };
    broken_on(bench, FindingKind::LayerChanged, |good| {
        let layer = base(good);
        fs::File::options().write(true).open(layer.join("fs.erofs")).unwrap().set_len(4096).unwrap();
        layer
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_image_of_another_kind() {
    let Some(bench) = Bench::in_images() else { return };
    broken_on(bench, FindingKind::LayerChanged, |good| {
        let layer = base(good);
        fs::write(layer.join("fs.erofs"), vec![b'x'; 8192]).unwrap();
        layer
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_without_its_image() {
    let Some(bench) = Bench::in_images() else { return };
    broken_on(bench, FindingKind::LayerEmptied, |good| {
        let layer = good.only("layers");
        fs::remove_file(layer.join("fs.erofs")).unwrap();
        layer
    })
    .await;
}
