# Measures the start of a VM with the tiny guest, and of a bare pod with the same QEMU, in turns.

# The position at which the tiny guest counts its boots (tests/cluster/guests/tiny).
COUNTS_OFFSET=$((47 << 20))

# make_disk NAME: a disk with the tiny guest, for the claim of that VM or bare pod
make_disk() {
    "$REPO/tests/cluster/disk" make "$NAMESPACE-$1" "$TINY" 64Mi "app.kubernetes.io/instance=$1" >/dev/null
}

has_booted() {
    [[ $(dd if="$STATE/disks/$NAMESPACE-$1.img" iflag=skip_bytes skip=$COUNTS_OFFSET bs=16 count=1 status=none) == "TINY boot=1"* ]]
}

# With BIOS, a bare QEMU needs no file of the runner.
tiny_vm() {
    cat <<YAML
apiVersion: vmoperator.jdrupes.org/v1
kind: VirtualMachine
metadata: {name: $1, namespace: $NAMESPACE}
spec:
  vm:
    state: Running
    firmware: bios
    maximumRam: 256Mi
    networks: [{user: {}}]
    disks:
    - volumeClaimTemplate:
        metadata: {name: system}
        spec:
          storageClassName: ""
          selector: {matchLabels: {app.kubernetes.io/instance: $1}}
          resources: {requests: {storage: 64Mi}}
    display: {spice: {port: 5910}}
YAML
}

# bare NAME: a bare pod from the VM's pod, claims and configuration in $WORK, with its own copies of these, and with the
# VM's QEMU command line. The command line differs in two points: the runner's sockets are replaced, and QEMU starts the
# guest itself.
bare() {
    jq --null-input --arg name "$1" --arg namespace "$NAMESPACE" --rawfile cmdline "$WORK/cmdline" \
        --slurpfile pod "$WORK/pod.json" --slurpfile claims "$WORK/claims.json" --slurpfile config "$WORK/config.json" '
        def named: sub("^vm-[0-9]+"; $name);
        def copied: .metadata = {name: (.metadata.name | named), namespace: $namespace};
        ($cmdline | split("\u0000")[:-1] | map(select(. != "-S")
            | sub("^socket,id=(?<id>serial0[^,]*),.*"; "null,id=\(.id)")
            | sub("^socket,id=(?<id>[^,]*),fd=.*"; "socket,id=\(.id),path=/dev/shm/\(.id),server=on,wait=off"))) as $command
        | ($pod[0] | copied
            | del(.status, .spec.nodeName)
            | .spec.containers[0].command = $command
            | .spec.volumes |= map(if .persistentVolumeClaim and .name != "vmop-image-repository"
                then .persistentVolumeClaim.claimName |= named
                elif .name == "config" then .projected.sources |= map(map_values(.name |= named)) else . end)) as $bare
        | {apiVersion: "v1", kind: "List", items: ([$claims[0].items[] | select(.metadata.name | test("^vm-[0-9]+-"))
            | copied | del(.status, .spec.volumeName)
            | if .spec.selector then .spec.selector.matchLabels["app.kubernetes.io/instance"] = $name else . end]
            + [$config[0].items[] | copied] + [$bare])}'
}

# look_at_vm NAME: saves the objects from which the bare pods are built
look_at_vm() {
    k get pod "$1" --output json >"$WORK/pod.json"
    k get pvc --output json >"$WORK/claims.json"
    k get "configmap/$1" "secret/$1-display-secret" --output json >"$WORK/config.json"
    cp "/proc/$(process "$(k get pod "$1" --output 'jsonpath={.metadata.uid}')" qemu-system-x86)/cmdline" "$WORK/cmdline"
}

# Prepends the time to each line of a watch.
with_time() {
    local line
    while IFS= read -r line; do printf '%s %s\n' "$(date --utc +%FT%T.%NZ)" "$line"; done
}

WATCH=
end_watch() {
    [[ -n $WATCH ]] || return 0
    kill -TERM -- "-$WATCH" 2>/dev/null || true
    wait "$WATCH" 2>/dev/null || true
    WATCH=
}

# watch FILE RESOURCE NAME JSONPATH: in the background, until end_watch
watch() {
    local file=$1 resource=$2 name=$3 path=$4
    setsid bash -c "'$REPO/tests/cluster/cluster' kubectl get --namespace '$NAMESPACE' '$resource' --field-selector 'metadata.name=$name' \
        --watch --output 'jsonpath=$path{\"\n\"}' 2>/dev/null | { $(declare -f with_time); with_time; }" >"$file" &
    WATCH=$!
    # The watch must be established before the object is created.
    sleep 1
}

