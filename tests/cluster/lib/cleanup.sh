# Ends a cluster, a killed or half-started one as well, and leaves nothing of
# it. What is ours is known by our directory, our cgroup or our own names; a
# process is never chosen by its program's name.

clean_up() {
    kill_recorded
    kill_pods
    kill_strays
    remove_network
    detach_loop_devices
    unmount_all
    # A lock that the kubelet had on a device shows its path only while mounted;
    # and a device in use lets go when its last user has.
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

# What no pid file names: shims, and a component whose starter was killed before
# it could write one. Their arguments tie them to our directory.
kill_strays() {
    local entry pid arguments
    for entry in /proc/[0-9]*; do
        pid=${entry##*/}
        # It may have ended since it was listed.
        { mapfile -d '' -t arguments <"$entry/cmdline"; } 2>/dev/null || continue
        ((${#arguments[@]} > 1)) || continue
        case ${arguments[0]##*/} in
            containerd | containerd-shim*) [[ " ${arguments[*]} " == *" $DIR/"* ]] || continue ;;
            vmop-kube) [[ ${arguments[0]} == "$DIR/bin/vmop-kube" ]] || continue ;;
            *) continue ;;
        esac
        kill -KILL "$pid" 2>/dev/null || true
    done
    # The shims' sockets are outside of our directory, by names that only they know.
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
    # Only while the record says that a cluster of ours has been up since the
    # machine booted: another Kubernetes here would have the same table.
    if [[ -e $RECORD ]]; then
        nft delete table ip kube-proxy 2>/dev/null || true
        nft delete table ip6 kube-proxy 2>/dev/null || true
    fi
    # The library that calls the plugins keeps its results here; ours name our
    # network or, for the loopback device, a path below our directory.
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
    # Of this boot only: the machine may have other settings since.
    [[ -e $RECORD && -e $DIR/sysctls ]] || return 0
    while read -r name value; do
        echo "$value" 2>/dev/null >"/proc/sys/$name" || true
    done <"$DIR/sysctls"
}

# --- devices and mounts -----------------------------------------------------

# Ours are those whose file is below our directory, and those in turn whose
# file is one of our devices: so does the kubelet hold a device that a pod uses.
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
    # Last mounted first; a busy one goes when its last user has.
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
    # The one place of the kubelet that cannot be moved. Plugins of other
    # kubelets would be there too, so only our own files go.
    if [[ -e $RECORD ]]; then
        rm -f /var/lib/kubelet/device-plugins/{kubelet.sock,kubelet_internal_checkpoint,DEPRECATION,vmoperator-*.sock}
        rmdir /var/lib/kubelet/device-plugins /var/lib/kubelet 2>/dev/null || true
    fi
    left=$(awk -v dir="$DIR/" 'index($5, dir) == 1 { print $5; exit }' /proc/self/mountinfo)
    [[ -z $left ]] || die "$left cannot be unmounted; find its user with: fuser -m $left"
    rm -rf --one-file-system "$DIR"
}
