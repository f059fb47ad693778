#!/usr/bin/env bash
# image.sh DIRECTORY: makes the layers of the pull benchmark's image, DIRECTORY/1.tar (bottom) to DIRECTORY/6.tar, from
# Debian packages. They resemble the layers of an ordinary service's image: a base system, an interpreter with tools, a
# compiler, a layer of very many small files, a layer with a single large program, and the application on top, with
# whiteouts and links. It needs apt-get with fetched lists, dpkg-deb and GNU tar. It writes only to DIRECTORY. A
# complete directory is not changed.
set -euo pipefail
directory=$(realpath -m "${1:?usage: image.sh DIRECTORY}")
[ ! -e "$directory/complete" ] || exit 0
mkdir -p "$directory/debs/partial" "$directory/seen"
export LC_ALL=C
: > "$directory/no-packages"

# What each layer wants; apt-get adds what that needs. The host's own packages do not count.
wants=(
    "base-files base-passwd bash coreutils dash apt grep sed tar gzip util-linux ca-certificates openssl"
    "python3 perl git curl"
    "gcc"
    "linux-headers-$(dpkg --print-architecture) python3-botocore python3-django"
)

fetch() { # every package of the layers so far, into debs/
    apt-get -q -y --no-install-recommends --download-only -o Dir::State::status="$directory/no-packages" \
        -o Dir::Cache::archives="$directory/debs" -o APT::Sandbox::User=root -o Debug::NoLocking=1 \
        install "$@" > /dev/null
}

skeleton() { # a tree in which bin, lib … lead into usr, so that packages land where Debian has them
    mkdir -p "$1/usr/bin" "$1/usr/sbin" "$1/usr/lib" "$1/usr/lib64"
    local name
    for name in bin sbin lib lib64; do ln -s "usr/$name" "$1/$name"; done
}

pack() { # pack NUMBER TREE
    tar --create --file "$directory/$1.tar" --directory "$2" --format=pax --pax-option=delete=atime,delete=ctime \
        --sort=name --numeric-owner --mtime=@1700000000 .
    rm -rf "$2"
}

all=()
for index in "${!wants[@]}"; do
    number=$((index + 1)) tree=$directory/tree
    read -ra more <<< "${wants[$index]}"
    all+=("${more[@]}")
    fetch "${all[@]}"
    rm -rf "$tree"
    skeleton "$tree"
    for deb in "$directory"/debs/*.deb; do
        name=$(basename "$deb")
        [ ! -e "$directory/seen/$name" ] || continue
        : > "$directory/seen/$name"
        dpkg-deb --fsys-tarfile "$deb" |
            tar --extract --directory "$tree" --keep-directory-symlink --numeric-owner --preserve-permissions
    done
    if [ "$number" = 1 ]; then
        # One large program: pieces of this layer, as a static binary is full of libraries.
        mkdir -p "$directory/program/usr/local/bin"
        find "$tree/usr" -type f -size +64k -print0 | sort -z | xargs -0 cat |
            head -c 64M > "$directory/program/usr/local/bin/server" || true
        chmod 0755 "$directory/program/usr/local/bin/server"
        mkdir -p "$tree/var/cache/old"
        for file in a b c d e f; do echo "$file" > "$tree/var/cache/old/$file"; done
    else
        rm -f "$tree"/{bin,sbin,lib,lib64}
    fi
    pack "$number" "$tree"
done
pack 5 "$directory/program"

app=$directory/tree
mkdir -p "$app/srv/app/assets" "$app/var/cache/old" "$app/etc"
for number in $(seq 400); do echo "export const part = $number;" > "$app/srv/app/assets/part-$number.js"; done
for number in $(seq 40); do
    ln "$app/srv/app/assets/part-$number.js" "$app/srv/app/assets/same-$number.js"
    ln -s "part-$number.js" "$app/srv/app/assets/link-$number.js"
done
: > "$app/var/cache/old/.wh.a"
: > "$app/etc/.wh.debian_version"
echo "listen = 8080" > "$app/etc/app.conf"
pack 6 "$app"

rm -rf "$directory/debs" "$directory/seen" "$directory/no-packages"
touch "$directory/complete"
