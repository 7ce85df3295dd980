#!/bin/sh
# Install kunicorn, exactly as locked, into a virtual environment of its own: what the Dockerfile runs, and what runs
# wherever there is no Docker.
#
#   build.sh SOURCE PREFIX [EXTRA]
set -eu

source=$1
prefix=$2
extra=${3:-}
pip="$prefix/bin/pip --disable-pip-version-check --no-cache-dir --quiet"

test -x "$prefix/bin/python" || python3 -m venv "$prefix"
$pip install -r "$source/requirements.lock"
if [ -n "$extra" ]; then
    $pip install -c "$source/requirements.lock" "$source[$extra]"
else
    $pip install --no-deps "$source"
fi
# The root file system is read-only at run time: nobody could write these later, and every start would compile anew.
"$prefix/bin/python" -m compileall -q "$prefix"
"$prefix/bin/pip" --disable-pip-version-check check >/dev/null
"$prefix/bin/kunicorn" --version
