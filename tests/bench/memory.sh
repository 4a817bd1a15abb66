# Measures the memory of a VM's pod besides the guest's memory, and compares it with the memory that the operator
# reserves for it.

RESERVE_RAM=256
WITH_DISPLAY='{spice: {port: 5910, generateSecret: false}}'
WITHOUT_DISPLAY='{outputs: 1}'

# tiny_with NAME CPUS DISPLAY: a VM with that number of CPUs; the configuration makes their requests small, so that they
# fit on the node
tiny_with() {
    tiny_vm "$1" | sed "s/^    firmware: bios/    firmware: bios\n    maximumCpus: $2\n    currentCpus: $2/; s/maximumRam: .*/maximumRam: ${RESERVE_RAM}Mi/; s/display: .*/display: $3/"
}

allow_many_cpus() {
    k patch configmap vm-operator --type merge --patch \
        '{"data": {"config.yaml": "{\"/Manager\": {\"/Controller\": {\"/Reconciler\": {\"cpuOvercommit\": 1000}}}}"}}' >/dev/null
    # A new pod has the new file immediately.
    k rollout restart deployment/vm-operator >/dev/null
    k rollout status deployment/vm-operator --timeout 60s >/dev/null
}

kibibytes() { awk -v k="$1" 'BEGIN { printf "%.1f MiB", k / 1024 }'; }

# besides_guest PID: kibibytes of QEMU as if it were alone on its node, without two mappings: the guest's memory,
# recognized by its size, and the translated code of TCG, which is writable and executable. PSS is not used, because it
# depends on the number of QEMU processes.
besides_guest() {
    awk -v ram=$((RESERVE_RAM * 1024)) '
        /^[0-9a-f]+-[0-9a-f]+ / { code = $2 ~ /^rwx/; next }
        /^Size:/ { guest = $2 == ram; found += guest }
        /^Rss:/ && !guest && !code { sum += $2 }
        END { if (found != 1) exit 1; print sum }' "/proc/$1/smaps" || die "QEMU $1 has not one mapping of $RESERVE_RAM MiB"
}

# rss PID: its resident set size, in kibibytes
rss() { awk '/^Rss:/ { print $2 }' "/proc/$1/smaps_rollup"; }

# reserved NAME: kibibytes that the pod requests besides the guest's share, which is the guest's memory divided by
# ramOvercommit 1.25
reserved() {
    local request
    request=$(k get pod "$1" --output 'jsonpath={.spec.containers[0].resources.requests.memory}')
    awk -v request="$request" -v ram=$RESERVE_RAM 'BEGIN { printf "%d", request / 1024 - ram * 1024 / 1.25 }'
}

# besides NAME: kibibytes that the pod uses besides the guest
besides() {
    local uid
    uid=$(k get pod "$1" --output 'jsonpath={.metadata.uid}')
    say $(($(rss "$(process "$uid" vm-runner)") + $(besides_guest "$(process "$uid" qemu-system-x86)")))
}

# watched NAME: the same with a connected viewer
watched() {
    local address viewer most=0 now
    address=$(k get pod "$1" --output 'jsonpath={.status.podIP}')
    HOME=$WORK spicy-stats --host "$address" --port 5910 >"$WORK/viewer" 2>&1 &
    viewer=$!
    for _ in {1..20}; do
        sleep 0.5
        now=$(besides "$1")
        ((now < most)) || most=$now
    done
    kill -0 "$viewer" 2>/dev/null || die "the viewer has gone: $(tail -n 3 "$WORK/viewer")"
    k get vm "$1" --output 'jsonpath={.status.conditions[?(@.type=="ConsoleConnected")].status}' | grep --quiet True ||
        die "the viewer is not connected: $(tail -n 3 "$WORK/viewer")"
    kill "$viewer"
    wait "$viewer" || true
    say "$most"
}

# percent PART WHOLE: rounded
percent() { awk -v part="$1" -v whole="$2" 'BEGIN { printf "%.0f", part * 100 / whole }'; }

# of_reserve MEASURED RESERVE
of_reserve() { say "$(kibibytes "$1") ($(percent "$1" "$2") %)"; }

# measure_pod NAME CPUS DISPLAY
measure_pod() {
    local name=$1 cpus=$2 display=$3 reserve taken what=display
    make_disk "$name"
    tiny_with "$name" "$cpus" "$display" | k create --filename - >/dev/null
    eventually 180 has_booted "$name"
    # After the boot, the guest agent and the network start.
    sleep 10
    reserve=$(reserved "$name")
    taken=$(of_reserve "$(besides "$name")" "$reserve")
    if [[ $display == "$WITHOUT_DISPLAY" ]]; then
        what='no display'
    else
        taken+="; with a viewer $(of_reserve "$(watched "$name")" "$reserve")"
    fi
    row "$cpus CPUs, $RESERVE_RAM MiB, $what: QEMU and runner besides the guest, of $(kibibytes "$reserve") reserved" "$taken"
    k delete vm "$name" >/dev/null
    eventually 60 pod_is_gone "$name"
    k delete pvc --selector "app.kubernetes.io/instance=$name" >/dev/null
    "$REPO/tests/cluster/disk" remove "$NAMESPACE-$name"
}

measure_reserve() {
    local cpus
    allow_many_cpus
    for cpus in 1 4 16; do
        measure_pod "cpus-$cpus" "$cpus" "$WITH_DISPLAY"
        measure_pod "plain-$cpus" "$cpus" "$WITHOUT_DISPLAY"
    done
}
