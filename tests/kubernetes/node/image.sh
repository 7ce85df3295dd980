#!/bin/bash
# image.sh SOURCE STAGE NAME FILE: a stage of SOURCE/Dockerfile, built without Docker and without pulling anything, as a
# docker archive. The base image is made by debootstrap of the packages that apt installs here (once; a minute), that of
# Rust of the toolchain which is installed here; all else is done by buildah as the Dockerfile says. Needs root,
# debootstrap, buildah, and Rust of the Dockerfile's version.
set -euo pipefail
source=$1 stage=$2 name=$3 file=$4
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
base=$(sed -nE 's/^FROM (python:[^ @]+)(@[^ ]+)? AS .*$/\1/p' "$source/Dockerfile" | head -1)
case $base in
python:3.11-*-bookworm) ;;
*) echo "image.sh: Debian 12 has Python 3.11, and the Dockerfile's base is $base" >&2 && exit 1 ;;
esac

if ! buildah images -q "docker.io/library/$base" >/dev/null 2>&1; then
    root=$(mktemp -d)
    lists=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.sources 2>/dev/null || true)
    mirror=$(sed -nE 's/^(URIs:|deb) +(\[[^]]*\] +)?(http[^ ]*\/debian\/?)( .*)?$/\3/p' <<<"$lists" | head -1)
    packages=python3,python3-venv,python3-pip,ca-certificates
    debootstrap --variant=minbase --include=$packages bookworm "$root" "$mirror" >/dev/null
    # Debian forbids pip to install beside apt; the Dockerfile's base does not.
    rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED
    ln -sf /usr/bin/python3 "$root/usr/local/bin/python3"
    ln -sf /usr/bin/python3 "$root/usr/local/bin/python"
    made=$(buildah from scratch)
    buildah copy -q "$made" "$root" /
    buildah config --env PATH=/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin "$made"
    buildah commit -q "$made" "docker.io/library/$base" >/dev/null
    buildah rm "$made" >/dev/null
    rm -rf "$root"
fi

rust=$(sed -nE 's/^FROM ([^ @]+)(@[^ ]+)? AS rust$/\1/p' "$source/Dockerfile")
if [ -n "$rust" ] && ! buildah images -q "docker.io/library/$rust" >/dev/null 2>&1; then
    version=${rust#rust:} && version=${version%%-*}
    toolchain=$(RUSTUP_TOOLCHAIN=$version.0 rustc --print sysroot 2>/dev/null || rustc --print sysroot)
    found=$("$toolchain/bin/rustc" --version)
    case $found in
    "rustc $version."*) ;;
    *) echo "image.sh: the Dockerfile takes Rust $version, and here is $found: rustup toolchain install $version.0" >&2 && exit 1 ;;
    esac
    root=$(mktemp -d)
    mkdir -p "$root/rustup/toolchains" "$root/cargo/bin"
    cp -a "$toolchain" "$root/rustup/toolchains/$version"
    for program in cargo rustc; do
        ln -s "/usr/local/rustup/toolchains/$version/bin/$program" "$root/cargo/bin/$program"
    done
    made=$(buildah from scratch)
    buildah copy -q "$made" "$root" /usr/local
    buildah commit -q "$made" "docker.io/library/$rust" >/dev/null
    buildah rm "$made" >/dev/null
    rm -rf "$root"
fi

# The build sees the package index that this machine sees.
# Of the certificates only the bundle: Java's package writes its own file beside it.
bundle=/etc/ssl/certs/ca-certificates.crt
mounts=(-v "$bundle:$bundle:ro")
[ -f /etc/pip.conf ] && mounts+=(-v /etc/pip.conf:/etc/pip.conf:ro)
# A digest cannot be pulled here: the name alone is looked for.
recipe=$(mktemp)
sed -E 's/^(FROM [^ @]+)@[^ ]+/\1/' "$source/Dockerfile" >"$recipe"
buildah bud --pull-never "${mounts[@]}" --target "$stage" -t "$name" -f "$recipe" "$source"
rm -f "$recipe" "$file"
buildah push -q "$name" "docker-archive:$file:$name"
