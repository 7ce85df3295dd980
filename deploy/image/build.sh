#!/bin/sh
# Install kunicorn, exactly as locked, into a virtual environment of its own: what the Dockerfile runs, and what runs
# wherever there is no Docker.
#
#   build.sh SOURCE PREFIX [EXTRA]
set -eu

source=$1
prefix=$2
extra=${3:-}
# Compiled now: at run time the root file system is read-only, and every start would compile anew.
install="$prefix/bin/pip --disable-pip-version-check --quiet install --compile"

test -x "$prefix/bin/python" || python3 -m venv "$prefix"
$install -r "$source/requirements.lock"
if [ -n "$extra" ]; then
    # The lock of development knows every extra's versions.
    $install -c "$source/requirements-dev.lock" "$source[$extra]"
else
    $install --no-deps "$source"
fi
"$prefix/bin/pip" --disable-pip-version-check check >/dev/null
"$prefix/bin/kunicorn" --version
