# The cache outside the checkout, for scripts that source this file. It holds artefacts that take minutes to build and
# depend only on their inputs. Each entry's name contains the hash of these inputs, so a stale entry is never used, and
# checkouts share entries. `tests/cache` is the command for people.

VMOP_CACHE=${VMOP_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/vm-operator}
export VMOP_CACHE

# Locks are in a folder that is never emptied: a removed lock file does not lock out a process that opens the new one.
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

# --- compiled dependencies --------------------------------------------------------------

# Each checkout compiles into its own target/. In a shared directory, cargo would mix the packages of two checkouts. A
# fresh clone gets a copy of the compiled registry crates from the cache. The copies are stored by profile and by a hash
# of the lock file, the manifests and the compiler. cargo checks each crate, so an older copy is only less useful.

compiled_entry() {
    local key
    key=$( (cd "$REPO" && rustc --version --verbose && cat Cargo.lock Cargo.toml tests/support/Cargo.toml) | sha256sum | cut -c 1-16)
    printf '%s\n' "$VMOP_CACHE/compiled/$1-$key.tar"
}

# restore_compiled PROFILE: fills an empty target/, or one after an interrupted restore. In a subshell, which holds the lock
# against parts that run at the same time.
restore_compiled() (
    mark=$REPO/target/.restoring-$1
    mkdir -p "$REPO/.cache"
    exec {lock}>"$REPO/.cache/restore.lock"
    flock "$lock"
    [[ ! -e $REPO/target/$1 || -e $mark ]] || exit 0
    entry=$(compiled_entry "$1")
    mkdir -p "$VMOP_CACHE/compiled"
    newest=$(find "$VMOP_CACHE/compiled" -name "$1-*.tar" -printf '%T@ %p\n' | sort --reverse --numeric-sort | sed -n '1s/^[^ ]* //p')
    [[ -e $entry ]] || cache_missed "compiled dependencies of the profile $1"
    [[ ! -e $entry ]] || newest=$entry
    [[ -n $newest ]] || exit 0
    used "$newest"
    mkdir -p "$REPO/target"
    touch "$mark"
    tar --extract --file "$newest" --directory "$REPO/target"
    rm "$mark"
)

# store_compiled PROFILE DIRECTORY...: stores these directories of target/ without this repository's own packages
store_compiled() {
    local entry names
    entry=$(compiled_entry "$1")
    [[ ! -e $entry ]] || return 0
    mkdir -p "${entry%/*}"
    names=$(sed -n '/^\[\[/,/^$/s/^name = "\(.*\)"$/\1/p' "$REPO/Cargo.toml" | tr - _ | paste -sd '|')
    (
        cd "$REPO/target"
        find "${@:2}" -type f -regextype posix-extended \
            ! -regex '.*/(incremental|examples)/.*' \
            ! -regex '.*/\.fingerprint/(vm-operator|support)-.*' \
            ! -regex ".*/deps/(lib)?(vm_operator|support|$names)-.*" \
            -regex '.*/(\.fingerprint|build|deps)/.*' -print0 |
            tar --create --format=posix --null --files-from - --file "$entry.part.$$"
    )
    mv "$entry.part.$$" "$entry"
    keep_newest "${entry%/*}" "$1-*.tar" 2
}
