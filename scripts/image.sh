#!/usr/bin/env bash
# Makes an image for demo and tests, without Docker: image.sh DIRECTORY [KIND] writes an OCI layout with the kind as its
# tag. Push it with `skopeo copy oci:DIRECTORY:KIND …`. The kinds:
#   busybox   Debian's static busybox with a link per applet, users, a web page, and the scripts in e2e/image/
#   counter   the same, with a server on port 9001
#   curl      the same with Debian's curl and its libraries
#   csi       the CSI plugin of e2e/conformance/csiplugin
#   gpu       busybox with a program that computes on an NVIDIA GPU, and the C library, which the driver's library needs
#   envoy     the proxy of Consul's service mesh, fetched by scripts/setup.sh, with its libraries
. "$(dirname "$0")/lib.sh"

layout=${1:?usage: image.sh DIRECTORY [busybox|counter|csi|curl|envoy|gpu]} kind=${2:-busybox}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root/tmp" "$layout/blobs/sha256"
chmod 1777 "$root/tmp"

busybox() {
    mkdir -p "$root"/{bin,etc,root,home/app,www/cgi-bin,data}
    cp /bin/busybox "$root/bin/busybox"
    local applet
    for applet in $(/bin/busybox --list); do
        [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
    done
    printf '%s\n' root:x:0:0:root:/root:/bin/sh app:x:1000:1000:app:/home/app:/bin/sh \
        nobody:x:65534:65534:nobody:/:/bin/false >"$root/etc/passwd"
    printf '%s\n' root:x:0: app:x:1000: staff:x:50:app nogroup:x:65534: >"$root/etc/group"
    echo '<h1>Hello from oci-rs</h1>' >"$root/www/index.html"
    cp "$ROOT"/e2e/image/bin/* "$root/bin/"
    cp "$ROOT"/e2e/image/cgi-bin/* "$root/www/cgi-bin/"
    chmod 755 "$root"/bin/* "$root"/www/cgi-bin/*
    printf 'not a program\n' >"$root/data/not-executable"
    chmod 644 "$root/data/not-executable"
    config='"Env":["PATH=/bin","GREETING=hello from the image"],"Cmd":["/bin/serve"],"WorkingDir":"/www",'
    config+='"ExposedPorts":{"8080/tcp":{}}'
}

counter() {
    busybox
    config=${config/'"PATH=/bin"'/'"PATH=/bin","PORT=9001"'}
}

curl() {
    busybox
    with_libraries /usr/bin/curl /bin/curl
}

gpu() {
    local library
    busybox
    cc -O1 -o "$work/sums" "$ROOT/e2e/image/gpu/sums.c" -ldl
    with_libraries "$work/sums" /bin/sums
    # The libraries of the C library that NVIDIA's driver names.
    for library in libdl.so.2 libm.so.6 libpthread.so.0 librt.so.1 libgcc_s.so.1; do
        cp -L "$(cc -print-file-name="$library")" "$(dirname "$root$(ldd "$work/sums" | grep -o '/[^ ]*/libc.so.6')")/"
    done
    # As NVIDIA's images have it.
    config=${config/'"PATH=/bin"'/'"PATH=/bin","NVIDIA_VISIBLE_DEVICES=all"'}
}

csi() {
    mkdir -p "$root"/{bin,etc}
    # -trimpath, as in the build of Nomad, so that both builds share the cache.
    CGO_ENABLED=0 go -C "$ROOT/e2e/conformance" build -trimpath -o "$root/bin/csi" ./csiplugin
    echo root:x:0:0:root:/root:/bin/false >"$root/etc/passwd"
    config='"Env":["PATH=/bin"],"Entrypoint":["/bin/csi"],"WorkingDir":"/"'
}

# with_libraries FILE TARGET: copies a program to the target, and its libraries to the paths where the loader searches.
with_libraries() {
    cp "$1" "$root$2"
    ldd "$1" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
}

envoy() {
    [ -x "$ENVOY" ] || die "missing: $ENVOY (scripts/setup.sh installs it)"
    mkdir -p "$root"/{bin,etc}
    with_libraries "$ENVOY" /bin/envoy
    printf '%s\n' root:x:0:0:root:/root:/bin/false envoy:x:101:101:envoy:/:/bin/false >"$root/etc/passwd"
    # The user whose traffic a transparent proxy leaves alone, as in the proxy's own image.
    config='"User":"101","Env":["PATH=/bin"],"Entrypoint":["/bin/envoy"],"WorkingDir":"/"'
}

case $kind in
busybox | counter | csi | curl | envoy | gpu) $kind ;;
*) die "unknown kind of image: $kind" ;;
esac

# blob FILE: copies it into the layout under its digest, and prints digest and size.
blob() {
    local digest
    digest=$(sha256sum "$1" | cut -d' ' -f1)
    cp "$1" "$layout/blobs/sha256/$digest"
    printf '"digest":"sha256:%s","size":%s' "$digest" "$(stat -c %s "$1")"
}

tar --create --directory "$root" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --file "$work/layer.tar" .
diff_id=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
gzip -n -1 "$work/layer.tar"

cat >"$work/config.json" <<JSON
{"architecture":"amd64","os":"linux","created":"2020-01-01T00:00:00Z",
 "config":{$config},
 "rootfs":{"type":"layers","diff_ids":["sha256:$diff_id"]}}
JSON
cat >"$work/manifest.json" <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
 "config":{"mediaType":"application/vnd.oci.image.config.v1+json",$(blob "$work/config.json")},
 "layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip",$(blob "$work/layer.tar.gz")}]}
JSON
cat >"$layout/index.json" <<JSON
{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json",$(blob "$work/manifest.json"),
 "annotations":{"org.opencontainers.image.ref.name":"$kind"}}]}
JSON
echo '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