# seen FILE TEXT: the time of the first line that ends with the text
seen() { sed -n "s/^\([^ ]*\) $2\$/\1/p" "$1" | head -n 1; }

is_seen() { [[ -n $(seen "$@") ]]; }

# start NAME RESOURCE JSONPATH TEXT COMMAND...: creates the output of the command; sets T_BOOTED and T_RUNNING, in the
# local clock
start() {
    local name=$1 resource=$2 path=$3 text=$4
    shift 4
    make_disk "$name"
    "$@" "$name" >"$WORK/$name"
    watch "$WORK/watch" "$resource" "$name" "$path"
    k create --filename "$WORK/$name" >/dev/null
    eventually 60 has_booted "$name"
    T_BOOTED=$(date --utc +%FT%T.%NZ)
    eventually 20 is_seen "$WORK/watch" "$text"
    T_RUNNING=$(seen "$WORK/watch" "$text")
    end_watch
}

pod_log() { k logs "$1" | grep "$2"; }

# The runner writes its first line before QEMU starts, and the other one after it has continued the guest.
runner_start() {
    local first continued
    first=$(k logs "$1" | head -n 1 | cut -d ' ' -f 1)
    continued=$(pod_log "$1" 'from=Starting to=Booting' | cut -d ' ' -f 1)
    between "$first" "$continued"
}

# Write requests of the operator and the runner for this VM, without events and dry runs. The image repository's claim
# is shared and does not count.
writes() {
    audit | jq --raw-output --arg name "$1" --arg report "$2" --arg user "system:serviceaccount:$NAMESPACE:" '
        select((.user.username | startswith($user)) and (.verb | IN("create", "update", "patch", "delete"))
            and .objectRef.resource != "events" and (.requestURI | contains("dryRun=All") | not) and (.objectRef.name // "" | . == $name or . == $report or startswith($name + "-")))
        | "\(.objectRef.resource)"' | wc --lines
}

measure_starts() {
    local n from vm_running=() vm_booted=() bare_running=() bare_booted=() guest=() uid written
    WORK=$(mktemp -d)
    for ((n = 1; n <= STARTS; n++)); do
        start "vm-$n" vms '{.status.conditions[?(@.type=="Running")].status}' True tiny_vm
        from=$(request create vms "vm-$n" stageTimestamp)
        vm_running+=("$(between "$from" "$T_RUNNING")")
        vm_booted+=("$(between "$from" "$T_BOOTED")")
        guest+=("$(runner_start "vm-$n")")
        written=$(writes "vm-$n" "$(k get pod "vm-$n" --output 'jsonpath={.metadata.uid}')")
        look_at_vm "vm-$n"
        uid=$(jq --raw-output .metadata.uid "$WORK/pod.json")
        if ((n == STARTS)); then
            row "runner, after the guest's boot" "$(memory "$(process "$uid" vm-runner)")"
            sleep 10 # it is idle by then
            row "runner, ten seconds later" "$(memory "$(process "$uid" vm-runner)")"
            row "QEMU, with a guest of 256 MiB" "$(memory "$(process "$uid" qemu-system-x86)")"
        fi
        k delete vm "vm-$n" >/dev/null
        eventually 60 pod_is_gone "vm-$n"

        start "bare-$n" pods '{.status.phase}' Running bare
        from=$(request create pods "bare-$n" stageTimestamp)
        bare_running+=("$(between "$from" "$T_RUNNING")")
        bare_booted+=("$(between "$from" "$T_BOOTED")")
        k delete pod "bare-$n" --grace-period 1 >/dev/null
        k delete "configmap/bare-$n" "secret/bare-$n-display-secret" >/dev/null
        k delete pvc --selector '!app.kubernetes.io/component' --field-selector "metadata.name!=vmop-image-repository" >/dev/null
        "$REPO/tests/cluster/disk" remove "$NAMESPACE-vm-$n"
        "$REPO/tests/cluster/disk" remove "$NAMESPACE-bare-$n"
    done
    rm -rf "$WORK"
    row "VM created to \`Running=True\`, $STARTS times" "$(percentiles "${vm_running[@]}")"
    row "bare pod created to phase \`Running\`" "$(percentiles "${bare_running[@]}")"
    row "VM created to guest booted" "$(percentiles "${vm_booted[@]}")"
    row "bare pod created to guest booted" "$(percentiles "${bare_booted[@]}")"
    row "time of VM / bare pod to guest booted, at p50" "$(ratio "$(percentile 50 "${vm_booted[@]}")" "$(percentile 50 "${bare_booted[@]}")")"
    row "runner started to guest continued" "$(percentiles "${guest[@]}")"
    row "writes of operator and runner per VM, without events" "$written"
}

ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "× %.2f", a / b }'; }
