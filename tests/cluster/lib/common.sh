# Messages, timing, and processes of the cluster. Each process is recorded by PID and start time, so that a recycled PID
# is never taken for one of them.

# One per machine, outside of $DIR: the directory of the running cluster. It marks bridges, cgroups and nft tables with
# these names as those of this project.
RECORD=/run/vmop-cluster.record

say() { printf '%s\n' "$*"; }

die() {
    printf 'cluster: %s\n' "$*" >&2
    exit 1
}

seconds_since() {
    awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", to - from }'
}

# step TEXT COMMAND...: runs the command (not in a condition, so that errexit applies to it) and prints the text and the
# time
step() {
    local text=$1 begin=$EPOCHREALTIME
    shift
    "$@"
    printf '%-34s %s\n' "$text" "$(seconds_since "$begin")"
}

# wait_for SECONDS TEXT COMMAND...: waits until the command succeeds. Fails immediately when a process of the cluster
# has exited, and names its log.
wait_for() {
    local limit=$1 what=$2 begin=$SECONDS
    shift 2
    until "$@" >/dev/null 2>&1; do
        local dead
        dead=$(dead_process)
        [[ -z $dead ]] || die "$dead has ended: $(last_words "$dead") (all of it: $DIR/logs/$dead.log)"
        ((SECONDS - begin < limit)) || die "$what did not come within $limit s; see $DIR/logs"
        sleep 0.1
    done
}

last_words() {
    grep -v '^[[:space:]]*$' "$DIR/logs/$1.log" | tail -n 1 | cut -c 1-300
}

lock() {
    exec 9>/run/vmop-cluster.lock
    # A short wait, because the last child of a killed run may still hold the lock.
    flock --timeout 10 9 || die "another up or down is running; wait for it"
}

# --- processes of the cluster ----------------------------------------------

# Field 22 of /proc/PID/stat, in ticks since boot. The second field may contain spaces and brackets, so count from the
# last bracket.
start_time() {
    local stat
    # Not $(<file): with a missing file it exits the shell under errexit.
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
    stat=${stat##*) }
    # shellcheck disable=SC2086 # words are wanted
    set -- $stat
    [[ $1 != Z ]] || return 1
    printf '%s' "${20}"
}

# All traffic stays on this machine, independent of the caller's proxies.
WITHOUT_PROXY=(env -u HTTP_PROXY -u HTTPS_PROXY -u ALL_PROXY -u http_proxy -u https_proxy -u all_proxy)

# spawn NAME COMMAND...: starts it in the background, in its own session and without the lock
spawn() {
    local name=$1 pid
    shift
    setsid "${WITHOUT_PROXY[@]}" "$@" >"$DIR/logs/$name.log" 2>&1 </dev/null 9>&- &
    pid=$!
    disown "$pid"
    printf '%s %s\n' "$pid" "$(start_time "$pid")" >"$DIR/pids/$name"
}

is_alive() {
    local pid began
    { read -r pid began <"$DIR/pids/$1"; } 2>/dev/null || return 1
    [[ -n $began && $(start_time "$pid") == "$began" ]]
}

dead_process() {
    local file
    for file in "$DIR"/pids/*; do
        [[ -e $file ]] || continue
        is_alive "${file##*/}" || { printf '%s' "${file##*/}"; return; }
    done
}

# SIGKILL, because no state is retained.
kill_recorded() {
    local file
    for file in "$DIR"/pids/*; do
        [[ ! -e $file ]] || end_recorded "${file##*/}" KILL
    done
}

# end_recorded NAME SIGNAL
end_recorded() {
    local pid began
    read -r pid began <"$DIR/pids/$1" || true
    if is_alive "$1"; then
        kill "-$2" "$pid" 2>/dev/null || true
        wait_gone "$pid" "$began"
    fi
    rm -f "$DIR/pids/$1"
}

wait_gone() {
    local tries
    for ((tries = 0; tries < 100; tries++)); do
        [[ $(start_time "$1") == "$2" ]] || return 0
        sleep 0.05
    done
    die "process $1 does not end (state $(awk '/^State/ { print $2 }' "/proc/$1/status")); try again, or reboot"
}

# --- the cluster as a whole -------------------------------------------------

remember_cluster() {
    mkdir -p "$DIR"/{bin,certificates,cni,configuration,containerd,etcd,images,kubelet,logs,pids,pod-logs,volumes}
    chmod 700 "$DIR/certificates" "$DIR/etcd"
    printf '%s\n' "$DIR" >"$RECORD"
    remember_settings
    save_sysctls
    # A copy, so that the cluster outlives the checkout that started it.
    cp --reflink=auto "$KUBE" "$DIR/bin/vmop-kube"
    make_kubectl
}

# A kubectl for machines without one.
make_kubectl() {
    cat >"$DIR/bin/kubectl" <<SH
#!/bin/sh
exec $(type -P env) ${WITHOUT_PROXY[*]:1} "$DIR/bin/vmop-kube" kubectl "\$@"
SH
    chmod +x "$DIR/bin/kubectl"
}

remember_settings() { printf 'VMOP_DEVICE_OWNERSHIP=%s\n' "$DEVICE_OWNERSHIP" >"$DIR/settings"; }

forget_cluster() { rm -f "$RECORD"; }

# Bridges and cgroups have machine-wide names, which two clusters would share.
refuse_foreign_cluster() {
    local other file
    [[ -e $RECORD ]] || return 0
    other=$(<"$RECORD")
    [[ $other != "$DIR" ]] || return 0
    for file in "$other"/pids/*; do
        if DIR=$other is_alive "${file##*/}"; then
            die "the cluster in $other is running and there can be only one; end it with: VMOP_CLUSTER_DIR=$other $0 down"
        fi
    done
}

same_settings() {
    local running
    running=$(<"$DIR/settings")
    [[ $running == "VMOP_DEVICE_OWNERSHIP=$DEVICE_OWNERSHIP" ]] ||
        die "the running cluster has $running; to change it: $0 down, then up"
}

is_healthy() {
    local file
    for file in etcd kube-apiserver kube-controller-manager kube-scheduler containerd kubelet kube-proxy provisioner; do
        is_alive "$file" || return 1
    done
    api_ready >/dev/null 2>&1 && node_ready >/dev/null 2>&1
}

need_cluster() { [[ -e $DIR/admin.kubeconfig ]] || die "there is no cluster in $DIR; start one with: $0 up"; }

# kubectl's discovery cache is named after the cluster's address, which is the same for each cluster here. So the cache
# is stored with the cluster's state and removed with it.
KUBECTL_ENVIRONMENT=("KUBECONFIG=$DIR/admin.kubeconfig" "KUBECACHEDIR=$DIR/kubectl-cache")

kubectl() { "${WITHOUT_PROXY[@]}" "${KUBECTL_ENVIRONMENT[@]}" "$DIR/bin/vmop-kube" kubectl "$@" 9>&-; }

show_status() {
    need_cluster
    local file name state
    for file in "$DIR"/pids/*; do
        [[ -e $file ]] || continue
        name=${file##*/}
        state="ended: $(last_words "$name")"
        is_alive "$name" && state="pid $(cut -d ' ' -f 1 "$file")"
        printf '%-24s %s\n' "$name" "$state"
    done
    cat "$DIR/settings"
    api_ready >/dev/null 2>&1 || die "the API server does not answer; see $DIR/logs/kube-apiserver.log"
    kubectl get nodes --output wide
    kubectl get pods --all-namespaces
}
