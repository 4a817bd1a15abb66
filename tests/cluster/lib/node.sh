# The one node: its bridges, containerd, the kubelet and kube-proxy.

# Interface names are limited to 15 characters.
NODE_BRIDGE=vmop-node
POD_BRIDGE=vmop-pods
POD_NETWORK=vmop-cluster
# The parent cgroup of all pods, which identifies the processes of a killed run.
CGROUP=vmop-cluster

# The node's address is on its own bridge, so it needs no network card and is the same on each machine. (A bridge
# without ports has no carrier. The machine's own traffic does not need one.)
make_node_bridge() {
    load_modules
    ip link add "$NODE_BRIDGE" type bridge
    ip address add "$NODE_ADDRESS/24" dev "$NODE_BRIDGE"
    ip link set "$NODE_BRIDGE" up
}

start_containerd() {
    make_cgroup
    write_pod_network
    spawn_containerd
}

# Running pods continue, because each has its own shim.
change_device_ownership() {
    [[ ${1:-} == true || ${1:-} == false ]] || die "device-ownership is true or false"
    need_root
    need_cluster
    lock
    DEVICE_OWNERSHIP=$1
    end_recorded containerd TERM
    spawn_containerd
    remember_settings
    wait_for 60 "the node" node_ready
}

spawn_containerd() {
    write_containerd_configuration
    spawn containerd containerd --config "$DIR/configuration/containerd.toml"
    wait_for 30 containerd ctr --address "$CONTAINERD_SOCKET" version
}

