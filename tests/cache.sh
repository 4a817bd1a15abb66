# The cache outside the checkout, for scripts that source this: what takes minutes to build and depends on nothing but its own
# inputs. Each entry's name contains the hash of these inputs, so a stale entry is never used, and checkouts share entries.
# `tests/cache` is the command for people.

VMOP_CACHE=${VMOP_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/vm-operator}
export VMOP_CACHE

# Locks have a folder of their own, which is never emptied: a lock file that is removed while somebody waits for it locks nothing.
CACHE_LOCKS=${VMOP_CACHE%/}.locks

# cache_lock NAME: waits until no other process builds the entry, and keeps it locked until this shell ends.
cache_lock() {
    local fd
    mkdir -p "$CACHE_LOCKS" "$VMOP_CACHE"
    exec {fd}>"$CACHE_LOCKS/$1"
    flock --timeout 10 "$fd" || {
        echo "waiting for another process that builds $1 (lock $CACHE_LOCKS/$1)"
        flock "$fd"
    }
}

# cache_missed TEXT: reports that an entry has to be built; tests/run then allows the part the time for an empty cache.
cache_missed() {
    [[ -z ${VMOP_COLD_MARK:-} ]] || printf '%s\n' "$1" >>"$VMOP_COLD_MARK"
}

# keep_newest DIRECTORY PATTERN [COUNT]: removes all entries but the newest three, by the time of their last use.
keep_newest() {
    find "$1" -maxdepth 1 -name "$2" -printf '%T@ %p\0' | sort --zero-terminated --reverse --numeric-sort |
        tail --zero-terminated --lines "+$((${3:-3} + 1))" | cut --zero-terminated --delimiter ' ' --fields 2- |
        xargs --null --no-run-if-empty rm -rf --one-file-system
}

# used ENTRY: keeps it among the newest
used() { touch --no-create "$1"; }
