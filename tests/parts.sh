# The functions of the parts. tests/run sources this file, counts the tests and measures the time.

# A panic's message has the expected value and the place. A backtrace of an asynchronous test shows only the executor.
export RUST_BACKTRACE=0
CLUSTER=$REPO/tests/cluster/cluster
# A clone that is built once does not benefit from incremental compilation.
[[ -z ${CI:-} ]] || export CARGO_INCREMENTAL=0

# need COMMAND HOW
need() { command -v "$1" >/dev/null || { echo "$1 is missing; $2"; exit 1; }; }

need_rust() {
    need cargo "install Rust, see https://rustup.rs"
    need cc "apt-get install gcc libc6-dev"
    restore_compiled debug
}

# At low priority: a test run should not slow down other work on the machine. Progress is shown as "crate n of m".
cargo() {
    CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=100 nice -n 5 cargo "$@" 2>&1 | "$REPO/tests/progress" crate
}

# cargo_test ARGUMENTS...: prints the seconds of each test
cargo_test() { CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$REPO/tests/timed cargo test --locked "$@"; }

# --- tier check -----------------------------------------------------------------

# The programs have no tests of their own.
CHECK_TARGETS=(--workspace --lib --test check)

part_build() {
    need_rust
    local targets=("${CHECK_TARGETS[@]}")
    # Includes the tests of the other tiers, so that one step compiles and links them in parallel.
    [[ ${TIER:-check} == check ]] || targets=(--workspace --lib --test '*')
    cargo_test --no-run "${targets[@]}"
}

part_lint() {
    need_rust
    cargo fmt --check
    # --test '*' includes the tests with `test = false`, which --all-targets omits.
    cargo clippy --locked --workspace --lib --bins --benches --test '*' -- -D warnings
    # The fuzz targets are a separate workspace. Its lock file must match that of the product.
    # Not the function: its line of megabytes takes tests/progress a minute.
    command cargo metadata --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null
    # The dependencies of the tests and the lints are compiled by now.
    store_compiled debug debug
    git ls-files -z | xargs -0 grep --files-with-matches --null '^#!.*\bsh$\|^#!.*\bbash$' | xargs -0 -n 1 bash -n
    git ls-files -z '*.sh' | xargs -0 -n 1 bash -n
    lint_workflows
}

# `make check` does not need Go, with which actionlint is built.
lint_workflows() {
    local tool
    if tool=$("$REPO/tests/tools" path actionlint 2>/dev/null); then
        "$tool" "$REPO"/.github/workflows/*.yaml
    elif [[ ${TIER:-check} == check ]]; then
        echo "NOT CHECKED: .github/workflows, because actionlint is missing; \`tests/tools install actionlint\` builds it with Go"
    else
        "$REPO/tests/tools" path actionlint
    fi
}

# In one command, because cargo locks target/ only until everything is compiled: the part lint waits for that.
part_unit() {
    need_rust
    [[ $TIER != check ]] || export MODELS=quick
    cargo_test --no-fail-fast "${CHECK_TARGETS[@]}" -- --skip simulated::
}

# The last commit selects cases, so that another commit runs others: in the tier check a twelfth of those of each controller, because
# a developer waits for it; otherwise a third of those of the three controllers with the most cases. The part seeds runs all.
part_simulated() {
    need_rust
    local tree failed=0 large=(of_sip_clusters to_ec2 to_libvirt)
    tree=${FAULTS_SAMPLE:-$(git rev-parse --quiet --verify 'HEAD^{tree}' || true)}
    if [[ ${TIER:-} == check && -n $tree ]]; then
        FAULTS_SAMPLE=$tree FAULTS_SAMPLE_OF=12 simulated || failed=1
    else
        simulated "${large[@]/#/--skip=}" || failed=1
        FAULTS_SAMPLE=${tree:-all} cargo_test --test check -- "${large[@]}" --test-threads 1 --nocapture || failed=1
    fi
    return "$failed"
}

simulated() { cargo_test --test check -- simulated:: "$@" --test-threads 1 --nocapture; }

# --- tier test --------------------------------------------------------------------

# With a test target of the half, cargo selects the same features of the dependencies as for the lints.
part_halves() {
    need_rust
    local failed=0
    check_half operator vm-operator e2e || failed=1
    check_half runner vm-runner runner || failed=1
    return "$failed"
}

# check_half HALF PROGRAM TEST
check_half() {
    if RUSTC_WORKSPACE_WRAPPER=$REPO/tests/halves/$1 cargo check --locked --lib --bin "$2" --test "$3"; then
        echo "1 passed, 0 failed"
    else
        echo "FAIL the $1 does not compile without the other half"
        echo "0 passed, 1 failed"
        return 1
    fi
}

part_dependencies() { need_rust; "$REPO/tests/deny/check"; }

# Static and optimized, but without link-time optimization: that takes minutes, and only released images have it.
part_programs() {
    need_rust
    restore_compiled ci
    RUSTFLAGS="-C target-feature=+crt-static" cargo build --locked --profile ci --target "$TARGET" --bins
    store_compiled ci ci "$TARGET/ci"
    ls -l "$REPO/target/$TARGET/ci"/vm-{operator,runner}
    # For the upgrade test of a later commit.
    "$REPO/tests/cluster/previous" store "$REPO/target/$TARGET/ci"/vm-{operator,runner}
}

part_cluster() { "$CLUSTER" up; }

part_images() { "$REPO/tests/cluster/images"; }

part_guests() {
    "$REPO/tests/cluster/guests/tiny"
    "$REPO/tests/cluster/guests/secure"
    "$REPO/tests/cluster/guests/debian"
}

# Its tests mostly wait, for example for Leases that expire. KUBERNETES_VERSION=1.37.2 takes the control plane of that version. The
# API server in memory imitates that of the local cluster, so only that one is compared with it.
part_apiserver() {
    need_rust
    local left_out=()
    [[ -z ${KUBERNETES_VERSION:-} ]] || left_out=(--skip conformance)
    "$CLUSTER" build
    cargo_test --no-fail-fast --test api -- apiserver:: --test-threads 8 "${left_out[@]}"
}

part_changes() {
    need_rust
    "$CLUSTER" build
    cargo_test --test api -- changes:: --nocapture
}

part_faults() {
    need_rust
    "$CLUSTER" build
    cargo_test --test api -- faults:: --nocapture
}

part_runner() {
    need_rust
    cargo_test --no-fail-fast --test runner -- --test-threads 4 --skip bench::
}

part_selftests() {
    local failed=0
    "$REPO/tests/cluster/images-selftest" || failed=1
    "$REPO/tests/monitoring/selftest" || failed=1
    "$REPO/tests/web/pages" selftest || failed=1
    return "$failed"
}

part_previous() {
    need_rust
    "$REPO/tests/cluster/previous"
}

# With the programs and images of the other tests, not with those of a release.
part_release() {
    need_rust
    local failed=0
    "$REPO/release/selftest" || failed=1
    with_cluster "$REPO/release/lifecycle" || failed=1
    return "$failed"
}

# Four threads, the number of concurrent guests (tests/e2e/harness/environment.rs).
part_e2e() { with_cluster e2e; }

e2e() {
    local failed=0
    cargo_test --no-fail-fast --test e2e -- --test-threads 4 --skip exhaustive --skip granted --skip soak::an_hour || failed=1
    # Compares the granted permissions with those that these tests have used.
    cargo_test --test e2e -- granted || failed=1
    return "$failed"
}

part_demo() { "$REPO/tests/cluster/demo-selftest"; }

# --- tier exhaustive ----------------------------------------------------------------

# Its own cache, which is empty for each state of the sources, so that no wrong entry of the other cache can hide a
# defect.
use_empty_cache() {
    local kept=$VMOP_CACHE.exhaustive
    export VMOP_CACHE=$kept/${TREE:-uncommitted}
    mkdir -p "$VMOP_CACHE"
    [[ -n $TREE ]] || "$REPO/tests/cache" empty
    # The locks of this cache may be held by a run in another checkout.
    find "$kept" -mindepth 1 -maxdepth 1 ! -name "${VMOP_CACHE##*/}" ! -name "${VMOP_CACHE##*/}.locks" -exec rm -rf --one-file-system {} +
}

