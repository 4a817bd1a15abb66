# Starts a guest with the QEMU of the runner's image, in a chroot as the image's user, and talks with it through FIFOs:
# serial line, QMP, guest agent. Needs common.sh, and a mount namespace of its own (see selftest).

ROOT=$REPO/.cache/images/runner-root
QEMU_PID=

# The chroot is the image's root; /tmp in it is $WORK.
enter_root() {
    [[ -x $ROOT/usr/bin/qemu-system-x86_64 ]] || die "$ROOT is missing; run tests/cluster/images"
    mkdir -p "$OUT"
    WORK=$(mktemp -d "$OUT/selftest.XXXXXX")
    chown 107:107 "$WORK"
    mount --bind "$WORK" "$ROOT/tmp"
    mount --rbind /dev "$ROOT/dev"
    mount --rbind /proc "$ROOT/proc"
    trap leave_root EXIT
}

leave_root() {
    kill_guest
    umount --lazy "$ROOT/tmp"
    rm -rf --one-file-system "$WORK"
}

# fresh_disk NAME: a copy of the guest's image, as $WORK/NAME.img
fresh_disk() {
    [[ -e $OUT/$1.img ]] || die "$OUT/$1.img is missing; run tests/cluster/guests/$1"
    cp --sparse=always "$OUT/$1.img" "$WORK/$1.img"
    cp "$ROOT/usr/share/OVMF/OVMF_VARS_4M.fd" "$WORK/vars.fd"
    chown 107:107 "$WORK/$1.img" "$WORK/vars.fd"
}

# start_guest bios|uefi|secure DISK ARGUMENT...: starts it and returns at once
start_guest() {
    local firmware=() code channel
    code=/usr/share/OVMF/OVMF_CODE_4M.fd
    if [[ $1 == secure ]]; then
        code=/usr/share/OVMF/OVMF_CODE_4M.ms.fd
        firmware=(-machine smm=on -global driver=cfi.pflash01,property=secure,value=on)
    fi
    [[ $1 == bios ]] || firmware+=(-drive "if=pflash,unit=0,format=raw,readonly=on,file=$code"
        -drive if=pflash,unit=1,format=raw,file=/tmp/vars.fd)
    for channel in serial qmp agent; do
        # QEMU writes to .out and reads from .in.
        rm -f "$WORK/$channel".{in,out,log}
        mkfifo "$WORK/$channel.in" "$WORK/$channel.out"
        chown 107:107 "$WORK/$channel".{in,out}
    done
    # Opened for both directions, so that neither side waits for the other.
    exec {SERIAL_IN}<>"$WORK/serial.in" {SERIAL_OUT}<>"$WORK/serial.out" {QMP_IN}<>"$WORK/qmp.in" {QMP_OUT}<>"$WORK/qmp.out" \
        {AGENT_IN}<>"$WORK/agent.in" {AGENT_OUT}<>"$WORK/agent.out"
    STARTED=$EPOCHREALTIME
    # Not by a function: $! is to be QEMU itself.
    chroot --userspec=107:107 "$ROOT" /usr/bin/qemu-system-x86_64 -no-user-config -nodefaults -display none -machine pc-q35-9.2 -accel tcg -cpu max \
        -sandbox on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny "${firmware[@]}" \
        -chardev pipe,id=serial,path=/tmp/serial,logfile=/tmp/serial.log -device isa-serial,chardev=serial \
        -chardev pipe,id=qmp,path=/tmp/qmp -mon chardev=qmp,mode=control \
        -device virtio-serial-pci -chardev pipe,id=agent,path=/tmp/agent \
        -device virtserialport,chardev=agent,name=org.qemu.guest_agent.0 \
        -drive "if=none,id=disk,format=raw,file=/tmp/$2.img" -device virtio-blk-pci,drive=disk,bootindex=1 \
        -device virtio-balloon-pci -object rng-random,id=rng,filename=/dev/random -device virtio-rng-pci,rng=rng \
        "${@:3}" >"$WORK/qemu.log" 2>&1 &
    QEMU_PID=$!
    LINES_SEEN=0
    qmp '{"execute":"qmp_capabilities"}' >/dev/null || die "QEMU does not start: $(<"$WORK/qemu.log")"
}

kill_guest() {
    [[ -n $QEMU_PID ]] || return 0
    kill -KILL "$QEMU_PID" 2>/dev/null || true
    forget_guest
}

forget_guest() {
    wait "$QEMU_PID" 2>/dev/null || true
    QEMU_PID=
    exec {SERIAL_IN}>&- {SERIAL_OUT}>&- {QMP_IN}>&- {QMP_OUT}>&- {AGENT_IN}>&- {AGENT_OUT}>&-
}

# ended SECONDS: whether QEMU ends by itself within them
ended() {
    local try
    for ((try = 0; try < $1 * 10; try++)); do
        if ! kill -0 "$QEMU_PID" 2>/dev/null; then
            forget_guest
            return
        fi
        sleep 0.1
    done
    return 1
}

# line PATTERN SECONDS: waits for a new line of the serial log that holds the extended regular expression, and prints it
line() {
    local try found
    for ((try = 0; try < $2 * 10; try++)); do
        if found=$(tail -n "+$((LINES_SEEN + 1))" "$WORK/serial.log" 2>/dev/null | grep --text --line-number --max-count 1 -E -e "$1"); then
            LINES_SEEN=$((LINES_SEEN + ${found%%:*}))
            LINE=$(tr -d '\r' <<<"${found#*:}")
            return
        fi
        kill -0 "$QEMU_PID" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}

# enter TEXT: on the serial line
enter() { printf '%s\n' "$1" >&"$SERIAL_IN"; }

# qmp JSON: prints the reply; events are passed over
qmp() {
    local reply
    printf '%s\n' "$1" >&"$QMP_IN"
    while read -r -t 10 -u "$QMP_OUT" reply; do
        if [[ $reply == '{"return"'* || $reply == '{"error"'* ]]; then
            printf '%s\n' "$reply"
            [[ $reply != '{"error"'* ]]
            return
        fi
    done
    return 1
}

# agent JSON: prints the guest agent's reply
agent() {
    local reply
    printf '%s\n' "$1" >&"$AGENT_IN"
    read -r -t 20 -u "$AGENT_OUT" reply && printf '%s\n' "$reply" && [[ $reply == '{"return"'* ]]
}
