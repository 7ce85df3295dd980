#!/bin/bash
# up.sh BIN DIR [IMAGE…]: one real Kubernetes node on this machine, with the programs that build.sh has put into BIN and
# with the IMAGEs (docker archives, as image.sh makes them). Its state and its logs are in DIR. Everything is in a network
# namespace of its own, where the node is 10.88.0.1 and pods are in 10.88.0.0/24; `DIR/enter COMMAND` runs a command
# there, with KUBECONFIG set. down.sh DIR ends it. Needs root, iproute2, buildah and containernetworking-plugins.
#
# Programs are started by nsenter and not by `ip netns exec`, which hides /sys/fs/cgroup.
set -euo pipefail
umask 022
usage="usage: up.sh BIN DIR [IMAGE…]"
bin=$(cd "${1:?$usage}" && pwd)
dir=$(mkdir -p "${2:?$usage}" && cd "$2" && pwd)
shift 2
here=$(cd "$(dirname "$0")" && pwd)
network=kunicorn-node
address=10.88.0.1
inside=(nsenter "--net=/var/run/netns/$network")
export KUBECONFIG=$dir/kubeconfig KUBECACHEDIR=$dir/cache PATH=$bin:$PATH

if compgen -G "$dir/*.pid" >/dev/null; then
    echo "up.sh: $dir has a node already: run down.sh $dir first" >&2
    exit 1
fi
mkdir -p "$dir/cni" "$dir/kubelet"

fail() {
    echo "up.sh: $1" >&2
    tail -n 5 "$dir"/*.log | cut -c 1-400 >&2
    "$here/down.sh" "$dir"
    exit 1
}

# start NAME COMMAND…: in a session of its own; its pid is in DIR/NAME.pid, its output in DIR/NAME.log.
start() {
    local name=$1
    shift
    setsid "${inside[@]}" "$@" </dev/null >"$dir/$name.log" 2>&1 &
    echo $! >"$dir/$name.pid"
}

# until_ok WHAT COMMAND…: again and again, for three minutes or until something that was started has died.
until_ok() {
    local what=$1 file
    shift
    until "${inside[@]}" "$@" >/dev/null 2>&1; do
        for file in "$dir"/*.pid; do
            kill -0 "$(cat "$file")" 2>/dev/null || fail "$(basename "$file" .pid) has died"
        done
        [ "$SECONDS" -lt 180 ] || fail "waited in vain for $what"
        sleep 0.3
    done
    echo "up.sh: $what after $SECONDS s" >&2
}

ip netns list | grep -q "^$network\b" || ip netns add "$network"
ip -n "$network" link set lo up
ip -n "$network" link show cni0 >/dev/null 2>&1 || {
    ip -n "$network" link add cni0 type bridge
    ip -n "$network" addr add "$address/24" dev cni0
    ip -n "$network" link set cni0 up
}

# -- the control plane

# The API server has the address of its Service, so that pods reach it without a kube-proxy.
service=10.96.0.1
ip -n "$network" addr replace "$service/32" dev cni0
read -r -d '' etcd peer < <("${inside[@]}" "$bin/kube" ports 2 | tr '\n' ' ') || true
umask 077
token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
echo "$token,admin,admin,system:masters" >"$dir/tokens.csv"
"$bin/kube" key >"$dir/accounts.key"
umask 022
start etcd "$bin/etcd" --name=one --data-dir="$dir/etcd" --unsafe-no-fsync \
    --listen-client-urls="http://127.0.0.1:$etcd" --advertise-client-urls="http://127.0.0.1:$etcd" \
    --listen-peer-urls="http://127.0.0.1:$peer" --initial-advertise-peer-urls="http://127.0.0.1:$peer" \
    --initial-cluster="one=http://127.0.0.1:$peer"
# The server makes its own certificate; the file also holds the authority that has signed it.
start kube-apiserver "$bin/kube-apiserver" --etcd-servers="http://127.0.0.1:$etcd" \
    --bind-address=0.0.0.0 --advertise-address="$address" --secure-port=443 --cert-dir="$dir" \
    --endpoint-reconciler-type=none --service-cluster-ip-range=10.96.0.0/16 --allow-privileged=true \
    --authorization-mode=RBAC --token-auth-file="$dir/tokens.csv" --kubelet-preferred-address-types=InternalIP \
    --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$dir/accounts.key" --service-account-signing-key-file="$dir/accounts.key"
until_ok "a certificate" test -s "$dir/apiserver.crt"
cat >"$KUBECONFIG" <<END
apiVersion: v1
kind: Config
current-context: node
contexts: [{name: node, context: {cluster: node, user: admin, namespace: default}}]
clusters: [{name: node, cluster: {server: "https://$service", certificate-authority: $dir/apiserver.crt}}]
users: [{name: admin, user: {token: $token}}]
END
chmod 600 "$KUBECONFIG"
until_ok "an API server" "$bin/kubectl" get --raw=/readyz
start kube-controller-manager "$bin/kube-controller-manager" --kubeconfig="$KUBECONFIG" --leader-elect=false \
    --secure-port=0 --service-account-private-key-file="$dir/accounts.key" --root-ca-file="$dir/apiserver.crt"
start kube-scheduler "$bin/kube-scheduler" --kubeconfig="$KUBECONFIG" --leader-elect=false --secure-port=0

# -- the node

# restrict_oom_score_adj: root without CAP_SYS_RESOURCE may not lower it.
cat >"$dir/containerd.toml" <<END
version = 3
root = "$dir/root"
state = "$dir/state"
disabled_plugins = [
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing",
]
[grpc]
address = "$dir/containerd.sock"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "localhost/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "$dir/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
BinaryName = "$bin/runc"
END
cat >"$dir/cni/10-pods.conflist" <<END
{"cniVersion": "1.0.0", "name": "pods", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "$dir/addresses",
           "ranges": [[{"subnet": "10.88.0.0/24", "gateway": "$address"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
cat >"$dir/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
containerRuntimeEndpoint: unix://$dir/containerd.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
failSwapOn: false
makeIPTablesUtilChains: false
evictionHard: {memory.available: "100Mi", nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
address: $address
healthzPort: 0
END
[ -s "$bin/pause.tar" ] || "$here/pause.sh" "$bin"
start containerd "$bin/containerd" -c "$dir/containerd.toml"
until_ok containerd "$bin/ctr" -a "$dir/containerd.sock" version
for image in "$bin/pause.tar" "$@"; do
    "$bin/ctr" -a "$dir/containerd.sock" -n k8s.io images import "$image" >/dev/null
done
start kubelet "$bin/kubelet" --config="$dir/kubelet.yaml" --kubeconfig="$KUBECONFIG" --root-dir="$dir/kubelet" \
    --hostname-override=node-1 --node-ip="$address" --cert-dir="$dir/kubelet/pki" --v=1
until_ok "a ready node" "$bin/kubectl" wait node/node-1 --for=condition=Ready --timeout=1s
until_ok "a service account" "$bin/kubectl" get serviceaccount default

cat >"$dir/enter" <<END
#!/bin/sh
export KUBECONFIG=$KUBECONFIG KUBECACHEDIR=$KUBECACHEDIR PATH=$bin:\$PATH
exec ${inside[@]} "\$@"
END
chmod +x "$dir/enter"
echo "$dir/enter"