# The prerequisites of the part, which are quick if they exist.
with_everything() {
    part_programs
    part_images
    part_guests
    with_cluster "$@"
}

part_model_deep() { need_rust; MODELS=deep cargo_test --test check -- model:: pools::no_vm_has_two_users --test-threads 1 --nocapture; }

part_seeds() { need_rust; FAULTS_SEED=2 FAULTS_SEEDS=6 cargo_test --test check -- simulated:: --test-threads 1 --nocapture; }

part_faults_all() { FAULTS_ALL=1 part_faults; }

part_pool_load() {
    need_rust
    "$CLUSTER" build
    cargo_test --test api -- pool_load:: --nocapture
}

part_changes_all() { CHANGES=500 part_changes; }

part_fuzz() { need_rust; FUZZ_SECONDS=${FUZZ_SECONDS:-60} "$REPO/fuzz/run"; }

part_soak() {
    export SOAK_MINUTES=${SOAK_MINUTES:-15}
    with_everything cargo_test --test e2e -- soak:: --nocapture
}

part_e2e_more() { with_everything cargo_test --no-fail-fast --test e2e -- --test-threads 4 exhaustive; }

part_selftests_more() { with_everything selftests_more; }

selftests_more() {
    local failed=0
    "$REPO/tests/cluster/selftest" || failed=1
    "$REPO/tests/cluster/guests/selftest" || failed=1
    "$REPO/tests/deny/selftest" || failed=1
    "$REPO/release/selftest" twice || failed=1
    return "$failed"
}

part_demo_registry() { with_everything demo_registry; }

# The test ends with the cluster's own objects as the local demo installs them, which need the images on the node.
demo_registry() {
    "$CLUSTER" load "$REPO"/.cache/images/vm-{operator,runner}.tar
    "$REPO/tests/cluster/demo-selftest" registry
}

part_demo_controllers() { with_everything demo_controllers; }

# The demos check each step that they show.
demo_controllers() {
    local demo
    for demo in sip peerpod; do
        DEMO=$demo "$REPO/tests/cluster/demo" up
        # The controller is still there.
        [[ $demo != sip ]] || "$REPO/tests/oidc/check"
        DEMO=$demo "$REPO/tests/cluster/demo" down
    done
}

part_release_build() { need_rust; "$REPO/tests/release" selftest; }

part_dockerfile() { "$REPO/tests/cluster/dockerfile"; }

# --- the cluster --------------------------------------------------------------------

with_cluster() {
    need_rust
    "$CLUSTER" up
    local environment
    environment=$("$CLUSTER" env)
    eval "$environment"
    "$@"
}
