#!/bin/sh
# Install kunicorn, exactly as locked, into a virtual environment of its own: what the Dockerfile runs, and what runs
# wherever there is no Docker.
#
#   build.sh SOURCE PREFIX [EXTRA]
#
# EXTRA has a lock of its own, requirements-EXTRA.lock. Everything that is fetched is checked against the hashes of its
# lock, what builds kunicorn's own wheel too. The environment has no pip: what installs stays outside, and is gone after.
#
# With what is compiled, where SOURCE/wheels has it: the decoder of columns.
set -eu

source=$1
prefix=$2
extra=${3:-}

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools/venv"
pip="$tools/venv/bin/pip --disable-pip-version-check --quiet"
test -x "$prefix/bin/python" || python3 -m venv --without-pip "$prefix"
# Compiled now: at run time the root file system is read-only, and every start would compile anew.
install="$pip --python $prefix/bin/python install --compile"

$install --require-hashes -r "$source/requirements${extra:+-$extra}.lock"
$pip install --require-hashes -r "$source/requirements-build.lock"
# Built from a copy: the build leaves its traces in the directory that it is given.
cp -R "$source" "$tools/source"
$pip wheel --no-deps --no-build-isolation --no-index --wheel-dir "$tools/wheel" "$tools/source"
$install --no-deps --no-index --force-reinstall "$tools"/wheel/*.whl
for wheel in "$source"/wheels/*.whl; do
    test ! -e "$wheel" || $install --no-deps --no-index --force-reinstall "$wheel"
done
$pip --python "$prefix/bin/python" check >/dev/null
# What an image on top of this one may add to, and not change: pip install -c.
sed -nE 's/^([A-Za-z0-9._-]+==[^ ;]+).*/\1/p' "$source/requirements${extra:+-$extra}.lock" >"$prefix/constraints.txt"
"$prefix/bin/kunicorn" --version
