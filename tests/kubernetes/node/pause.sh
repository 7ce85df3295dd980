#!/bin/sh
# pause.sh BIN: BIN/pause as an image, BIN/pause.tar: the container that holds a pod's namespaces. Called by up.sh.
set -eu
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
made=$(buildah from scratch)
buildah copy -q "$made" "$1/pause" /pause
buildah config --entrypoint '["/pause"]' "$made"
buildah commit -q "$made" localhost/pause:1
buildah rm "$made" >/dev/null
buildah push -q localhost/pause:1 "docker-archive:$1/pause.tar:localhost/pause:1"
