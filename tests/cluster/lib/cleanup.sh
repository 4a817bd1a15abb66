# Stops a cluster, also a killed or half-started one, and removes all of it. The cluster's resources are identified by
# its directory, its cgroup or its names. A process is never selected by the name of its program.

clean_up() {
    kill_recorded
    kill_pods
    kill_strays
    remove_network
    detach_loop_devices
    unmount_all
    # A kubelet's reference to a device shows its path only while mounted, and a device in use is released by its last
    # user.
    detach_loop_devices
    remove_cgroups
    restore_sysctls
    remove_directory
}

# --- processes --------------------------------------------------------------

kill_pods() {
    local mount tries pids
    for ((tries = 0; tries < 100; tries++)); do
        pids=$(for mount in $(cgroup_mounts); do
            [[ ! -d $mount/$CGROUP ]] || find "$mount/$CGROUP" -name cgroup.procs -exec cat {} + 2>/dev/null || true
        done | sort -un)
        [[ -n $pids ]] || return 0
        # shellcheck disable=SC2086 # a list of numbers
        kill -KILL $pids 2>/dev/null || true
        sleep 0.05
    done
    die "these processes of pods do not end: $(tr '\n' ' ' <<<"$pids"); try again, or reboot"
}

# Processes without a PID file: shims, and a component if its starter was killed before it could write one. Their
# arguments contain the cluster's directory.
kill_strays() {
    local entry pid arguments
    for entry in /proc/[0-9]*; do
        pid=${entry##*/}
        # It may have exited since it was listed.
        { mapfile -d '' -t arguments <"$entry/cmdline"; } 2>/dev/null || continue
        ((${#arguments[@]} > 1)) || continue
        case ${arguments[0]##*/} in
            containerd | containerd-shim*) [[ " ${arguments[*]} " == *" $DIR/"* ]] || continue ;;
            vmop-kube) [[ ${arguments[0]} == "$DIR/bin/vmop-kube" ]] || continue ;;
            *) continue ;;
        esac
        kill -KILL "$pid" 2>/dev/null || true
    done
    # The shims' sockets are outside of the directory, and only the shims know their names.
    local file socket
    for file in "$DIR"/containerd/state/io.containerd.runtime.v2.task/*/*/address; do
        [[ -e $file ]] || continue
        read -r socket <"$file" || true
        [[ $socket != unix:///run/containerd/s/* ]] || rm -f "${socket#unix://}"
    done
}

# --- the machine's network --------------------------------------------------

remove_network() {
    local link
    for link in $(ip -oneline link show master "$POD_BRIDGE" 2>/dev/null | awk -F ': ' '{ sub("@.*", "", $2); print $2 }'); do
        ip link delete "$link" 2>/dev/null || true
    done
    for link in "$POD_BRIDGE" "$NODE_BRIDGE"; do
        ! ip link show "$link" >/dev/null 2>&1 || ip link delete "$link"
    done
    # Only if the record says that this cluster has run since the machine booted: another Kubernetes here would have the
    # same table.
    if [[ -e $RECORD ]]; then
        nft delete table ip kube-proxy 2>/dev/null || true
        nft delete table ip6 kube-proxy 2>/dev/null || true
    fi
    # The library that calls the plugins stores its results here. Those of this cluster have the name of its network or,
    # for the loopback device, a path below its directory.
    local file
    for file in /var/lib/cni/results/*; do
        ! grep --quiet --fixed-strings -e "\"$POD_NETWORK\"" -e "$DIR/" "$file" 2>/dev/null || rm -f "$file"
    done
    rmdir /var/lib/cni/results /var/lib/cni 2>/dev/null || true
}

# The kubelet and the bridge plugin change these for the whole machine.
SYSCTLS=(net/ipv4/ip_forward net/bridge/bridge-nf-call-iptables vm/overcommit_memory vm/panic_on_oom
    kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes)

save_sysctls() {
    local name value
    for name in "${SYSCTLS[@]}"; do
        [[ -r /proc/sys/$name ]] || continue
        read -r value <"/proc/sys/$name"
        say "$name $value"
    done >"$DIR/sysctls"
}

restore_sysctls() {
    local name value
    # Only of this boot, because the machine may have other settings since.
    [[ -e $RECORD && -e $DIR/sysctls ]] || return 0
    while read -r name value; do
        echo "$value" 2>/dev/null >"/proc/sys/$name" || true
    done <"$DIR/sysctls"
}

# --- devices and mounts -----------------------------------------------------

# The devices with a file below the cluster's directory, and the devices on these devices: the kubelet's references to
# the devices of pods.
detach_loop_devices() {
    local round device backing found
    local -A ours=()
    for ((round = 0; round < 3; round++)); do
        for device in /sys/block/loop*; do
            { read -r backing <"$device/loop/backing_file"; } 2>/dev/null || continue
            [[ $backing == "$DIR"/* || -n ${ours[$backing]:-} ]] || continue
            ours[/dev/${device##*/}]=1
        done
    done
    for found in "${!ours[@]}"; do
        losetup --detach "$found" 2>/dev/null || true
    done
}

unmount_all() {
    local target
    # In reverse order of mounting. A busy one is released by its last user.
    awk -v dir="$DIR/" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo | tac | while read -r target; do
        target=$(printf '%b' "$target")
        umount "$target" 2>/dev/null || umount --lazy "$target" 2>/dev/null || true
    done
}

remove_cgroups() {
    local mount
    for mount in $(cgroup_mounts); do
        [[ ! -d $mount/$CGROUP ]] || find "$mount/$CGROUP" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
}

# --- files ------------------------------------------------------------------

remove_directory() {
    local left
    # The only directory of the kubelet that cannot be moved. Plugins of other kubelets would be there too, so only this
    # cluster's files are removed.
    if [[ -e $RECORD ]]; then
        rm -f /var/lib/kubelet/device-plugins/{kubelet.sock,kubelet_internal_checkpoint,DEPRECATION,vmoperator-*.sock}
        rmdir /var/lib/kubelet/device-plugins /var/lib/kubelet 2>/dev/null || true
        # Device nodes of the device plugin.
        rm -f /run/vm-device-plugin/{kvm,tun}
        rmdir /run/vm-device-plugin 2>/dev/null || true
    fi
    left=$(awk -v dir="$DIR/" 'index($5, dir) == 1 { print $5; exit }' /proc/self/mountinfo)
    [[ -z $left ]] || die "$left cannot be unmounted; find its user with: fuser -m $left"
    rm -rf --one-file-system "$DIR"
}
