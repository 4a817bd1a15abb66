# What a VM's pod takes besides the guest's memory, beside what the operator reserves for that.

# A machine of that many CPUs; a setting makes their requests small, so that the node takes it.
RESERVE_RAM=256

tiny_with_cpus() {
    tiny_vm "$1" | sed "s/^    firmware: bios/    firmware: bios\n    maximumCpus: $2\n    currentCpus: $2/; s/maximumRam: .*/maximumRam: ${RESERVE_RAM}Mi/"
}

allow_many_cpus() {
    k patch configmap vm-operator --type merge --patch \
        '{"data": {"config.yaml": "{\"/Manager\": {\"/Controller\": {\"/Reconciler\": {\"cpuOvercommit\": 1000}}}}"}}' >/dev/null
}

kibibytes() { awk -v k="$1" 'BEGIN { printf "%.1f MiB", k / 1024 }'; }

# besides_guest PID: kibibytes of QEMU in PSS, but for two mappings: the guest's memory, known by its size, and the code that is
# made where there is no hardware acceleration, which can be written and executed.
besides_guest() {
    awk -v ram=$((RESERVE_RAM * 1024)) '
        /^[0-9a-f]+-[0-9a-f]+ / { code = $2 ~ /^rwx/; next }
        /^Size:/ { guest = $2 == ram; found += guest }
        /^Pss:/ && !guest && !code { sum += $2 }
        END { if (found != 1) exit 1; print sum }' "/proc/$1/smaps" || die "QEMU $1 has not one mapping of $RESERVE_RAM MiB"
}

# reserved NAME: kibibytes that the pod requests besides the guest's share, which is the memory by ramOvercommit 1.25
reserved() {
    local request
    request=$(k get pod "$1" --output 'jsonpath={.spec.containers[0].resources.requests.memory}')
    awk -v request="$request" -v ram=$RESERVE_RAM 'BEGIN { printf "%d", request / 1024 - ram * 1024 / 1.25 }'
}

measure_reserve() {
    local cpus name uid measured runner reserve
    allow_many_cpus
    for cpus in 1 4 16; do
        name=cpus-$cpus
        make_disk "$name"
        tiny_with_cpus "$name" "$cpus" | k create --filename - >/dev/null
        eventually 180 has_booted "$name"
        # What comes after the boot: the guest agent, the network.
        sleep 10
        uid=$(k get pod "$name" --output 'jsonpath={.metadata.uid}')
        runner=$(pss "$(process "$uid" vm-runner)")
        measured=$((runner + $(besides_guest "$(process "$uid" qemu-system-x86)")))
        reserve=$(reserved "$name")
        row "$cpus CPUs, $RESERVE_RAM MiB: QEMU and runner besides the guest, of the reserve" \
            "$(kibibytes "$measured") of $(kibibytes "$reserve") ($((measured * 100 / reserve)) %)"
        k delete vm "$name" >/dev/null
        eventually 60 pod_is_gone "$name"
        k delete pvc --selector "app.kubernetes.io/instance=$name" >/dev/null
        "$REPO/tests/cluster/disk" remove "$NAMESPACE-$name"
    done
}
