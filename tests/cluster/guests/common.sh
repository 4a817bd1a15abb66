# What the scripts of this directory share: messages, timing, and not doing again what is done.

GUESTS=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
REPO=$(cd "$GUESTS/../../.." && pwd)
# shellcheck source-path=SCRIPTDIR/../../..
source "$REPO/tests/cache.sh"
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

# make_image NAME COMMAND INPUT...: puts NAME.img, made by COMMAND as $WORK/image, into the checkout's .cache/guests. It is built
# once for each state of the inputs and kept in the cache outside the checkout. Debian's packages are taken as they are at the
# time; `tests/cache empty` leads to newer ones.
make_image() {
    local name=$1 command=$2 key kept
    shift 2
    # Not common.sh itself: what it says of the cache changes no image.
    key=$(cat "$@" | sha256sum | cut -c 1-16)
    kept=$VMOP_CACHE/guests/$name-$key.img
    mkdir -p "$OUT" "${kept%/*}"
    cache_lock "guest-$name"
    printf '%s\n' "$key" >"$OUT/$name.key"
    if [[ -e $OUT/$name.img && -e $kept && $OUT/$name.img -ef $kept ]]; then
        echo "$OUT/$name.img is up to date"
        return
    fi
    [[ -e $kept ]] || build_image "$command" "$kept"
    used "$kept"
    # A link where that is possible; no test writes into the image itself.
    ln -f "$kept" "$OUT/$name.img" 2>/dev/null || cp --sparse=always "$kept" "$OUT/$name.img"
    echo "$OUT/$name.img: $(du -h --apparent-size "$kept" | cut -f 1), $(du -h "$kept" | cut -f 1) on disk"
}

# build_image COMMAND FILE
build_image() {
    cache_missed "guest $2"
    WORK=$(mktemp -d "$VMOP_CACHE/guests/work.XXXXXX")
    trap 'rm -rf --one-file-system "$WORK"' EXIT
    "$1"
    mv "$WORK/image" "$2"
    keep_newest "${2%/*}" "$(basename "$2" | sed 's/-[^-]*$/-*/')"
}
