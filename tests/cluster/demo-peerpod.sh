# The demo of PeerPods, for tests/cluster/demo: the instance of a pod is a VirtualMachine, and is gone after the pod.

PEERPOD_VM=podvm-demo-12345678
PEERPOD=demo-resource-abcde
PEERPOD_NAMESPACE=confidential-containers-system

make_for_peerpod() {
    title "prerequisites (existing ones are kept)"
    need_builders
    step "packages: from Debian, where missing" install_packages
    begin "programs: vm-operator and vm-runner" "$REPO/tests/run" --part programs
    begin "cluster: Kubernetes on this machine" start_cluster
    begin "guest: a small Linux" "$HERE/guests/tiny"
    begin "layers: QEMU from Debian's packages" "$HERE/images" packages
    finish programs
    begin "images: vm-operator:$VERSION and vm-runner:$VERSION" "$HERE/images"
    finish
    step "load: both images into the cluster" "$HERE/cluster" load "$REPO"/.cache/images/vm-{operator,runner}.tar
    step "disk: PersistentVolume with the guest's disk" "$HERE/disk" make "$PEERPOD_VM-system" "$REPO/.cache/guests/tiny.img" 48Mi \
        app.kubernetes.io/name=vmrunner "app.kubernetes.io/instance=$PEERPOD_VM" vmrunner.jdrupes.org/disk=system
}

# uid_of KIND NAME [NAMESPACE]
uid_of() { kubectl get "$1" "$2" ${3:+--namespace "$3"} --output 'jsonpath={.metadata.uid}'; }

# apply_example FILE PLACEHOLDER=VALUE...: prints the command as a user would type it, and runs it
apply_example() {
    local file=examples/peerpod/$1 pair script=''
    shift
    for pair; do script+="s/<${pair%%=*}>/${pair#*=}/;"; done
    say "\$ sed '$script' $file | kubectl apply -n $NAMESPACE -f -"
    sed "$script" "$REPO/$file" | kubectl apply --namespace "$NAMESPACE" --filename -
}

# until_gone SECONDS KIND NAME
until_gone() { typed kubectl wait -n "$NAMESPACE" --for delete "$2/$3" --timeout "$1s"; }

demo_peerpod() {
    local cluster pod vm
    title "installation"
    for namespace in "$NAMESPACE" "$PEERPOD_NAMESPACE"; do
        kubectl get namespace "$namespace" >/dev/null 2>&1 || typed kubectl create namespace "$namespace"
        typed kubectl label namespace "$namespace" --overwrite pod-security.kubernetes.io/enforce=restricted
    done
    apply_to_local_cluster
    kubectl get crd peerpods.confidentialcontainers.org >/dev/null 2>&1 || typed kubectl apply -f crds/peerpod/
    typed kubectl apply -k deploy/overlays/peerpod-local
    typed kubectl rollout restart -n "$PEERPOD_NAMESPACE" deployment/vm-operator-peerpod
    typed kubectl rollout status -n "$PEERPOD_NAMESPACE" deployment/vm-operator-peerpod --timeout 120s

    title "a pod, its instance, and the PeerPod that the cloud-api-adaptor would write"
    typed kubectl apply -n "$NAMESPACE" -f examples/peerpod/pod.yaml
    cluster=$(uid_of namespace kube-system) pod=$(uid_of pod demo "$NAMESPACE")
    apply_example virtual-machine.yaml "CLUSTER-UID=$cluster" "POD-UID=$pod"
    vm=$(uid_of vm "$PEERPOD_VM" "$NAMESPACE")
    apply_example peerpod.yaml "VM-UID=$vm" "POD-UID=$pod"
    VM=$PEERPOD_VM
    await Running 300
    await Booted 300
    typed kubectl get peerpods,vms -n "$NAMESPACE"

    title "the end of the pod"
    typed kubectl delete pod -n "$NAMESPACE" demo
    until_gone 150 vm "$PEERPOD_VM"
    until_gone 60 peerpod "$PEERPOD"
    # The event follows the removal of the finalizer.
    sleep 1
    typed kubectl get events -n "$NAMESPACE" --field-selector involvedObject.kind=PeerPod
    kubectl get events --namespace "$NAMESPACE" --field-selector involvedObject.kind=PeerPod,reason=InstanceDeleted --output name |
        grep --quiet . || die "there is no event InstanceDeleted"
}

remove_peerpod_demo() {
    # The pod first, so that the controller deletes its instance. Without a PeerPod, nobody else does.
    typed kubectl delete pod -n "$NAMESPACE" demo --ignore-not-found
    kubectl get peerpod "$PEERPOD" --namespace "$NAMESPACE" >/dev/null 2>&1 ||
        typed kubectl delete vm -n "$NAMESPACE" "$PEERPOD_VM" --ignore-not-found
    until_gone 150 vm "$PEERPOD_VM"
    until_gone 60 peerpod "$PEERPOD"
    typed kubectl delete -k deploy/overlays/peerpod-local --ignore-not-found
    typed kubectl delete -f crds/peerpod/ --ignore-not-found
    typed kubectl delete -k deploy/overlays/local --ignore-not-found
    typed kubectl delete namespace "$PEERPOD_NAMESPACE" "$NAMESPACE" --ignore-not-found
    "$HERE/disk" remove "$PEERPOD_VM-system"
}
