# What the scripts of this directory share: messages, timing, and not doing again what is done.

GUESTS=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
REPO=$(cd "$GUESTS/../../.." && pwd)
OUT=$REPO/.cache/guests
PROGRAM=guests/$(basename "$0")

die() {
    printf '%s: %s\n' "$PROGRAM" "$*" >&2
    exit 1
}

# need COMMAND=PACKAGE...
need() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    ((${#missing[@]} == 0)) || die "missing: apt-get install ${missing[*]}"
    ((EUID == 0)) || die "this needs root; run it with sudo"
}

# step TEXT COMMAND...: runs it and prints how long it took; its output is shown if it fails.
step() {
    local text=$1 begin=$EPOCHREALTIME status
    shift
    # Not in a condition: there, a function goes on after an error.
    set +e
    (set -e; "$@") >"$WORK/log" 2>&1
    status=$?
    set -e
    if ((status != 0)); then
        cat "$WORK/log" >&2
        die "$text: failed"
    fi
    printf '%-34s %s\n' "$text" "$(seconds_since "$begin")"
}

seconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", to - from }'; }

# make_image NAME COMMAND INPUT...: runs COMMAND, which writes $WORK/image, unless $OUT/NAME.img is made of the same inputs.
# Debian's packages are taken as they are at the time; remove the image to get newer ones.
make_image() {
    local name=$1 command=$2 key begin=$EPOCHREALTIME
    shift 2
    key=$(cat "$GUESTS/common.sh" "$@" | sha256sum | cut -c 1-16)
    mkdir -p "$OUT"
    exec 9>"$OUT/$name.lock"
    flock 9
    if [[ -e $OUT/$name.img && -e $OUT/$name.key && $(<"$OUT/$name.key") == "$key" ]]; then
        echo "$OUT/$name.img is up to date"
        return
    fi
    WORK=$(mktemp -d "$OUT/$name.XXXXXX")
    trap 'rm -rf --one-file-system "$WORK"' EXIT
    "$command"
    mv "$WORK/image" "$OUT/$name.img"
    printf '%s\n' "$key" >"$OUT/$name.key"
    echo "$OUT/$name.img: $(du -h --apparent-size "$OUT/$name.img" | cut -f 1), $(du -h "$OUT/$name.img" | cut -f 1) on disk, in $(seconds_since "$begin")"
}
