#!/bin/sh
# build.sh BIN: everything that a Kubernetes node runs, built into BIN from the Go module proxy; no release is downloaded.
# Needs Go 1.26, a C compiler, pkg-config and libseccomp-dev. About ten minutes of two processors and 4 GB of caches the
# first time, seconds from then on. NICE is the niceness (10).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: build.sh BIN}"
bin=$(cd "$1" && pwd)
containerd=v2.2.1
runc=v1.4.0

cd "$here/kube"
version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}
package=k8s.io/component-base/version
named="-X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
CGO_ENABLED=0 nice -n "${NICE:-10}" \
    go build -trimpath -buildvcs=false -ldflags "-s -w $named -X $package.gitTreeState=clean" -o "$bin/kube" .
for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl; do
    ln -sf kube "$bin/$name"
done

cd "$here/pause"
CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$bin/pause" .

cd /
for program in containerd containerd-shim-runc-v2 ctr; do
    test -x "$bin/$program" || GOBIN=$bin CGO_ENABLED=0 nice -n "${NICE:-10}" \
        go install "github.com/containerd/containerd/v2/cmd/$program@$containerd"
done
# Not crun, which refuses a machine that has both versions of cgroups mounted.
test -x "$bin/runc" || GOBIN=$bin CGO_ENABLED=1 nice -n "${NICE:-10}" \
    go install -tags seccomp "github.com/opencontainers/runc@$runc"
echo "$bin: Kubernetes $version, containerd $containerd, runc $runc"
