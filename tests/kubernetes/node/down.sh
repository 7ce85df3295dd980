#!/bin/bash
# down.sh DIR: end the node that up.sh has made in DIR: what it started, by pid, the containers' shims, mounts and network.
# Its logs stay.
dir=$(cd "${1:?usage: down.sh DIR}" && pwd) || exit 1
network=kunicorn-node

ours() { # A pid may have been given to somebody else since.
    { tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null | grep -qF "$dir/"
}

end() {
    local pid=$1
    ours "$pid" || return 0
    kill "$pid" 2>/dev/null
    for _ in $(seq 50); do
        ours "$pid" || return 0
        sleep 0.2
    done
    kill -9 "$pid" 2>/dev/null
}

for name in kubelet containerd kube-scheduler kube-controller-manager kube-apiserver etcd; do
    [ -s "$dir/$name.pid" ] && end "$(cat "$dir/$name.pid")"
    rm -f "$dir/$name.pid"
done
for pid in $(pgrep -f "containerd-shim-runc-v2 .*-address $dir/"); do
    # The shim would leave its containers running.
    for child in $(pgrep -P "$pid"); do kill -9 "$child" 2>/dev/null; done
    kill -9 "$pid" 2>/dev/null
done
sleep 1
awk -v dir="$dir/" 'index($2, dir) == 1 {print $2}' /proc/mounts | sort -r | xargs -r umount -l
ip netns list | awk '/^cni-/ {print $1}' | while read -r pod; do
    ip netns pids "$pod" 2>/dev/null | grep -q . || ip netns del "$pod"
done
ip netns del "$network" 2>/dev/null
rm -rf "$dir/etcd" "$dir/cache" "$dir/kubeconfig" "$dir/enter" "$dir/tokens.csv" "$dir/accounts.key" "$dir/containerd.sock"