write_pod_network() {
    # The range starts at .10 so that the bridge's own address is never a pod's.
    # No masquerading, because pods must not reach other machines.
    cat >"$DIR/cni/10-vmop.conflist" <<JSON
{
  "cniVersion": "0.4.0",
  "name": "$POD_NETWORK",
  "plugins": [
    {
      "type": "bridge", "bridge": "$POD_BRIDGE", "isGateway": true, "hairpinMode": true,
      "ipam": {
        "type": "host-local", "dataDir": "$DIR/cni/addresses",
        "ranges": [[{"subnet": "10.244.0.0/22", "rangeStart": "10.244.0.10"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
JSON
}

# Version 2 of the format is what containerd 1.6 (Debian 12) and 1.7 (Debian 13)
# have in common; 2.x converts it by itself.
#  * restrict_oom_score_adj: in a container one may not lower oom_score_adj, and
#    without this each sandbox would fail at that.
#  * device_ownership_from_security_context: a Block volume belongs to the pod's
#    user. Most clusters have it off, hence the switch.
#  * netns_mounts_under_state_dir, the runtime's Root and the opt plugin's path:
#    everything of this cluster stays below one directory.
write_containerd_configuration() {
    cat >"$DIR/configuration/containerd.toml" <<TOML
version = 2
root = "$DIR/containerd/root"
state = "$DIR/containerd/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]

[grpc]
  address = "$CONTAINERD_SOCKET"

[plugins."io.containerd.internal.v1.opt"]
  path = "$DIR/containerd/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  device_ownership_from_security_context = $DEVICE_OWNERSHIP
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/usr/lib/cni"
  conf_dir = "$DIR/cni"

[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  Root = "$DIR/containerd/runc"
TOML
}

start_node() {
    write_kubelet_configuration
    spawn_kubelet
    write_proxy_configuration
    spawn kube-proxy "$DIR/bin/vmop-kube" kube-proxy --config "$DIR/configuration/kube-proxy.yaml"
    wait_for 90 "the node" node_ready
    # "Ready" says nothing about Services; the first pod may need the API's.
    wait_for 30 "kube-proxy's rules" nft list map ip kube-proxy service-ips
}

spawn_kubelet() {
    spawn kubelet "$DIR/bin/vmop-kube" kubelet --config "$DIR/configuration/kubelet.yaml" \
        --kubeconfig "$CERTS/kubelet.kubeconfig" --root-dir "$DIR/kubelet" \
        --hostname-override "$NODE_NAME" --node-ip "$NODE_ADDRESS"
}

# Simulates an update of the node: a restart without notice to the pods.
restart_kubelet() {
    need_root
    need_cluster
    lock
    end_recorded kubelet TERM
    spawn_kubelet
    wait_for 60 "the kubelet" kubectl get --raw "/api/v1/nodes/$NODE_NAME/proxy/healthz"
    wait_for 60 "the node" node_ready
}

# For the control plane the node is lost, and its containers continue to run. The node also comes back if the caller is
# killed.
kubelet_away() {
    [[ ${1:-} =~ ^[1-9][0-9]*$ ]] || die "for how many seconds is the kubelet to be away?"
    need_root
    need_cluster
    lock
    setsid bash -c 'sleep "$1"; exec "$2" kubelet-back' - "$1" "$HERE/cluster" >"$DIR/logs/kubelet-back.log" 2>&1 </dev/null 9>&- &
    printf '%s %s\n' "$!" "$(start_time "$!")" >"$DIR/kubelet-back"
    disown "$!"
    end_recorded kubelet TERM
}

kubelet_back() {
    need_root
    need_cluster
    lock
    # No other process has to restore it then, at a time when it may be away again.
    local pid began
    if { read -r pid began <"$DIR/kubelet-back"; } 2>/dev/null; then
        [[ $pid == "$$" || $(start_time "$pid") != "$began" ]] || kill -TERM -- "-$pid"
        rm -f "$DIR/kubelet-back"
    fi
    is_alive kubelet || spawn_kubelet
    wait_for 60 "the node" node_ready
}

node_ready() {
    [[ $(kubectl get node "$NODE_NAME" --output 'jsonpath={.status.conditions[?(@.type=="Ready")].status}') == True ]]
}

#  * syncFrequency stays at its default of a minute: who changes a ConfigMap and
#    expects a pod to see it sooner should find that out here.
#  * clusterDNS is each pod's own loopback, where nothing listens: look-ups fail
#    at once. Without any address each pod would get a warning event.
#  * cgroup v2: the same settings by the book, but only v1 has been seen to work.
write_kubelet_configuration() {
    cat >"$DIR/configuration/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: $NODE_ADDRESS
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: $CERTS/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: $CERTS/kubelet.crt
tlsPrivateKeyFile: $CERTS/kubelet.key
containerRuntimeEndpoint: unix://$CONTAINERD_SOCKET
podLogsDir: $DIR/pod-logs
staticPodPath: ""
resolvConf: ""
clusterDNS: [127.0.0.1]
clusterDomain: cluster.local
cgroupDriver: cgroupfs
cgroupRoot: /$CGROUP
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
maxPods: 250
serializeImagePulls: false
imageGCHighThresholdPercent: 100
evictionHard:
  memory.available: 100Mi
  nodefs.available: 1%
  imagefs.available: 1%
  nodefs.inodesFree: 1%
configMapAndSecretChangeDetectionStrategy: Watch
nodeStatusUpdateFrequency: 5s
nodeLeaseDurationSeconds: 20
kubeAPIQPS: 100
kubeAPIBurst: 200
YAML
}

# conntrack: its limits are machine-wide, so they are not changed.
write_proxy_configuration() {
    cat >"$DIR/configuration/kube-proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $CERTS/kube-proxy.kubeconfig}
clusterCIDR: $POD_CIDR
hostnameOverride: $NODE_NAME
bindAddress: $NODE_ADDRESS
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
nodePortAddresses: [$NODE_ADDRESS/32]
oomScoreAdj: 0
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
YAML
}

# --- cgroups ----------------------------------------------------------------

# Each mounted hierarchy: several under cgroup v1, one under v2.
cgroup_mounts() { findmnt --noheadings --raw --output TARGET --types cgroup,cgroup2; }

# The kubelet requires its root to exist.
make_cgroup() {
    local mount file
    for mount in $(cgroup_mounts); do
        # v2: the controllers must be enabled for the children. Untested.
        if [[ -w $mount/cgroup.subtree_control ]]; then
            for file in cpu cpuset io memory pids; do
                echo "+$file" >"$mount/cgroup.subtree_control" 2>/dev/null || true
            done
        fi
        mkdir -p "$mount/$CGROUP"
        # v1: a new cpuset is empty, and nothing can run in it until it is filled.
        for file in cpuset.cpus cpuset.mems; do
            [[ ! -e $mount/$CGROUP/$file || -e $mount/cgroup.controllers ]] || cat "$mount/$file" >"$mount/$CGROUP/$file"
        done
    done
}
